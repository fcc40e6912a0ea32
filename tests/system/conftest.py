# SPDX-License-Identifier: Apache-2.0
"""The VM with real soft-RoCE, booted at its first use and shared by all tests of a session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy" / "vm"), str(ROOT / "deploy")]

from soft_roce_vm import VirtualMachine, missing_packages  # noqa: E402


@pytest.fixture(scope="session")
def vm() -> Iterator[VirtualMachine]:
    """A booted guest: devices rxe0 to rxe3 on h0 to h3, addresses 10.77.0.1 to .4; commands start in the checkout.

    Without its Debian packages the test fails, or is skipped where SYMPHONY_SKIP_MISSING_TOOLS=1 says so.
    """
    if (absent := missing_packages()) and os.environ.get("SYMPHONY_SKIP_MISSING_TOOLS") == "1":
        pytest.skip(f"missing: apt-get install --no-install-recommends {' '.join(absent)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        machine = VirtualMachine(hosts=4)
    with machine:
        yield machine
