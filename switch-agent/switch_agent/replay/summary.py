# SPDX-License-Identifier: Apache-2.0
"""Make the report of a replay from its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from switch_agent.dataplane.constants import DATA_OPCODES, STEP_BITS, TIME_UNIT_NS
from switch_agent.dataplane.pipeline import Registers
from switch_agent.replay.capture import Capture
from switch_agent.replay.forms import FORMS, SWITCH_READS
from switch_agent.replay.jobs import JobMap
from switch_agent.replay.links import LINK_TYPES, link_name, link_remedy
from switch_agent.replay.loop import SAMPLE_FIELDS, JobTotals, Tally
from switch_agent.replay.messages import MAX_FLOWS, MAX_MESSAGES
from switch_agent.replay.outcomes import OUTCOMES, ROCE
from switch_agent.replay.pipeline import Pipeline
from switch_agent.replay.report import (
    CaptureInfo,
    FileInfo,
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
from switch_agent.replay.steps import Inference, infer

__all__ = ["OPCODE_NAMES", "seen_instead", "summary"]

Ints = npt.NDArray[np.int64]

_NS_PER_S = 1e9

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


def _seconds(ns: int) -> float:
    return int(ns) / _NS_PER_S


def summary(captures: Sequence[Capture], run: Pipeline) -> ReplayReport:
    """Return the report of a pipeline that is finished."""
    options = run.options
    rows = run.timeline.rows()
    window_ns = options.window_ns
    reports = [
        _job(run.jobs, job, run.totals, run.regs, rows[rows[:, 0] == job], window_ns)
        for job in np.flatnonzero(run.totals.packets).tolist()
    ]
    entry = options.params.to_entry()
    info = _capture(captures, run.tally)
    roce = _roce(run.tally)
    return ReplayReport(
        schema_version=2,
        capture=info,
        settings=Settings(
            variant=options.variant,
            params=asdict(entry.to_params()),
            entry=asdict(entry),
            step_bits=options.step_bits,
            seed=options.seed,
            window_ms=options.window_ms * 2**run.timeline.shift,
            rules=[str(rule) for rule in options.rules],
        ),
        roce=roce,
        inferred=_inferred(run),
        jobs=reports,
        partial=_partial(captures, info),
        notes=_notes(info, roce, run, reports),
    )


def _inferred(run: Pipeline) -> Inference | None:
    if run.log is None:
        return None
    found, _ = infer(
        run.log.flows(),
        run.log.messages(),
        messages_per_step=run.options.messages_per_step,
        turns=run.options.qp_groups,
        window_ns=run.options.window_ns,
        base_ns=int(run.tally.clock[0]),
    )
    if run.log.left_out:
        found.notes.append(
            f"{run.log.left_out} packets were left out: more than {MAX_FLOWS} QPs or {MAX_MESSAGES} messages."
        )
    return found


def _file(capture: Capture) -> FileInfo:
    stop = capture.incomplete
    return FileInfo(
        path=capture.name,
        format=capture.format,
        compression=capture.compression,
        link_types=[link_name(link) for link in sorted(capture.link_types)],
        records=capture.records,
        incomplete=IncompleteInfo(offset=stop.offset, reason=stop.reason) if stop else None,
    )


def _capture(captures: Sequence[Capture], tally: Tally) -> CaptureInfo:
    counts = tally.outcomes.tolist()
    named: dict[str, dict[str, int]] = {"roce": {}, "other": {}, "closed": {}, "junk": {}}
    for outcome, count in zip(OUTCOMES, counts, strict=True):
        if count:
            named[outcome.kind][outcome.name] = count
    first, latest, earlier, started = tally.clock.tolist()
    return CaptureInfo(
        files=[_file(capture) for capture in captures],
        records=sum(counts),
        roce=counts[ROCE],
        forms={name: count for (name, _), count in zip(FORMS, tally.forms.tolist(), strict=True) if count},
        other=named["other"],
        closed=named["closed"],
        junk=named["junk"],
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
        portless=int(tally.untagged[1]),
    )


def _job(jobs: JobMap, job: int, totals: JobTotals, regs: Registers, windows: Ints, window_ns: int) -> JobReport:
    total = {name: int(column[job]) for name, column in zip(JobTotals._fields, totals, strict=True)}
    timeline = [
        Window(start_s=_seconds(window * window_ns), **dict(zip(SAMPLE_FIELDS[2:], figures, strict=True)))
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


def _partial(captures: Sequence[Capture], info: CaptureInfo) -> list[str]:
    """Say what of the captures the figures do not cover."""
    notes: list[str] = []
    for capture in captures:
        if capture.incomplete:
            where = f" of {capture.name}" if len(captures) > 1 else ""
            notes.append(
                f"Reading stopped at byte {capture.incomplete.offset}{where}: {capture.incomplete.reason}; "
                "the figures are those of what was read."
            )
    unseen = info.closed | info.junk
    if unseen:
        listed = _listed(unseen)
        notes.append(
            f"The figures are from a part of the capture: {sum(unseen.values())} of {info.records} records may hold "
            f"RoCE that was not seen: {listed}."
        )
    if "link_type" in info.closed:
        unread = sorted(set().union(*(capture.link_types for capture in captures)) - set(LINK_TYPES))
        notes.extend(f"{link_name(link)} is not read: {link_remedy(link)}." for link in unread)
    return notes


def _notes(info: CaptureInfo, roce: RoceInfo, run: Pipeline, jobs: Sequence[JobReport]) -> list[str]:
    notes = []
    options = run.options
    unread = {
        name: info.forms[name] for i, (name, _) in enumerate(FORMS) if name in info.forms and not SWITCH_READS >> i & 1
    }
    if unread:
        listed = ", ".join(f"{name} {count}" for name, count in unread.items())
        notes.append(f"Replay takes in packets whose form the switch program does not parse: {listed}.")
    if "duplicate" in info.other:
        notes.append(
            f"{info.other['duplicate']} records are of packets that another capture has too, within 10 ms: each packet "
            "was counted once."
        )
    if info.stamped_earlier:
        notes.append(
            f"{info.stamped_earlier} packets are stamped earlier than one before them and were taken at the later "
            "time; reordercap sorts a capture."
        )
    if roce.untagged:
        notes.append(
            f"{roce.untagged} data packets have a source port below 0xc000 and match no rule: not tracked. "
            "--infer-steps finds steps without tags."
        )
    if roce.portless:
        notes.append(
            f"{roce.portless} data packets have no UDP source port (InfiniBand, RoCE v1), so no tag: not tracked. "
            "--infer-steps finds steps without tags."
        )
    if run.timeline.shift:
        notes.append(
            f"The timeline would be too long: its windows are {2**run.timeline.shift} times as long as asked for."
        )
    if options.params.gate:
        notes.append("The gate is on, but a capture shows no queues: would_mark counts as if they were never empty.")
    if jobs and sum(roce.ecn.values()) and not roce.ecn["ect0"] + roce.ecn["ect1"]:
        notes.append("No packet is ECT(0) or ECT(1): a switch would mark nothing.")
    if options.step_bits != STEP_BITS:
        notes.append(
            f"The switch program reads {STEP_BITS} bits of step; --step-bits {options.step_bits} is for replay only."
        )
    return notes


def _listed(counts: dict[str, int]) -> str:
    texts = {outcome.name: outcome.text for outcome in OUTCOMES}
    return "; ".join(f"{count} x {texts[name]}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def seen_instead(report: ReplayReport) -> str:
    """Return one line on what captures without a packet of RoCE hold."""
    capture = report.capture
    links = ", ".join(dict.fromkeys(name for file in capture.files for name in file.link_types))
    names = ", ".join(file.path for file in capture.files)
    seen = _listed(capture.other | capture.closed | capture.junk)
    return f"no RoCE packets in {names}; {capture.records} records ({links}): {seen}"
