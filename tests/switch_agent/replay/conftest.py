# SPDX-License-Identifier: Apache-2.0
"""Makes ``replay_wire`` (frames and capture files, written by hand) importable for the tests beside it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
