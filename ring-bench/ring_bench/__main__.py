# SPDX-License-Identifier: Apache-2.0
"""``python -m ring_bench`` is ``ring-bench``."""

from ring_bench.cli import main

main()
