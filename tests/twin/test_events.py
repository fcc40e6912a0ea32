# SPDX-License-Identifier: Apache-2.0
"""Life in the fabric: events from a file or from outside, what they do to packets, and that they leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fabric_twin.cli import main
from fabric_twin.engine import kernel
from fabric_twin.engine.state import Port, Qp
from fabric_twin.errors import FabricError, UnknownNameError
from fabric_twin.events import Event, Jitter, load_events
from fabric_twin.fabric import ACKED, DELIVERED, RETRY_EXC
from fabric_twin.slow_hosts import SlowHosts
from fabric_twin.timeline import Timeline

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

US = 10**6
MS = 10**9
ADAPTER: TypeAdapter[Any] = TypeAdapter(list[Event])


def events(*entries: dict[str, Any]) -> list[Any]:
    """Events as a file would give them."""
    found: list[Any] = ADAPTER.validate_python(list(entries))
    return found


def play(net: Net, timeline: Timeline, until: int | None = None) -> None:
    """Run with the timeline to `until`, or until neither has anything left to do."""
    while True:
        limit = min((t for t in (until, timeline.next_ps) if t is not None), default=None)
        reason = net.fabric.run(limit)
        absorb(net, timeline)
        if reason == kernel.IDLE:
            return
        if reason == kernel.REACHED:
            if timeline.next_ps is not None and timeline.next_ps <= net.fabric.now_ps:
                timeline.carry_out()
            elif limit == until:
                return


def absorb(net: Net, timeline: Timeline) -> None:
    """What has happened, as `Net.take` has it, without what is about background flows."""
    for event in timeline.take(net.fabric.take_events()):
        net.events.append(event)
        net.order.append((event.kind, net.messages.get(event.message, -1), event.qp))
        if event.kind == ACKED:
            net.fabric.free_message(event.message)


def path_of(net: Net, a: int, b: int, sport: int = 0xC000) -> list[str]:
    """Names of the links that a 5-tuple takes."""
    topology = net.fabric.topology
    return [topology.ports[p].name for p in topology.path(topology.hosts[a], topology.hosts[b], sport)]


# ------------------------------------------------------------------------------------------------ links


def test_what_is_on_a_link_that_goes_down_is_lost_and_sent_again(two_racks: Make) -> None:
    """The packets on the wire and those sent into it are lost, the rest arrives over the other spine."""
    net = two_racks()
    a, b = net.pair(0, 5, timeout=6)
    uplink = path_of(net, 0, 5)[1]
    other = "tor0->spine1" if uplink.endswith("0") else "tor0->spine0"
    timeline = Timeline(net.fabric, events({"kind": "link-down", "link": uplink, "at_ms": 0.1, "reroute_ms": 0.05}))
    net.send(a, 500_000)
    play(net, timeline, 100 * US)
    crossed = net.port(uplink, Port.TX_PACKETS)
    assert net.qp(b, Qp.RX_PSN) < crossed
    play(net, timeline, 149 * US)
    assert net.port(other, Port.TX_PACKETS) == 0
    assert net.qp(b, Qp.RX_PSN) < crossed  # nothing comes through any more
    play(net, timeline)
    assert net.delivered() == net.acked() == [0]
    assert net.port(uplink, Port.DROPPED) == net.fabric.stats().drops > 0
    assert net.port(other, Port.TX_PACKETS) > 60
    net.check_idle()


def test_a_link_down_without_rerouting_ends_in_a_failed_qp(two_racks: Make) -> None:
    """`reroute_ms` null: routing never learns."""
    net = two_racks()
    a, _ = net.pair(0, 5, timeout=4, retry_cnt=1)
    timeline = Timeline(net.fabric)
    timeline.add(events({"kind": "link-down", "link": path_of(net, 0, 5)[1], "reroute_ms": None})[0])
    net.send(a, 50_000)
    play(net, timeline)
    assert net.delivered() == net.acked() == []
    assert net.qp(a, Qp.STATE) == 0


def test_remote_routing_avoids_a_spine_that_cannot_reach_the_destination(two_racks: Make) -> None:
    """Down on the far side: the near ToR takes the other spine, for that rack only."""
    net = two_racks(hosts=2)
    timeline = Timeline(net.fabric)
    spine = path_of(net, 0, 2)[1].partition("->")[2]
    number = timeline.add(events({"kind": "link-down", "link": f"{spine}<->tor1", "reroute_ms": 0})[0])
    play(net, timeline, 1 * US)
    assert spine not in " ".join(path_of(net, 0, 2))
    assert spine not in " ".join(path_of(net, 2, 0))
    timeline.end(number)
    play(net, timeline, 2 * US)
    assert spine in path_of(net, 0, 2)[1]


def test_a_link_that_is_up_again_carries_as_before(two_racks: Make) -> None:
    """Whatever had been done to it; the log says it all, in order."""
    net = two_racks()
    timeline = Timeline(
        net.fabric,
        events(
            {"kind": "link-rate", "link": "h0->tor0", "at_ms": 1, "gbps": 1},
            {"kind": "link-loss", "link": "h0->tor0", "at_ms": 2, "drop": 0.5},
            {"kind": "link-down", "link": "h0<->tor0", "at_ms": 3},
            {"kind": "link-up", "link": "h0->tor0", "at_ms": 4},
        ),
    )
    topology = net.fabric.topology
    play(net, timeline, 2 * MS + 1)
    assert (topology.port("h0->tor0").gbps, net.port("h0->tor0", Port.DROP_PROB)) == (1, 1 << 31)
    play(net, timeline, 3 * MS + 1)
    assert [net.port(name, Port.DROP_PROB) for name in ("h0->tor0", "tor0->h0")] == [1 << 32] * 2
    play(net, timeline, 6 * MS)
    assert (topology.port("h0->tor0").gbps, net.port("h0->tor0", Port.DROP_PROB)) == (10, 0)
    assert net.port("tor0->h0", Port.DROP_PROB) == 0
    assert topology.avoided == frozenset()
    told = [(o.t_ns, o.phase, o.what) for o in timeline.log]
    assert told == [
        (1_000_000, "begin", "h0->tor0 1G"),
        (2_000_000, "begin", "h0->tor0 loses 0.5"),
        (3_000_000, "begin", "h0<->tor0 down"),
        (4_000_000, "begin", "h0->tor0 up"),
        (4_000_000, "end", "h0->tor0 1G"),
        (4_000_000, "end", "h0->tor0 loses 0.5"),
        (4_000_000, "end", "h0<->tor0 down"),
    ]


def test_a_flapping_link_is_down_as_often_and_as_long_as_asked(one_switch: Make) -> None:
    """Three times 1 ms down with 2 ms between."""
    net = one_switch()
    flap = {"kind": "link-flap", "link": "h0->tor0", "at_ms": 1, "down_ms": 1, "up_ms": 2, "times": 3}
    timeline = Timeline(net.fabric, events(flap))
    down = []
    for quarter in range(48):
        play(net, timeline, quarter * 250 * US + 1)
        down.append(net.port("h0->tor0", Port.DROP_PROB) > 0)
    assert [q / 4 for q in range(48) if down[q] != down[q - 1]] == [1, 2, 4, 5, 7, 8]
    assert [o.phase for o in timeline.log] == ["begin", "end"] * 3


def test_a_degraded_link_takes_its_time_to_the_picosecond(one_switch: Make) -> None:
    """Half the rate from the start: ten packets in twice the time."""
    times = []
    for entries in ([], [{"kind": "link-rate", "link": "h0->tor0", "gbps": 5}]):
        net = one_switch()
        timeline = Timeline(net.fabric, events(*entries))
        play(net, timeline, 0)
        net.send(net.pair(0, 1)[0], 10 * 4096)
        play(net, timeline)
        times.append(net.events[0].time_ps)
    assert times[0] == 11 * net.serial(4096) + 2 * US
    assert times[1] == 10 * net.serial(4096, 5) + net.serial(4096) + 2 * US


def test_patched_values_hold_where_no_event_says_otherwise(one_switch: Make) -> None:
    """A patch during an event is what the link has after it."""
    net = one_switch()
    timeline = Timeline(net.fabric)
    number = timeline.add(events({"kind": "link-rate", "link": "h0->tor0", "gbps": 1})[0])
    timeline.set_link("h0->tor0", gbps=40, drop=0.25)
    port = net.fabric.topology.port("h0->tor0")
    assert (port.gbps, net.fabric.drop_of("h0->tor0")) == (1, 0.25)
    timeline.end(number)
    assert (port.gbps, net.fabric.drop_of("h0->tor0")) == (40, 0.25)
    with pytest.raises(UnknownNameError, match=f"no event {number} is under way or to come"):
        timeline.end(number)


# ------------------------------------------------------------------------------------------------ runs


def test_every_run_sees_the_same_events_and_none_of_the_last_run(two_racks: Make) -> None:
    """What an event has changed is as before, background has gone, times count from the new start."""
    net = two_racks()
    timeline = Timeline(
        net.fabric,
        events(
            {"kind": "link-rate", "link": "h0->tor0", "at_ms": 1, "gbps": 2},
            {"kind": "background-on-off", "source": "h1", "target": "h5", "gbps": 4, "on_ms": 0.3, "off_ms": 0.2},
            {"kind": "link-down", "link": "tor0<->spine0", "at_ms": 1.5, "reroute_ms": 0.1},
        ),
    )
    seen = []
    for seed in (3, 3, 4):
        timeline.undo()
        assert net.fabric.topology.port("h0->tor0").gbps == 10
        net.fabric.quiesce(seed)
        timeline.begin()
        start, sent = net.fabric.now_ps, net.port("h1->tor0", Port.TX_PACKETS)
        first = len(net.events)
        a, b = net.pair(0, 5, timeout=8)
        net.send(a, 2_000_000)
        play(net, timeline, start + 8 * MS)
        log = [(o.t_ns - start // 1000, o.what) for o in timeline.log][-3:]
        seen.append(
            ([e.time_ps - start for e in net.events[first:]], net.port("h1->tor0", Port.TX_PACKETS) - sent, log)
        )
        net.fabric.destroy_qp(a)
        net.fabric.destroy_qp(b)
    assert seen[0] == seen[1]
    assert seen[0][:2] != seen[2][:2]
    assert seen[0][2] == [(0, "on-off 4G h1 to h5"), (1_000_000, "h0->tor0 2G"), (1_500_000, "tor0<->spine0 down")]


def test_what_somebody_did_to_the_fabric_outlives_a_run_until_somebody_ends_it(one_switch: Make) -> None:
    """Without `for_ms` it begins again with each run; with a time for the next run it happens once."""
    net = one_switch()
    timeline = Timeline(net.fabric)
    flow = {"kind": "background-constant", "source": "h1", "target": "h2", "gbps": 2}
    slower = {"kind": "link-rate", "link": "h0->tor0", "gbps": 1}
    once = {"kind": "link-rate", "link": "h3->tor0", "gbps": 1, "for_ms": 50}
    numbers = [timeline.add(event) for event in events(flow, slower, once)]
    later = timeline.add(events({"kind": "link-loss", "link": "h0->tor0", "at_ms": 3, "drop": 0.5})[0], next_run=True)
    assert timeline.view()["coming"] == [{"id": later, "t_ns": None}]
    starts = []
    for _ in range(2):
        timeline.undo()
        assert [net.fabric.topology.port(f"h{i}->tor0").gbps for i in (0, 3)] == [10, 10]
        net.fabric.quiesce(5)
        first = len(timeline.log)
        timeline.begin()
        start = net.fabric.now_ps
        play(net, timeline, start + 4 * MS)
        starts.append([(o.event, o.t_ns - start // 1000) for o in list(timeline.log)[first:]])
        assert net.fabric.topology.port("h0->tor0").gbps == 1
    assert starts == [[(numbers[0], 0), (numbers[1], 0), (later, 3_000_000)], [(numbers[0], 0), (numbers[1], 0)]]
    for number in numbers[:2]:
        timeline.end(number)
    timeline.undo()
    net.fabric.quiesce(5)
    timeline.begin()
    assert timeline.view()["active"] == timeline.view()["coming"] == []


def test_an_absolute_time_is_a_reading_of_the_clock(one_switch: Make) -> None:
    """`clock_ns`, whenever the run began; a moment that has passed is now."""
    net = one_switch()
    net.fabric.run(until_ps=5 * MS)
    timeline = Timeline(
        net.fabric,
        events(
            {"kind": "link-rate", "link": "h0->tor0", "gbps": 1, "clock_ns": 7_000_000},
            {"kind": "link-rate", "link": "h1->tor0", "gbps": 1, "clock_ns": 4_000_000},
            {"kind": "link-rate", "link": "h2->tor0", "gbps": 1, "at_ms": 1},
        ),
    )
    assert [entry["t_ns"] for entry in timeline.view()["coming"]] == [4_000_000, 6_000_000, 7_000_000]
    play(net, timeline, 10 * MS)
    assert [o.t_ns for o in timeline.log] == [5_000_000, 6_000_000, 7_000_000]
    later = {"kind": "link-rate", "link": "h3->tor0", "gbps": 1, "clock_ns": 2**30 + 1}
    timeline.add(events(later)[0])
    timeline.undo()
    net.fabric.quiesce(1)
    timeline.begin()
    play(net, timeline, net.fabric.now_ps + 2 * MS)
    assert [o.t_ns for o in timeline.log][3:] == [2**30 + 1, 2**30 + 1_000_000]  # each moment of the clock comes once


def test_an_event_comes_last_of_all_that_happens_at_its_time(one_switch: Make) -> None:
    """A packet that arrives at the very picosecond is still seen."""
    net = one_switch()
    a, _ = net.pair(0, 1)
    arrival = net.serial(4096) * 2 + 2 * US
    timeline = Timeline(net.fabric)
    at = []
    timeline.at(arrival, lambda: at.append(net.delivered()))
    net.send(a, 4096)
    play(net, timeline)
    assert at == [[0]]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"kind": "link-down", "link": "tor0->tor9"}, "event 1 (link-down): no link 'tor0->tor9'; names look like"),
        ({"kind": "link-up", "link": "tor0<->h9"}, "no link 'tor0->h9'"),
        ({"kind": "host-slow", "host": ["h0", "h77"], "compute": {"distribution": "none"}}, "no host 'h77'"),
        ({"kind": "switch-restart", "switch": "spine0"}, "no ToR 'spine0'"),
        (
            {"kind": "background-incast", "sources": ["h1", "h0"], "target": "h0", "size_bytes": 1},
            "h0 would send to itself",
        ),
    ],
)
def test_what_the_fabric_has_not_is_refused_before_anything_starts(
    two_racks: Make, entry: dict[str, Any], says: str
) -> None:
    """By name, with what there is."""
    net = two_racks()
    with pytest.raises(FabricError) as caught:
        Timeline(net.fabric, events(entry), slow=SlowHosts(), restart=lambda *_: None)
    assert says in str(caught.value)


# ------------------------------------------------------------------------------------------------ background


@pytest.mark.parametrize("dcqcn", [True, False])
def test_a_constant_flow_carries_what_it_is_asked_for(one_switch: Make, dcqcn: bool) -> None:
    """4 Gb/s of payload for 10 ms: 76 messages of 64 KiB, and most of one that its end cuts off."""
    net = one_switch()
    flow = {"kind": "background-constant", "source": "h0", "target": "h1", "gbps": 4, "for_ms": 10, "dcqcn": dcqcn}
    timeline = Timeline(net.fabric, events(flow))
    play(net, timeline, 9_999 * US)
    (active,) = timeline.view()["active"]
    assert active["skipped"] == 0
    assert active["bytes"] == 65_536 * 76
    play(net, timeline, 12 * MS)
    assert timeline.view()["active"] == []
    sent = net.port("h0->tor0", Port.TX_PACKETS)
    play(net, timeline, 20 * MS)
    assert net.port("h0->tor0", Port.TX_PACKETS) == sent
    assert 76 * 16 < sent < 77 * 16
    timeline.undo()
    net.run()
    net.check_idle()


def test_a_flow_that_ignores_congestion_is_never_marked_and_others_give_way(one_switch: Make) -> None:
    """8 Gb/s without ECN beside one DCQCN flow: it keeps its rate, the other gets the rest."""
    net = one_switch()
    flow = {"kind": "background-constant", "source": "h1", "target": "h0", "gbps": 8, "dcqcn": False}
    timeline = Timeline(net.fabric, events(flow))
    a, b = net.pair(2, 0)
    for _ in range(4):
        net.send(a, 20_000_000)
    play(net, timeline, 40 * MS)
    (active,) = timeline.view()["active"]
    assert active["bytes"] == pytest.approx(8e9 / 8 * 0.040, rel=0.03)
    assert net.qp(b, Qp.RX_MARKED) > 0
    assert net.rate(a) < 3e9
    assert net.fabric.stats().drops == 0


def test_an_overloaded_flow_skips_messages_instead_of_queueing_them(one_switch: Make) -> None:
    """Two flows of 8 Gb/s into one 10 Gb/s port: bounded, and counted."""
    net = one_switch()
    flow = {"kind": "background-constant", "target": "h0", "gbps": 8}
    timeline = Timeline(net.fabric, events({**flow, "source": "h1"}, {**flow, "source": "h2"}))
    play(net, timeline, 20 * MS)
    active = timeline.view()["active"]
    assert sum(entry["skipped"] for entry in active) > 20
    assert sum(entry["bytes"] for entry in active) == pytest.approx(10e9 / 8 * 0.020, rel=0.1)


def test_on_and_off_have_their_lengths(one_switch: Make) -> None:
    """Constant lengths: packets leave in the on times only."""
    net = one_switch()
    flow = {"kind": "background-on-off", "source": "h0", "target": "h1", "gbps": 5}
    timeline = Timeline(net.fabric, events({**flow, "on_ms": 1, "off_ms": 3, "distribution": "constant"}))
    counts = []
    for quarter in range(48):
        before = net.port("h0->tor0", Port.TX_PACKETS)
        play(net, timeline, (quarter + 1) * 250 * US)
        counts.append(net.port("h0->tor0", Port.TX_PACKETS) - before)
    assert [i // 4 % 4 for i, count in enumerate(counts) if count > 20] == [0] * 12


def test_an_incast_comes_from_all_sources_at_once(one_switch: Make) -> None:
    """Seven to one, twice: all of it arrives, the queue has seen it."""
    net = one_switch()
    burst = {"kind": "background-incast", "sources": [f"h{i}" for i in range(1, 8)], "target": "h0"}
    timeline = Timeline(net.fabric, events({**burst, "size_bytes": 100_000, "times": 2, "every_ms": 5}))
    play(net, timeline, 4 * MS)
    assert timeline.view()["active"][0]["bytes"] == 700_000
    assert net.port("tor0->h0", Port.MAX_Q_BYTES) > 400_000
    play(net, timeline, 30 * MS)
    assert timeline.view()["active"][0]["bytes"] == 1_400_000


def test_background_that_is_absent_or_elsewhere_changes_no_coin_of_a_job(two_racks: Make) -> None:
    """A second rack's own traffic: the first rack's job has the same events, to the picosecond, as without it."""
    runs = []
    for entries in ([], [{"kind": "background-on-off", "source": "h4", "target": "h5", "gbps": 3, "on_ms": 1,
                          "off_ms": 1, "dcqcn": False}]):  # fmt: skip
        net = two_racks(kmin=5_000, kmax=80_000, pmax=0.3)
        timeline = Timeline(net.fabric, events(*entries))
        play(net, timeline, 0)
        for i in range(1, 4):
            net.send(net.pair(i, 0)[0], 1_000_000)
        play(net, timeline, 20 * MS)
        runs.append([event.time_ps for event in net.events])
    assert len(runs[0]) == 6
    assert runs[0] == runs[1]


def test_a_background_qp_that_failed_connects_again(one_switch: Make) -> None:
    """Its link is down for longer than its retries last."""
    net = one_switch()
    flow = {"kind": "background-constant", "source": "h0", "target": "h1", "gbps": 1, "message_bytes": 1_000_000}
    cut = {"kind": "link-down", "link": "h0->tor0", "at_ms": 10, "for_ms": 1500}
    timeline = Timeline(net.fabric, events(flow, cut))
    play(net, timeline, 1500 * MS)
    before = timeline.view()["active"][0]["bytes"]
    play(net, timeline, 1700 * MS)
    assert timeline.view()["active"][0]["bytes"] > before + 10_000_000


# ------------------------------------------------------------------------------------------------ slow hosts


@pytest.mark.parametrize(
    ("jitter", "mean", "std"),
    [
        ({"distribution": "none"}, 0, 0),
        ({"distribution": "constant", "mean_us": 50}, 50, 0),
        ({"distribution": "normal", "mean_us": 50, "std_us": 10}, 50, 10),
        ({"distribution": "lognormal", "mean_us": 50, "std_us": 80}, 50, 80),
        ({"distribution": "exponential", "mean_us": 50}, 50, 50),
    ],
)
def test_compute_times_have_the_distribution_they_name(jitter: dict[str, Any], mean: float, std: float) -> None:
    """Mean and standard deviation of 50 000, and the same again for the same seed and host."""
    model = Jitter.model_validate(jitter)
    drawn = np.array(model.draw(Jitter.stream(1, 3), 50_000)) / 1e6
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.std() == pytest.approx(std, rel=0.08)
    stream = Jitter.stream(1, 3)
    assert [model.draw(stream, 1)[0] / 1e6 for _ in range(100)] == drawn[:100].tolist()
    if std:
        assert model.draw(Jitter.stream(1, 4), 1) != model.draw(Jitter.stream(2, 3), 1) != [round(drawn[0] * 1e6)]


@pytest.mark.parametrize(
    ("jitter", "says"),
    [
        ({"distribution": "lognormal", "std_us": 1}, "needs mean_us above 0"),
        ({"distribution": "exponential", "mean_us": 1, "std_us": 1}, "exponential has no std_us"),
        ({"distribution": "none", "mean_us": 1}, "none has no mean_us"),
        ({"distribution": "pareto"}, "Input should be"),
    ],
)
def test_a_distribution_that_makes_no_sense_is_refused(jitter: dict[str, Any], says: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=says):
        Jitter.model_validate(jitter)


@given(gaps=st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=30), x=st.integers(1, 20))
@settings(deadline=None, max_examples=50)
def test_a_slow_process_works_through_what_it_is_told_one_after_the_other(gaps: list[tuple[int, bool]], x: int) -> None:
    """Lindley's recursion, by hand: done = max(arrival, done before) + X for steps, + 0 for the rest."""
    slow = SlowHosts()
    slow.slow_down(2, Jitter(distribution="constant", mean_us=x), seed=1)
    seen: list[tuple[int, int]] = []
    now, done, expected = 0, 0, []

    def release(until: int) -> None:
        while (ready := slow.next_ps) is not None and ready <= until:
            seen.append((ready, -1))
            slow.release(ready)

    for number, (gap, step) in enumerate(gaps):
        release(now + gap * US)
        now += gap * US
        done = max(now, done) + (x * US if step else 0)
        expected.append((done, number))
        slow.tell(2, now, lambda n=number, t=now: seen.append((t, n)), step=step)  # type: ignore[misc]
    release(10**12)
    order = [n for _, n in seen if n >= 0]
    assert order == list(range(len(gaps)))
    times = [t for t, n in seen if n < 0]
    assert times == sorted({t for t, n in expected if t in times})
    assert slow.next_ps is None


# ------------------------------------------------------------------------------------------------ all together

links = st.sampled_from(["h0->tor0", "tor0<->spine0", "tor1->spine1", "spine0->tor1", "h5<->tor1"])
at_ms = st.integers(0, 30).map(lambda tenths: tenths / 10)
happenings = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"kind": st.just("link-down"), "link": links, "at_ms": at_ms, "for_ms": st.sampled_from([0.01, 0.5, 2])},
            optional={"reroute_ms": st.sampled_from([None, 0, 0.2])},
        ),
        st.fixed_dictionaries({"kind": st.just("link-up"), "link": links, "at_ms": at_ms}),
        st.fixed_dictionaries(
            {"kind": st.just("link-flap"), "link": links, "at_ms": at_ms, "down_ms": st.just(0.05),
             "up_ms": st.just(0.1), "times": st.integers(1, 5)}
        ),
        st.fixed_dictionaries(
            {"kind": st.just("link-rate"), "link": links, "at_ms": at_ms, "gbps": st.sampled_from([0.5, 4, 40]),
             "for_ms": st.sampled_from([0.3, None])}
        ),
        st.fixed_dictionaries(
            {"kind": st.just("link-loss"), "link": links, "at_ms": at_ms, "drop": st.sampled_from([0.01, 0.3]),
             "for_ms": st.just(1)}
        ),
        st.fixed_dictionaries(
            {"kind": st.just("background-on-off"), "source": st.sampled_from(["h1", "h4"]),
             "target": st.sampled_from(["h0", "h7"]), "gbps": st.sampled_from([1, 9]), "at_ms": at_ms,
             "on_ms": st.just(0.3), "off_ms": st.just(0.2), "dcqcn": st.booleans(), "for_ms": st.just(1.5)}
        ),
        st.fixed_dictionaries(
            {"kind": st.just("background-incast"), "sources": st.just(["h1", "h2", "h5"]), "target": st.just("h0"),
             "size_bytes": st.sampled_from([1, 60_000]), "times": st.integers(1, 4), "every_ms": st.just(0.1),
             "at_ms": at_ms, "for_ms": st.just(1)}
        ),
    ),
    max_size=6,
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(
    entries=happenings,
    seed=st.integers(0, 99),
    pfc=st.booleans(),
    retransmission=st.sampled_from(["go-back-n", "selective"]),
    window=st.sampled_from(["off", "scaled"]),
)
def test_whatever_happens_messages_come_once_in_order_and_nothing_is_left(
    two_racks: Make, entries: list[dict[str, Any]], seed: int, pfc: bool, retransmission: str, window: str
) -> None:
    """Twice the same, to the picosecond; then the fabric is as it was, and empty."""
    seen = []
    for _ in range(2):
        net = two_racks(seed=seed, pfc=pfc, retransmission=retransmission, window=window, buffer_bytes=300_000)
        rates = [port.gbps for port in net.fabric.topology.ports]
        timeline = Timeline(net.fabric, events(*entries))
        ends = [net.pair(i, (i + 5) % 8, timeout=5, retry_cnt=7, sport=0xC000 + i) for i in range(8)]
        sent = [[net.send(a, 120_000) for _ in range(4)] for a, _ in ends]
        play(net, timeline)
        failed = {event.qp for event in net.events if event.kind == RETRY_EXC}
        for (a, b), places in zip(ends, sent, strict=True):
            mine = [place for kind, place, row in net.order if kind == DELIVERED and row == b]
            assert mine == places[: len(mine)]
            assert len(mine) == len(places) or a in failed
        seen.append([(event.time_ps, event.kind) for event in net.events])
        timeline.undo()
        for a, b in ends:
            net.fabric.reset_qp(a)
            net.fabric.reset_qp(b)
        net.run()
        assert [port.gbps for port in net.fabric.topology.ports] == rates
        assert not any(net.ports(Port.DROP_PROB))
        assert net.fabric.topology.avoided == frozenset()
        net.check_idle()
    assert seen[0] == seen[1]


# ------------------------------------------------------------------------------------------------ files


def test_a_file_of_events_is_read(tmp_path: Path) -> None:
    """TOML, one table per event; defaults as documented."""
    path = tmp_path / "events.toml"
    path.write_text(
        '[[events]]\nkind = "link-flap"\nlink = "tor0<->spine1"\nat_ms = 5\ndown_ms = 1\nup_ms = 2\ntimes = 3\n'
        '[[events]]\nkind = "host-slow"\nhost = "all"\ncompute = {distribution = "exponential", mean_us = 20}\n'
    )
    flap, slow = load_events(path)
    assert flap.links() == ["tor0->spine1", "spine1->tor0"]
    assert (flap.at_ms, slow.at_ms, slow.hosts()) == (5, None, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('kind = "link-down"\nlink = "tor0->tor9"', "event 1 (link-down): no link 'tor0->tor9'; names look like"),
        ('kind = "link-don"\nlink = "tor0->spine0"', "event 1: Input tag 'link-don'"),
        ('kind = "link-rate"\nlink = "tor0->spine0"', "event 1: link-rate: gbps: Field required"),
        ('kind = "link-rate"\nlink = "tor0->spine0"\ngbps = 0', "gbps: Input should be greater than or equal to 0.01"),
        ('kind = "link-up"\nlink = "tor0->spine0"\nwhen = 3', "event 1: link-up: when: Extra inputs"),
        ('kind = "link-up"\nlink = "tor0->spine0"\nat_ms = 1\nclock_ns = 1', "event 1: link-up: give at_ms"),
        ("kind = ", "is no TOML"),
    ],
)
def test_a_bad_file_is_one_line_and_nothing_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: str
) -> None:
    """The file, the event, the reason; no socket has been made."""
    path = tmp_path / "bad.toml"
    path.write_text(f"[[events]]\n{text}\n")
    verbs = tmp_path / "verbs.sock"
    ports = ["--http-port", "0", "--bfrt-port", "0"]
    with pytest.raises(SystemExit) as caught:
        main(["run", "--preset", "small", *ports, "--verbs", str(verbs), "--events", str(path)])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fabric-twin: {path}")
    assert says in err
    assert err.count("\n") == 1
    assert not verbs.exists()


def test_a_file_that_is_not_there_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(SystemExit) as caught:
        main(["run", "--events", str(tmp_path / "none.toml")])
    assert caught.value.code == 2
    assert f"cannot read {tmp_path / 'none.toml'}: No such file" in capsys.readouterr().err
