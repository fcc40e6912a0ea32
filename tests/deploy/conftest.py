# SPDX-License-Identifier: Apache-2.0
"""These tests share the dashboards' helpers: programs to run, the simulated testbed, query parsing."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "dashboards", ROOT / "tests" / "dashboards"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
