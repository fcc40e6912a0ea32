# SPDX-License-Identifier: Apache-2.0
"""The result of a replay. ``ReplayReport.model_dump_json`` is the JSON of ``switch-agent replay --json``.

Times named ``_s`` are seconds since the first packet with a base transport header; times named ``_unix_ns`` are
the capture's own stamps. ``docs/replay.md`` describes every field.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from switch_agent.replay.steps import Inference

__all__ = [
    "CaptureInfo",
    "FileInfo",
    "IncompleteInfo",
    "JobReport",
    "RegisterValues",
    "ReplayReport",
    "RoceInfo",
    "Settings",
    "Unmarkable",
    "Window",
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IncompleteInfo(_Model):
    """Why reading stopped before the end of the file."""

    offset: int = Field(description="byte of the (decompressed) file at which reading stopped")
    reason: str


class FileInfo(_Model):
    """One file."""

    path: str
    format: Literal["pcap", "pcapng"]
    compression: Literal["gzip", "zstd", "xz", "bzip2"] | None
    link_types: list[str]
    records: int
    incomplete: IncompleteInfo | None


class CaptureInfo(_Model):
    """The files and what their records are."""

    files: list[FileInfo]
    records: int = Field(description="packet records read; roce + other + closed + junk")
    roce: int = Field(description="packets with a base transport header")
    forms: dict[str, int] = Field(description="in which forms these came, if not as plain RoCEv2; those that occurred")
    other: dict[str, int] = Field(description="other traffic, by kind; kinds that occurred")
    closed: dict[str, int] = Field(description="records inside something that replay does not open, by kind")
    junk: dict[str, int] = Field(description="records that could not be used, by reason; reasons that occurred")
    first_unix_ns: int | None = Field(description="stamp of the first packet of roce; null: there is none")
    duration_s: float = Field(description="first to latest packet of roce")
    stamped_earlier: int = Field(description="packets with an earlier stamp than one before; taken at that time")


class SequenceInfo(_Model):
    """PSNs of the flows of SENDs and RDMA WRITEs (source, destination, destination QP)."""

    gaps: int = Field(description="places where packets are missing")
    missing: int = Field(description="packets missing there: lost before the capture point or by the capture")
    steps_back: int = Field(description="places where the PSN goes back: retransmission or reordering")
    restarts: int = Field(description="jumps of 65536 or more: the QP was set up anew")


class RoceInfo(_Model):
    """The packets with a base transport header, of jobs or not."""

    opcodes: dict[str, int] = Field(description="by BTH opcode; those that occurred")
    ecn: dict[str, int] = Field(description="by ECN field (of the innermost IP header): not_ect, ect1, ect0, ce")
    replies: dict[str, int] = Field(description="ack, rnr_nak, nak")
    sequence: SequenceInfo
    data_packets: int = Field(description="RDMA WRITE packets (opcodes 6 to 11): those a switch tracks")
    untagged: int = Field(description="data packets of no job: no rule matches, source port below 0xc000")
    portless: int = Field(description="data packets of no job: InfiniBand and RoCE v1 have no source port")


class Settings(_Model):
    """What the replay was asked to do."""

    variant: str
    params: dict[str, float | int | bool | str | None] = Field(description="Symphony's, as the switch rounds them")
    entry: dict[str, int] = Field(description="the ten integers of the P4 action set_params")
    step_bits: int
    seed: int
    window_ms: float = Field(description="doubled until the timeline has less than 100,000 windows")
    rules: list[str]


class RegisterValues(_Model):
    """A job's registers after its last packet."""

    step_min: int = Field(description="modulo 2^min(step_bits, 10)")
    step_max: int = Field(description="as the agent keeps it: brought back to step_min when a window ends")
    psn_rec: int = Field(description="packets")
    alpha: int
    score: int
    count: int
    window_start_s: float


class Window(_Model):
    """A job's figures over one window of the timeline; windows without packets of the job are left out."""

    start_s: float
    packets: int
    outpacing: int
    would_mark: int
    step_min: int = Field(description="step_min at the window's end")
    step_max: int = Field(description="largest step within the window")
    overlap: int = Field(description="step_max - step_min + 1; 0: idle")
    alpha: int
    psn_recorded: int


class Unmarkable(_Model):
    """Candidates for a mark that a switch leaves as they are."""

    not_ect: int
    already_ce: int


class JobReport(_Model):
    """One job's packets, registers, marks and timeline."""

    name: str
    job_tag: int | None = Field(description="null: the job has rules")
    match: list[str] = Field(description="src,dst,sport/mask")
    packets: int
    bytes: int = Field(description="on the wire, as the capture has the frames' lengths")
    outpacing: int
    step_ends: int = Field(description="packets WITH IMMEDIATE that end a flow's step, repeats included")
    windows_closed: int = Field(description="windows of window_us that packets closed")
    would_mark: int = Field(description="ECT packets that the switch would mark; with gate on, at most")
    unmarkable: Unmarkable
    first_s: float
    last_s: float
    max_overlap: int = Field(description="largest overlap of the timeline")
    registers: RegisterValues
    timeline: list[Window]


class ReplayReport(_Model):
    """Result of a replay."""

    schema_version: Literal[2] = Field(description="changes when a field changes its meaning or goes")
    capture: CaptureInfo
    settings: Settings
    roce: RoceInfo
    inferred: Inference | None = Field(description="steps found without tags; null: not asked for")
    jobs: list[JobReport] = Field(description="jobs with packets: those of rules, then by tag")
    partial: list[str] = Field(description="what of the captures the figures do not cover; empty: all is covered")
    notes: list[str] = Field(description="what to know when reading the figures")
