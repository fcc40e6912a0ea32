# SPDX-License-Identifier: Apache-2.0
"""What is observed around a run besides its steps: NIC counters before and after, and how the hosts' clocks relate."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from ring_bench.clocks import Alignment, Offset, pair_uncertainty
from ring_bench.counters import Snapshot, combine, judge
from ring_bench.errors import FabricError, ProviderError
from ring_bench.rank import Record
from ring_bench.rendezvous import Rendezvous
from ring_bench.results import HostClock, PortCounters, RunCounters
from ring_bench.verbs.api import Provider

__all__ = ["Witness"]


class Witness:
    """One process's observations, and after `gather` those of all.

    Args:
        provider: Whose NICs and clock.
        rendezvous: The other processes.
        ranks: World ranks of this process.
        traffic_class: Of the data.
    """

    def __init__(self, provider: Provider, rendezvous: Rendezvous, ranks: Sequence[int], traffic_class: int) -> None:
        self._provider = provider
        self._rendezvous = rendezvous
        self._ranks = ranks
        self._traffic_class = traffic_class
        self._offset: Offset | None = None
        self._before: Snapshot | None = None
        self._ports: list[PortCounters] = []
        self._alignments: dict[int, Alignment] = {}
        self._hosts: dict[int, str] = {}

    def compare_clocks(self) -> int:
        """Measure how far rank 0's clock is ahead, while all processes stand still for it.

        Returns:
            What brings times of this host onto rank 0's clock, to first order, ns.
        """
        self._offset = self._measure()
        self._rendezvous.exchange(dict.fromkeys(self._ranks))  # nobody is busy until all have measured
        return self._offset.offset_ns if self._offset else 0

    def start(self) -> None:
        """Read the counters of all opened devices."""
        with contextlib.suppress(FabricError):  # a fabric that has none
            self._before = self._provider.counters()

    def finish(self) -> None:
        """See how the counters changed. What cannot be read is left out of the result, it ends no run."""
        if self._before is None:
            return
        with contextlib.suppress(ProviderError):
            after = self._provider.counters()
            if after is not None:
                # The twin's devices name their hosts; other hosts are told apart by name.
                machine = "twin" if self._provider.clock == "twin" else platform.node()
                self._ports = judge(machine, self._before, after, self._traffic_class)

    def gather(self) -> None:
        """Measure the clock again, and bring the observations of all processes together."""
        own: dict[str, Any] = {
            "host": platform.node(),
            "before": self._offset.as_data() if self._offset else None,
            "after": again.as_data() if (again := self._measure()) else None,
            "ports": [port.model_dump() for port in self._ports],
        }
        everyone = self._rendezvous.exchange({rank: own if rank == self._ranks[0] else None for rank in self._ranks})
        self._ports = [PortCounters(**port) for told in everyone.values() if told for port in told["ports"]]
        told = None
        for rank, words in sorted(everyone.items()):
            told = words or told  # ranks of one process follow each other
            assert told is not None
            if told["before"] is not None:
                self._alignments[rank] = Alignment.from_data(told["before"], told["after"])
                self._hosts[rank] = told["host"]

    def align(self, records: Mapping[int, Record]) -> dict[int, Record]:
        """Bring the records of all ranks onto rank 0's clock."""
        return {
            rank: record.aligned(self._alignments[rank]) if rank in self._alignments else record
            for rank, record in records.items()
        }

    @property
    def uncertainty_ns(self) -> int:
        """How far a time between two hosts of the run may be off; 0: all share one clock."""
        distinct = dict.fromkeys(self._alignments.values())
        return pair_uncertainty([None, *distinct])

    @property
    def counters(self) -> RunCounters | None:
        """The counters, of all processes after `gather`, else of this one."""
        return combine(self._ports)

    @property
    def clocks(self) -> list[HostClock]:
        """The hosts with a clock of their own."""
        ranks: dict[tuple[str, Alignment], list[int]] = {}
        for rank, alignment in self._alignments.items():
            ranks.setdefault((self._hosts[rank], alignment), []).append(rank)
        return [
            HostClock(
                host=host,
                ranks=members,
                offset_ns=alignment.before.offset_ns,
                uncertainty_ns=alignment.uncertainty_ns,
                drift_ppm=alignment.drift * 1e6 if alignment.after else None,
            )
            for (host, alignment), members in ranks.items()
        ]

    def _measure(self) -> Offset | None:
        return None if self._provider.clock == "twin" else self._rendezvous.measure_clock()
