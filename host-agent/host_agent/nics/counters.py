# SPDX-License-Identifier: Apache-2.0
"""NIC counters for /metrics: read in the background, served as a snapshot.

Of this machine's RDMA ports, and on the twin of every host of the testbed (device ``twin_<host>``). A counter that
cannot be read is left out, a port whose reading stopped vanishes after `STALE_INTERVALS`; nothing is exported as 0.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from host_agent.hub import CollectorStatus
from host_agent.testbed import Testbed
from ring_bench.counters import counter_value, port_values
from ring_bench.doctor import Machine
from ring_bench.doctor.machine import Port

__all__ = ["INTERVAL_S", "NicCounters", "PortSample"]

INTERVAL_S: Final = 5.0
STALE_INTERVALS: Final = 3
_STATES: Final = {"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4, "ACTIVE_DEFER": 5}

log = logging.getLogger("host_agent")


@dataclass(frozen=True)
class PortSample:
    """What one port said at one moment."""

    device: str
    port: str
    values: Mapping[str, int]
    """By the kernel's names."""
    unreadable: Mapping[str, int]
    """How many counter files cannot be read or hold no counter's value, by folder."""
    taken_s: float
    """On this process's monotonic clock."""
    state: int | None = None
    """As the kernel numbers it: 4 is active."""
    gbps: float | None = None
    board: tuple[str, str, str] | None = None
    """Board, firmware and type of the device, for its info metric."""


@dataclass
class NicCounters:
    """Samples ports until cancelled.

    Args:
        testbed: Names the twin and its hosts, if there is one.
        sys: Root of sysfs.
        twin: Fetches the counters of a host of the twin; by default over its REST interface.
        interval_s: Between two samples; mlx5 caches its counters for `lifespan` (10 ms), others do not.
    """

    testbed: Testbed
    sys: Path = Path("/sys")
    twin: Callable[[str], Awaitable[Mapping[str, int]]] | None = None
    interval_s: float = INTERVAL_S
    status: CollectorStatus = field(default_factory=CollectorStatus)
    _samples: dict[tuple[str, str], PortSample] = field(default_factory=dict)
    _named: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """Files of each port that cannot be read, as the log has them."""

    async def run(self) -> None:
        """Sample for ever."""
        async with httpx.AsyncClient(timeout=1.0) as client:
            if self.twin is None and self.testbed.twin is not None:
                base = f"{self.testbed.twin.http.rstrip('/')}/api/v1/hosts"

                async def fetch(host: str) -> Mapping[str, int]:
                    answer = await client.get(f"{base}/{host}/counters")
                    return {
                        str(name): value
                        for name, text in answer.raise_for_status().json().items()
                        if (value := counter_value(str(text))) is not None
                    }

                self.twin = fetch
            while True:
                await self.sample()
                await asyncio.sleep(self.interval_s)

    async def sample(self) -> None:
        """Read everything once."""
        local, problem = await asyncio.to_thread(self._read_ports)
        remote = []
        if self.twin is not None:
            try:
                for host in self.testbed.hosts:
                    values = await self.twin(host.name)
                    remote.append(PortSample(f"twin_{host.name}", "1", values, {}, time.monotonic()))
            except (httpx.HTTPError, ValueError, TypeError, AttributeError) as error:
                problem = f"the twin's counters cannot be read: {error!r}"
        if problem and problem != self.status.error:
            log.warning("NIC counters: %s", problem)
        self.status.error, self.status.success = problem, problem is None
        if problem is None:
            self.status.last_success_unix_s = time.time()
        now = time.monotonic()
        kept = {key: old for key, old in self._samples.items() if now - old.taken_s < STALE_INTERVALS * self.interval_s}
        self._samples = kept | {(sample.device, sample.port): sample for sample in (*local, *remote)}

    @property
    def samples(self) -> Sequence[PortSample]:
        """The newest sample of each port that is not too old."""
        oldest = time.monotonic() - STALE_INTERVALS * self.interval_s
        return [sample for sample in self._samples.values() if sample.taken_s > oldest]

    def _read_ports(self) -> tuple[list[PortSample], str | None]:
        machine = Machine(sys=self.sys)
        samples = []
        try:
            for port in machine.ports:
                values, unreadable = port_values(port.device, port.number, self.sys)
                self._name(port, unreadable)
                folder = machine.infiniband / port.device
                board = tuple(machine.read(folder / name) or "" for name in ("board_id", "fw_ver", "hca_type"))
                samples.append(
                    PortSample(
                        device=port.device,
                        port=str(port.number),
                        values=values,
                        unreadable=_by_folder(folder / "ports" / str(port.number), unreadable),
                        taken_s=time.monotonic(),
                        state=_STATES.get(port.state),
                        gbps=port.gbps,
                        board=(board[0], board[1], board[2]),
                    )
                )
        except OSError as error:
            return samples, f"{error.filename or self.sys}: {error.strerror or error}"
        return samples, None

    def _name(self, port: Port, unreadable: Sequence[str]) -> None:
        """Tell the log which of a port's files cannot be read: once, and again when that changes."""
        before, now = self._named.get((port.device, port.number), frozenset()), frozenset(unreadable)
        self._named[port.device, port.number] = now
        if now - before:
            log.warning(
                "%s: counters that cannot be read, or hold no number from 0 to 2^64-1, are left out: %s",
                port.name,
                ", ".join(sorted(now - before)),
            )
        elif before - now:
            log.info("%s: counters that can be read again: %s", port.name, ", ".join(sorted(before - now)))


def _by_folder(port: Path, unreadable: Sequence[str]) -> dict[str, int]:
    """Count a port's unreadable files by folder; folders that it does not have are left out, a readable one is 0."""
    there = {name: 0 for name in ("counters", "hw_counters") if (port / name).is_dir()}
    return there | Counter(name.partition("/")[0] for name in unreadable)
