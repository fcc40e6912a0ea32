# SPDX-License-Identifier: Apache-2.0
"""Run a capture through the data plane and report: the one function behind ``switch-agent replay``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from switch_agent.dataplane.constants import DATA_OPCODES, N_FLOW, STEP_BITS, TIME_UNIT_NS
from switch_agent.dataplane.params import SymphonyParams
from switch_agent.dataplane.pipeline import Registers, new_lookups, new_registers
from switch_agent.replay.capture import BATCH, Capture
from switch_agent.replay.errors import EmptyCaptureError, OptionError
from switch_agent.replay.frames import LINK_TYPES, decode, new_packets
from switch_agent.replay.jobs import JobMap, JobRule
from switch_agent.replay.loop import SAMPLE_FIELDS, JobTotals, Tally, flush, follow, new_flows, new_tally, new_totals
from switch_agent.replay.outcomes import OUTCOMES, ROCE
from switch_agent.replay.report import (
    CaptureInfo,
    IncompleteInfo,
    JobReport,
    RegisterValues,
    ReplayReport,
    RoceInfo,
    SequenceInfo,
    Settings,
    Unmarkable,
    Window,
)

__all__ = ["OPCODE_NAMES", "ReplayOptions", "replay", "seen_instead"]

Ints = npt.NDArray[np.int64]

_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_MIN_WINDOW_MS, _MAX_WINDOW_MS = 0.001, 3_600_000.0
_MAX_SEED = (1 << 63) - 1

OPCODE_NAMES = {
    **dict(
        enumerate(
            (
                *("RC_SEND_FIRST", "RC_SEND_MIDDLE", "RC_SEND_LAST", "RC_SEND_LAST_IMM", "RC_SEND_ONLY"),
                *("RC_SEND_ONLY_IMM", "RC_WRITE_FIRST", "RC_WRITE_MIDDLE", "RC_WRITE_LAST", "RC_WRITE_LAST_IMM"),
                *("RC_WRITE_ONLY", "RC_WRITE_ONLY_IMM", "RC_READ_REQUEST", "RC_READ_RESPONSE_FIRST"),
                *("RC_READ_RESPONSE_MIDDLE", "RC_READ_RESPONSE_LAST", "RC_READ_RESPONSE_ONLY", "RC_ACK"),
                *("RC_ATOMIC_ACK", "RC_CMP_SWAP", "RC_FETCH_ADD"),
            )
        )
    ),
    0x16: "RC_SEND_LAST_INV",
    0x17: "RC_SEND_ONLY_INV",
    0x64: "UD_SEND_ONLY",
    0x65: "UD_SEND_ONLY_IMM",
    0x81: "CNP",
}
"""BTH opcodes by number (IB spec vol. 1, table 38, and annex A17 for CNP); the report writes others as 0x.."""


@dataclass(frozen=True)
class ReplayOptions:
    """What to do with a capture.

    Attributes:
        params: Symphony's parameters for all jobs.
        variant: the name of the set they started from, for the report.
        step_bits: bits of the step in the tag, 2 to 14. The switch program reads 10: fewer are compared as the
            serial numbers they are, of more the low 10 count.
        rules: job rules; data packets that match none belong to the job of their tag.
        seed: of the coin, 0 .. 2^63 - 1. A packet's coin depends on it and on its place in the file only.
        window_ms: length of the timeline's windows, 0.001 ms to 1 h.

    Raises:
        OptionError: a value is out of range, or scope "port" was asked for.
    """

    params: SymphonyParams = field(default_factory=SymphonyParams)
    variant: str = "paper"
    step_bits: int = STEP_BITS
    rules: Sequence[JobRule] = ()
    seed: int = 1
    window_ms: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _MAX_SEED:
            raise OptionError(f"--seed {self.seed}: give a number from 0 to {_MAX_SEED}")
        if not (math.isfinite(self.window_ms) and _MIN_WINDOW_MS <= self.window_ms <= _MAX_WINDOW_MS):
            raise OptionError(f"--window-ms {self.window_ms}: give {_MIN_WINDOW_MS} to {_MAX_WINDOW_MS:.0f}")
        if self.params.scope != "job":
            raise OptionError("scope 'port' cannot be replayed: a capture does not tell the egress port")

    @property
    def window_ns(self) -> int:
        """Length of the timeline's windows in ns."""
        return round(self.window_ms * _NS_PER_MS)


def replay(path: str, options: ReplayOptions) -> ReplayReport:
    """Run the capture at ``path`` ("-": standard input) through the data plane.

    Raises:
        CaptureError: the file cannot be read, is no capture or holds no packet.
        OptionError: step_bits out of range.
    """
    jobs = JobMap(options.rules, options.step_bits)
    n_jobs = len(jobs.names)
    params = np.array(options.params.to_entry().values(), np.int64)
    regs, lut = new_registers(1, n_jobs, N_FLOW), new_lookups(1)
    tally, totals, flows = new_tally(), new_totals(n_jobs), new_flows(N_FLOW)
    packets = new_packets(BATCH)
    samples = np.empty((max(BATCH, n_jobs), len(SAMPLE_FIELDS)), np.int64)
    windows: list[Ints] = []
    with Capture(path) as capture:
        for data, records, n in capture.batches():
            decode(data, records, n, packets)
            n_samples = follow(
                records,
                packets,
                n,
                capture.records - n,
                jobs.table,
                jobs.n_named,
                jobs.step_bits,
                params,
                options.seed,
                options.window_ns,
                regs,
                lut,
                flows,
                tally,
                totals,
                samples,
            )
            if n_samples:
                windows.append(samples[:n_samples].copy())
    if not capture.records:
        why = f" ({capture.incomplete.reason})" if capture.incomplete else ": was anything captured?"
        raise EmptyCaptureError(f"{path} is a {capture.format} file without a packet{why}")
    windows.append(samples[: flush(regs, totals, jobs.step_bits, samples)].copy())
    return _report(capture, options, jobs, tally, totals, regs, np.concatenate(windows))


def seen_instead(report: ReplayReport) -> str:
    """Return one line on what a capture without RoCEv2 packets holds."""
    capture = report.capture
    texts = {outcome.name: outcome.text for outcome in OUTCOMES}
    seen = sorted((capture.other | capture.junk).items(), key=lambda item: -item[1])
    listed = "; ".join(f"{count} x {texts[name]}" for name, count in seen)
    links = ", ".join(capture.link_types)
    return f"no RoCEv2 packets in {capture.path}; its {capture.records} records ({links}): {listed}"


def _seconds(ns: int) -> float:
    return int(ns) / _NS_PER_S


def _report(
    capture: Capture,
    options: ReplayOptions,
    jobs: JobMap,
    tally: Tally,
    totals: JobTotals,
    regs: Registers,
    windows: Ints,
) -> ReplayReport:
    reports = [
        _job(jobs, job, totals, regs, windows[windows[:, 0] == job], options)
        for job in np.flatnonzero(totals.packets).tolist()
    ]
    entry = options.params.to_entry()
    info = _capture(capture, tally)
    roce = _roce(tally)
    return ReplayReport(
        schema_version=1,
        capture=info,
        settings=Settings(
            variant=options.variant,
            params=asdict(entry.to_params()),
            entry=asdict(entry),
            step_bits=options.step_bits,
            seed=options.seed,
            window_ms=options.window_ms,
            rules=[str(rule) for rule in options.rules],
        ),
        roce=roce,
        jobs=reports,
        notes=_notes(info, roce, options, reports),
    )


def _capture(capture: Capture, tally: Tally) -> CaptureInfo:
    counts = tally.outcomes.tolist()
    named: dict[str, dict[str, int]] = {"other": {}, "junk": {}}
    for outcome, count in zip(OUTCOMES, counts, strict=True):
        if outcome.kind != "roce" and count:
            named[outcome.kind][outcome.name] = count
    first, latest, earlier, started = tally.clock.tolist()
    stop = capture.incomplete
    return CaptureInfo(
        path=capture.name,
        format="pcap" if capture.format == "pcap" else "pcapng",
        compressed=capture.compressed,
        link_types=[LINK_TYPES.get(link, f"link type {link}") for link in sorted(capture.link_types)],
        records=capture.records,
        roce=counts[ROCE],
        other=named["other"],
        junk=named["junk"],
        incomplete=IncompleteInfo(offset=stop.offset, reason=stop.reason) if stop else None,
        first_unix_ns=first if started else None,
        duration_s=_seconds(latest - first),
        stamped_earlier=earlier,
    )


def _roce(tally: Tally) -> RoceInfo:
    counts = tally.opcodes.tolist()
    opcodes = {OPCODE_NAMES.get(code, f"{code:#04x}"): count for code, count in enumerate(counts) if count}
    gaps, missing, back, restarts = tally.sequence.tolist()
    return RoceInfo(
        opcodes=opcodes,
        ecn=dict(zip(("not_ect", "ect1", "ect0", "ce"), tally.ecn.tolist(), strict=True)),
        replies=dict(zip(("ack", "rnr_nak", "nak"), tally.replies.tolist(), strict=True)),
        sequence=SequenceInfo(gaps=gaps, missing=missing, steps_back=back, restarts=restarts),
        data_packets=int(tally.opcodes[sorted(DATA_OPCODES)].sum()),
        untagged=int(tally.untagged[0]),
    )


def _job(
    jobs: JobMap, job: int, totals: JobTotals, regs: Registers, windows: Ints, options: ReplayOptions
) -> JobReport:
    total = {name: int(column[job]) for name, column in zip(JobTotals._fields, totals, strict=True)}
    timeline = [
        Window(start_s=_seconds(window * options.window_ns), **dict(zip(SAMPLE_FIELDS[2:], figures, strict=True)))
        for _, window, *figures in windows.tolist()
    ]
    # The register has the low 32 bits of the time; the window began at most 2^31 units before the last packet.
    last_units = total["last_ns"] // TIME_UNIT_NS
    age = (last_units - int(regs.window_start[0, job])) & 0xFFFFFFFF
    return JobReport(
        name=jobs.names[job],
        job_tag=jobs.tag(job),
        match=list(jobs.match(job)),
        packets=total["packets"],
        bytes=total["octets"],
        outpacing=total["outpacing"],
        step_ends=total["step_ends"],
        windows_closed=total["windows"],
        would_mark=total["marks"],
        unmarkable=Unmarkable(not_ect=total["not_ect"], already_ce=total["already_ce"]),
        first_s=_seconds(total["first_ns"]),
        last_s=_seconds(total["last_ns"]),
        max_overlap=max(window.overlap for window in timeline),
        registers=RegisterValues(
            step_min=timeline[-1].step_min,
            step_max=timeline[-1].step_max,
            psn_rec=timeline[-1].psn_recorded,
            alpha=int(regs.alpha[0, job]),
            score=int(regs.score[0, job]),
            count=int(regs.count[0, job]),
            window_start_s=_seconds((last_units - age) * TIME_UNIT_NS),
        ),
        timeline=timeline,
    )


def _notes(capture: CaptureInfo, roce: RoceInfo, options: ReplayOptions, jobs: Sequence[JobReport]) -> list[str]:
    notes = []
    if capture.incomplete:
        notes.append(
            f"Reading stopped at byte {capture.incomplete.offset}: {capture.incomplete.reason}; "
            "the figures are those of what was read."
        )
    if capture.stamped_earlier:
        notes.append(
            f"{capture.stamped_earlier} packets are stamped earlier than one before them and were taken at the later "
            "time; reordercap sorts a capture."
        )
    if roce.untagged:
        notes.append(f"{roce.untagged} data packets have a source port below 0xc000 and match no rule: not tracked.")
    if options.params.gate:
        notes.append("The gate is on, but a capture shows no queues: would_mark counts as if they were never empty.")
    if jobs and not roce.ecn["ect0"] + roce.ecn["ect1"]:
        notes.append("No packet is ECT(0) or ECT(1): a switch would mark nothing.")
    if options.step_bits != STEP_BITS:
        notes.append(
            f"The switch program reads {STEP_BITS} bits of step; --step-bits {options.step_bits} is for replay only."
        )
    return notes
