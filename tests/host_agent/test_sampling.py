# SPDX-License-Identifier: Apache-2.0
"""The switches' figure of the step overlap, and its comparison with the hosts'."""

from __future__ import annotations

from typing import Any

from host_agent.clocks import JobClock
from host_agent.overlap import StepTrack
from host_agent.sampling import SwitchLog


def sample(seq: int, ns: int | None, low: int | None, high: int | None, packets: int) -> dict[str, Any]:
    """A register sample as the agent's REST gives it; ticks are 50 ms apart."""
    return {
        "seq": seq,
        "time_unix_s": seq * 0.05,
        "switch_time_ns": ns,
        "step_min": low,
        "step_max": high,
        "alpha": 3,
        "packets": {"all": packets, "outpacing": 0},
        "marked": {"symphony": 5, "queue": 7},
    }


def test_a_tick_combines_its_switches_by_serial_min_and_max() -> None:
    """Across the wrap at 1024 the largest of 1022..1 is 1 and the smallest 1022: overlap 4."""
    log = SwitchLog(["a", "b"], step_bits=10)
    log.add("a", sample(1, 100, 1022, 1023, 10))
    log.add("b", sample(1, 110, 1023, 1, 10))
    assert [(f.t_ns, f.step_min, f.step_max, f.overlap) for f in log.figures] == [(110, 1022, 1, 4)]


def test_a_switch_without_packets_in_its_window_says_nothing() -> None:
    """Switch b's hosts wait: its old step_min does not stretch the figure."""
    log = SwitchLog(["a", "b"], step_bits=10)
    for seq, (low, high, packets_b) in enumerate([(5, 6, 40), (9, 10, 40)], start=1):
        log.add("a", sample(seq, seq * 100, low, high, seq * 10))
        log.add("b", sample(seq, 100, 4, 4, packets_b))
    assert [f.overlap for f in log.figures] == [3, 2]


def test_a_switch_that_flows_only_cross_is_no_part_of_the_figure() -> None:
    """A spine sees steps later than the ToRs; its counters count all the same."""
    log = SwitchLog(["tor0", "spine0"], step_bits=10, transit={"spine0"})
    log.add("tor0", sample(1, 100, 5, 6, 10))
    log.add("spine0", sample(1, 100, 2, 6, 10))
    assert [(f.step_min, f.overlap) for f in log.figures] == [(5, 2)]
    assert log.totals()["packets"] == 20


def test_last_packet_sets_step_min_past_step_max() -> None:
    """After a LAST packet step_min may be step_max + 1: overlap 0, not 1024."""
    log = SwitchLog(["a"], step_bits=10)
    log.add("a", sample(1, 100, 8, 7, 10))
    assert log.figures[0].overlap == 0


def test_no_packet_seen_yet_gives_no_figure() -> None:
    """A job that has not sent anything has no switch figure, rather than a 0 or 1."""
    log = SwitchLog(["a"], step_bits=10)
    log.add("a", sample(1, None, None, None, 0))
    assert not log.figures


def test_a_tick_that_misses_a_switch_is_left_out_and_counted() -> None:
    """Switch b missed tick 2 (a failed read): no figure is made up for it."""
    log = SwitchLog(["a", "b"], step_bits=10)
    for seq in (1, 2, 3):
        log.add("a", sample(seq, seq * 100, 5, 5 + seq, seq))
        if seq != 2:
            log.add("b", sample(seq, seq * 100, 5, 5, seq))
    assert [f.tick for f in log.figures] == [1, 3]
    assert log.incomplete_ticks == 1


def test_a_silent_switch_does_not_make_ticks_pile_up() -> None:
    """With b down for long the number of waiting ticks stays bounded."""
    log = SwitchLog(["a", "b"], step_bits=10)
    for seq in range(1, 2000):
        log.add("a", sample(seq, seq * 100, 5, 6, seq))
    assert len(log._open) <= 400
    assert log.incomplete_ticks == 1999 - 400


def test_repeated_samples_count_once() -> None:
    """Polling the same sequence number again changes nothing."""
    log = SwitchLog(["a"], step_bits=10)
    for _ in range(2):
        log.add("a", sample(1, 100, 5, 6, 10))
    assert len(log.samples["a"]) == 1
    assert len(log.figures) == 1


def test_totals_sum_the_newest_counters_of_all_switches() -> None:
    """Two switches with 10 and 20 packets: 30 in all; marks likewise."""
    log = SwitchLog(["a", "b"], step_bits=10)
    log.add("a", sample(1, 100, 5, 6, 10))
    log.add("b", sample(1, 100, 5, 6, 20))
    assert log.totals() == {"packets": 30, "outpacing": 0, "marked_symphony": 10, "marked_queue": 14}


def track_of(rows: list[tuple[int, int, int, int]]) -> StepTrack:
    """A track of (start, end, step, site)."""
    track = StepTrack()
    for start, end, step, site in rows:
        track.finish(track.add(start, step, site), end)
    return track


def test_agreement_compares_over_each_switch_s_own_window() -> None:
    """Window (100, 200] of one switch: step 6 began in it, step 5 ended in it, so the hosts say 6 - 6 + 1."""
    log = SwitchLog(["a"], step_bits=10)
    log.add("a", sample(1, 100, 5, 5, 10))
    log.add("a", sample(2, 200, 6, 7, 20))
    log.check(track_of([(50, 150, 5, 0), (120, 260, 6, 0)]), JobClock("twin"), until_ns=1000)
    assert log.agreement.view() == {
        "samples": 1,
        "within_one_step": 1,
        "share": 1.0,
        "differences": {"1": 1},
    }


def test_agreement_waits_until_the_hosts_have_reported_that_far() -> None:
    """A sample later than the newest event is not judged yet."""
    log = SwitchLog(["a"], step_bits=10)
    log.add("a", sample(1, 100, 5, 5, 10))
    log.add("a", sample(2, 200, 6, 7, 20))
    track = track_of([(50, 150, 5, 0), (120, 260, 6, 0)])
    log.check(track, JobClock("twin"), until_ns=199)
    assert log.agreement.samples == 0
    log.check(track, JobClock("twin"), until_ns=200)
    assert log.agreement.samples == 1


def test_agreement_counts_a_real_difference_as_one() -> None:
    """A switch that reports 5 steps where the hosts have 1 lowers the share."""
    log = SwitchLog(["a"], step_bits=10)
    log.add("a", sample(1, 100, 5, 5, 10))
    log.add("a", sample(2, 200, 6, 10, 20))
    log.check(track_of([(50, 300, 6, 0)]), JobClock("twin"), until_ns=1000)
    assert log.agreement.view()["share"] == 0.0
    assert log.agreement.differences == {4: 1}


def test_an_agreement_without_samples_has_no_share() -> None:
    """Nothing compared is unknown, not 0 and not 1."""
    assert SwitchLog(["a"], 10).agreement.view()["share"] is None
