# SPDX-License-Identifier: Apache-2.0
"""From a benchmark's shape to the flows that each switch has to classify.

A ring AllReduce sends from every rank to its successor in its group. A switch gets those flows whose source
host hangs on it: the source ToR is where Symphony watches a job. Symphony switches above the ToRs get all flows
that leave their ToR. All rings of a group run over the same pairs of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from host_agent.errors import BadInputError
from host_agent.models import BenchSpec
from host_agent.testbed import HostEntry, SwitchEntry
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


def flows_by_switch(
    hosts: Sequence[HostEntry], bench: BenchSpec | None, switches: Sequence[SwitchEntry] = ()
) -> dict[str, list[Flow]]:
    """Flows per switch name. Without `bench` the ring order is unknown: every flow that leaves one of the
    hosts.

    Args:
        hosts: of the job's ranks.
        bench: what they run.
        switches: of the testbed; those of a tier above the ToRs are looked for here.
    """
    out: dict[str, list[Flow]] = {}
    upper = [switch.name for switch in switches if switch.tier > 0]
    pairs: list[tuple[HostEntry, HostEntry | None]] = [(host, None) for host in hosts]
    if bench is not None:
        pairs = [(hosts[sender], hosts[receiver]) for sender, receiver in ring_edges(len(hosts), bench)]
    for source, to in pairs:
        flow = Flow(source.address, None if to is None else to.address)
        leaves = to is None or source.switch is None or source.switch != to.switch
        for name in [source.switch, *upper] if leaves else [source.switch]:
            if name is not None:
                out.setdefault(name, []).append(flow)
    return out
