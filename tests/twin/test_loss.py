# SPDX-License-Identifier: Apache-2.0
"""PFC, drops and everything that makes a reliable connection reliable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_twin.engine import events
from fabric_twin.engine.state import PFC_OFF, PFC_ON, Port, Qp
from fabric_twin.errors import FabricError
from fabric_twin.fabric import ACKED, DELIVERED, RETRY_EXC, RNR_RETRY_EXC

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

US = 10**6
MS = 10**9
RTO = 4_096_000  # picoseconds of timeout 0; doubles with each unit


# --------------------------------------------------------------------------------------------------- PFC


@pytest.mark.parametrize("dcqcn", ["off", "mlx"])
def test_an_incast_into_a_small_buffer_pauses_and_loses_nothing(one_switch: Make, dcqcn: str) -> None:
    """Seven to one: pause frames hold the senders, every message arrives, no port stays paused."""
    net = one_switch(buffer_bytes=300_000, dcqcn=dcqcn)
    for i in range(1, 8):
        net.send(net.pair(i, 0)[0], 200 * 4096)
    net.run()
    assert sorted(net.delivered()) == list(range(7))
    assert net.fabric.stats().drops == 0
    pauses = [net.port(f"h{i}->tor0", Port.PAUSES) for i in range(1, 8)]
    assert all(count > 0 for count in pauses)
    counters = net.fabric.link_counters(net.fabric.topology.port("h3->tor0").index)
    assert counters["pause_frames_received"] == pauses[2]
    assert 0 < counters["paused_s"] < 1
    net.check_idle()


def test_pauses_spread_through_the_spine_and_are_all_lifted(two_racks: Make) -> None:
    """Incast across racks: the ToR pauses the spine, the spine the other ToR, that one its hosts."""
    net = two_racks(hosts=4, spines=1, uplink_gbps=40.0, buffer_bytes=300_000, dcqcn="off")
    for i in range(4, 8):
        net.send(net.pair(i, 0)[0], 300 * 4096)
    net.run()
    assert sorted(net.delivered()) == [0, 1, 2, 3]
    assert net.fabric.stats().drops == 0
    for link in ("spine0->tor0", "tor1->spine0", "h4->tor1"):
        assert net.port(link, Port.PAUSES) > 0, link
    net.check_idle()


def test_a_paused_port_blocks_innocent_flows_too(one_switch: Make) -> None:
    """Head-of-line blocking, PFC's price: a flow to an idle host suffers from its neighbour QP's incast."""
    net = one_switch(buffer_bytes=300_000, dcqcn="off")
    for i in range(1, 8):
        net.send(net.pair(i, 0)[0], 200 * 4096)
    victim, _ = net.pair(1, 2)
    place = net.send(victim, 100 * 4096)
    net.run()
    at = [e.time_ps for e, (kind, p, _) in zip(net.events, net.order, strict=True) if kind == DELIVERED and p == place]
    assert at[0] > 2 * (2 * 100 * net.serial(4096))


@pytest.mark.parametrize(("kinds", "paused"), [((PFC_ON, PFC_OFF), 0), ((PFC_OFF, PFC_ON), 1)])
def test_pause_and_resume_of_the_same_instant_keep_their_order(
    one_switch: Make, kinds: tuple[int, int], paused: int
) -> None:
    """A port must not stick because a resume overtook a pause."""
    net = one_switch()
    view = net.fabric.view
    nic = net.fabric.topology.hosts[0].nic * Port.COLUMNS
    for kind in kinds:
        events.push(view, 0, 3 * US, kind, nic, 0, 0)
    net.run(until=4 * US)
    assert net.port("h0->tor0", Port.PAUSED) == paused


def test_a_paused_nic_sends_nothing_until_it_is_resumed(one_switch: Make) -> None:
    """The packet on its way out still leaves."""
    net = one_switch()
    a, _ = net.pair(0, 1)
    view = net.fabric.view
    nic = net.fabric.topology.hosts[0].nic * Port.COLUMNS
    net.send(a, 10 * 4096)
    events.push(view, 0, 1 * US, PFC_ON, nic, 0, 0)
    events.push(view, 0, 100 * US, PFC_OFF, nic, 0, 0)
    net.run(until=99 * US)
    assert net.qp(a, Qp.TX_PACKETS) == 1
    net.run()
    assert net.time_of(DELIVERED) == 100 * US + 9 * net.serial(4096) + net.serial(4096) + 2 * US
    assert net.port("h0->tor0", Port.PAUSED_PS) == 99 * US


# --------------------------------------------------------------------------------------------------- loss


def test_a_lossy_fabric_drops_and_go_back_n_delivers_everything_once_and_in_order(one_switch: Make) -> None:
    """Without PFC a small buffer overflows; receivers NAK, senders go back."""
    net = one_switch(pfc=False, buffer_bytes=100_000, dcqcn="off")
    flows: dict[int, list[int]] = {}
    for i in range(1, 5):
        a, b = net.pair(i, 0, timeout=9)
        flows[b] = [net.send(a, 40 * 4096) for _ in range(5)]
    net.run()
    assert net.fabric.stats().drops > 10
    for b, places in flows.items():
        assert [p for kind, p, row in net.order if kind == DELIVERED and row == b] == places
    assert sorted(net.acked()) == list(range(20))
    assert net.port("tor0->h0", Port.DROPPED) == net.fabric.stats().drops
    net.check_idle()


@settings(deadline=None, max_examples=25)
@given(
    loss=st.floats(0.01, 0.05),
    seed=st.integers(1, 1000),
    lengths=st.lists(st.integers(0, 60_000), min_size=1, max_size=12),
    imm=st.booleans(),
)
def test_random_loss_on_every_link_is_recovered(
    two_racks: Make, loss: float, seed: int, lengths: list[int], imm: bool
) -> None:
    """1 to 5 % per link: each message is delivered and acknowledged exactly once, in order, both ways."""
    net = two_racks(hosts=2, seed=seed)
    for port in net.fabric.topology.ports:
        net.fabric.set_link(port.name, drop=loss)
    a, b = net.pair(0, 2, timeout=4)
    c, d = net.pair(3, 1, timeout=4)
    places: dict[int, list[int]] = {b: [], d: [], a: []}
    for length in lengths:
        for sender, receiver in ((a, b), (c, d), (b, a)):
            places[receiver].append(net.send(sender, length, imm=imm))
    net.run()
    for receiver, expected in places.items():
        assert [p for kind, p, row in net.order if kind == DELIVERED and row == receiver] == expected
    assert sorted(net.acked()) == sorted(place for some in places.values() for place in some)
    assert not [e for e in net.events if e.kind in (RETRY_EXC, RNR_RETRY_EXC)]
    net.check_idle()


def test_a_lost_packet_in_the_middle_is_asked_for_again_by_a_nak(one_switch: Make) -> None:
    """Out of sequence once, one NAK, no timeout; everything from the lost packet on is sent again."""
    net = one_switch()
    a, b = net.pair(0, 1)
    net.send(a, 20 * 4096)
    busy = net.serial(4096)
    net.run(until=5 * busy + US - 1)
    net.fabric.set_link("h0->tor0", drop=1.0)
    net.run(until=5 * busy + US)  # the fifth packet arrives now
    net.fabric.set_link("h0->tor0", drop=0.0)
    net.run()
    assert net.delivered() == [0]
    assert net.qp(a, Qp.TIMEOUTS) == 0
    assert net.qp(b, Qp.OUT_OF_SEQUENCE) == net.qp(a, Qp.RETRANSMITTED) - 1 > 0
    assert net.qp(a, Qp.TX_PACKETS) == 20 + net.qp(a, Qp.RETRANSMITTED)


@pytest.mark.parametrize("lost", [1, 3])
def test_the_loss_of_the_last_packet_is_recovered_by_the_timer(one_switch: Make, lost: int) -> None:
    """Nobody notices it but the timer; each further loss costs one more period."""
    net = one_switch()
    a, _ = net.pair(0, 1, timeout=10)
    period = RTO << 10
    net.fabric.set_link("h0->tor0", drop=1.0)
    net.send(a, 1000)
    net.run(until=(lost - 1) * period + 10 * US)
    net.fabric.set_link("h0->tor0", drop=0.0)
    net.run()
    assert net.time_of(DELIVERED) == lost * period + 2 * net.serial(1000) + 2 * US
    assert net.qp(a, Qp.TIMEOUTS) == net.qp(a, Qp.RETRANSMITTED) == lost
    assert net.acked() == [0]
    net.check_idle()


@pytest.mark.parametrize("retry_cnt", [0, 1, 7])
def test_a_dead_receiver_is_given_up_after_retry_cnt_retransmissions(one_switch: Make, retry_cnt: int) -> None:
    """RETRY_EXC comes at the timeout after the last one that was answered by sending again."""
    net = one_switch()
    a, b = net.pair(0, 1, timeout=8, retry_cnt=retry_cnt)
    net.fabric.reset_qp(b)
    net.send(a, 5000)
    net.run()
    (event,) = net.events
    assert (event.kind, event.qp, event.time_ps) == (RETRY_EXC, a, (retry_cnt + 1) * (RTO << 8))
    assert net.qp(a, Qp.TX_PACKETS) == 2 * (retry_cnt + 1)
    net.fabric.reset_qp(a)
    net.run()
    net.check_idle()


def test_a_receiver_that_dies_in_mid_message_is_noticed_within_two_periods(one_switch: Make) -> None:
    """The timer runs from the first packet on, not only when the message has left."""
    net = one_switch()
    a, b = net.pair(0, 1, timeout=6, retry_cnt=0)
    net.send(a, 4096 * 2000)
    net.run(until=MS)
    net.fabric.destroy_qp(b)
    net.run()
    (event,) = net.events
    assert event.kind == RETRY_EXC
    assert MS < event.time_ps < MS + 2 * (RTO << 6)


def test_a_receiver_that_serves_somebody_else_now_counts_as_dead(one_switch: Make) -> None:
    """Its progress with another sender is no sign of life for the old one."""
    net = one_switch()
    a, b = net.pair(0, 1, timeout=8, retry_cnt=1)
    c, d = net.pair(2, 3)
    net.fabric.reset_qp(b)
    net.fabric.reset_qp(c)
    net.fabric.destroy_qp(d)
    net.connect(c, b, 2, 1)
    net.fabric.receives(b, 10)
    net.send(a, 4096)
    for _ in range(10):
        net.send(c, 1000 * 4096)
    net.run()
    assert [e.time_ps for e in net.events if e.kind == RETRY_EXC] == [2 * (RTO << 8)]
    assert len(net.delivered()) == 10


def test_a_connection_of_which_one_end_was_reset_delivers_nothing_wrong(one_switch: Make) -> None:
    """PSNs of the two ends mean different things then; the sender fails, the receiver sees no message."""
    net = one_switch()
    a, b = net.pair(0, 1, timeout=6, retry_cnt=1)
    for _ in range(3):
        net.send(a, 2 * 4096)
    net.run()
    net.fabric.reset_qp(a)
    settings: dict[str, Any] = {
        "mtu": 4096,
        "psn": 0,
        "ect": True,
        "timeout": 6,
        "retry_cnt": 1,
        "rnr_retry": 7,
        "rnr_timer_ps": US,
    }
    net.fabric.connect(a, net.fabric.topology.hosts[1], b, sport=0xC000, **settings)
    net.send(a, 10 * 4096)
    net.send(a, 10 * 4096)
    net.run()
    assert net.delivered() == [0, 1, 2]
    assert net.events[-1].kind == RETRY_EXC


def test_a_timer_that_fires_for_nothing_does_no_harm(one_switch: Make) -> None:
    """The shortest timeout expires while packets wait in a queue; what is acknowledged is not sent to the end."""
    net = one_switch(dcqcn="off", kmin=10_000_000, kmax=20_000_000, buffer_bytes=40_000_000)
    qps = [net.pair(i, 0, timeout=1, retry_cnt=7) for i in range(1, 5)]
    for _ in range(4):
        for a, _ in qps:
            net.send(a, 3 * 4096)
    net.run()
    failed = {e.qp for e in net.events if e.kind == RETRY_EXC}
    for a, b in qps:
        got = [p for kind, p, row in net.order if kind == DELIVERED and row == b]
        assert got == sorted(set(got))
        assert a in failed or len(got) == 4
    for a in failed:
        net.fabric.reset_qp(a)
    net.run()
    net.check_idle()


def test_without_a_timeout_the_fabric_waits_for_ever_and_is_idle(one_switch: Make) -> None:
    """Timeout 0: a lost packet is never missed, and the clock does not run away."""
    net = one_switch()
    a, _ = net.pair(0, 1, timeout=0)
    net.fabric.set_link("h0->tor0", drop=1.0)
    net.send(a, 1000)
    net.run()
    assert net.events == []
    assert net.fabric.now_ps < MS


def test_the_twin_says_how_many_timeouts_it_keeps(one_switch: Make) -> None:
    """Eight different values; the ninth is an error, and a fresh start forgets them."""
    net = one_switch()
    for timeout in range(1, 9):
        net.pair(0, 1, timeout=timeout)
    with pytest.raises(FabricError, match="8 different ACK timeouts"):
        net.pair(0, 1, timeout=20)


# --------------------------------------------------------------------------------------------------- RNR


def test_a_message_waits_for_its_receive(one_switch: Make) -> None:
    """RNR NAK, a pause as long as the receiver asks for, again; then it is delivered once."""
    net = one_switch()
    a, b = net.pair(0, 1, receives=0, rnr_timer_ps=50 * US)
    net.send(a, 3 * 4096)
    net.run(until=500 * US)
    assert net.events == []
    naks = net.qp(a, Qp.RNR_NAKS)
    assert 8 <= naks <= 10
    net.fabric.receives(b, 1)
    net.run()
    assert net.delivered() == net.acked() == [0]
    assert net.time_of(DELIVERED) < 500 * US + 2 * 50 * US
    assert net.qp(a, Qp.TX_PACKETS) == 3 + naks
    assert net.qp(b, Qp.RQ) == 0


def test_a_plain_write_needs_no_receive(one_switch: Make) -> None:
    """Only writes with immediate and sends consume one."""
    net = one_switch()
    a, b = net.pair(0, 1, receives=1)
    for imm in (False, True, False):
        net.send(a, 5000, imm=imm)
    net.run()
    assert net.delivered() == [0, 1, 2]
    assert net.qp(b, Qp.RQ) == 0


@pytest.mark.parametrize("rnr_retry", [0, 2])
def test_a_receiver_that_is_never_ready_is_given_up(one_switch: Make, rnr_retry: int) -> None:
    """RNR_RETRY_EXC at the NAK after rnr_retry ones that were answered by sending again."""
    net = one_switch()
    a, b = net.pair(0, 1, receives=0, rnr_retry=rnr_retry)
    net.send(a, 100)
    net.send(a, 100)
    net.run()
    (event,) = net.events
    assert (event.kind, event.qp) == (RNR_RETRY_EXC, a)
    assert net.qp(a, Qp.RNR_NAKS) == rnr_retry + 1
    assert net.qp(b, Qp.RQ) == 0
    assert not [e for e in net.events if e.kind == ACKED]


def test_rnr_retry_7_means_for_ever_and_waiting_is_no_timeout(one_switch: Make) -> None:
    """A pause longer than the ACK timeout does not count against retry_cnt."""
    net = one_switch()
    a, b = net.pair(0, 1, receives=0, rnr_timer_ps=5 * MS, timeout=6, retry_cnt=0)
    net.send(a, 100)
    net.run(until=100 * MS)
    assert net.events == []
    net.fabric.receives(b, 1)
    net.run()
    assert net.delivered() == [0]
    assert net.qp(a, Qp.TIMEOUTS) == 0
