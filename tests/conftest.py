# SPDX-License-Identifier: Apache-2.0
"""What all tests share: helper modules in ``tests/support`` can be imported by their plain name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))
