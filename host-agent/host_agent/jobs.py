# SPDX-License-Identifier: Apache-2.0
"""A job and the list of jobs: identities, state, and what REST and the page show of them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from host_agent.errors import CapacityError, ConflictError, UnknownJobError
from host_agent.fabric_events import MOST, FabricEvent
from host_agent.launcher import BenchProcess
from host_agent.models import JobRequest, JobState
from host_agent.placement import Flow
from host_agent.recorder import Recorder
from host_agent.sampling import SwitchLog
from host_agent.testbed import HostEntry
from ring_bench.tag import TagLayout

__all__ = ["LAYOUT", "Job", "JobList", "Toggle"]

LAYOUT: Final = TagLayout()
"""Step tag layout of all jobs: 10 bits of step, 4 bits of job_tag."""
JOB_IDS: Final = range(1, 1024)
MAX_JOBS: Final = 64
"""Jobs in the list; the oldest that has ended makes room for a new one."""


@dataclass(frozen=True)
class Toggle:
    """A change of a job's Symphony settings, on the wall clock and on the job's clock."""

    time_unix_s: float
    t_ns: tuple[int, int] | None
    """Job clock before and after the change: it took effect on all switches in between. None: clock
    unknown.
    """
    enabled: bool
    variant: str
    complete: bool
    """False when some switch did not take it."""

    def view(self) -> dict[str, Any]:
        """As REST shows it."""
        return {
            "time_unix_s": self.time_unix_s,
            "t_ns": self.t_ns[1] if self.t_ns else None,
            "t_ns_before": self.t_ns[0] if self.t_ns else None,
            "enabled": self.enabled,
            "variant": self.variant,
            "complete": self.complete,
        }


@dataclass
class Job:
    """One job, from its registration until it is deleted or evicted."""

    id: int
    tag: int
    request: JobRequest
    hosts: list[HostEntry]
    flows: dict[str, list[Flow]]
    folder: Path
    symphony: dict[str, Any]
    """Settings that were asked for, merged over all changes."""
    state: JobState = "registered"
    created_unix_s: float = field(default_factory=time.time)
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    error: str | None = None
    log_tail: list[str] = field(default_factory=list)
    switch_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each switch read back last."""
    switch_errors: dict[str, str] = field(default_factory=dict)
    """Switches that did not do or answer the last thing asked of them, and why."""
    toggles: deque[Toggle] = field(default_factory=lambda: deque(maxlen=256))
    fabric_events: deque[FabricEvent] | None = None
    """What happened to the twin's fabric while it ran; None: nobody has told."""
    events_token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    process: BenchProcess | None = None
    preset: str | None = None
    """Parameter preset of the fabric, where it has one."""
    stop_requested: bool = False
    held_by: set[str] = field(default_factory=set)
    """Switches that hold the job, or may; its identities are not free before they have let go of it."""
    behind: set[str] = field(default_factory=set)
    """Switches that may not have the settings asked for; they get them once they answer."""
    recovered: bool = False
    """An earlier host-agent had it: what was counted then is not known."""
    final: bool = False
    """The job has ended and its figures are complete."""
    result: dict[str, Any] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answering_since: dict[str, float] = field(default_factory=dict)
    """Since when (monotonic clock, s) a switch that was away at the job's end is asked for its last counters."""
    version: int = 0
    """Grows with every change that a viewer could see."""

    def __post_init__(self) -> None:
        sites = list(self.flows)
        index = {name: site for site, name in enumerate(sites)}
        warmup = self.request.bench.warmup if self.request.bench else 0
        behind = [-1 if host.switch is None else index.get(host.switch, -1) for host in self.hosts]
        self.recorder = Recorder(behind, warmup=warmup)
        self.switch_log = SwitchLog(sites, LAYOUT.step_bits, {name for name in sites if index[name] not in behind})

    @property
    def name(self) -> str:
        """Name given by the user; the `job` label of the metrics."""
        return self.request.name

    @property
    def active(self) -> bool:
        """The job runs or may run, or the switches have not let go of it yet."""
        return not self.ended or bool(self.held_by)

    @property
    def ended(self) -> bool:
        """No more ranks, no more switching."""
        return self.state not in ("registered", "running")

    @property
    def enabled(self) -> bool:
        """Symphony is asked to be on."""
        return bool(self.symphony.get("enabled", False))

    @property
    def variant(self) -> str:
        """The variant that the settings start from."""
        return str(self.symphony.get("variant", "paper"))

    @property
    def on_twin(self) -> bool:
        """Its ranks run on the twin now."""
        return self.state == "running" and (self.request.provider == "twin" or self.recorder.clock.kind == "twin")

    @property
    def counters_missing(self) -> list[str]:
        """Switches whose counters are not in the totals, or not the last ones."""
        return self.switch_log.missing(self.ended_unix_s)

    def pending(self, switch: str) -> str | None:
        """What a switch still has to be brought to: "removal" of the ended job, or its "settings"."""
        if self.ended:
            return "removal" if switch in self.held_by else None
        return "settings" if switch in self.behind else None

    def note_fabric(self, events: Iterable[FabricEvent]) -> None:
        """The twin has told what happened to its fabric."""
        if self.fabric_events is None:
            self.fabric_events = deque(maxlen=MOST)
        before = len(self.fabric_events)
        self.fabric_events.extend(events)
        if len(self.fabric_events) != before:
            self.touch()

    def fabric_view(self) -> list[dict[str, Any]] | None:
        """What happened to the fabric, as REST shows it; null: not known."""
        return None if self.fabric_events is None else [event.view() for event in self.fabric_events]

    def touch(self) -> None:
        """Something visible has changed."""
        self.version += 1

    @property
    def events_received(self) -> int | None:
        """Step events of its ranks so far; None: not known, as nothing came since host-agent was started again."""
        return None if self.recovered and self.recorder.run is None else self.recorder.received

    @property
    def events_dropped(self) -> int | None:
        """Step events lost on the way, known as far as `events_received` is."""
        return None if self.events_received is None else self.recorder.dropped

    def cct_figures(self) -> dict[str, Any]:
        """Completion times and bus bandwidth; `collectives` is null where `events_received` is not known."""
        figures = self.recorder.collectives.summary()
        return figures | {"collectives": None} if self.events_received is None else figures

    def spec_for(self, switch: str) -> dict[str, Any]:
        """Body of the switch agent's PUT /api/v1/jobs/{id}."""
        return {
            "name": self.name,
            "job_tag": self.tag,
            "step_bits": LAYOUT.step_bits,
            "first_step": 0,
            "flows": [{"src": flow.src, "dst": flow.dst} for flow in self.flows[switch]],
            "symphony": self.symphony,
        }

    def check_agreement(self, settled_ns: int | None = None) -> None:
        """Compare host and switch figures as far as the hosts have reported."""
        frontier = self.recorder.frontier_ns if settled_ns is None else settled_ns
        if frontier is not None:
            self.switch_log.check(self.recorder.track, self.recorder.clock, frontier)

    def switch_views(self) -> dict[str, dict[str, Any]]:
        """Per switch: reachable or why not, what it is behind with, its state, its newest sample."""
        out = {}
        for name in self.flows:
            sample = self.switch_log.latest(name)
            out[name] = {
                "error": self.switch_errors.get(name),
                "pending": self.pending(name),
                "state": self.switch_states.get(name),
                "sample": None
                if sample is None
                else {
                    "time_unix_s": sample.time_unix_s,
                    "switch_time_ns": sample.switch_time_ns,
                    "step_min": sample.step_min,
                    "step_max": sample.step_max,
                    "alpha": sample.alpha,
                    "packets": {"all": sample.packets, "outpacing": sample.outpacing},
                    "marked": {"symphony": sample.marked_symphony, "queue": sample.marked_queue},
                },
            }
        return out

    def view(self, *, brief: bool = False) -> dict[str, Any]:
        """As REST shows it; `brief` for lists."""
        request = self.request
        out: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "job_tag": self.tag,
            "step_bits": LAYOUT.step_bits,
            "provider": request.provider,
            "state": self.state,
            "world": len(self.hosts),
            "enabled": self.enabled,
            "variant": self.variant,
            "created_unix_s": self.created_unix_s,
            "started_unix_s": self.started_unix_s,
            "ended_unix_s": self.ended_unix_s,
            "error": self.error,
        }
        if brief:
            return out
        recorder, totals = self.recorder, self.switch_log.totals()
        largest, mean = recorder.track.summary()
        out |= {
            "hosts": [host.name for host in self.hosts],
            "bench": request.bench.model_dump() if request.bench else None,
            "seed": request.seed,
            "preset": self.preset,
            "symphony": self.symphony,
            "switches": self.switch_views(),
            "on_switches": bool(self.held_by),
            "toggles": [toggle.view() for toggle in self.toggles],
            "fabric_events": self.fabric_view(),
            "clock": recorder.clock.view(),
            "overlap": {"max": largest, "mean": mean},
            "cct": self.cct_figures(),
            "marks": {"symphony": totals["marked_symphony"], "queue": totals["marked_queue"]},
            "packets": {"all": totals["packets"], "outpacing": totals["outpacing"]},
            "counters_missing": self.counters_missing,
            "agreement": self.switch_log.agreement.view(),
            "events": {"received": self.events_received, "dropped": self.events_dropped},
            "log_tail": self.log_tail,
            "folder": str(self.folder),
            "version": self.version,
        }
        return out


class JobList:
    """All jobs in memory, at most MAX_JOBS, by Job_ID."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._last_id = 0

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: int) -> Job:
        """The job; raises UnknownJobError."""
        job = self._jobs.get(job_id)
        if job is None:
            raise UnknownJobError(f"there is no job {job_id}; GET /api/v1/jobs lists those there are")
        return job

    def active(self) -> list[Job]:
        """Jobs whose identities are in use."""
        return [job for job in self._jobs.values() if job.active]

    def allocate(self, name: str, ids_taken: set[int], tags_taken: set[int]) -> tuple[int, int]:
        """A free Job_ID (in turn, so that a freed one is not reused at once) and a free job_tag.

        `*_taken` are those in use on the switches that this list does not know.
        Raises ConflictError for a name in use, CapacityError when nothing is free.
        """
        active = self.active()
        if namesake := next((job for job in active if job.name == name), None):
            raise ConflictError(_name_in_use(namesake))
        if len(self._jobs) >= MAX_JOBS:
            ended = [job for job in self._jobs.values() if not job.active]
            if not ended:
                raise CapacityError(f"{MAX_JOBS} jobs are active, which is the most host-agent holds; stop one")
            del self._jobs[min(ended, key=lambda job: job.ended_unix_s or 0.0).id]
        ids = ids_taken | self._jobs.keys()
        tags = tags_taken | {job.tag for job in active}
        count = len(JOB_IDS)
        job_id = next((i for k in range(count) if (i := JOB_IDS[(self._last_id + k) % count]) not in ids), None)
        tag = next((t for t in range(1 << LAYOUT.job_tag_bits) if t not in tags), None)
        if job_id is None or tag is None:
            what = "Job_ID" if job_id is None else "job_tag"
            raise CapacityError(
                f"no free {what}: {_users(active)}, and the switches hold {len(ids_taken)} "
                "that are not host-agent's; stop jobs, or delete stale ones on the switch agents"
            )
        self._last_id = job_id
        return job_id, tag

    def add(self, job: Job) -> None:
        """Enter a job."""
        self._jobs[job.id] = job

    def remove(self, job: Job) -> None:
        """Forget a job; its metrics go with it."""
        self._jobs.pop(job.id, None)


def _name_in_use(job: Job) -> str:
    if not job.ended:
        return f"an active job is called {job.name!r} already; stop it or choose another name"
    return (
        f"job {job.id}, called {job.name!r}, has ended but is still on {_holders([job])}; it is taken off as soon as "
        "that is possible: see its errors, or choose another name"
    )


def _users(active: list[Job]) -> str:
    held = [job for job in active if job.ended]
    text = f"{len(active) - len(held)} jobs are active here"
    return f"{text}, {len(held)} have ended but are still on {_holders(held)}" if held else text


def _holders(jobs: list[Job]) -> str:
    return "switch " + ", ".join(sorted(set[str]().union(*(job.held_by for job in jobs))))
