# SPDX-License-Identifier: Apache-2.0
"""What must hold whatever happens: nothing gets lost in the books, time goes forward, a seed fixes everything."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_twin.engine import kernel
from fabric_twin.engine.state import Port, Qp, Sc
from fabric_twin.fabric import DELIVERED

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

US = 10**6
MS = 10**9

flows = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 80_000), st.integers(0, 200)).filter(
        lambda f: f[0] != f[1]
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=25)
@given(
    flows=flows,
    seed=st.integers(0, 99),
    pfc=st.booleans(),
    buffer=st.sampled_from([90_000, 200_000, 9_000_000]),
    dcqcn=st.sampled_from(["mlx", "spec", "off"]),
)
def test_packets_sent_are_packets_received_or_dropped(
    two_racks: Make, flows: list[tuple[int, int, int, int]], seed: int, pfc: bool, buffer: int, dcqcn: str
) -> None:
    """Sent = received + dropped; received = accepted in order + out of sequence + duplicates + not ready."""
    net = two_racks(seed=seed, pfc=pfc, buffer_bytes=buffer, dcqcn=dcqcn, kmin=20_000, kmax=60_000)
    qps: list[tuple[int, int, int]] = []
    for src, dst, length, start in sorted(flows, key=lambda f: f[3]):
        net.run(until=start * US)
        a, b = net.pair(src, dst, timeout=8, sport=0xC000 + len(qps))
        qps.append((a, b, net.send(a, length)))
    net.run()
    sent = sum(net.qp(a, Qp.TX_PACKETS) for a, _, _ in qps)
    received = sum(net.qp(b, Qp.RX_PACKETS) for _, b, _ in qps)
    assert sent == received + net.fabric.stats().drops
    assert net.fabric.stats().drops == sum(net.ports(Port.DROPPED))
    assert net.fabric.stats().data_packets == sent
    for a, b, place in qps:
        accepted = net.qp(b, Qp.RX_PSN)
        assert accepted == net.qp(a, Qp.SND_NXT)
        assert accepted + net.qp(b, Qp.OUT_OF_SEQUENCE) <= net.qp(b, Qp.RX_PACKETS)
        assert net.qp(a, Qp.TX_PACKETS) <= accepted + net.qp(a, Qp.RETRANSMITTED)
        assert net.delivered().count(place) == net.acked().count(place) == 1
    if pfc and buffer == 9_000_000:
        assert sent == received == sum(net.qp(b, Qp.RX_PSN) for _, b, _ in qps)
    times = [event.time_ps for event in net.events]
    assert times == sorted(times)
    net.check_idle()


actions = st.lists(
    st.tuples(
        st.sampled_from(["reset", "destroy", "reconnect", "mask", "classify", "link", "sport"]), st.integers(0, 7)
    ),
    min_size=1,
    max_size=15,
)


@settings(deadline=None, max_examples=25)
@given(actions=actions, seed=st.integers(0, 99), gap=st.integers(1, 60), pfc=st.booleans())
def test_nothing_that_changes_in_flight_corrupts_the_books(
    two_racks: Make, actions: list[tuple[str, int]], seed: int, gap: int, pfc: bool
) -> None:
    """QPs reset, destroyed, reconnected to the other rack, re-routed, reclassified; links that change their rate.

    Packets on their way keep their route, and when everything has ended no buffer holds a byte.
    """
    net = two_racks(seed=seed, pfc=pfc, buffer_bytes=300_000)
    fabric = net.fabric
    for tor in (0, 1):
        fabric.set_params(tor, 5, (0, 1, -1701, 0, 192, -64, 8, -390, 4096, 128))
    ends: dict[int, tuple[int, int]] = {}
    for i in range(8):
        ends[i] = net.pair(i, (i + 5) % 8, timeout=4, retry_cnt=2, sport=0xC000 + i)
        for _ in range(3):
            net.send(ends[i][0], 60_000)
    for step, (action, i) in enumerate(actions):
        net.run(until=fabric.now_ps + gap * US)
        if action == "mask":
            for switch in range(2):
                fabric.set_hash_sport_mask(switch, 0xFFFF * (i % 2))
        elif action == "classify":
            found = (5, i) if i % 3 else None
            fabric.set_classifier(i % 2, functools.partial(lambda answer, *_: answer, found))
        elif action == "link":
            fabric.set_link(f"h{i}->tor{i // 4}", gbps=1.0 + 3 * (step % 4))
        elif i in ends:
            a, b = ends[i]
            if action == "sport":
                fabric.set_sport(a, 0xC000 + 100 * step)
                continue
            fabric.reset_qp(a)
            if action == "destroy":
                fabric.destroy_qp(a)
                fabric.reset_qp(b)
                del ends[i]
            elif action == "reconnect":
                fabric.reset_qp(b)
                net.connect(a, b, i, (i + 5) % 8, timeout=4, retry_cnt=2, sport=0xC000 + 50 * step)
                fabric.receives(b, 10)
                net.send(a, 30_000)
    net.run()
    for a, b in ends.values():
        fabric.reset_qp(a)
        fabric.reset_qp(b)
    net.run()
    net.check_idle()


def busy(net: Net) -> list[tuple[int, int, int]]:
    """A run with marks, pauses and several paths; its events relative to its start, told apart by message."""
    start, first = net.fabric.now_ps, len(net.order)
    qps = [net.pair(i, (i + 3) % 8, sport=0xC000 + 7 * i, timeout=14 - i % 2) for i in range(8)]
    places = [net.send(a, 100_000 + 4096 * i) for i, (a, _) in enumerate(qps) for _ in range(3)]
    net.run()
    mine = net.order[first:]
    found = [(event.time_ps - start, kind, place - places[0]) for event, (kind, place, _) in
             zip(net.events[first:], mine, strict=True)]  # fmt: skip
    for a, b in qps:
        net.fabric.destroy_qp(a)
        net.fabric.destroy_qp(b)
    return found


CONGESTED: dict[str, Any] = {"hosts": 4, "kmin": 5_000, "kmax": 80_000, "pmax": 0.3}


def test_a_seed_fixes_every_event(two_racks: Make) -> None:
    """Same seed, same list of events; another seed, another one."""
    runs = [busy(two_racks(seed=seed, **CONGESTED)) for seed in (3, 3, 4)]
    assert len(runs[0]) == 48
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_size_of_the_slices_changes_nothing(two_racks: Make) -> None:
    """The daemon runs in small slices so that others get their turn."""
    whole = busy(two_racks(seed=3, **CONGESTED))
    net = two_racks(seed=3, **CONGESTED)
    run = net.fabric.run
    net.fabric.run = lambda until_ps=None, max_events=7: run(until_ps, 7)  # type: ignore[method-assign]
    assert busy(net) == whole


def test_after_quiesce_a_run_equals_that_of_a_fresh_fabric(two_racks: Make) -> None:
    """Nothing that ran before shows: not the dice, the clock, the paths, nor the order in which lines were made."""
    fresh = two_racks(seed=1, **CONGESTED)
    fresh.fabric.quiesce(7)
    used = two_racks(seed=2, **CONGESTED)
    for a, b in ((0, 1), (0, 5)):
        used.send(used.pair(a, b, timeout=9)[0], 500_000)
    busy(used)
    used.fabric.quiesce(7)
    assert used.fabric.now_ps % (2**30 * 1000) == 0
    assert busy(used) == busy(fresh)


def test_quiesce_waits_for_what_is_on_its_way(one_switch: Make) -> None:
    """It ends with an idle fabric whose clock stands on a round number."""
    net = one_switch()
    a, b = net.pair(0, 1)
    net.send(a, 1_000_000)
    net.run(until=100 * US)
    net.fabric.quiesce(3)
    assert net.fabric.now_ps == 2**30 * 1000
    assert net.qp(b, Qp.RX_PSN) == 245
    assert net.fabric.next_event_ps is None


def test_pools_grow_while_packets_fly(one_switch: Make) -> None:
    """More packets and control entries than the fabric started with."""
    net = one_switch(hosts=8, mtu=256, pfc=False, dcqcn="off", buffer_bytes=60_000_000, kmin=10**8, kmax=10**9)
    for i in range(1, 8):
        a, _ = net.pair(i, 0, mtu=256)
        for _ in range(20):
            net.send(a, 256 * 200)
    peak = 0
    while net.fabric.run(max_events=20_000) != kernel.IDLE:
        net.take()
        peak = max(peak, int(net.fabric.view.sc[Sc.IN_FLIGHT]))
    net.take()
    assert peak > 16384
    assert sorted(net.delivered()) == list(range(140))
    net.check_idle()


def test_thousands_of_empty_messages_at_one_instant(one_switch: Make) -> None:
    """Every host posts more than a pool's reserve before time moves on; slow light keeps them all on the wire."""
    net = one_switch(hosts=4, delay_us=500.0, host_gbps=100.0)
    pairs = [net.pair(i, (i + 1) % 4, timeout=16) for i in range(4)]
    for a, _ in pairs:
        for _ in range(8000):
            net.send(a, 0)
    net.run()
    assert len(net.delivered()) == len(net.acked()) == 32_000
    net.check_idle()


def test_a_report_larger_than_its_array_comes_in_pieces(one_switch: Make) -> None:
    """Deliveries that nobody waits for do not stop the loop, and none is lost."""
    net = one_switch(hosts=2)
    a, _ = net.pair(0, 1)
    for _ in range(10_000):
        net.send(a, 0, imm=False, signaled=False)
    net.run()
    assert net.delivered() == net.acked() == list(range(10_000))


@pytest.mark.parametrize("column", [Qp.TX_PACKETS, Qp.RX_PACKETS])
def test_counters_of_a_host_outlive_its_queue_pairs(one_switch: Make, column: Qp) -> None:
    """RESET and destroy keep what a NIC has counted."""
    net = one_switch()
    name = "tx_packets" if column == Qp.TX_PACKETS else "rx_packets"
    hosts = net.fabric.topology.hosts
    for _ in range(3):
        a, b = net.pair(0, 1)
        net.send(a, 10 * 4096)
        net.run()
        net.fabric.reset_qp(a)
        net.fabric.destroy_qp(a)
        net.fabric.destroy_qp(b)
    assert net.fabric.host_counters(hosts[0 if column == Qp.TX_PACKETS else 1])[name] == 30
    assert len([e for e in net.events if e.kind == DELIVERED]) == 3
