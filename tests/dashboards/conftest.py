# SPDX-License-Identifier: Apache-2.0
"""The dashboards' folder is no installed package: tests find it, and the simulated testbed, by path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent.parent / "dashboards", HERE):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

if TYPE_CHECKING:
    from simulated_testbed import SimulatedTestbed


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[SimulatedTestbed]:
    """Both agents' metrics with data in them."""
    from simulated_testbed import SimulatedTestbed

    testbed = SimulatedTestbed(tmp_path)
    testbed.advance()
    testbed.advance()
    yield testbed
    testbed.close()
