# SPDX-License-Identifier: Apache-2.0
"""A controller that splits the fabric's links between jobs: max-min fair rates per rank, as ceilings of the NICs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fabric_twin.fabric import Fabric
from fabric_twin.processes import Processes
from fabric_twin.topology import Host, Topology

__all__ = ["RateSplit", "fair_rates", "link_shares"]


def link_shares(topology: Topology, flows: Iterable[tuple[Host, Host, float]]) -> dict[int, float]:
    """Port -> weight of the flows that cross it, when at each switch they spread evenly over links of equal cost.

    Args:
        topology: of the fabric.
        flows: sender, receiver, weight.
    """
    shares: dict[int, float] = defaultdict(float)

    def spread(switch: int, dst: Host, weight: float) -> None:
        if switch == dst.tor:
            shares[dst.down] += weight
            return
        choices = topology.switches[switch].towards[dst.tor]
        for port in choices:
            shares[port] += weight / len(choices)
            spread(topology.ports[port].peer, dst, weight / len(choices))

    for src, dst, weight in flows:
        shares[src.nic] += weight
        spread(src.tor, dst, weight)
    return dict(shares)


def fair_rates(capacity: Mapping[int, float], shares: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """The max-min fair rate of one flow of each job, by progressive filling (Bertsekas and Gallager, 1992, 6.5.2).

    Args:
        capacity: port -> rate.
        shares: job -> port -> flows of it that cross the port.

    Returns:
        job -> rate of each of its flows, in the unit of the capacities. A job without flows is left out.
    """
    left = dict(capacity)
    growing = {job: ports for job, ports in shares.items() if ports}
    rates = dict.fromkeys(growing, 0.0)
    while growing:
        weight: dict[int, float] = defaultdict(float)
        for ports in growing.values():
            for port, share in ports.items():
                weight[port] += share
        tightest = min(weight, key=lambda port: left[port] / weight[port])
        step = left[tightest] / weight[tightest]
        for job, ports in growing.items():
            rates[job] += step
            for port, share in ports.items():
                left[port] -= step * share
        full = {port for port in weight if left[port] <= 1e-9 * capacity[port]} | {tightest}
        growing = {job: ports for job, ports in growing.items() if not full & ports.keys()}
    return rates


class RateSplit:
    """The controller of one fabric."""

    PERIOD_PS = 10**9
    """It looks once a millisecond whether jobs have ended."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._processes = Processes(fabric)
        self._shares: dict[str, dict[int, float]] = {}
        self._members: dict[str, list[int]] = {}

    @property
    def jobs(self) -> list[str]:
        """Those it looks after."""
        return list(self._shares)

    def add(self, job: str, flows: Sequence[tuple[Host, Host]], qps: Sequence[list[int]]) -> None:
        """A job has come.

        Args:
            job: its name.
            flows: what is on its way at a time when no step overlaps: one for each edge of its rings.
            qps: queue pairs of each of its ranks.
        """
        self._shares[job] = link_shares(self._fabric.topology, [(src, dst, 1.0) for src, dst in flows])
        self._members[job] = [self._processes.add(list(rows)) for rows in qps]
        self._split()

    def remove(self, job: str) -> None:
        """A job has gone."""
        del self._shares[job], self._members[job]
        self._split()

    def _split(self) -> None:
        capacity = {port.index: port.gbps for port in self._fabric.topology.ports}
        for job, rate in fair_rates(capacity, self._shares).items():
            for process in self._members[job]:
                self._processes.cap(process, rate)
