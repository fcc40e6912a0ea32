# SPDX-License-Identifier: Apache-2.0
"""What a sample says, what is written back, and how counters and clocks are unwrapped."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from switch_agent.agent import sampling
from switch_agent.agent.history import ROW, Frame, History
from switch_agent.agent.sampler import Sampler

from .conftest import Bench


def word(step: int) -> int:
    """A step register's value."""
    return (step % 1024) << 22 | 1


def packets(bench: Bench, job_id: int, pipe: int, count: int, counter: str = "job_all") -> None:
    """Count packets, as the data plane would."""
    bench.memory.counters[counter][pipe, job_id, 0] += count


async def test_before_the_first_packet_nothing_is_known(bench: Bench) -> None:
    """Null, not 0, for steps and time; overlap 0; alpha at its start value."""
    await bench.put()
    sample = await bench.sample()
    assert (sample["switch_time_ns"], sample["step_min"], sample["step_max"]) == (None, None, None)
    assert (sample["overlap"], sample["alpha"], sample["live_pipes"]) == (0, 1, [])


async def test_live_pipes_are_combined_by_serial_extremes(bench: Bench) -> None:
    """Two of four pipes saw packets around the wrap of the step; the others' start values do not count."""
    await bench.put(first_step=1000)
    bench.set_register("steps", 0, 1, mn=word(1022), mx=word(1023))
    bench.set_register("steps", 0, 3, mn=word(1023), mx=word(1026))
    bench.set_register("psn_rec", 0, 1, f1=40 << 8)
    bench.set_register("psn_rec", 0, 3, f1=30 << 8)
    bench.set_register("alpha", 0, 3, f1=6)
    bench.set_register("window_start", 0, 1, f1=1000)
    bench.set_register("window_start", 0, 3, f1=1010)
    packets(bench, 1, 1, 30)
    packets(bench, 1, 3, 12)
    packets(bench, 1, 3, 4, "job_outpacing")
    packets(bench, 1, 0, 3, "job_marked_symphony")
    packets(bench, 1, 2, 2, "job_marked_queue")
    sample = await bench.sample()
    assert (sample["step_min"], sample["step_max"], sample["overlap"]) == (1022, 2, 5)
    assert (sample["alpha"], sample["psn_recorded"], sample["live_pipes"]) == (6, 40, [1, 3])
    assert sample["switch_time_ns"] == 1010 * 256
    assert sample["packets"] == {"all": 42, "outpacing": 4}
    assert sample["marked"] == {"symphony": 3, "queue": 2}


async def test_after_the_last_packet_the_overlap_is_zero(bench: Bench) -> None:
    """A LAST packet moves step_min past step_max: nothing is in flight."""
    await bench.put()
    bench.set_register("steps", 0, 0, mn=word(120), mx=word(119))
    bench.set_register("window_start", 0, 0, f1=5)
    sample = await bench.sample()
    assert (sample["step_min"], sample["overlap"]) == (120, 0)
    assert bench.memory.registers["steps"]["mx"][0, 0] == word(119), "nothing to lower"


async def test_port_scope_combines_all_blocks_of_the_job(bench: Bench) -> None:
    """Blocks of several egress ports make one figure per job; the neighbour's block is not touched."""
    await bench.put(1, symphony={"scope": "port"})
    await bench.put(2, name="next", job_tag=4)
    bench.set_register("steps", 5, 0, mn=word(20), mx=word(21))
    bench.set_register("steps", 63, 1, mn=word(22), mx=word(25))
    bench.set_register("steps", 64, 1, mn=word(90), mx=word(91))
    for index, pipe in ((5, 0), (63, 1), (64, 1)):
        bench.set_register("window_start", index, pipe, f1=3)
    frame = await bench.agent.sampler.sample(0)
    assert frame is not None
    assert [frame.view(at)["overlap"] for at in (0, 1)] == [6, 2]
    assert frame.view(0)["step_min"] == 20
    assert frame.view(1)["step_min"] == 90


async def test_many_jobs_are_read_by_wildcard(bench: Bench) -> None:
    """From a quarter of the register on, everything is read at once, and means the same."""
    for job_id in range(1, 5):
        await bench.put(job_id, name=f"j{job_id}", job_tag=job_id, symphony={"scope": "port"})
        bench.set_register("steps", (job_id - 1) * 64, 0, mn=word(job_id), mx=word(2 * job_id))
        bench.set_register("window_start", (job_id - 1) * 64, 0, f1=9)
    frame = await bench.agent.sampler.sample(0)
    assert frame is not None
    assert frame.rows["overlap"].tolist() == [2, 3, 4, 5]
    assert (frame.rows["step_max"] - frame.rows["step_min"]).tolist() == [1, 2, 3, 4]


async def test_totals_go_on_when_the_switch_forgets(bench: Bench) -> None:
    """Counters that restart from 0 add to the totals; a job that restarts begins with 0."""
    await bench.put()
    packets(bench, 1, 0, 1000)
    assert (await bench.sample())["packets"]["all"] == 1000
    bench.memory.counters["job_all"][:] = 0
    packets(bench, 1, 0, 30)
    assert (await bench.sample())["packets"]["all"] == 1030
    packets(bench, 1, 2, 5)
    assert (await bench.sample())["packets"]["all"] == 1035
    await bench.put(first_step=77)
    assert (await bench.sample())["packets"]["all"] == 0


async def test_the_switch_clock_is_unwrapped(bench: Bench) -> None:
    """32 bits of 256 ns wrap after 18 minutes; times of all jobs go on, on one clock."""
    await bench.put(1)
    await bench.put(2, name="b", job_tag=4)
    bench.set_register("window_start", 0, 0, f1=0xFFFFFF00)
    first = await bench.sample()
    assert first["switch_time_ns"] == 0xFFFFFF00 * 256
    bench.set_register("window_start", 0, 0, f1=0x100)
    bench.set_register("window_start", 1, 2, f1=0x80)
    frame = await bench.agent.sampler.sample(0)
    assert frame is not None
    assert frame.view(0)["switch_time_ns"] == 0x1_0000_0100 * 256
    assert frame.view(1)["switch_time_ns"] == 0x1_0000_0080 * 256


async def test_new_jobs_start_their_window_behind_a_known_clock(bench: Bench) -> None:
    """Once the switch's clock is known to be in its upper half, starts are written there."""
    await bench.put(1)
    bench.set_register("window_start", 0, 0, f1=0x9000_0000)
    await bench.sample()
    state = await bench.put(2, name="b", job_tag=4)
    assert bench.memory.registers["window_start"]["f1"][0, state["state_index"]] == 1 << 31


async def test_history_is_kept_per_job_and_paged(bench: Bench) -> None:
    """since and limit page through the samples, oldest first; unknown jobs are 404."""
    await bench.put()
    for seq in (100, 101, 102, 103):
        await bench.agent.sampler.sample(seq)

    async def seqs(query: str) -> list[int]:
        answer = await bench.http.get(f"/api/v1/samples?{query}")
        return [sample["seq"] for sample in answer.json()["samples"]]

    assert await seqs("job=1") == [100, 101, 102, 103]
    assert await seqs("job=1&since=101") == [102, 103]
    assert await seqs("job=1&since=100&limit=2") == [101, 102]
    assert (await bench.http.get("/api/v1/samples?job=9")).status_code == 404
    assert (await bench.http.get("/api/v1/samples")).status_code == 422


async def test_registers_show_the_newest_sample(bench: Bench) -> None:
    """Of all jobs or of one; unknown jobs are 404."""
    await bench.put(1)
    await bench.put(2, name="b", job_tag=4)
    await bench.sample()
    answer = (await bench.http.get("/api/v1/registers")).json()
    assert [sample["name"] for sample in answer["samples"]] == ["ring", "b"]
    answer = (await bench.http.get("/api/v1/registers?job=2")).json()
    assert [sample["job_id"] for sample in answer["samples"]] == [2]
    assert (await bench.http.get("/api/v1/registers?job=3")).status_code == 404


async def test_a_failed_read_gives_no_sample(bench: Bench) -> None:
    """No zeros: the frame is missing, the failure counted, the next one is good again."""
    await bench.put()
    bench.server.faults.locked = True
    bench.agent.session.reader().timeout = 0.05
    assert await bench.agent.sampler.sample(0) is None
    assert bench.agent.sampler.failures == 1
    bench.server.faults.locked = False
    assert await bench.agent.sampler.sample(1) is not None


async def test_a_sample_under_way_during_a_change_of_jobs_is_dropped(bench: Bench) -> None:
    """Rows read for the old places of jobs must not be shown, nor written back, as the new jobs'."""
    await bench.put()
    bench.server.faults.read_delay_s = 0.2
    sampling = asyncio.create_task(bench.agent.sampler.sample(0))
    await asyncio.sleep(0)
    bench.agent.sampler.forget(1, False)
    assert await sampling is None


async def test_ticks_lie_on_multiples_of_the_interval(bench: Bench) -> None:
    """seq is the tick's number on the wall clock, so that several agents' samples can be joined."""
    await bench.put()
    sampler = Sampler(
        bench.agent.session,
        interval=0.02,
        jobs=bench.agent._sampled_jobs,
        version=lambda: 0,
    )
    task = asyncio.create_task(sampler.run())
    with sampler.listen() as frames:
        seen = [await asyncio.wait_for(frames.get(), 10) for _ in range(5)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for frame in seen:
        late = frame.time_unix_s - frame.seq * 0.02
        assert -1e-3 < late < 0.02
    assert [frame.seq for frame in seen] == sorted({frame.seq for frame in seen})


def frame(seq: int, *job_ids: int) -> Frame:
    """A frame with rows of these jobs."""
    rows: Any = np.zeros(len(job_ids), ROW)
    rows["job_id"] = job_ids
    return Frame(seq, float(seq), rows, tuple(f"j{job_id}" for job_id in job_ids))


def test_history_is_bounded_by_frames_and_rows() -> None:
    """Old frames go; the newest always stays."""
    history = History(max_frames=3, max_rows=5)
    for seq in range(1, 6):
        history.append(frame(seq, 1, 2))
    assert [sample["seq"] for sample in history.since(1, 0, 100)] == [4, 5]
    history.append(frame(6, *range(1, 20)))
    assert [sample["seq"] for sample in history.since(2, 0, 100)] == [6]


def test_history_skips_frames_without_the_job() -> None:
    """A job's samples need not be in every frame; a limit counts only its own."""
    history = History()
    for seq, jobs in ((1, (1, 2)), (2, (2,)), (3, (1,)), (4, (1, 9))):
        history.append(frame(seq, *jobs))
    assert [sample["seq"] for sample in history.since(1, 0, 2)] == [1, 3]
    assert list(history.since(5, 0, 10)) == []


async def test_a_step_min_ahead_of_itself_is_read_again(bench: Bench) -> None:
    """The last packet of an outpacing flow hides the slower ones for a moment: the sample waits it out."""
    await bench.put(first_step=8)
    bench.set_register("steps", 0, 0, mn=word(8), mx=word(12))
    bench.set_register("window_start", 0, 0, f1=3)
    await bench.sample()
    packets(bench, 1, 0, 10)
    bench.set_register("steps", 0, 0, mn=word(13), mx=word(12))
    read = bench.memory.read_register

    def a_slower_packet_passes(name: str, index: int) -> dict[str, list[int]]:
        if name == "steps" and bench.agent.sampler.rereads:
            bench.set_register("steps", 0, 0, mn=word(9), mx=word(14))
        return read(name, index)

    bench.memory.read_register = a_slower_packet_passes  # type: ignore[method-assign]
    sample = await bench.sample()
    assert (sample["step_min"], sample["step_max"], sample["overlap"]) == (9, 14, 6)
    assert bench.agent.sampler.rereads == 1


async def test_an_idle_job_is_not_read_again(bench: Bench) -> None:
    """step_min past step_max is the normal end of a job."""
    await bench.put()
    bench.set_register("steps", 0, 0, mn=word(120), mx=word(119))
    bench.set_register("window_start", 0, 0, f1=3)
    for _ in range(3):
        assert (await bench.sample())["overlap"] == 0
    assert bench.agent.sampler.rereads == 0


async def test_a_new_job_does_not_inherit_samples_of_its_id(bench: Bench) -> None:
    """Samples of a deleted job are gone from history, those of the new one are there."""
    await bench.put()
    await bench.agent.sampler.sample(10)
    assert (await bench.http.delete("/api/v1/jobs/1")).status_code == 204
    await bench.put(name="another")
    answer = await bench.http.get("/api/v1/samples?job=1")
    assert answer.json()["samples"] == []
    await bench.agent.sampler.sample(11)
    answer = await bench.http.get("/api/v1/samples?job=1")
    assert [sample["name"] for sample in answer.json()["samples"]] == ["another"]


def test_the_quicker_way_to_read_is_found_out_and_remembered() -> None:
    """Each is tried three times; a plan of about the same size goes on with what was found, another tries anew."""
    ways = sampling._Ways([b"keyed", b"all"], 100, None)

    def use(ways: sampling._Ways) -> bytes:
        with ways.next() as request:
            return request

    assert [use(ways) for _ in range(6)] == [b"keyed", b"all"] * 3
    ways._best = [2.0, 1.0]
    assert [use(ways) for _ in range(3)] == [b"all"] * 3
    assert use(sampling._Ways([b"k", b"a"], 150, ways)) == b"a"
    assert use(sampling._Ways([b"k", b"a"], 30, ways)) == b"k"
    assert use(sampling._Ways([b"a"], 100, ways)) == b"a"


async def test_reading_by_key_and_whole_registers_say_the_same(bench: Bench) -> None:
    """Sixty-four blocks of one job are a size at which both ways are tried."""
    await bench.put(1, symphony={"scope": "port"})
    bench.set_register("steps", 7, 2, mn=word(20), mx=word(25))
    bench.set_register("window_start", 7, 2, f1=3)
    bench.set_register("score", 7, 2, score=(-300) & 0xFFFFFFFF, count=9)
    bench.set_register("score", 8, 1, score=100, count=2)
    bench.set_register("window_start", 8, 1, f1=3)
    bench.set_register("steps", 8, 1, mn=word(21), mx=word(21))
    samples = [await bench.sample() for _ in range(4)]
    assert len({(s["step_min"], s["overlap"], s["score"], s["window_packets"]) for s in samples}) == 1
    assert (samples[0]["score"], samples[0]["window_packets"]) == (-200, 11)
