# SPDX-License-Identifier: Apache-2.0
"""Clocks of several hosts: how well their offset is known, and what that does to figures between hosts."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_bench import report
from ring_bench.clocks import Alignment, Ask, Offset, clock_identity, estimate, pair_uncertainty
from ring_bench.config import Config
from ring_bench.hub import Hub
from ring_bench.overlap import StepChange, largest_lasting, overlap_history
from ring_bench.plan import Plan
from ring_bench.rank import Record
from ring_bench.rendezvous import Joining, LocalRendezvous, TcpRendezvous
from ring_bench.summary import row_of
from ring_bench.verbs.api import Provider
from ring_bench.witness import Witness

DELAY = st.integers(1, 10_000_000)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(DELAY, DELAY, DELAY), min_size=1, max_size=40))
def test_the_true_offset_is_within_the_uncertainty_however_lopsided_the_way_is(
    offset: int, delays: list[tuple[int, int, int]]
) -> None:
    """The bound holds for every split of the round trip, and is that of the fastest exchange."""
    asks, now = [], 10**16
    for there, thinking, back in delays:
        heard = now + there + offset
        asks.append(Ask(now, heard, heard + thinking, now + there + thinking + back))
        now += there + thinking + back + 1000
    found = estimate(asks)
    assert abs(found.offset_ns - offset) <= found.uncertainty_ns
    assert found.uncertainty_ns == min(there + back for there, _, back in delays) // 2 + 1


def test_a_clock_that_drifts_is_followed_between_the_two_measurements() -> None:
    """100 ppm over 10 s are a millisecond; what did not happen stays so."""
    alignment = Alignment(Offset(5_000, 10, 1_000), Offset(1_005_000, 20, 10_000_001_000))
    times = np.array([1_000, 5_000_001_000, 10_000_001_000, -1], dtype=np.int64)
    assert alignment.apply(times).tolist() == [6_000, 5_000_506_000, 10_001_006_000, -1]
    assert alignment.uncertainty_ns == 20
    assert alignment.drift == pytest.approx(1e-4)


def test_nanoseconds_survive_large_uptimes() -> None:
    """A year of uptime does not fit a double's 53 bits in ns; the shift must not go through one."""
    year = 31_536_000 * 10**9
    alignment = Alignment(Offset(-year + 7, 5, year), None)
    assert alignment.apply(np.array([year, year + 1], dtype=np.int64)).tolist() == [7, 8]


def test_between_two_other_hosts_both_uncertainties_count() -> None:
    """Rank 0's own clock adds nothing."""
    one, other = Alignment(Offset(0, 20, 0)), Alignment(Offset(0, 30, 0))
    assert pair_uncertainty([None, one, other]) == 50
    assert pair_uncertainty([None, one]) == 20
    assert pair_uncertainty([]) == 0


def test_processes_of_one_host_share_a_clock_and_measure_nothing() -> None:
    """Also in another process of this machine."""
    other = subprocess.run(
        [sys.executable, "-c", "from ring_bench.clocks import clock_identity; print(clock_identity())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == clock_identity()
    hub = Hub(("127.0.0.1", 0), 1)
    rendezvous = TcpRendezvous(hub.address, Joining((0,), "h", 1, {}), on_failure=lambda: None)
    assert rendezvous.measure_clock() is None
    assert LocalRendezvous().measure_clock() is None
    rendezvous.close()
    hub.close()


FOREIGN = """
import sys, time
real = time.monotonic_ns
time.monotonic_ns = lambda: real() + 1000 * 10**9
import ring_bench.clocks, ring_bench.rendezvous
ring_bench.rendezvous.clock_identity = lambda: "another machine"
from ring_bench.rendezvous import Joining, TcpRendezvous
rendezvous = TcpRendezvous(("127.0.0.1", int(sys.argv[1])), Joining((0,), "far", 2, {}), on_failure=lambda: None)
found = rendezvous.measure_clock()
rendezvous.close()
print(found.offset_ns, found.uncertainty_ns)
"""


def test_another_hosts_clock_is_measured_over_the_rendezvous() -> None:
    """Its clock is 1000 s ahead, so rank 0's is 1000 s behind."""
    hub = Hub(("127.0.0.1", 0), 1)
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN, str(hub.address[1])], capture_output=True, text=True, check=True
    )
    hub.close()
    offset_ns, uncertainty_ns = map(int, done.stdout.split())
    assert abs(offset_ns + 1000 * 10**9) <= uncertainty_ns
    assert uncertainty_ns < 50_000_000


def test_overlap_that_is_shorter_than_the_uncertainty_is_not_taken_for_real() -> None:
    """Steps 0 and 1 overlap for 10 ns, step 1 alone flies for 100."""
    changes = [(0, 0, True), (50, 1, True), (60, 0, False), (150, 1, False)]
    history = overlap_history(StepChange(*change) for change in changes)
    assert largest_lasting(history, 0) == 2
    assert largest_lasting(history, 9) == 2
    assert largest_lasting(history, 10) == 1
    assert largest_lasting(history, 200) is None


def test_a_stretch_counts_as_a_whole_though_the_overlap_rises_within_it() -> None:
    """Overlap >= 2 lasts 60 ns, of which 20 are 3."""
    history = [(0, 1), (10, 2), (30, 3), (50, 2), (70, 0)]
    assert largest_lasting(history, 59) == 2
    assert largest_lasting(history, 60) == 1


def _records(skew_ns: int) -> dict[int, Record]:
    """Two ranks, two steps of 1000 ns each, the second rank's clock read ``skew_ns`` too early."""
    steps = {0: ([0, 1000], [1000, 2000]), 1: ([0, 1000], [1000, 2000])}
    return {
        rank: Record(
            [array("q", [t - (skew_ns if rank else 0) + 5000 for t in post])],
            [array("q", [t - (skew_ns if rank else 0) + 5000 for t in done])],
            array("q", [0]),
        )
        for rank, (post, done) in steps.items()
    }


def _plan() -> Plan:
    config = Config(world=2, minbytes=64, maxbytes=64, iters=1, warmup_iters=0)
    return Plan(config, mtu=4096, max_message=1 << 30)


def test_a_negative_step_duration_is_shown_as_it_is_and_counted_as_indeterminate() -> None:
    """Skew of 3 us makes steps that rank 1 receives end before they began."""
    row = row_of(_plan(), _records(3000), 0, 0, 1, uncertainty_ns=3500)
    assert row is not None
    assert row.step_us is not None
    assert row.step_us.p50 == -2.0
    assert row.step_us.max == 4.0
    assert row.steps_indeterminate == 2
    assert row.uncertainty_us == 3.5
    assert row.step_overlap is not None
    assert row.step_overlap.max is None
    assert "step overlap max indeterminate" in report.row_details(row)


def test_overlap_that_only_the_skew_makes_is_told_apart_from_the_certain_one() -> None:
    """Lock-step ranks, 500 ns skew: steps seem to overlap for that long, which the clocks cannot resolve."""
    row = row_of(_plan(), _records(500), 0, 0, 1, uncertainty_ns=700)
    assert row is not None
    assert row.step_overlap is not None
    assert (row.step_overlap.max, row.step_overlap.seen) == (1, 2)
    assert "overlap 2 was seen too briefly for the clocks" in report.row_details(row)
    assert "times between hosts +-0.7 us" in report.row_details(row)


def test_with_one_clock_nothing_is_indeterminate() -> None:
    """The figures are those of before there was a second host."""
    row = row_of(_plan(), _records(0), 0, 0, 1)
    assert row is not None
    assert (row.steps_indeterminate, row.uncertainty_us) == (0, 0.0)
    assert row.step_overlap is not None
    assert (row.step_overlap.max, row.step_overlap.seen) == (1, 1)
    assert "too briefly" not in report.row_details(row)


class _Meeting(LocalRendezvous):
    """Rank 0's process, with a second host in the exchange that says what the test wants."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__()
        self.told = told

    def exchange(self, data: Mapping[int, Any]) -> dict[int, Any]:
        return {**data, 1: dict(self.told), 2: None}


def test_the_records_of_every_host_end_up_on_one_axis() -> None:
    """Host far with ranks 1 and 2 is 3 us behind; aligned, all figures are as with one clock."""
    offset = {"offset_ns": 3000, "uncertainty_ns": 40, "at_ns": 5000}
    meeting = _Meeting({"host": "far", "before": offset, "after": {**offset, "at_ns": 10_000}, "ports": []})
    provider = cast("Provider", SimpleNamespace(clock="monotonic", counters=lambda: None))
    witness = Witness(provider, meeting, (0,), 106)
    assert witness.compare_clocks() == 0
    witness.start()
    witness.finish()
    witness.gather()
    assert witness.uncertainty_ns == 40
    (clock,) = witness.clocks
    assert (clock.host, clock.ranks, clock.offset_ns, clock.drift_ppm) == ("far", [1, 2], 3000, 0.0)
    assert witness.align(_records(3000))[1].done_ns == _records(0)[1].done_ns
    assert witness.counters is None
