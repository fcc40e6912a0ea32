# SPDX-License-Identifier: Apache-2.0
"""Two hosts into one port: a queue builds up, RED marks, CNPs cut the rates, the port stays busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fabric_twin.engine.state import Port, Qp
from fabric_twin.fabric import DELIVERED

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

US = 10**6
BIG = 800 * 4096


def incast(net: Net, senders: int, length: int) -> list[int]:
    """Hosts 1.. send one message each to host 0; returns the senders' QPs."""
    qps = [net.pair(1 + i, 0)[0] for i in range(senders)]
    for q in qps:
        net.send(q, length)
    return qps


def test_a_queue_below_kmin_is_never_marked(one_switch: Make) -> None:
    """Two bursts that fill the queue to just below Kmin."""
    net = one_switch(kmin=50_000, kmax=100_000)
    incast(net, 2, 11 * 4096)
    net.run()
    assert 35_000 < net.port("tor0->h0", Port.MAX_Q_BYTES) <= 50_000
    assert net.port("tor0->h0", Port.MARKED) == 0
    assert net.fabric.stats().cnps == 0


def test_a_queue_above_kmax_is_always_marked(one_switch: Make) -> None:
    """With Kmax next to 0 every packet that leaves another behind is marked, and no other."""
    net = one_switch(kmin=0, kmax=1, dcqcn="off")
    incast(net, 2, 20 * 4096)
    net.run()
    # of 40 packets the last leaves nobody behind, nor do the first two: departures come before arrivals of the
    # same instant
    assert net.port("tor0->h0", Port.MARKED) == 37


def test_marks_between_kmin_and_kmax_follow_the_ramp(one_switch: Make) -> None:
    """The share of marked packets is near the mean of Pmax (q - Kmin) / (Kmax - Kmin) over the queue's sawtooth."""
    net = one_switch(kmin=0, kmax=4_000_000, pmax=0.5, dcqcn="off", buffer_bytes=20_000_000)
    incast(net, 2, 480 * 4096)  # the queue rises to 2 MB and falls again: mean probability about 1/8
    net.run()
    top = net.port("tor0->h0", Port.MAX_Q_BYTES)
    assert 1_900_000 < top < 2_050_000
    expected = 960 * 0.5 * (top / 2) / 4_000_000
    assert net.port("tor0->h0", Port.MARKED) == pytest.approx(expected, rel=0.3)


def test_packets_that_are_not_ecn_capable_are_not_marked(one_switch: Make) -> None:
    """RED leaves them alone, and nobody sends a CNP."""
    net = one_switch(kmin=0, kmax=1)
    a, _ = net.pair(1, 0, ect=False)
    b, _ = net.pair(2, 0, ect=False)
    net.send(a, BIG)
    net.send(b, BIG)
    net.run()
    assert net.port("tor0->h0", Port.MARKED) == 0
    assert net.fabric.stats().cnps == 0


def test_marks_become_cnps_and_cnps_cut_the_rates(one_switch: Make) -> None:
    """`mlx`: one CNP for each marked packet; each sender ends up far below line rate."""
    net = one_switch()
    qps = incast(net, 2, BIG)
    net.run_until(lambda: net.fabric.stats().cnps > 200 or bool(net.delivered()))
    assert all(net.rate(q) < 7e9 for q in qps)
    net.run()
    marked = net.port("tor0->h0", Port.MARKED)
    receivers = [net.qp(q, Qp.PEER) for q in qps]
    assert marked > 100
    assert sum(net.qp(r, Qp.RX_MARKED) for r in receivers) == marked
    assert sum(net.qp(r, Qp.CNPS_SENT) for r in receivers) == marked
    assert sum(net.qp(q, Qp.CNPS_HANDLED) for q in qps) == marked
    net.check_idle()


def test_the_paper_machine_sends_cnps_at_its_interval(one_switch: Make) -> None:
    """`spec`: at most one CNP per QP in 50 us, however many packets are marked."""
    net = one_switch(dcqcn="spec")
    qps = incast(net, 2, BIG)
    net.run()
    span_us = net.time_of(DELIVERED, 1) / US
    receivers = [net.qp(q, Qp.PEER) for q in qps]
    assert sum(net.qp(r, Qp.RX_MARKED) for r in receivers) > 2 * sum(net.qp(r, Qp.CNPS_SENT) for r in receivers)
    assert all(1 < net.qp(r, Qp.CNPS_SENT) <= span_us / 50 + 1 for r in receivers)


@pytest.mark.parametrize("dcqcn", ["spec", "off"])
@pytest.mark.parametrize("senders", [2, 4])
def test_a_shared_port_stays_busy_and_is_shared_fairly(one_switch: Make, dcqcn: str, senders: int) -> None:
    """Goodput above 80 % of the port from the first packet to the last, and the flows end close to each other."""
    net = one_switch(dcqcn=dcqcn)
    incast(net, senders, BIG)
    net.run()
    ideal = senders * 800 * net.serial(4096)
    assert ideal < net.time_of(DELIVERED, senders - 1) < 1.25 * ideal
    assert net.time_of(DELIVERED, 0) > 0.75 * ideal


def test_a_rate_recovers_when_the_marks_stop(one_switch: Make) -> None:
    """After the other flow has ended, the target rate, which was never clamped, is reached again."""
    net = one_switch()
    a, _ = net.pair(1, 0)
    b, _ = net.pair(2, 0)
    net.send(a, 4 * BIG)
    net.send(b, 400 * 4096)
    net.run_until(lambda: 1 in net.delivered())
    low = net.rate(a)
    net.run_until(lambda: 0 in net.delivered())
    assert low < 7e9 < 9e9 < net.rate(a)


def test_a_connected_again_queue_pair_starts_at_line_rate(one_switch: Make) -> None:
    """RESET and back to RTS: no history, as a new QP for each step has it."""
    net = one_switch()
    (a, b), (c, _) = net.pair(1, 0), net.pair(2, 0)
    net.send(a, BIG)
    net.send(c, BIG)
    net.run()
    assert net.rate(a) < 10e9
    net.fabric.reset_qp(a)
    net.fabric.reset_qp(b)
    net.connect(a, b, 1, 0)
    assert net.rate(a) == 10e9
