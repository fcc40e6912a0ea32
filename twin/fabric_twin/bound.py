# SPDX-License-Identifier: Apache-2.0
"""How fast a job could be: the time that its busiest link needs for the bytes that must cross it.

With a ring's steps in lock-step every step loads the same links alike, so this is also the time of the paper's
theoretical schedule (section 2.2), up to the latency of a packet per step.
"""

from __future__ import annotations

from collections import defaultdict

from fabric_twin.engine.state import GAP_BYTES, MTU_HEADER_BYTES
from fabric_twin.presets import Settings
from fabric_twin.rate_split import link_shares
from fabric_twin.script_layout import hosts_of, links_of, plan_of
from fabric_twin.topology import Topology
from fabric_twin.workload import Job

__all__ = ["busiest_link_ns"]


def busiest_link_ns(spec: Settings, job: Job) -> float:
    """Time in ns that the busiest link needs for all of a job's data, headers and gaps included.

    Flows spread evenly over links of equal cost. Computation, acknowledgements and receive credits take no time here.

    Raises:
        ConfigError: the job does not fit the fabric.
    """
    topology = Topology(spec, 0)
    plan, hosts = plan_of(job, spec.mtu), hosts_of(job, topology)
    runs: dict[int, int] = defaultdict(int)
    for operation in plan.operations:
        runs[operation.shape] += 1
    position = {rank: place for group in plan.config.groups for place, rank in enumerate(group)}
    flows = []
    for edge in links_of(plan):
        wire = 0
        for shape, times in runs.items():
            for step in plan.steps_of(shape, edge.ring, position[edge.rank]):
                if step.axis == edge.axis and step.send is not None:
                    payload = sum(segment.wire_length for segment in step.send.segments)
                    wire += times * (payload + step.send.packets * (MTU_HEADER_BYTES + GAP_BYTES))
        flows.append((hosts[edge.rank], hosts[edge.behind], float(wire)))
    shares = link_shares(topology, flows)
    return max(8 * wire / topology.ports[port].gbps for port, wire in shares.items())
