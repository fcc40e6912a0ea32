# SPDX-License-Identifier: Apache-2.0
"""doctor's checks for host-agent: ring-bench's, and what host-agent itself needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from host_agent.nics.netlink import TESTED
from ring_bench.doctor import CHECKS as BENCH_CHECKS
from ring_bench.doctor import Check, Finding
from ring_bench.doctor.findings import fine, warning
from ring_bench.doctor.options import Examination

__all__ = ["CHECKS", "check_files", "check_pyroute2"]

_ENOUGH_FILES: Final = 4096


def check_pyroute2(_: Examination) -> Iterator[Finding]:
    """Is pyroute2 of a version that the tests have seen?"""
    version = metadata.version("pyroute2")
    low, high = (tuple(map(int, text.split("."))) for text in re.findall(r"[\d.]+", TESTED))
    own = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if low <= own < high:
        yield fine("pyroute2", "", f"{version}, tested are {TESTED}")
    else:
        yield warning(
            "pyroute2",
            "",
            f"version {version} is outside {TESTED}, which the tests ran with; some releases hang or leak",
            f"pip install 'pyroute2{TESTED}'",
        )


def check_files(on: Examination) -> Iterator[Finding]:
    """May this process open enough files for its streams and rings?"""
    machine = on.machine
    limits = machine.read(machine.proc / "self/limits") or ""
    match = re.search(r"^Max open files\s+(\d+)", limits, re.M)
    used = len(machine.entries(machine.proc / "self/fd"))
    if match and int(match[1]) < _ENOUGH_FILES:
        yield warning(
            "open-files",
            "",
            f"this process may open {match[1]} files and has {used}",
            "systemd LimitNOFILE=65536; ulimit -n 65536",
        )
    elif match:
        yield fine("open-files", "", f"{used} of {match[1]} in use")


CHECKS: Final = (*BENCH_CHECKS, Check(("pyroute2",), check_pyroute2), Check(("open-files",), check_files))
