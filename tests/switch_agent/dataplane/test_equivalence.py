# SPDX-License-Identifier: Apache-2.0
"""The integer pipeline follows the reference packet for packet on long random streams."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from numba import njit

from switch_agent.dataplane.constants import AHEAD, EXPIRED, LAST, MARK, PSN_SHIFT, STEP_SHIFT
from switch_agent.dataplane.hashes import flow_signature
from switch_agent.dataplane.params import VARIANTS, SymphonyParams
from switch_agent.dataplane.pipeline import (
    Lookups,
    Registers,
    mark_threshold,
    new_lookups,
    new_registers,
    process_packet,
)
from switch_agent.dataplane.reference import JobState, Packet

N_PACKETS = 100_000
FIRST_STEP = 1000  # the step wraps early in every stream
ROW, STATE = 1, 7

Ints = npt.NDArray[np.int64]


class Stream(NamedTuple):
    """Packets as the switch sees them, and as columns for the compiled loop."""

    packets: list[Packet]
    columns: Ints  # [n, 7]: sport, psn, last, sig, slot, now, rnd


@njit()
def drive(regs: Registers, lut: Lookups, params: Ints, columns: Ints, trace: Ints) -> None:
    """Run all packets; trace[i] = verdict, mn, mx, psn_rec, alpha, window start, score, count, threshold."""
    for i in range(columns.shape[0]):
        sport, psn, last, sig, slot, now, rnd = columns[i]
        trace[i, 0] = process_packet(regs, ROW, lut, 0, STATE, params, sport, psn, last != 0, sig, slot, now, rnd)
        trace[i, 1] = regs.steps_mn[ROW, STATE]
        trace[i, 2] = regs.steps_mx[ROW, STATE]
        trace[i, 3] = regs.psn_rec[ROW, STATE]
        trace[i, 4] = regs.alpha[ROW, STATE]
        trace[i, 5] = regs.window_start[ROW, STATE]
        trace[i, 6] = regs.score[ROW, STATE]
        trace[i, 7] = regs.count[ROW, STATE]
        rel = ((psn << PSN_SHIFT) - regs.flow_base[ROW, slot]) & 0xFFFFFFFF
        trace[i, 8] = mark_threshold(lut, 0, params, rel, int(regs.psn_rec[ROW, STATE]), int(regs.alpha[ROW, STATE]))


def ring_packets(rng: random.Random) -> Iterator[tuple[int, int, int, bool, int]]:
    """Yield (flow, step, psn, last, gap): eight rings of unequal speed, losses, go-back-N, late repeats."""
    speeds = [1, 2, 3, 3, 4, 4, 6, 8]
    step = [FIRST_STEP] * 8
    position = [0] * 8
    length = [rng.choice([40, 150, 700]) for _ in speeds]
    base = [rng.randrange(1 << 24) for _ in speeds]
    while True:
        slowest = min(step)
        flow = rng.choices(range(8), speeds)[0]
        if step[flow] - slowest > 12:
            continue
        if rng.random() < 0.003:  # go back to an older packet, sometimes to the step's first
            position[flow] = rng.choice([0, max(0, position[flow] - 20)])
        if rng.random() < 0.002:  # packets that never reach the switch
            position[flow] += rng.randrange(5)
        last = position[flow] >= length[flow] - 1
        gap = 5000 if rng.random() < 0.0005 else rng.choice([0, 0, 1, 2, 9])
        yield flow, step[flow], base[flow] + position[flow], last, gap
        position[flow] += 1
        if last:
            base[flow] += position[flow] if rng.random() < 0.8 else rng.randrange(1 << 24)
            step[flow], position[flow] = step[flow] + 1, 0


def arbitrary_packets(rng: random.Random) -> Iterator[tuple[int, int, int, bool, int]]:
    """Yield packets without rhyme or reason: any step, PSN and pause, among long runs near each other."""
    step, psn = FIRST_STEP, 0
    while True:
        if rng.random() < 0.01:
            step, psn = rng.randrange(1024), rng.randrange(1 << 24)
        if rng.random() < 0.02:
            psn += rng.randrange(1 << rng.randrange(1, 24))
        gap = rng.randrange(1 << rng.choices([0, 3, 8, 31], [60, 30, 9, 1])[0])
        yield rng.randrange(6), step + rng.choice([-1, 0, 0, 1, 1, 2]), psn, rng.random() < 0.01, gap
        psn += rng.randrange(3)


def make_stream(source: Callable[[random.Random], Iterator[tuple[int, int, int, bool, int]]], seed: int) -> Stream:
    """Return the packets of a source with times, coins and hashes."""
    rng = random.Random(seed)
    now = (1 << 32) - 2000  # the clock wraps early
    packets, columns = [], np.empty((N_PACKETS, 7), np.int64)
    for i, (flow, step, psn, last, gap) in zip(range(N_PACKETS), source(rng), strict=False):
        now += gap
        rnd = rng.getrandbits(32)
        packet = Packet(step % 1024, psn % (1 << 24), last, flow, flow % 5, now, rnd / 2**32)
        packets.append(packet)
        sport = 0xC000 | 3 << 10 | packet.step
        sig = flow_signature(0x0A000001 + flow, 0x0A000101, 17 + flow, sport)
        columns[i] = sport, packet.psn, last, sig, packet.slot, now, rnd
    return Stream(packets, columns)


@pytest.fixture(scope="module", params=[ring_packets, arbitrary_packets], ids=["ring", "arbitrary"])
def stream(request: pytest.FixtureRequest) -> Stream:
    """One stream of each kind."""
    return make_stream(request.param, seed=20)


PARAMETER_SETS = {
    **VARIANTS,
    "short window, high gain": SymphonyParams(k=0.1, window_us=5.0, n_warmup=0, n_sample=0),
    "patient": SymphonyParams(k=0.003, tau=0.75, window_us=400.0, n_warmup=100, n_sample=40),
    "tight bounds": SymphonyParams(k=0.02, tau=1 / 256, n_warmup=2, alpha_max=3, ratio_floor=0.25),
}


@pytest.mark.parametrize("name", PARAMETER_SETS)
def test_pipeline_equals_reference_packet_by_packet(name: str, stream: Stream) -> None:
    """All registers and verdicts are equal after every packet; the marking probability is within 5 %."""
    params = PARAMETER_SETS[name]
    entry = params.to_entry()
    regs = new_registers(2, n_state=8, n_flow=8)
    regs.steps_mn[:] = regs.steps_mx[:] = _word(FIRST_STEP)
    trace = np.empty((N_PACKETS, 9), np.int64)
    drive(regs, new_lookups(1), np.array(entry.values(), np.int64), stream.columns, trace)

    job = JobState(params, FIRST_STEP)
    candidates = 0
    for packet, row in zip(stream.packets, trace.tolist(), strict=True):
        verdict = job.process(packet)
        bits, mn, mx, psn_rec, alpha, window_start, score, count, threshold = row
        assert bits & ~MARK == verdict.bits & ~MARK
        assert (mn, mx) == (_word(job.step_min), _word(job.step_max))
        assert psn_rec == job.psn_rec << PSN_SHIFT
        assert alpha == job.alpha
        assert window_start % (1 << 32) == job.window_start
        assert (score, count) == (256 * job.cnt_op + entry.d_oth * job.cnt_total, job.cnt_total)
        if verdict.probability > 0:
            candidates += 1
            assert bool(bits & MARK) == (packet.coin * 2**32 < threshold)
            if verdict.probability >= 1e-4:
                assert threshold / 2**32 == pytest.approx(verdict.probability, rel=0.05)
        else:
            assert not bits & MARK

    verdicts = trace[:, 0]
    assert candidates > 100, "the stream must exercise the probability"
    assert np.count_nonzero(verdicts & MARK) > 10
    assert np.count_nonzero(verdicts & EXPIRED) > 100
    assert np.count_nonzero(verdicts & (AHEAD | LAST) == AHEAD | LAST) > 10
    assert trace[:, 4].max() >= 3, "alpha must move"
    others = np.delete(regs.alpha, STATE, axis=1)
    assert (others == 1).all()
    assert (regs.alpha[1 - ROW] == 1).all()


def _word(step: int) -> int:
    """Return the register word of a step as a signed 32-bit number."""
    word = step << STEP_SHIFT | 1
    return word - (1 << 32) if word >= 1 << 31 else word
