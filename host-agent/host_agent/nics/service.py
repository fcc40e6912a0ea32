# SPDX-License-Identifier: Apache-2.0
"""The NICs of this machine for REST and command line: inventory, plan, apply, restore, doctor.

Netlink, sysfs and programs block, so from the event loop everything here runs in one thread of its own, one request
after the other. A fresh `Machine` per request: nothing that it has read before is taken for true again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from host_agent.nics.checks import CHECKS
from host_agent.nics.inventory import inventory
from host_agent.nics.knobs import Workbench
from host_agent.nics.models import Outcome, Plan, Wishes
from host_agent.nics.netlink import Netlink
from host_agent.nics.prepare import Journal, Preparation
from ring_bench.doctor import Machine, Options, Report, diagnose

__all__ = ["NicService"]

_T = TypeVar("_T")


class NicService:
    """Works on this machine's NICs.

    Args:
        state_dir: Where the journal of changes lies.
        make_machine: Gives the machine to look at; tests give others.
        netlink: The network configuration; by default that of this process's namespace.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        make_machine: Callable[[], Machine] = Machine,
        netlink: Netlink | None = None,
    ) -> None:
        self._folder = state_dir / "nics"
        self._make_machine = make_machine
        self._netlink = netlink or Netlink()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nics")

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._netlink.close()

    # -- blocking, for the command line

    def show(self) -> dict[str, Any]:
        """The inventory, and what is set here and could be restored."""
        bench = self._bench()
        changed = self._preparation(bench).changed()
        return {"nics": inventory(bench), "changed": [change.model_dump() for change in changed]}

    def plan(self, wishes: Wishes) -> Plan:
        """See `Preparation.plan`."""
        return self._preparation(self._bench()).plan(wishes)

    def apply(self, wishes: Wishes) -> Outcome:
        """See `Preparation.apply`."""
        return self._preparation(self._bench()).apply(wishes)

    def restore(self, *, force: bool) -> Outcome:
        """See `Preparation.restore`."""
        return self._preparation(self._bench()).restore(force=force)

    def doctor(self, options: Options, only: Sequence[str]) -> Report:
        """Examine this very process's machine, limits and capabilities."""
        return diagnose(self._make_machine(), options, only=only, checks=CHECKS)

    # -- for the event loop

    async def later(self, work: Callable[[], _T]) -> _T:
        """Run one of the above without blocking the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _bench(self) -> Workbench:
        return Workbench(self._make_machine(), self._netlink)

    def _preparation(self, bench: Workbench) -> Preparation:
        boot = bench.machine.read(bench.machine.proc / "sys/kernel/random/boot_id") or "unknown"
        return Preparation(bench, Journal(self._folder, boot))
