# SPDX-License-Identifier: Apache-2.0
"""`python -m host_agent` is `host-agent`."""

from __future__ import annotations

import sys

from host_agent.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
