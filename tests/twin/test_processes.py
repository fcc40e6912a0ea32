# SPDX-License-Identifier: Apache-2.0
"""What NICs do with what they know of processes: shares by progress, and ceilings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fabric_twin.engine.state import Process, Qp
from fabric_twin.fabric import DELIVERED
from fabric_twin.processes import Processes

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

MS = 10**9
STEP = 0xC000


def shares(one_switch: Make, *, weighed: bool) -> list[int]:
    """Packets that two hosts have sent to a third in 20 ms; the first lags, the second does not."""
    net = one_switch(hosts=5)
    processes = Processes(net.fabric)
    senders = []
    for host, step, newest in ((0, 10, 14), (1, 14, 13)):
        q, _ = net.pair(host, 4, sport=STEP | step)
        before, r = net.pair(host + 2, host, sport=STEP | newest)
        processes.add([q, r], weighed=weighed)
        net.send(before, 1000)
        senders.append(q)
    net.run()
    for q in senders:
        net.send(q, 1 << 28)
    net.run(until=net.fabric.now_ps + 20 * MS)
    return [net.qp(q, Qp.TX_PACKETS) for q in senders]


def test_a_process_that_lags_takes_the_larger_share_of_a_congested_link(one_switch: Make) -> None:
    lagging, leading = shares(one_switch, weighed=True)
    assert lagging > 1.5 * leading


def test_without_weights_both_take_the_same(one_switch: Make) -> None:
    lagging, leading = shares(one_switch, weighed=False)
    assert lagging == pytest.approx(leading, rel=0.15)


def test_the_newest_step_that_has_come_is_remembered_over_a_wrap(one_switch: Make) -> None:
    net = one_switch(hosts=2)
    numbers = []
    for step in (1022, 1023, 0, 1, 0):
        q, r = net.pair(0, 1, sport=STEP | step)
        if not numbers:
            process = Processes(net.fabric).add([r])
        net.fabric.view.qp[r + Qp.PROCESS] = process
        net.send(q, 100)
        net.run()
        numbers.append(int(net.fabric.view.process[process + Process.HEARD]) - 1)
    assert numbers == [1022, 1023, 0, 1, 1]


def test_a_process_keeps_its_ceiling_over_reset(one_switch: Make) -> None:
    net = one_switch(hosts=2)
    q, r = net.pair(0, 1)
    processes = Processes(net.fabric)
    process = processes.add([q])
    processes.cap(process, 2.0)
    for _ in range(2):
        began = net.fabric.now_ps
        net.send(q, 4_096_000)
        done = [event.time_ps for event in net.run() if event.kind == DELIVERED]
        wire = 1000 * (4096 + 82)
        assert (done[0] - began) / 1e12 == pytest.approx(wire * 8 / 2e9, rel=0.01)
        net.fabric.reset_qp(q)
        net.fabric.reset_qp(r)
        net.connect(q, r, 0, 1)
        net.fabric.receives(r, 10)


def test_a_ceiling_that_is_lifted_is_gone(one_switch: Make) -> None:
    net = one_switch(hosts=2)
    q, _ = net.pair(0, 1)
    processes = Processes(net.fabric)
    process = processes.add([q])
    processes.cap(process, 0.5)
    processes.cap(process, None)
    assert net.rate(q) == pytest.approx(10e9)
    net.send(q, 4_096_000)
    net.run()
    assert net.time_of(DELIVERED) / 1e12 < 1.02 * 1000 * (4096 + 82) * 8 / 10e9
