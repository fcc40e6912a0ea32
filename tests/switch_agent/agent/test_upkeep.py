# SPDX-License-Identifier: Apache-2.0
"""What the agent writes back between samples: as little as possible, and nothing while a job runs normally."""

from __future__ import annotations

from typing import Any

import pytest

from switch_agent.agent import upkeep
from switch_agent.agent.upkeep import STALE_SAMPLES

from .conftest import Bench

SECOND = 3_906_250
"""The switch's clock, in units of 256 ns."""


def word(step: int) -> int:
    """A step register's value."""
    return (step % 1024) << 22 | 1


class Plane:
    """Plays the data plane of job 1 on a bench, and counts the agent's register writes."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = bench
        self.writes: list[tuple[str, int, dict[str, int], int | None]] = []
        self.seconds = 100.0
        monkeypatch.setattr(bench.agent.sampler.upkeep, "_now", lambda: self.seconds)
        write = bench.memory.write_register

        def counted(name: str, index: int, values: dict[str, int], pipe: int | None) -> None:
            self.writes.append((name, index, values, pipe))
            write(name, index, values, pipe)

        monkeypatch.setattr(bench.memory, "write_register", counted)

    def steps(self, low: int, high: int, pipe: int = 0, index: int = 0) -> None:
        """step_min and step_max."""
        self.bench.set_register("steps", index, pipe, mn=word(low), mx=word(high))

    def window(self, at: int, pipe: int = 0, index: int = 0) -> None:
        """A window begins."""
        self.bench.set_register("window_start", index, pipe, f1=at & 0xFFFFFFFF)

    def packets(self, count: int, job_id: int = 1, pipe: int = 0) -> None:
        """Packets of the job pass."""
        self.bench.memory.counters["job_all"][pipe, job_id, 0] += count

    async def sample(self, times: int = 1, seconds: float = 0.05) -> dict[str, Any]:
        """Take samples, each that much later than the one before; returns the last one."""
        for _ in range(times):
            self.seconds += seconds
            sample = await self.bench.sample()
        return sample


@pytest.fixture
def plane(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Plane:
    """The bench's switch, played."""
    return Plane(bench, monkeypatch)


async def test_a_job_that_runs_normally_is_never_written_to(bench: Bench, plane: Plane) -> None:
    """Steps advance every few samples, windows and packets with them, slowly and fast: no register write at all."""
    await bench.put(first_step=0)
    plane.writes.clear()
    for tick in range(400):
        step = tick // 7
        plane.steps(step, step + tick % 4)
        plane.window(1000 + tick * SECOND // 50)
        plane.packets(500)
        sample = await plane.sample()
        assert sample["overlap"] == tick % 4 + 1
    assert plane.writes == []


async def test_step_max_of_a_silent_job_is_brought_back_pipe_by_pipe(bench: Bench, plane: Plane) -> None:
    """After three samples and a second; step_min is written as it is, pipes without packets are left alone."""
    await bench.put()
    for pipe, low, high in ((0, 10, 14), (2, 11, 12)):
        plane.steps(low, high, pipe)
        plane.window(7, pipe)
    plane.writes.clear()
    for _ in range(STALE_SAMPLES + 10):
        assert (await plane.sample())["overlap"] == 5
    assert plane.writes == [], "half a second is not silence yet"
    await plane.sample(seconds=1.0)
    steps = bench.memory.registers["steps"]
    assert [steps["mn"][pipe, 0] for pipe in range(4)] == [word(10), word(5), word(11), word(5)]
    assert [steps["mx"][pipe, 0] for pipe in range(4)] == [word(10), word(5), word(11), word(5)]
    assert (await plane.sample())["overlap"] == 2
    assert bench.agent.sampler.upkeep.step_max_resets == 2
    plane.writes.clear()
    await plane.sample(20, seconds=1.0)
    assert plane.writes == [], "once is enough"


async def test_one_sample_of_silence_is_not_stale(bench: Bench, plane: Plane) -> None:
    """Three samples it takes, however far they are apart."""
    await bench.put()
    plane.steps(10, 14)
    plane.window(7)
    await plane.sample(STALE_SAMPLES, seconds=60.0)
    assert bench.memory.registers["steps"]["mx"][0, 0] == word(14)
    await plane.sample(seconds=60.0)
    assert bench.memory.registers["steps"]["mx"][0, 0] == word(10)


async def test_a_job_that_sends_is_left_alone_for_a_second_of_the_switch(bench: Bench, plane: Plane) -> None:
    """The wall clock does not count: a twin may need a minute for a step."""
    await bench.put()
    plane.steps(10, 14)
    plane.writes.clear()
    for tick in range(20):
        plane.packets(100)
        plane.window(1000 + tick)
        await plane.sample(seconds=60.0)
    assert plane.writes == []
    plane.packets(100)
    plane.window(990 + SECOND)
    await plane.sample()
    assert plane.writes == []
    plane.packets(100)
    plane.window(1010 + SECOND)
    assert (await plane.sample())["overlap"] == 5
    assert bench.memory.registers["steps"]["mx"][0, 0] == word(10)
    plane.packets(100)
    assert (await plane.sample())["overlap"] == 1


async def test_a_job_that_begins_again_loses_its_old_step_max(bench: Bench, plane: Plane) -> None:
    """It had ended and was silent; now lower steps come: the old maximum goes with the first sample."""
    await bench.put()
    plane.steps(120, 119)
    plane.window(1000)
    plane.packets(100)
    await plane.sample(5, seconds=1.0)
    plane.steps(0, 119)
    plane.packets(100)
    plane.window(2000)
    assert (await plane.sample())["overlap"] == 120
    plane.packets(100)
    assert (await plane.sample())["overlap"] == 1
    assert bench.memory.registers["steps"]["mx"][0, 0] == word(0)


async def test_a_pause_in_the_middle_of_a_run_is_no_new_beginning(bench: Bench, plane: Plane) -> None:
    """Steps go on where they were: nothing is written, however long step_max takes to move."""
    await bench.put()
    plane.steps(7, 9)
    plane.window(1000)
    await plane.sample(2, seconds=0.4)
    plane.writes.clear()
    for tick in range(20):
        plane.packets(100)
        plane.window(2000 + tick)
        await plane.sample(seconds=0.4)
    assert plane.writes == []


async def test_a_window_that_is_stuck_after_a_long_silence_is_moved_on(bench: Bench, plane: Plane) -> None:
    """Packets, but no window ends: starts move by half the circle; time does not jump with them."""
    await bench.put()
    plane.window(500, pipe=1)
    before = await plane.sample()
    plane.packets(50_000, pipe=1)
    await plane.sample(seconds=100.0)
    windows = bench.memory.registers["window_start"]["f1"]
    assert windows[1, 0] == 500, "too soon after its last window to be stuck"
    await plane.sample(seconds=200.0)
    assert windows[:, 0].tolist() == [0, 500 + (1 << 31), 0, 0]
    assert bench.agent.sampler.upkeep.windows_refreshed == 1
    after = await plane.sample()
    assert after["switch_time_ns"] in (None, before["switch_time_ns"])
    assert after["step_min"] == before["step_min"]
    plane.window(900, pipe=1)
    assert (await plane.sample())["switch_time_ns"] == 900 * 256


async def test_a_few_packets_prove_nothing(bench: Bench, plane: Plane) -> None:
    """They may all have come within one window."""
    await bench.put()
    plane.window(500)
    await plane.sample()
    plane.packets(20)
    await plane.sample(3, seconds=300.0)
    assert bench.memory.registers["window_start"]["f1"][0, 0] == 500


async def test_a_job_that_never_got_a_window_is_helped_within_a_second(bench: Bench, plane: Plane) -> None:
    """A start value that looks like the future to the switch's clock is replaced by the opposite one."""
    await bench.put()
    await plane.sample()
    plane.packets(5000)
    sample = await plane.sample(seconds=1.5)
    assert bench.memory.registers["window_start"]["f1"][:, 0].tolist() == [1 << 31] * 4
    assert sample["live_pipes"] == []
    assert (await plane.sample())["live_pipes"] == [], "a value that we wrote is no packet"


async def test_windows_of_silent_jobs_are_moved_on_as_other_jobs_tell_the_time(bench: Bench, plane: Plane) -> None:
    """Old starts follow the clock, untouched ones change halves with it; the job that tells the time is left alone."""
    await bench.put(1)
    await bench.put(2, name="busy", job_tag=4)
    plane.window(1000)
    plane.window(1000, pipe=2, index=1)
    plane.writes.clear()
    windows = bench.memory.registers["window_start"]["f1"]
    now = 1000
    for _ in range(40):
        now += 20 * SECOND
        plane.window(now, pipe=2, index=1)
        plane.packets(10, job_id=2)
        await plane.sample(seconds=20.0)
        age = (now - int(windows[0, 0])) & 0xFFFFFFFF
        assert 0 < age < (1 << 30) + 21 * SECOND, "never in the future, never near half the circle"
        assert windows[:, 1].tolist() == [0, 0, now & 0xFFFFFFFF, 0]
    assert now > 1 << 31
    assert windows[1:, 0].tolist() == [1 << 31] * 3
    assert {name for name, *_ in plane.writes} == {"window_start"}
    assert 2 <= bench.agent.sampler.upkeep.windows_refreshed <= 5


async def test_what_is_written_belongs_to_the_jobs_that_were_read(bench: Bench, plane: Plane) -> None:
    """When the jobs change between a reading and a write, the write does not happen."""
    await bench.put()
    plane.steps(10, 14)
    plane.window(7)
    await plane.sample(STALE_SAMPLES + 1, seconds=0.1)
    sampler = bench.agent.sampler
    plane.seconds += 5
    plane.writes.clear()
    sampler.upkeep._still = lambda _: False
    await plane.sample()
    assert plane.writes == []


def test_the_constants_fit_the_clock() -> None:
    """Refreshed starts are behind the clock by more than the longest window, and are refreshed in time."""
    longest_window_units = 10_000 * 1000 // 256
    assert longest_window_units < upkeep._BEHIND_UNITS < upkeep._OLD_UNITS < 1 << 31
