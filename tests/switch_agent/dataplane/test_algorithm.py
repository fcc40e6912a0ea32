# SPDX-License-Identifier: Apache-2.0
"""What the data plane does to its state in the cases that matter, in both of its forms at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from switch_agent.dataplane.constants import AHEAD, EXPIRED, LAG, LAST, MARK, TRACKED
from switch_agent.dataplane.params import SymphonyParams
from switch_agent.dataplane.pipeline import (
    Lookups,
    Registers,
    mark_threshold,
    new_lookups,
    new_registers,
    process_packet,
)
from switch_agent.dataplane.reference import FlowBases, JobState, Packet, serial_diff

LOOKUPS = new_lookups(1)
WINDOW = SymphonyParams().window_units  # 391 units of 256 ns


def assert_equal(regs: Registers, expected: Registers) -> None:
    """Fail with the register's name."""
    for name, values in expected._asdict().items():
        np.testing.assert_array_equal(getattr(regs, name), values, err_msg=name)


class Switch:
    """One job's state in both forms; every packet must leave them equal. The clock stands unless told."""

    def __init__(self, params: SymphonyParams | None = None, first_step: int = 0, time: int = 1 << 20) -> None:
        self.params = params or SymphonyParams(k=1.0, n_warmup=0, n_sample=0)
        self.now = time
        self.job = JobState(self.params, first_step)
        self.job.window_start = time % (1 << 32)
        self.regs = new_registers(1, n_state=1, n_flow=8)
        self.regs.steps_mn[0, 0] = self.regs.steps_mx[0, 0] = np.uint32(first_step << 22 | 1).astype(np.int32)
        self.regs.window_start[0, 0] = np.uint32(time % (1 << 32)).astype(np.int32)

    def packet(
        self,
        step: int,
        psn: int = 0,
        *,
        last: bool = False,
        flow: int = 1,
        slot: int | None = None,
        wait: int = 0,
    ) -> int:
        """Send one packet whose coin always says "mark"; return the verdict bits."""
        self.now += wait
        step, psn, slot = step % 1024, psn % (1 << 24), flow % 8 if slot is None else slot
        verdict = self.job.process(Packet(step, psn, last, flow, slot, self.now, 0.0))
        sport, signature = 0xC000 | step, flow << 16 | step
        entry = np.array(self.params.to_entry().values(), np.int64)
        bits = process_packet(self.regs, 0, LOOKUPS, 0, 0, entry, sport, psn, last, signature, slot, self.now, 0)
        assert bits == verdict.bits
        assert self.step_min == int(self.regs.steps_mn[0, 0]) >> 22 & 1023
        assert self.step_max == int(self.regs.steps_mx[0, 0]) >> 22 & 1023
        assert self.psn_rec << 8 == self.regs.psn_rec[0, 0]
        assert self.alpha == self.regs.alpha[0, 0]
        assert self.job.cnt_total == self.regs.count[0, 0]
        return bits

    @property
    def step_min(self) -> int:
        """Smallest step, equal in both forms."""
        return self.job.step_min

    @property
    def step_max(self) -> int:
        """Largest step."""
        return self.job.step_max

    @property
    def psn_rec(self) -> int:
        """Progress of step_min in packets."""
        return self.job.psn_rec

    @property
    def alpha(self) -> int:
        """Aggressiveness."""
        return self.job.alpha

    def window(self, ahead: int, level: int) -> None:
        """Fill one window with packets ahead of step_min and level with it, the first one closing the last.

        Level packets come first, so the closing packet is level unless there is none.
        """
        for i in range(level + ahead):
            step = self.step_min if i < level else self.step_min + 1
            self.packet(step, flow=2 if i < level else 3, wait=WINDOW if i == 0 else 0)


def test_level_packets_raise_psn_rec_and_are_never_marked() -> None:
    """Algorithm 1, line 9: the maximum, not the latest."""
    switch = Switch()
    for psn in (100, 101, 105, 103):
        assert switch.packet(0, psn) == TRACKED
    assert switch.psn_rec == 5


def test_packet_ahead_is_marked_once_psn_rec_exists() -> None:
    """Algorithm 1, lines 11 to 16."""
    switch = Switch()
    assert switch.packet(1, 50, flow=2) == TRACKED | AHEAD
    switch.packet(0, 10)
    switch.packet(0, 11)
    assert switch.packet(1, 51, flow=2) == TRACKED | AHEAD | MARK
    assert (switch.step_min, switch.step_max) == (0, 1)


def test_packet_behind_lowers_step_min_and_takes_psn_rec_down_to_its_own_psn() -> None:
    """Algorithm 1, line 7: "late arrivals" of 3.4.1; step_max stays."""
    switch = Switch(first_step=5)
    switch.packet(4, 0, flow=2)
    switch.packet(5, 0)
    switch.packet(5, 30, last=True)
    assert switch.step_min == 6
    assert switch.packet(4, 7, flow=2) == TRACKED | LAG
    assert (switch.step_min, switch.psn_rec, switch.step_max) == (4, 7, 5)


def test_last_packet_advances_step_min_clears_psn_rec_and_is_not_marked() -> None:
    """Algorithm 1, lines 4 and 5."""
    switch = Switch()
    switch.packet(0, 0)
    switch.packet(0, 40)
    assert switch.packet(0, 41, last=True) == TRACKED | LAST
    assert (switch.step_min, switch.psn_rec) == (1, 0)


def test_last_packet_of_an_outpacing_flow_counts_as_outpacing_and_moves_step_min_forward() -> None:
    """Line 2 looks at the old step_min; the next slower packet puts step_min right."""
    switch = Switch()
    switch.packet(0, 0)
    switch.packet(0, 40)
    assert switch.packet(3, 0, last=True, flow=2) == TRACKED | AHEAD | LAST
    assert (switch.step_min, switch.psn_rec, switch.job.cnt_op) == (4, 0, 1)
    assert switch.packet(0, 41) == TRACKED | LAG
    assert (switch.step_min, switch.psn_rec) == (0, 41)


def test_late_last_packet_moves_step_min_back_without_counting_as_lag() -> None:
    """Line 4 assigns, it does not compare."""
    switch = Switch(first_step=9)
    assert switch.packet(6, 0, last=True) == TRACKED | LAST
    assert switch.step_min == 7


def test_repeated_last_packet_changes_nothing_more() -> None:
    """Assignments make retransmissions idempotent (3.4.1)."""
    switch = Switch()
    switch.packet(0, 0, last=True)
    before = (switch.step_min, switch.psn_rec)
    switch.packet(0, 0, last=True)
    assert (switch.step_min, switch.psn_rec) == before == (1, 0)


def test_step_wraps_from_1023_to_0() -> None:
    """The order of steps survives the wrap of the tag."""
    switch = Switch(first_step=1022)
    switch.packet(1022, 0, last=True)
    assert switch.packet(1023, 0, last=True) == TRACKED | LAST
    assert (switch.step_min, switch.step_max) == (0, 1023)
    assert switch.packet(0, 0) == TRACKED
    assert switch.packet(1, 0, flow=2) == TRACKED | AHEAD
    assert switch.packet(1023, 0) == TRACKED | LAG


def test_psn_wraps_without_a_new_base() -> None:
    """A flow that crosses 2^24 goes on counting."""
    switch = Switch()
    for psn in ((1 << 24) - 2, (1 << 24) - 1, 0, 1):
        switch.packet(0, psn)
    assert switch.psn_rec == 3


def test_psn_older_than_the_first_restarts_the_count() -> None:
    """A step's first packets were lost before the switch and come again: no jump to nearly 2^24."""
    switch = Switch()
    switch.packet(0, 500)
    switch.packet(0, 510)
    assert switch.psn_rec == 10
    switch.packet(0, 490)
    assert switch.psn_rec == 10
    switch.packet(0, 505)
    assert switch.psn_rec == 15


def test_retransmission_leaves_the_state_alone() -> None:
    """Go-back-N within a step repeats PSNs that are no maximum."""
    switch = Switch()
    for psn in range(20):
        switch.packet(0, psn)
    before = (switch.step_min, switch.step_max, switch.psn_rec, switch.alpha)
    for psn in range(5, 20):
        switch.packet(0, psn)
    assert (switch.step_min, switch.step_max, switch.psn_rec, switch.alpha) == before


def test_new_step_of_a_flow_counts_from_its_first_packet() -> None:
    """PSNs run on from step to step; relative ones restart."""
    switch = Switch()
    switch.packet(0, 0)
    switch.packet(0, 99, last=True)
    switch.packet(1, 100)
    switch.packet(1, 104)
    assert switch.psn_rec == 4


def test_foreign_flow_takes_the_slot_over() -> None:
    """Two flows in one slot both read relative PSNs near 0; neither reads the other's base."""
    switch = Switch()
    switch.packet(0, 1000, flow=1, slot=0)
    switch.packet(0, 1050, flow=1, slot=0)
    switch.packet(0, 5_000_000, flow=2, slot=0)
    switch.packet(0, 1060, flow=1, slot=0)
    assert switch.psn_rec == 50
    switch.packet(0, 1062, flow=1, slot=0, wait=WINDOW)
    assert switch.psn_rec == 2


def test_window_expires_after_its_length_and_starts_at_the_packet() -> None:
    """Windows are lazy: they start when a packet notices."""
    switch = Switch()
    assert not switch.packet(0, 0, wait=WINDOW - 1) & EXPIRED
    assert switch.packet(0, 0, wait=1) & EXPIRED
    assert switch.packet(0, 0, wait=3 * WINDOW) & EXPIRED
    assert not switch.packet(0, 0, wait=WINDOW - 1) & EXPIRED


def test_window_expires_across_the_wrap_of_the_clock() -> None:
    """32 bits of 256 ns wrap every 18.3 minutes."""
    switch = Switch(time=(1 << 32) - 100)
    assert not switch.packet(0, 0, wait=WINDOW - 1) & EXPIRED
    assert switch.packet(0, 0, wait=1) & EXPIRED
    assert switch.job.window_start == WINDOW - 100
    assert not switch.packet(0, 0, wait=WINDOW - 1) & EXPIRED


def test_window_restarts_psn_rec_at_a_level_packet() -> None:
    """The time-windowed maximum of 3.4.2."""
    switch = Switch()
    switch.packet(0, 0)
    switch.packet(0, 90)
    assert switch.packet(0, 20, wait=WINDOW) == TRACKED | EXPIRED
    assert switch.psn_rec == 20


def test_window_opened_by_a_packet_ahead_leaves_packets_unmarked_until_a_level_one_comes() -> None:
    """Without progress of step_min in this window there is nothing to compare with."""
    switch = Switch()
    switch.packet(0, 0)
    switch.packet(0, 90)
    assert switch.packet(1, 0, flow=2, wait=WINDOW) == TRACKED | AHEAD | EXPIRED
    assert switch.psn_rec == 0
    assert switch.packet(1, 1, flow=2) == TRACKED | AHEAD
    switch.packet(0, 91)
    assert switch.packet(1, 2, flow=2) == TRACKED | AHEAD | MARK


def test_warm_up_must_be_exceeded() -> None:
    """Algorithm 1, line 11: psn_rec <= N_warmup exempts."""
    switch = Switch(SymphonyParams(k=1.0, n_warmup=16))
    switch.packet(0, 0)
    switch.packet(0, 16)
    assert not switch.packet(1, 0, flow=2) & MARK
    switch.packet(0, 17)
    switch.packet(1, 0, flow=2)
    assert switch.packet(1, 20, flow=2) & MARK


def test_sample_guard_must_be_exceeded() -> None:
    """A window of n_sample packets leaves alpha alone, one packet more moves it."""
    switch = Switch(SymphonyParams(n_sample=8))
    switch.window(ahead=7, level=1)
    switch.window(ahead=8, level=1)
    assert switch.alpha == 1
    switch.window(ahead=1, level=8)
    assert switch.alpha == 2


@pytest.mark.parametrize(("ahead", "grows"), [(24, False), (25, True), (26, True)])
def test_alpha_grows_from_an_outpacing_share_of_tau(ahead: int, grows: bool) -> None:
    """Eq. 3 and 5: rho >= tau, tau itself included."""
    switch = Switch()
    switch.job.alpha = 5
    switch.regs.alpha[0, 0] = 5
    switch.window(ahead=ahead, level=100 - ahead)
    switch.window(ahead=0, level=1)
    assert switch.alpha == (6 if grows else 4)


def test_packet_that_closes_a_window_counts_in_the_next() -> None:
    """It does not vote on the window it closes."""
    switch = Switch()
    switch.window(ahead=0, level=3)
    switch.packet(switch.step_min + 1, wait=WINDOW)
    assert switch.alpha == 1
    assert (switch.job.cnt_op, switch.job.cnt_total) == (1, 1)
    switch.packet(switch.step_min, wait=WINDOW)
    assert switch.alpha == 2


def test_long_pause_moves_alpha_once() -> None:
    """However many windows would have fit in it."""
    switch = Switch()
    switch.window(ahead=5, level=1)
    switch.packet(switch.step_min, wait=1000 * WINDOW)
    assert switch.alpha == 2


def test_alpha_stays_within_1_and_its_bound() -> None:
    """Eq. 2 and the bound."""
    switch = Switch(SymphonyParams(alpha_max=4, n_sample=0))
    for _ in range(10):
        switch.window(ahead=5, level=1)
    assert switch.alpha == 4
    for _ in range(10):
        switch.window(ahead=0, level=2)
    assert switch.alpha == 1


def test_lowered_bound_stops_growth_and_does_not_cut_alpha() -> None:
    """As the register action does it: alpha comes down by ones."""
    switch = Switch(SymphonyParams(n_sample=0))
    for _ in range(10):
        switch.window(ahead=5, level=1)
    assert switch.alpha == 10
    switch.params = switch.job.params = SymphonyParams(n_sample=0, alpha_max=4)
    switch.window(ahead=5, level=1)
    assert switch.alpha == 10


@pytest.mark.parametrize(("floor", "probability"), [(None, 0.1), (1.0, 0.4)])
def test_ratio_floor_lifts_a_slow_packet_ahead(floor: float | None, probability: float) -> None:
    """psn / psn_rec = 25 / 100 with k = 0.4: eq. 4 gives 0.1; with the floor the ratio is 1."""
    job = JobState(SymphonyParams(k=0.4, n_warmup=0, ratio_floor=floor))
    for step, psn, flow in ((0, 0, 1), (0, 100, 1), (1, 0, 2)):
        job.process(Packet(step, psn, False, flow, flow, 5, 0.999))
    assert job.process(Packet(1, 25, False, 2, 2, 5, 0.999)).probability == pytest.approx(probability)


def test_step_max_falls_only_when_the_control_plane_resets_it() -> None:
    """The agent writes mx := mn after each sample."""
    switch = Switch()
    switch.packet(6, 0)
    switch.packet(0, 0, flow=2)
    assert switch.step_max == 6
    switch.job.step_max = switch.step_min
    switch.regs.steps_mx[0, 0] = switch.regs.steps_mn[0, 0]
    switch.packet(2, 0, flow=3)
    assert switch.step_max == 2


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1023), st.integers(0, 1023))
def test_relation_is_serial_for_any_pair_of_steps(step_min: int, step: int) -> None:
    """RFC 1982 over 10 bits; exactly half the circle counts as behind."""
    distance = (step - step_min) % 1024
    bits = Switch(first_step=step_min).packet(step)
    assert bool(bits & AHEAD) == (0 < distance < 512)
    assert bool(bits & LAG) == (distance >= 512)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, (1 << 24) - 1), st.lists(st.integers(-(1 << 23) + 1, (1 << 23) - 1), max_size=8))
def test_relative_psn_is_never_negative_whatever_comes(first: int, offsets: list[int]) -> None:
    """Any order of PSNs: the base is the oldest one since the last restart, all forms agree."""
    switch = Switch()
    flows = FlowBases()
    for psn in (first, *((first + offset) % (1 << 24) for offset in offsets)):
        switch.packet(0, psn)
        assert 0 <= flows.relative_psn(Packet(0, psn, False, 1, 1, 0, 0.0)) < 1 << 23
    assert 0 <= switch.psn_rec < 1 << 23


@settings(max_examples=200, deadline=None)
@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_window_expiry_is_serial_for_any_pair_of_times(start: int, pause: int) -> None:
    """The clock may wrap; pauses from half its circle on look like the past and do not expire."""
    bits = Switch(time=start).packet(0, wait=pause)
    assert bool(bits & EXPIRED) == (WINDOW <= pause < (1 << 31) + WINDOW)


@given(st.integers(), st.integers(), st.integers(2, 32), st.integers())
def test_serial_difference_depends_on_the_distance_alone(a: int, b: int, bits: int, turn: int) -> None:
    """Turning both numbers round the circle changes nothing, and the difference is right modulo it."""
    circle = 1 << bits
    difference = serial_diff(a, b, bits)
    assert -circle // 2 <= difference < circle // 2
    assert (difference - (a - b)) % circle == 0
    assert serial_diff(a + turn, b + turn, bits) == difference


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_order_of_packets_keeps_both_forms_equal_and_alpha_in_bounds(data: st.DataObject) -> None:
    """Whatever comes, in whatever order: equal states, 1 <= alpha <= bound, overlap never from one step."""
    switch = Switch(SymphonyParams(k=0.3, n_warmup=1, n_sample=1, alpha_max=3), first_step=1020)
    packets = st.tuples(
        st.integers(1015, 1030),
        st.integers(0, 40),
        st.booleans(),
        st.integers(1, 4),
        st.sampled_from([0, 1, WINDOW]),
    )
    for step, psn, last, flow, wait in data.draw(st.lists(packets, max_size=30)):
        switch.packet(step, psn, last=last, flow=flow, slot=flow % 2, wait=wait)
        assert 1 <= switch.alpha <= 3


def test_random_number_must_be_below_the_threshold() -> None:
    """As saturating subtraction and a test for 0 do it on the switch: equal is not marked."""
    entry = np.array(SymphonyParams(k=0.1, n_warmup=0).to_entry().values(), np.int64)
    threshold = mark_threshold(LOOKUPS, 0, entry, 0, 10 << 8, 1)

    def marked(rnd: int) -> bool:
        regs = new_registers(1, n_state=1, n_flow=2)
        regs.steps_mn[0, 0], regs.psn_rec[0, 0] = 1, 10 << 8
        return bool(process_packet(regs, 0, LOOKUPS, 0, 0, entry, 0xC001, 0, False, 7, 1, 5, rnd) & MARK)

    assert threshold > 0
    assert [marked(threshold - 1), marked(threshold), marked(threshold + 1)] == [True, False, False]


def test_index_outside_the_registers_passes_the_packet_untouched() -> None:
    """A wrong table entry must not write past the arrays."""
    regs = new_registers(1, n_state=4, n_flow=4)
    entry = np.array(SymphonyParams().to_entry().values(), np.int64)
    for state, slot in ((4, 0), (-1, 0), (0, 4), (0, -1), (1 << 40, 0)):
        assert process_packet(regs, 0, LOOKUPS, 0, state, entry, 0xC005, 9, False, 77, slot, 5000, 0) == 0
    assert_equal(regs, new_registers(1, 4, 4))


@njit()
def _with_column_types(
    regs: Registers, lut: Lookups, entry: np.ndarray, sports: np.ndarray, words: np.ndarray, times: np.ndarray
) -> int:
    """Call with uint16, uint32 and uint64 arguments, as arrays of a caller may hold them."""
    verdict = 0
    for i in range(len(sports)):
        verdict = process_packet(
            regs, 0, lut, 0, 0, entry, sports[i], words[i], sports[i] == 0, words[i], 0, times[i], words[i]
        )
    return verdict


def test_unsigned_arguments_of_a_compiled_caller_wrap_like_signed_ones() -> None:
    """Numba would compute uint64 with int64 as float64."""
    entry = np.array(SymphonyParams().to_entry().values(), np.int64)
    steps, psns, times = [1023, 512, 513, 1], [0xFFFFFE, 0xFFFFFF, 0, 5], [1 << 31, (1 << 32) - 1, 3, 1 << 40]
    typed, plain = new_registers(1, 1, 1), new_registers(1, 1, 1)
    sports = np.array([0xC000 | step for step in steps], np.uint16)
    verdict = _with_column_types(typed, LOOKUPS, entry, sports, np.array(psns, np.uint32), np.array(times, np.uint64))
    for sport, psn, time in zip(sports.tolist(), psns, times, strict=True):
        expected = process_packet(plain, 0, LOOKUPS, 0, 0, entry, sport, psn, False, psn, 0, time, psn)
    assert verdict == expected
    assert_equal(typed, plain)
