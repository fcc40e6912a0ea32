# SPDX-License-Identifier: Apache-2.0
"""From a benchmark's shape to the flows that each switch has to classify.

A ring AllReduce sends from every rank to its successor in its group. A switch gets those flows whose source
host hangs on it: the source ToR is where Symphony watches a job. All rings of a group run over the same
pairs of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from host_agent.errors import BadInputError
from host_agent.models import BenchSpec
from host_agent.testbed import HostEntry
from ring_bench.schedule import Schedule, Split

__all__ = ["Flow", "flows_by_switch", "ring_edges"]


class Flow(NamedTuple):
    """Addresses of a sender and its receiver; `dst` None stands for any receiver."""

    src: str
    dst: str | None


def ring_edges(world: int, bench: BenchSpec) -> list[tuple[int, int]]:
    """(sender, receiver) world ranks of the job's rings. Raises BadInputError for a split that does not
    fit.
    """
    try:
        groups = Split.parse(bench.split or "MOD 1").groups(world)
    except ValueError as error:
        raise BadInputError(f"bench.split: {error}") from error
    edges = []
    for members in groups:
        ring = Schedule(count=0, dims=(len(members),), rings=bench.rings)
        if len(members) > 1:
            edges += [(rank, members[ring.next_rank(place)]) for place, rank in enumerate(members)]
    return edges


def flows_by_switch(hosts: Sequence[HostEntry], bench: BenchSpec | None) -> dict[str, list[Flow]]:
    """Flows per switch name. Without `bench` the ring order is unknown: every flow that leaves one of the
    hosts.
    """
    out: dict[str, list[Flow]] = {}
    if bench is None:
        for host in hosts:
            out.setdefault(host.switch, []).append(Flow(host.address, None))
        return out
    for sender, receiver in ring_edges(len(hosts), bench):
        source = hosts[sender]
        out.setdefault(source.switch, []).append(Flow(source.address, hosts[receiver].address))
    return out
