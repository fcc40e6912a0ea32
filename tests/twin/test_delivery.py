# SPDX-License-Identifier: Apache-2.0
"""When messages arrive and are acknowledged, against formulas worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from fabric_twin.engine import kernel
from fabric_twin.engine.state import Qp
from fabric_twin.errors import FabricError
from fabric_twin.fabric import ACKED, DELIVERED

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

US = 10**6
ACK_WIRE = 66 * 800  # bytes of an acknowledgement at 10G


def arrival(busy: list[list[int]], delay: int) -> int:
    """When the last packet has crossed all links, each storing and forwarding; `busy[link][packet]`."""
    at = [0] * len(busy[0])
    for link in busy:
        free = 0
        for i, time in enumerate(link):
            free = max(free, at[i]) + time
            at[i] = free + delay
    return at[-1]


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 12_289, 40_000])
def test_a_message_on_an_idle_path_takes_its_serialisation_and_the_delays(one_switch: Make, length: int) -> None:
    """Two links; header 62 B, gap 20 B; the acknowledgement comes back as pure delay over the same links."""
    net = one_switch()
    a, _ = net.pair(0, 1)
    net.send(a, length)
    net.run()
    busy = [net.serial(payload) for payload in net.packets(length)]
    expected = arrival([busy, busy], US)
    assert net.time_of(DELIVERED) == expected
    assert net.time_of(ACKED) == expected + 2 * (US + ACK_WIRE)
    net.check_idle()


def test_one_packet_over_four_links_of_two_rates(two_racks: Make) -> None:
    """Store and forward at every hop, each at its own rate."""
    net = two_racks(uplink_gbps=40.0)
    a, _ = net.pair(0, 5)
    net.send(a, 4096)
    net.run()
    slow, fast = net.serial(4096), net.serial(4096, 40.0)
    assert net.time_of(DELIVERED) == 2 * slow + 2 * fast + 4 * US


@pytest.mark.parametrize(("length", "packets"), [(0, 1), (1, 1), (4095, 1), (4096, 1), (4097, 2), (8192, 2), (8193, 3)])
def test_a_message_has_as_many_packets_as_it_fills(one_switch: Make, length: int, packets: int) -> None:
    """A message of 0 bytes is one packet; one byte more than the MTU makes two."""
    net = one_switch()
    a, b = net.pair(0, 1)
    net.send(a, length)
    net.run()
    assert net.qp(a, Qp.TX_PACKETS) == net.qp(b, Qp.RX_PACKETS) == packets
    wire = net.fabric.link_counters(net.fabric.topology.port("h0->tor0").index)["tx_bytes"]
    assert wire == length + packets * 82


def test_two_queue_pairs_share_a_nic_packet_by_packet(one_switch: Make) -> None:
    """Round robin: at any time neither is ahead by more than the packet in the air when the second one came."""
    net = one_switch()
    a, _ = net.pair(0, 1)
    b, _ = net.pair(0, 2)
    net.send(a, 100 * 4096)
    net.send(b, 100 * 4096)
    for step in range(1, 30):
        net.run(until=step * 20 * US)
        assert abs(net.qp(a, Qp.TX_PACKETS) - net.qp(b, Qp.TX_PACKETS)) <= 2
    net.run()
    first, second = net.time_of(DELIVERED, 0), net.time_of(DELIVERED, 1)
    assert second - first <= 2 * net.serial(4096)
    assert second == 200 * net.serial(4096) + net.serial(4096) + 2 * US


def test_many_queue_pairs_take_turns_whatever_order_they_finish_in(one_switch: Make) -> None:
    """Messages of 2 to 14 packets from seven QPs of one NIC: the shortest ends first, all in the right order."""
    net = one_switch()
    qps = [net.pair(0, 1 + i)[0] for i in range(7)]
    for i in (3, 0, 6, 1, 5, 2, 4):
        net.send(qps[i], (i + 1) * 2 * 4096)
    net.run()
    sizes = [4, 1, 7, 2, 6, 3, 5]
    assert [sizes[place] for place in net.delivered()] == sorted(sizes)
    net.check_idle()


def test_messages_of_a_queue_pair_arrive_in_order_and_back_to_back(one_switch: Make) -> None:
    """The wire has no gap between two messages of one QP."""
    net = one_switch()
    a, _ = net.pair(0, 1)
    for _ in range(5):
        net.send(a, 4096)
    net.run()
    times = [event.time_ps for event in net.events if event.kind == DELIVERED]
    assert [b - a for a, b in pairwise(times)] == [net.serial(4096)] * 4
    assert net.delivered() == net.acked() == [0, 1, 2, 3, 4]


def test_both_directions_of_a_connection_are_independent(one_switch: Make) -> None:
    """Full duplex: two equal messages that cross arrive at the same time."""
    net = one_switch()
    a, b = net.pair(0, 1)
    net.send(a, 20_000)
    net.send(b, 20_000)
    net.run()
    assert net.time_of(DELIVERED, 0) == net.time_of(DELIVERED, 1)


def test_time_stops_at_the_limit_and_at_completions(one_switch: Make) -> None:
    """`run` returns at the limit, at a delivery somebody may wait for, and says when nothing can happen."""
    net = one_switch()
    a, _ = net.pair(0, 1)
    net.send(a, 4096)
    fabric = net.fabric
    assert fabric.run(until_ps=US) == kernel.REACHED
    assert fabric.now_ps == US
    assert fabric.run() == kernel.STOPPED
    assert [event.kind for event in fabric.take_events()] == [DELIVERED]
    assert fabric.run() == kernel.STOPPED
    assert [event.kind for event in fabric.take_events()] == [ACKED]
    assert fabric.run() == kernel.IDLE
    assert fabric.run() == kernel.IDLE


def test_an_empty_fabric_is_idle_and_its_clock_can_be_moved(one_switch: Make) -> None:
    """Nothing to do is not the end of time."""
    net = one_switch()
    assert net.fabric.run() == kernel.IDLE
    assert net.fabric.now_ps == 0
    assert net.fabric.run(until_ps=5 * US) == kernel.REACHED
    assert net.fabric.now_ps == 5 * US


def test_a_rate_change_applies_to_packets_that_have_not_left(one_switch: Make) -> None:
    """A link that slows down in flight keeps what it has done; the rest takes the new rate."""
    net = one_switch()
    a, _ = net.pair(0, 1)
    net.send(a, 10 * 4096)
    fast = net.serial(4096)
    net.run(until=5 * fast - 1)  # the fifth packet is leaving the NIC
    net.fabric.set_link("h0->tor0", gbps=1.0)
    net.run()
    assert net.time_of(DELIVERED) == 5 * fast + 5 * 10 * fast + fast + 2 * US


def test_a_host_cannot_send_to_itself(one_switch: Make) -> None:
    """The error comes before anything has changed."""
    net = one_switch()
    a, b = net.pair(0, 1)
    with pytest.raises(FabricError, match="h0 sends to itself"):
        net.connect(a, b, 0, 0)
    assert net.fabric.run() == kernel.IDLE


def test_a_nic_holds_a_limited_number_of_queue_pairs(one_switch: Make) -> None:
    """The next one is refused, and one that is destroyed makes room."""
    net = one_switch(hosts=2)
    host = net.fabric.topology.hosts[0]
    rows = [net.fabric.create_qp(host, i) for i in range(4096)]
    with pytest.raises(FabricError, match="4096 queue pairs"):
        net.fabric.create_qp(host, 5000)
    net.fabric.destroy_qp(rows[7])
    net.fabric.create_qp(host, 5000)
