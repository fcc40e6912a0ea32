# SPDX-License-Identifier: Apache-2.0
"""The NICs' options: a window on what is under way, selective repeat beside go-back-N. Times worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_twin.engine.state import HELD, Port, Qp, Sc
from fabric_twin.errors import ConfigError
from fabric_twin.fabric import ACKED, DELIVERED, RETRY_EXC
from fabric_twin.presets import get_preset

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

US = 10**6
SLOT = (4096 + 82) * 800
"""A full packet on a 10 Gb/s link, ps."""
BACK = 2 * (US + 66 * 800)
"""An acknowledgement over two links."""


def lose(net: Net, link: str, *packets: int) -> None:
    """Run until just before each of these packets (from 0) of one flow has crossed the link, and lose it."""
    for number in packets:
        arrival = (number + 1) * SLOT + US
        net.run(until=arrival - 1)
        net.fabric.set_link(link, drop=1)
        net.run(until=arrival)
        net.fabric.set_link(link, drop=0)


# ------------------------------------------------------------------------------------------------ window


@pytest.mark.parametrize("packets", [1, 2, 3])
def test_a_window_of_some_packets_is_sent_once_per_round_trip(one_switch: Make, packets: int) -> None:
    """12 packets; a round trip is two slots, two propagation delays and the way of the acknowledgement back."""
    net = one_switch(window="bdp", dcqcn="off")
    a, _ = net.pair(0, 1)
    net.fabric.view.qp[a + Qp.WINDOW] = packets * 4096
    round_trip = 2 * SLOT + 2 * US + BACK
    net.send(a, 12 * 4096)
    net.run()
    rounds = 12 // packets
    assert net.time_of(ACKED) == (rounds - 1) * round_trip + round_trip + (packets - 1) * SLOT


@pytest.mark.parametrize(("window", "factor"), [("bdp", 1), ("off", 0)])
def test_the_window_is_base_rtt_times_line_rate_and_costs_an_idle_fabric_nothing(
    two_racks: Make, window: str, factor: int
) -> None:
    """Four hops of 1 us: 8 us and four serialisations of 4096 bytes, at 10 Gb/s; a flow alone goes at line rate."""
    net = two_racks(window=window, dcqcn="off")
    a, _ = net.pair(0, 5)
    assert net.qp(a, Qp.WINDOW) == int((8 + 4 * 3.2768) * 1e4 / 8) == 26_384
    assert (net.fabric.view.sc[Sc.OPTIONS] != 0) == bool(factor)
    net.send(a, 100 * 4096)
    net.run()
    assert net.time_of(DELIVERED) == 103 * SLOT + 4 * US


def test_a_window_bounds_what_waits_in_front_of_a_slow_link(one_switch: Make) -> None:
    """Four packets under way; the slow link is never idle, so it decides how long it takes."""
    for window, most in (("bdp", 3 * 4158), ("off", 100 * 4158)):
        net = one_switch(window=window, dcqcn="off")
        a, _ = net.pair(0, 1)
        net.fabric.set_link("tor0->h1", gbps=5)
        net.send(a, 100 * 4096)
        net.run()
        assert net.time_of(DELIVERED) == SLOT + US + 100 * 2 * SLOT + US
        peak = net.port("tor0->h1", Port.MAX_Q_BYTES)
        assert peak <= most
        if window == "off":
            assert peak > 40 * 4158
        net.check_idle()


def test_an_incast_with_windows_fills_no_more_than_they_allow(one_switch: Make) -> None:
    """Seven senders of four packets; scaled windows let DCQCN's rates have less."""
    peaks = {}
    for window in ("off", "bdp", "scaled"):
        net = one_switch(window=window)
        for i in range(1, 8):
            net.send(net.pair(i, 0)[0], 1_000_000)
        net.run()
        assert sorted(net.delivered()) == list(range(7))
        peaks[window] = net.port("tor0->h0", Port.MAX_Q_BYTES)
        net.check_idle()
    assert peaks["bdp"] <= 28 * 4158 < peaks["off"]
    assert peaks["scaled"] <= peaks["bdp"]


def test_a_window_is_all_the_same_to_a_rate_below_it(one_switch: Make) -> None:
    """A flow that DCQCN does not slow down and nothing delays has the same events with any window."""
    times = []
    for window in ("off", "bdp", "scaled"):
        net = one_switch(window=window)
        for i in (0, 2, 4):
            net.send(net.pair(i, i + 1)[0], 500_000)
        net.run()
        times.append([event.time_ps for event in net.events])
    assert times[0] == times[1] == times[2]


# ------------------------------------------------------------------------------------------------ one loss


@pytest.mark.parametrize(("retransmission", "resent", "slots"), [("selective", 1, 11), ("go-back-n", 5, 15)])
def test_one_lost_packet_costs_one_or_all_since(one_switch: Make, retransmission: str, resent: int, slots: int) -> None:
    """Ten packets, number 3 is lost.

    Number 4 shows it at the receiver after 6 slots + 2 us, the NAK is back 2.1 us later, in slot 7. Selective repeat
    sends number 3 in slot 8 and then 8 and 9; go-back-N all seven from 3 on, five of them again.
    """
    net = one_switch(retransmission=retransmission, dcqcn="off")
    a, b = net.pair(0, 1)
    net.send(a, 10 * 4096)
    lose(net, "h0->tor0", 3)
    net.run()
    assert 7 * SLOT < 6 * SLOT + 2 * US + BACK < 8 * SLOT
    assert net.qp(a, Qp.RETRANSMITTED) == resent
    assert net.qp(a, Qp.TX_PACKETS) == slots
    assert net.time_of(DELIVERED) == (slots + 1) * SLOT + 2 * US
    assert net.qp(b, Qp.OUT_OF_SEQUENCE) == 4
    assert net.qp(a, Qp.TIMEOUTS) == 0
    net.check_idle()


def test_two_gaps_are_named_by_two_naks_and_filled_by_two_packets(one_switch: Make) -> None:
    """Numbers 3, 6 and 7 of twenty: three packets again."""
    net = one_switch(retransmission="selective", dcqcn="off")
    a, _ = net.pair(0, 1)
    net.send(a, 20 * 4096)
    lose(net, "h0->tor0", 3, 6, 7)
    net.run()
    assert net.qp(a, Qp.RETRANSMITTED) == 3
    assert net.time_of(DELIVERED) == 24 * SLOT + 2 * US
    net.check_idle()


def test_messages_behind_a_gap_are_delivered_in_order_once_it_is_filled(one_switch: Make) -> None:
    """Five messages of two packets, the very first packet is lost: all five at the time it comes."""
    net = one_switch(retransmission="selective", dcqcn="off")
    a, b = net.pair(0, 1)
    places = [net.send(a, 2 * 4096) for _ in range(5)]
    lose(net, "h0->tor0", 0)
    net.run()
    assert net.delivered() == net.acked() == places
    times = [event.time_ps for event in net.events if event.kind == DELIVERED]
    # number 1 arrives after 3 slots + 2 us, the NAK comes while 4 is sent, number 0 follows it and is in front of 5
    assert times == [slots * SLOT + 2 * US for slots in (7, 7, 8, 10, 12)]
    assert net.qp(b, Qp.RX_PSN) == 10
    net.check_idle()


def test_a_lost_last_packet_and_a_lost_retransmission_show_by_the_timer(one_switch: Make) -> None:
    """No later packet reveals them; only what is missing is sent again."""
    net = one_switch(retransmission="selective", dcqcn="off")
    a, _ = net.pair(0, 1, timeout=6)
    net.send(a, 10 * 4096)
    lose(net, "h0->tor0", 3)
    net.run(until=9 * SLOT + US - 1)  # number 3 again, the ninth packet to be sent, and after it 8 and 9
    net.fabric.set_link("h0->tor0", drop=1)
    net.run(until=11 * SLOT + US)
    net.fabric.set_link("h0->tor0", drop=0)
    net.run()
    assert net.delivered() == [0]
    assert net.qp(a, Qp.TIMEOUTS) == 1
    assert net.qp(a, Qp.TX_PACKETS) == 11 + 3
    assert net.qp(a, Qp.RETRANSMITTED) == 1 + 3
    net.check_idle()


def test_a_receiver_that_is_not_ready_keeps_what_comes_behind(one_switch: Make) -> None:
    """Two messages and no receive: after the pause one packet again, not three."""
    net = one_switch(retransmission="selective", dcqcn="off")
    a, b = net.pair(0, 1, receives=0, rnr_timer_ps=50 * US)
    net.send(a, 4096)
    net.send(a, 2 * 4096)
    net.run(until=20 * US)
    net.fabric.receives(b, 2)
    net.run()
    assert net.delivered() == [0, 1]
    assert net.qp(a, Qp.RNR_NAKS) == 1
    assert net.qp(a, Qp.RETRANSMITTED) == 1
    net.check_idle()


def test_more_out_of_order_than_there_is_room_for_is_lost_and_comes_again(one_switch: Make) -> None:
    """The first packet of 3000 is lost and its retransmission late: what lies beyond the room is dropped."""
    net = one_switch(hosts=2, retransmission="selective", dcqcn="off", mtu=256, delay_us=300.0)
    a, b = net.pair(0, 1, timeout=9)
    net.send(a, 3000 * 256)
    net.run(until=300 * US + 200_000)
    net.fabric.set_link("h0->tor0", drop=1)
    net.run(until=300 * US + 300_000)
    net.fabric.set_link("h0->tor0", drop=0)
    net.run()
    assert net.delivered() == [0]
    assert net.qp(b, Qp.RX_PSN) == 3000
    assert net.qp(a, Qp.TX_PACKETS) > 3000 + (3000 - HELD) // 2
    net.check_idle()


def test_retries_end_with_selective_repeat_too(one_switch: Make) -> None:
    """A dead link: the QP fails after its retries, and a new connection works."""
    net = one_switch(retransmission="selective", window="bdp")
    a, b = net.pair(0, 1, timeout=4, retry_cnt=2)
    net.send(a, 20 * 4096)
    lose(net, "h0->tor0", 2)
    net.fabric.set_link("h0->tor0", drop=1)
    net.run()
    assert [event.kind for event in net.events] == [RETRY_EXC]
    net.fabric.set_link("h0->tor0", drop=0)
    net.fabric.reset_qp(a)
    net.fabric.reset_qp(b)
    net.connect(a, b, 0, 1)
    net.fabric.receives(b, 5)
    place = net.send(a, 50_000)
    net.run()
    assert net.delivered() == [place]
    assert not net.fabric.view.held.any()
    net.check_idle()


# ------------------------------------------------------------------------------------------------ always


def test_without_loss_both_ways_of_repeating_are_the_same(two_racks: Make) -> None:
    """To the picosecond, with marks and pauses."""
    times = []
    for retransmission in ("go-back-n", "selective"):
        net = two_racks(retransmission=retransmission, kmin=5_000, kmax=80_000, pmax=0.3, buffer_bytes=300_000)
        for i in range(8):
            net.send(net.pair(i, (i + 5) % 8, sport=0xC000 + i)[0], 400_000)
        net.run()
        assert net.fabric.stats().drops == 0
        times.append([(event.time_ps, event.kind) for event in net.events])
    assert times[0] == times[1]


flows = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 300_000), st.integers(1, 4)).filter(
        lambda f: f[0] != f[1]
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=40)
@given(
    flows=flows,
    loss=st.sampled_from([0.0, 0.001, 0.05, 0.3]),
    window=st.sampled_from(["off", "bdp", "scaled"]),
    retransmission=st.sampled_from(["selective", "go-back-n"]),
    pfc=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_message_arrives_once_and_in_order_whatever_is_lost(
    two_racks: Make, flows: list[Any], loss: float, window: str, retransmission: str, pfc: bool, seed: int
) -> None:
    """Packets sent = received + dropped, the PSNs of both ends agree, nothing is left anywhere."""
    net = two_racks(seed=seed, window=window, retransmission=retransmission, pfc=pfc, buffer_bytes=200_000)
    for name in ("h0->tor0", "tor0->spine0", "spine1->tor1", "tor1->h5"):
        net.fabric.set_link(name, drop=loss)
    ends = []
    for number, (src, dst, length, count) in enumerate(flows):
        a, b = net.pair(src, dst, timeout=3, retry_cnt=7, sport=0xC000 + number)
        ends.append((a, b, [net.send(a, length) for _ in range(count)]))
    net.run()
    failed = {event.qp for event in net.events if event.kind == RETRY_EXC}
    sent = sum(net.qp(a, Qp.TX_PACKETS) for a, _, _ in ends)
    received = sum(net.qp(b, Qp.RX_PACKETS) for _, b, _ in ends)
    stale = 0 if not failed else sent - received - net.fabric.stats().drops
    assert sent == received + net.fabric.stats().drops + stale
    for a, b, places in ends:
        mine = [place for kind, place, row in net.order if kind == DELIVERED and row == b]
        assert mine == places[: len(mine)]
        if a not in failed:
            assert mine == [place for kind, place, row in net.order if kind == ACKED and row == a] == places
            assert net.qp(b, Qp.RX_PSN) == net.qp(a, Qp.SND_NXT)
            assert net.qp(a, Qp.LOST_HEAD) == -1
        net.fabric.reset_qp(a)
        net.fabric.reset_qp(b)
    assert not net.fabric.view.held.any()
    net.check_idle()


@pytest.mark.parametrize("change", [{"window": "huge"}, {"retransmission": "hybrid"}])
def test_an_option_that_is_not_there_is_named_with_those_that_are(change: dict[str, Any]) -> None:
    """As for every field of a preset."""
    with pytest.raises(ConfigError, match=r"has (window|retransmission) '\w+'; there are"):
        get_preset("demo", **change)
