# SPDX-License-Identifier: Apache-2.0
"""Scripted ranks do what ring-bench ranks do over the verbs service, step for step and to the nanosecond."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fabric_twin.errors import ConfigError, TwinError
from fabric_twin.events import LinkDown
from fabric_twin.fabric import Fabric
from fabric_twin.presets import Preset, get_preset
from fabric_twin.scripted import STEP, At, Simulation, simulate
from fabric_twin.verbs_service import VerbsService
from fabric_twin.workload import Job
from ring_bench.config import Config
from ring_bench.overlap import StepChange, overlap_history
from ring_bench.rendezvous import LocalRendezvous
from ring_bench.run import run_ranks
from ring_bench.schedule import Collective, Schedule
from ring_bench.setup import World, set_up
from ring_bench.verbs.twin import TwinProvider
from ring_bench.workload import Action, Call, Do, Trace
from switch_agent.dataplane.params import SymphonyParams

SMALL = get_preset("small")


def config(**options: Any) -> Config:
    """A short run: 1 MiB, three iterations, sums not verified."""
    defaults: dict[str, Any] = {"world": 8, "minbytes": 1 << 20, "maxbytes": 1 << 20, "iters": 3, "warmup_iters": 0}
    return Config(check=0, **{**defaults, **options})


@contextmanager
def serving(fabric: Fabric, path: Path) -> Iterator[None]:
    """A verbs service on `path`, on a thread of its own."""
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> None:
        service = VerbsService(fabric, path)
        await service.start()
        started.set()
        try:
            await service.run()
        finally:
            await service.stop()

    task: list[asyncio.Task[None]] = []

    def main() -> None:
        task.append(loop.create_task(serve()))
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task[0])
        loop.close()

    thread = threading.Thread(target=main)
    thread.start()
    started.wait(30)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join(30)


def rows_of(number: int, world: World, start_ns: int) -> list[tuple[int, ...]]:
    """The steps of a ring-bench job as rows of `STEP`."""
    settings = world.plan.config
    grid = Schedule(0, settings.grid)
    behind = {
        (rank, axis): group[grid.next_rank(position, axis)]
        for group in settings.groups
        for position, rank in enumerate(group)
        for axis in world.plan.axes
    }
    axis_of = [axis for operation in world.plan.operations for axis in world.plan.axes_of(operation.shape)]

    def since(t_ns: int) -> int:
        return t_ns - start_ns if t_ns >= 0 else -1

    return [
        (number, ring, rank, step, since(posted), since(world.ranks[behind[rank, axis]].record.done_ns[ring][step]))
        for ring in range(settings.rings)
        for rank in range(settings.world)
        for step, (posted, axis) in enumerate(zip(world.ranks[rank].record.post_ns[ring], axis_of, strict=True))
    ]


def real_trace(preset: Preset, jobs: Sequence[Job], seed: int, folder: Path) -> np.ndarray[Any, Any]:
    """What ring-bench's own ranks do: a process's part of each job, over the verbs service."""
    path = folder / "verbs.sock"
    with serving(Fabric(preset, seed), path):
        providers = {job.name: TwinProvider(str(path), job=job.name, rank=0, seed=seed) for job in jobs}
        start_ns = providers[jobs[0].name].clock_ns()
        worlds = {}
        for job in sorted(jobs, key=lambda job: job.name):
            ranks = range(job.config.world)
            hosts = list(ranks) if job.hosts is None else list(job.hosts)
            worlds[job.name] = set_up(
                job.config, providers[job.name], LocalRendezvous(), local_ranks=ranks, hosts=hosts
            )
        threads = [
            threading.Thread(target=run_ranks, args=(world, providers[name], LocalRendezvous()))
            for name, world in worlds.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    rows = [row for number, job in enumerate(jobs) for row in rows_of(number, worlds[job.name], start_ns)]
    return np.array(rows, dtype=STEP)


def assert_equal(preset: Preset, jobs: Sequence[Job], seed: int, folder: Path) -> None:
    """The same steps at the same times, all of them."""
    real = real_trace(preset, jobs, seed, folder)
    result = simulate(preset, jobs, seed=seed)
    differing = np.nonzero(result.trace != real)[0]
    assert not len(differing), f"first of {len(differing)}: {result.trace[differing[0]]} is {real[differing[0]]}"
    assert result.trace_hash == hashlib.sha256(real.tobytes()).hexdigest()
    assert ((real["delivered_ns"] > real["posted_ns"]) | (real["posted_ns"] < 0)).all()


SIZES = {"rings": 2, "minbytes": 200_000, "maxbytes": 800_000, "stepfactor": 2, "iters": 2}


@pytest.mark.parametrize("release", ["in-order", "independent", "count"])
@pytest.mark.parametrize(
    "tagging", [{"tagging": "per-step"}, {"tagging": "retag"}, {"tagging": "static", "step_bits": 2}]
)
def test_traces_are_equal_for_every_release_rule_and_tagging(
    release: str, tagging: dict[str, Any], tmp_path: Path
) -> None:
    assert_equal(SMALL, [Job(config=config(release=release, **SIZES, **tagging))], 3, tmp_path)


TRAINING = Trace(
    "buckets",
    ("data",),
    (Call("last", Collective.ALL_REDUCE, 300_000), Call("first", Collective.ALL_REDUCE, 500_000)),
    (
        Action(Do.COMPUTE, 40_000),
        Action(Do.ISSUE, 0),
        Action(Do.COMPUTE, 60_000),
        Action(Do.ISSUE, 1),
        Action(Do.COMPUTE, 10_000),
    ),
)


@pytest.mark.parametrize("release", ["in-order", "independent"])
@pytest.mark.parametrize(
    "options",
    [
        {"collective": "all_gather"},
        {"collective": "reduce_scatter", "tagging": "retag"},
        {"collective": "broadcast", "root": 3},
        {"dims": (4, 2)},
        {"trace": TRAINING, "compute_jitter": "normal:0.2", "minbytes": 1 << 20, "maxbytes": 1 << 20, "iters": 3},
        {"compute_ns": 30_000, "compute_jitter": "exponential:0.5"},
    ],
    ids=["all_gather", "reduce_scatter", "broadcast", "grid", "training", "compute"],
)
def test_traces_are_equal_for_other_collectives_and_training(
    release: str, options: dict[str, Any], tmp_path: Path
) -> None:
    assert_equal(SMALL, [Job(config=config(**{**SIZES, "release": release, **options}))], 4, tmp_path)


@pytest.mark.parametrize("seed", [1, 2])
def test_traces_are_equal_where_steps_overlap_and_queues_mark(seed: int, tmp_path: Path) -> None:
    job = Job(config=config(world=32, split="MOD 8", minbytes=4 << 20, maxbytes=4 << 20, segment=300_000, iters=2))
    assert_equal(get_preset("demo"), [job], seed, tmp_path)


def test_traces_are_equal_with_one_slot_and_tags_that_wrap(tmp_path: Path) -> None:
    options = {"world": 4, "rings": 2, "slots": 1, "step_bits": 3, "iters": 9, "minbytes": 100_000, "maxbytes": 100_000}
    assert_equal(SMALL, [Job(config=config(**options))], 2, tmp_path)


def test_traces_are_equal_for_two_ranks(tmp_path: Path) -> None:
    """Here a rank has all data of an iteration before it begins it."""
    assert_equal(SMALL, [Job(config=config(world=2, rings=2, iters=9, minbytes=9, maxbytes=9))], 2, tmp_path)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_traces_are_equal_for_two_jobs_on_shared_hosts(names: str, tmp_path: Path) -> None:
    """Jobs that act at the same time do so in the order of their names."""
    jobs = [
        Job(name=names[0], config=config(rings=2)),
        Job(name=names[1], config=config(world=4, iters=5, job_tag=2), hosts=(1, "h3", 5, 7)),
    ]
    assert_equal(SMALL, jobs, 5, tmp_path)


def test_traces_are_equal_where_packets_are_lost(tmp_path: Path) -> None:
    lossy = get_preset("demo", pfc=False, buffer_bytes=82_000, kmin=200_000, kmax=300_000)
    job = Job(config=config(world=32, split="MOD 8", minbytes=2 << 20, maxbytes=2 << 20, segment=100_000, iters=1))
    assert_equal(lossy, [job], 5, tmp_path)
    assert simulate(lossy, [job], seed=5).stats.drops > 0


def test_runs_depend_on_their_seed_alone() -> None:
    job = Job(config=config(split="MOD 2", minbytes=8 << 20, maxbytes=8 << 20))
    hashes = [simulate("small", [job], seed=seed).trace_hash for seed in (1, 2, 1)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_result_survives_pickling() -> None:
    result = simulate("small", [pickle.loads(pickle.dumps(Job(config=config())))])  # noqa: S301
    assert pickle.loads(pickle.dumps(result)).trace_hash == result.trace_hash  # noqa: S301


def test_collectives_and_overlap_are_those_of_the_trace() -> None:
    job = simulate("small", [Job(config=config(split="MOD 2"))]).jobs[0]
    assert job.failure is None
    assert job.collectives.shape == (3, 2, 2)
    for iteration in range(3):
        for number, group in enumerate(job.groups):
            first, length = job.operations[iteration]
            steps = slice(first, first + length)
            begin, end = job.posted_ns[0, group, steps].min(), job.delivered_ns[0, group, steps].max()
            assert job.collectives[iteration, number].tolist() == [begin, end]
            assert job.cct_ns[iteration, number] == end - begin
    changes = [StepChange(int(t), step, True) for row in job.posted_ns[0] for step, t in enumerate(row)]
    changes += [StepChange(int(t), step, False) for row in job.delivered_ns[0] for step, t in enumerate(row)]
    assert job.overlap() == overlap_history(changes)
    assert job.overlap()[-1] == (job.delivered_ns.max(), 0)


def test_a_job_starts_at_its_time_and_others_go_on() -> None:
    first = Job(name="first", config=config(iters=6))
    late = Job(name="late", config=config(world=4, job_tag=1), start_ns=2_000_000)
    alone = simulate("small", [first])
    result = simulate("small", [first, late])
    begins = result.job("late").posted_ns[..., 0]
    assert begins.min() == 2_000_000
    early = result.job("first").posted_ns < 2_000_000
    assert np.array_equal(result.job("first").posted_ns[early], alone.jobs[0].posted_ns[early])
    assert result.job("first").posted_ns.max() > alone.jobs[0].posted_ns.max(), "they share links"


def test_a_run_that_ends_early_says_so_and_keeps_what_happened() -> None:
    job = Job(config=config())
    whole, part = simulate("small", [job]).jobs[0], simulate("small", [job], until_ns=1_000_000).jobs[0]
    assert part.failure == "it had not ended"
    for before, after in ((part.posted_ns, whole.posted_ns), (part.delivered_ns, whole.delivered_ns)):
        assert np.array_equal(before, np.where(after <= 1_000_000, after, -1))
    assert (part.cct_ns == -1).any()


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ({"config": config(world=1)}, "one rank"),
        ({"config": config(mtu=9000)}, "this fabric has 4096"),
        ({"config": config(segment=1)}, "no whole element"),
        ({"config": config(segment=4, minbytes=1 << 20)}, "8192 fit a send queue"),
        ({"config": config(), "hosts": ("h0",)}, "1 hosts"),
        ({"config": config(), "start_ns": -1}, "begins at 0"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(job: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        simulate("small", [Job(**job)])


def test_symphony_marks_when_it_is_on_and_tracking_changes_nothing() -> None:
    """With a toggle at 40 ms the run is the same as with Symphony off until then, and another one afterwards."""
    settings = config(world=32, split="MOD 8", minbytes=16 << 20, maxbytes=16 << 20, iters=2)
    refined = SymphonyParams.variant("refined")
    untracked = simulate("demo", [Job(config=settings, tracked=False)])
    off = simulate("demo", [Job(config=settings)])
    on = simulate("demo", [Job(config=settings, symphony=refined)])
    late = simulate("demo", [Job(config=settings)], events=[At(40_000_000, _turn_on)])
    assert untracked.trace_hash == off.trace_hash != on.trace_hash
    assert untracked.jobs[0].marked == {}
    assert off.jobs[0].marked["symphony"] == 0
    assert off.jobs[0].packets["all"] == off.stats.data_packets == 32 * 6 * 2 * 1024
    assert off.jobs[0].marked["queue"] > 0
    assert on.jobs[0].marked["symphony"] > 100
    before = off.jobs[0].posted_ns < 40_000_000
    assert np.array_equal(late.jobs[0].posted_ns[before], off.jobs[0].posted_ns[before])
    assert late.jobs[0].marked["symphony"] > 0
    assert late.trace_hash not in (off.trace_hash, on.trace_hash)


def _turn_on(running: Simulation) -> None:
    running.set_symphony("job", SymphonyParams.variant("refined"))


def test_a_link_that_fails_is_routed_around() -> None:
    events = [LinkDown(kind="link-down", link="tor0<->spine0", at_ms=1, for_ms=5, reroute_ms=0.1)]
    job = Job(config=config(split="MOD 2", minbytes=8 << 20, maxbytes=8 << 20))
    whole, broken = simulate("small", [job]), simulate("small", [job], events=events)
    assert broken.jobs[0].failure is None
    assert broken.stats.drops > 0 == whole.stats.drops
    early = whole.jobs[0].delivered_ns < 1_000_000
    assert np.array_equal(broken.jobs[0].delivered_ns[early], whole.jobs[0].delivered_ns[early])
    assert broken.trace_hash != whole.trace_hash


def test_a_job_that_loses_its_path_fails_and_the_other_goes_on() -> None:
    events = [LinkDown(kind="link-down", link="h0->tor0", at_ms=0.2, reroute_ms=None)]
    jobs = [
        Job(name="cut", config=config(world=4)),
        Job(name="whole", config=config(world=4, job_tag=1, iters=9), hosts=(4, 5, 6, 7)),
    ]
    cut, whole = simulate("small", jobs, events=events).jobs
    assert cut.failure is not None
    assert "of h0 failed with RETRY_EXC_ERR" in cut.failure
    assert (cut.cct_ns == -1).any()
    assert whole.failure is None
    assert (whole.cct_ns > 0).all()


def test_unknown_names_are_refused_before_anything_runs() -> None:
    job = Job(config=config(world=2), hosts=("h0", "h99"))
    with pytest.raises(TwinError, match="no host 'h99'"):
        simulate("small", [job])
    with pytest.raises(TwinError, match="no link 'tor0->spine9'"):
        simulate("small", [Job(config=config())], events=[LinkDown(kind="link-down", link="tor0->spine9")])
    with pytest.raises(ConfigError, match="names of their own"):
        simulate("small", [Job(config=config()), Job(config=config(job_tag=1))])
