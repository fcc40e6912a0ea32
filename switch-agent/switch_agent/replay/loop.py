# SPDX-License-Identifier: Apache-2.0
"""Take decoded packets through the data plane, one after the other; JIT-compiled.

Everything a switch does to a data packet of a job is ``switch_agent.dataplane.pipeline.process_packet``. Around it
stand what the agent does (it starts jobs, refreshes idle windows, samples the registers and brings step_max back)
and what a capture tells besides (opcodes, ECN, replies, PSN sequence).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.dataplane.constants import AHEAD, EXPIRED, LAST, MARK, PSN_SHIFT, STEP_BITS, STEP_SHIFT, TIME_UNIT_NS
from switch_agent.dataplane.hashes import flow_signature, flow_slot
from switch_agent.dataplane.pipeline import Lookups, Registers, process_packet
from switch_agent.replay.forms import FORMS
from switch_agent.replay.frames import Packets
from switch_agent.replay.jit import inlined, loop
from switch_agent.replay.jobs import RuleTable, job_of
from switch_agent.replay.outcomes import OUTCOMES, ROCE
from switch_agent.replay.records import Records

__all__ = [
    "SAMPLE_FIELDS",
    "Flows",
    "JobTotals",
    "Tally",
    "coin",
    "count",
    "flush",
    "follow",
    "new_flows",
    "new_tally",
    "new_totals",
]

Ints = npt.NDArray[np.int64]

SAMPLE_FIELDS = (
    "job",
    "window",
    "packets",
    "outpacing",
    "would_mark",
    "step_min",
    "step_max",
    "overlap",
    "alpha",
    "psn_recorded",
)
"""Columns of a sample: one job's figures over one window of the timeline."""

_LOW_32 = 0xFFFFFFFF
_STEPS = 1 << STEP_BITS
_IDLE_UNITS = 1 << 30  # 4.6 min: half of the time after which a window looks unexpired again
_PSN_MASK = 0xFFFFFF
_PSN_HALF = 0x800000
_RESTART = 1 << 16  # packets; a jump this far is a QP's new start, not a loss
_LAST_REQUEST = 11  # RC SENDs and RDMA WRITEs: each takes one PSN
_FIRST_WRITE = 6
_WRITE_LAST_IMM, _WRITE_ONLY_IMM = 9, 11
_ECT_1, _ECT_0, _CE = 1, 2, 3


class Tally(NamedTuple):
    """What the whole capture held.

    Attributes:
        outcomes: records by outcome.
        opcodes: packets by BTH opcode.
        ecn: packets by ECN field; those over IP have one.
        forms: packets by bit of ``forms``.
        replies: ACK, RNR NAK, NAK (IB spec vol. 1, table 45).
        sequence: gaps, packets missing in them, steps back, restarts.
        untagged: data packets of no job: whose port carries no tag, who have no port.
        clock: first time seen in ns, latest time, packets stamped earlier than the latest, started (0 or 1).
    """

    outcomes: Ints
    opcodes: Ints
    ecn: Ints
    forms: Ints
    replies: Ints
    sequence: Ints
    untagged: Ints
    clock: Ints


class JobTotals(NamedTuple):
    """Counts of each job, int64[n_jobs]; times in ns since the first RoCEv2 packet.

    ``marks`` are marks a switch would set, on ECT packets; ``not_ect`` and ``already_ce`` are candidates it would
    leave. ``window`` to ``window_marks`` belong to the window of the timeline that is open.
    """

    packets: Ints
    octets: Ints
    outpacing: Ints
    step_ends: Ints
    windows: Ints
    marks: Ints
    not_ect: Ints
    already_ce: Ints
    first_ns: Ints
    last_ns: Ints
    window: Ints
    window_packets: Ints
    window_outpacing: Ints
    window_marks: Ints


class Flows(NamedTuple):
    """Next PSN expected of the flow in each slot, int64[n_slots], and whose it is: low 32 bits of addresses, QP."""

    addresses: Ints
    qpn: Ints
    next_psn: Ints


def new_tally() -> Tally:
    """Return a tally of nothing."""
    return Tally(*(np.zeros(size, np.int64) for size in (len(OUTCOMES), 256, 4, len(FORMS), 3, 4, 2, 4)))


def new_totals(n_jobs: int) -> JobTotals:
    """Return totals of ``n_jobs`` jobs without packets."""
    return JobTotals(*(np.zeros(n_jobs, np.int64) for _ in JobTotals._fields))


def new_flows(n_slots: int) -> Flows:
    """Return slots without flows."""
    return Flows(*(np.full(n_slots, -1, np.int64) for _ in Flows._fields))


@inlined
def coin(seed: int, record: int) -> int:
    """Return the 32-bit random number of one record: splitmix64 of seed and position in the file."""
    x = np.uint64(seed) + np.uint64(record + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.int64((x ^ (x >> np.uint64(31))) >> np.uint64(32)))


@inlined
def _tick(clock: Ints, time_ns: int) -> int:
    """Return ns since the first packet; the clock never goes back."""
    if clock[3] == 0:
        clock[0] = clock[1] = time_ns
        clock[3] = 1
    if time_ns < clock[1]:
        clock[2] += 1
    else:
        clock[1] = time_ns
    return int(clock[1] - clock[0])


@inlined
def _count_reply(replies: Ints, syndrome: int) -> None:
    kind = syndrome >> 5 & 3
    if kind == 0:
        replies[0] += 1
    elif kind == 1:
        replies[1] += 1
    elif kind == 3:
        replies[2] += 1


@inlined
def _count_forms(counts: Ints, form: int) -> None:
    for bit in range(counts.shape[0]):
        counts[bit] += form >> bit & 1


@inlined
def _check_sequence(flows: Flows, slot: int, addresses: int, qpn: int, psn: int, sequence: Ints) -> None:
    """Compare a request's PSN with the one expected of its flow; a flow new in its slot says nothing."""
    if flows.qpn[slot] == qpn and flows.addresses[slot] == addresses:
        distance = ((psn - flows.next_psn[slot] + _PSN_HALF) & _PSN_MASK) - _PSN_HALF
        if distance >= _RESTART or distance <= -_RESTART:
            sequence[3] += 1
        elif distance > 0:
            sequence[0] += 1
            sequence[1] += distance
        elif distance < 0:
            sequence[2] += 1
    flows.qpn[slot] = qpn
    flows.addresses[slot] = addresses
    flows.next_psn[slot] = (psn + 1) & _PSN_MASK


@inlined
def _signed(word: int) -> int:
    """Return the low 32 bits as a signed number."""
    return int(((np.int64(word) & _LOW_32) ^ 0x80000000) - 0x80000000)


@inlined
def _step_at(word: int, step_bits: int) -> int:
    return int((np.int64(word) >> STEP_SHIFT) & ((1 << min(step_bits, STEP_BITS)) - 1))


@inlined
def _near(step: int, step_min: int, step_bits: int) -> int:
    """Return the 10-bit step nearest to ``step_min`` whose low ``step_bits`` (< 10) are ``step``.

    So a comparison of 10 bits comes out as one of ``step_bits`` would.
    """
    half = 1 << (step_bits - 1)
    distance = ((step - step_min + half) & (2 * half - 1)) - half
    return (step_min + distance) & (_STEPS - 1)


@inlined
def _start_job(regs: Registers, job: int, step: int, units: int) -> None:
    """What the agent writes when a job starts; alpha and the rest have their initial values."""
    word = _signed(step << STEP_SHIFT) | 1
    regs.steps_mn[0, job] = word
    regs.steps_mx[0, job] = word
    regs.window_start[0, job] = _signed(units)


@inlined
def _sample(regs: Registers, totals: JobTotals, job: int, step_bits: int, samples: Ints, row: int) -> None:
    """Close the job's window of the timeline: sample, and bring step_max back as the agent does."""
    low, high = int(np.int64(regs.steps_mn[0, job])), int(np.int64(regs.steps_mx[0, job]))
    samples[row, 0] = job
    samples[row, 1] = totals.window[job]
    samples[row, 2] = totals.window_packets[job]
    samples[row, 3] = totals.window_outpacing[job]
    samples[row, 4] = totals.window_marks[job]
    samples[row, 5] = _step_at(low, step_bits)
    samples[row, 6] = _step_at(high, step_bits)
    samples[row, 7] = max(0, (_signed(high - low) >> STEP_SHIFT) + 1)
    samples[row, 8] = regs.alpha[0, job]
    samples[row, 9] = np.int64(regs.psn_rec[0, job]) >> PSN_SHIFT


@inlined
def _next_window(regs: Registers, totals: JobTotals, job: int, window: int) -> None:
    if _signed(int(np.int64(regs.steps_mx[0, job]) - np.int64(regs.steps_mn[0, job]))) > 0:
        regs.steps_mx[0, job] = regs.steps_mn[0, job]
    totals.window[job] = window
    totals.window_packets[job] = 0
    totals.window_outpacing[job] = 0
    totals.window_marks[job] = 0


@inlined
def _count_verdict(totals: JobTotals, job: int, verdict: int, ecn: int) -> None:
    if verdict & AHEAD:
        totals.outpacing[job] += 1
        totals.window_outpacing[job] += 1
    if verdict & EXPIRED:
        totals.windows[job] += 1
    if verdict & LAST:
        totals.step_ends[job] += 1
    if verdict & MARK:
        if ecn == _CE:
            totals.already_ce[job] += 1
        elif ecn in (_ECT_0, _ECT_1):
            totals.marks[job] += 1
            totals.window_marks[job] += 1
        else:
            totals.not_ect[job] += 1


@loop
def count(packets: Packets, n: int, tally: Tally) -> None:
    """Count what ``n`` packets are: outcomes, opcodes, ECN, forms, replies."""
    for i in range(n):
        outcome = packets.outcome[i]
        tally.outcomes[outcome] += 1
        if outcome != ROCE:
            continue
        tally.opcodes[packets.opcode[i]] += 1
        if packets.ecn[i] >= 0:
            tally.ecn[packets.ecn[i]] += 1
        if packets.form[i]:
            _count_forms(tally.forms, packets.form[i])
        if packets.syndrome[i] >= 0:
            _count_reply(tally.replies, packets.syndrome[i])


@loop
def follow(
    records: Records,
    packets: Packets,
    n: int,
    first_record: int,
    rules: RuleTable,
    n_named: int,
    step_bits: int,
    params: Ints,
    seed: int,
    window_ns: int,
    regs: Registers,
    lut: Lookups,
    flows: Flows,
    tally: Tally,
    totals: JobTotals,
    samples: Ints,
) -> int:
    """Take ``n`` packets through the data plane; return how many rows of ``samples`` were filled.

    Args:
        records: their records.
        packets: their headers.
        n: how many.
        first_record: records of the file before these.
        rules: job rules, ``JobMap.table``.
        n_named: jobs with rules.
        step_bits: bits of the step in the tag.
        params: int64[10], ``ParamEntry.values()``.
        seed: of the coin.
        window_ns: length of a window of the timeline.
        regs: registers, one row; job i has state i.
        lut: look-ups, one row.
        flows: expected PSNs.
        tally: counts of the capture.
        totals: counts of the jobs.
        samples: int64[>= n, len(SAMPLE_FIELDS)], filled from its start, in the order in which windows close.
    """
    n_samples = 0
    for i in range(n):
        if packets.outcome[i] != ROCE:
            continue
        now_ns = _tick(tally.clock, records.time_ns[i])
        opcode = packets.opcode[i]
        ecn = packets.ecn[i]
        if opcode > _LAST_REQUEST:
            continue
        sport = packets.sport[i]
        psn = packets.psn[i]
        src = packets.src_low[i] & _LOW_32
        dst = packets.dst_low[i] & _LOW_32
        qpn = packets.qpn[i]
        slot = flow_slot(src, dst, qpn)
        _check_sequence(flows, slot, src << 32 | dst, qpn, psn, tally.sequence)
        if opcode < _FIRST_WRITE:
            continue
        if sport < 0:
            tally.untagged[1] += 1
            continue
        job = job_of(
            rules,
            n_named,
            step_bits,
            packets.version[i],
            packets.src_high[i],
            packets.src_low[i],
            packets.dst_high[i],
            packets.dst_low[i],
            sport,
        )
        if job < 0:
            tally.untagged[0] += 1
            continue
        units = now_ns // TIME_UNIT_NS
        window = now_ns // window_ns
        step = sport & ((1 << step_bits) - 1)
        if totals.packets[job] == 0:
            _start_job(regs, job, step, units)
            totals.first_ns[job] = totals.last_ns[job] = now_ns
            totals.window[job] = window
        elif window != totals.window[job]:
            _sample(regs, totals, job, step_bits, samples, n_samples)
            _next_window(regs, totals, job, window)
            n_samples += 1
        if now_ns - totals.last_ns[job] >= _IDLE_UNITS * TIME_UNIT_NS:
            regs.window_start[0, job] = _signed(units - _IDLE_UNITS)
        totals.last_ns[job] = now_ns
        totals.packets[job] += 1
        totals.window_packets[job] += 1
        totals.octets[job] += records.length[i]
        if step_bits < STEP_BITS:
            step = _near(step, _step_at(regs.steps_mn[0, job], STEP_BITS), step_bits)
        is_last = opcode in (_WRITE_LAST_IMM, _WRITE_ONLY_IMM)
        sig = flow_signature(src, dst, qpn, sport)
        rnd = coin(seed, first_record + i)
        verdict = process_packet(regs, 0, lut, 0, job, params, step, psn, is_last, sig, slot, units, rnd)
        _count_verdict(totals, job, verdict, ecn)
    return n_samples


@loop
def flush(regs: Registers, totals: JobTotals, step_bits: int, samples: Ints) -> int:
    """Sample the windows still open at the end, without resetting step_max; return how many.

    ``samples`` is int64[>= n_jobs, len(SAMPLE_FIELDS)].
    """
    n_samples = 0
    for job in range(totals.packets.shape[0]):
        if totals.packets[job]:
            _sample(regs, totals, job, step_bits, samples, n_samples)
            n_samples += 1
    return n_samples
