# SPDX-License-Identifier: Apache-2.0
"""Strict priority for a job's lagging step: it overtakes the job's other steps, and no flow overtakes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_twin.engine.state import Qp
from fabric_twin.fabric import DELIVERED
from switch_agent.dataplane.params import SymphonyParams

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

JOB = 1
MS = 10**9
STEP = 0xC000
SILENT = replace(SymphonyParams().to_entry(), lg_k=-(1 << 15)).values()
"""Tracks a job and marks nothing."""


def rank(net: Net, *, ranked: bool) -> None:
    """Make every ToR track all packets of its own hosts as one job, from step 0."""
    for tor in range(net.preset.tors):
        local = {int(host.address) for host in net.fabric.topology.hosts if host.tor == tor}
        net.fabric.set_classifier(tor, lambda src, _dst, _sport, local=local: (JOB, JOB) if src in local else None)
        net.fabric.set_params(tor, JOB, SILENT, ranked=ranked)
    net.fabric.planes.regs.steps_mn[:, JOB] = 1
    net.fabric.planes.regs.steps_mx[:, JOB] = 1


def lagging_done(two_racks: Make, *, ranked: bool) -> float:
    """When a message of step 0 has arrived that came into a queue full of step 3, in ms."""
    net = two_racks(spines=1, dcqcn="off", buffer_bytes=50_000_000)
    rank(net, ranked=ranked)
    for host in (0, 1, 2):
        ahead, _ = net.pair(host, 4 + host, sport=STEP | 3)
        net.send(ahead, 4_000_000)
    net.run(until=2 * MS)
    lagging, receiver = net.pair(3, 7, sport=STEP)
    net.send(lagging, 1_000_000)
    net.run()
    (done,) = [event.time_ps for event in net.events if event.kind == DELIVERED and event.qp == receiver]
    net.check_idle()
    return done / MS - 2


def test_a_lagging_message_passes_a_queue_of_steps_ahead(two_racks: Make) -> None:
    alone = 1_000_000 * 8 / 10e9 * 1e3
    assert lagging_done(two_racks, ranked=True) < 1.1 * alone
    assert lagging_done(two_racks, ranked=False) > 3 * alone


def test_without_packets_ahead_priority_changes_nothing(two_racks: Make) -> None:
    orders = []
    for ranked in (False, True):
        net = two_racks(spines=1)
        rank(net, ranked=ranked)
        for host in range(3):
            q, _ = net.pair(host, 4 + host, sport=STEP)
            net.send(q, 300_000)
        net.run()
        orders.append([tuple(event) for event in net.events])
    assert orders[0] == orders[1]


@settings(max_examples=25, deadline=None)
@given(
    sends=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 60_000), st.integers(0, 60)),
        min_size=2,
        max_size=14,
    )
)
def test_no_flow_overtakes_itself(two_racks: Make, sends: list[tuple[int, int, int, int]]) -> None:
    """Whatever steps come and go: every packet arrives in its QP's order, and nothing is lost or left."""
    net = two_racks(spines=1, mtu=1024)
    rank(net, ranked=True)
    pairs = {}
    for host, step, size, pause in sends:
        if (host, step) not in pairs:
            pairs[host, step] = net.pair(host, 4 + host, sport=STEP | step)
        net.send(pairs[host, step][0], size)
        net.run(until=net.fabric.now_ps + pause * 10**6)
    net.run()
    assert len(net.delivered()) == len(sends)
    for q, r in pairs.values():
        assert net.qp(r, Qp.OUT_OF_SEQUENCE) == 0
        assert not net.fabric.view.qp[q + Qp.OUTRANKED : q + Qp.AFTER_OUTRANKED].any()
    net.check_idle()
