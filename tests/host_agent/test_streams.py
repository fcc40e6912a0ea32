# SPDX-License-Identifier: Apache-2.0
"""Server-sent events, over real HTTP: what comes, that it ends, and that places are given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from host_agent.app import create_app


@asynccontextmanager
async def served(bench: Any, **options: Any) -> AsyncIterator[str]:
    """The hub's app on a real socket (its life is the fixture's, so lifespan is off)."""
    config = uvicorn.Config(
        create_app(bench.hub, **options), port=0, lifespan="off", log_config=None, log_level="error"
    )
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    # `_serve` is what `serve` does without taking over the signal handlers of the test run.
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


async def read_events(lines: AsyncIterator[str], stop: Callable[[str, Any], bool]) -> list[tuple[str, Any]]:
    """Parse events until `stop` says so."""
    seen: list[tuple[str, Any]] = []
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            seen.append((name, json.loads(line[6:])))
            if stop(*seen[-1]):
                return seen
    return seen


async def test_a_stream_tells_state_then_only_what_is_new(bench: Any) -> None:
    """First the whole picture; after another report only the new part of the curve; at the job's end,
    "end".
    """
    job = await bench.register("a")
    await bench.report(job, events=[(0, 0, 0, 0, 0, "post", 10)], collectives=[(0, 0, 0, 9, 1.0)])
    async with (
        served(bench) as url,
        httpx.AsyncClient() as client,
        client.stream("GET", f"{url}/api/v1/jobs/1/stream") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        first = await read_events(lines, lambda name, _: name == "progress")
        assert [name for name, _ in first] == ["job", "overlap", "cct", "progress"]
        assert dict(first)["overlap"]["host"] == [[10, 1]]
        await bench.report(job, events=[(0, 0, 0, 0, 0, "done", 20)])
        second = await read_events(lines, lambda name, _: name == "progress")
        assert dict(second)["overlap"]["host"] == [[20, 0]]
        assert "cct" not in dict(second)
        await bench.client.post("/api/v1/jobs/1/stop")
        last = await read_events(lines, lambda name, _: name == "end")
        assert last[-1] == ("end", {"reason": "job stopped"})


async def test_streams_end_when_host_agent_stops(bench: Any) -> None:
    """uvicorn waits for connections, so the stream has to end by itself."""
    await bench.register("a")
    async with (
        served(bench) as url,
        httpx.AsyncClient() as client,
        client.stream("GET", f"{url}/api/v1/jobs/1/stream") as answer,
    ):
        lines = answer.aiter_lines()
        await read_events(lines, lambda name, _: name == "progress")
        bench.hub.begin_shutdown()
        assert (await read_events(lines, lambda *_: False))[-1] == ("end", {"reason": "host-agent stops"})


async def test_places_are_bounded_and_given_back(bench: Any) -> None:
    """The stream beyond the limit is 503; a client that leaves without a word frees its place."""
    await bench.register("a")
    async with served(bench, max_streams=1) as url, httpx.AsyncClient() as client:
        path = f"{url}/api/v1/jobs/1/stream"
        async with client.stream("GET", path) as answer:
            await read_events(answer.aiter_lines(), lambda name, _: name == "progress")
            refused = await client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (503, "stream_limit")
            metrics = (await client.get(f"{url}/metrics")).text
            assert "symphony_event_streams_open 1.0" in metrics
        for _ in range(500):
            if "symphony_event_streams_open 0.0" in (await client.get(f"{url}/metrics")).text:
                break
        else:
            raise AssertionError("the place of the client that left was not given back")


async def test_deleting_a_job_ends_its_streams(bench: Any) -> None:
    """The stream says why."""
    await bench.register("a")
    async with (
        served(bench) as url,
        httpx.AsyncClient() as client,
        client.stream("GET", f"{url}/api/v1/jobs/1/stream") as answer,
    ):
        lines = answer.aiter_lines()
        await read_events(lines, lambda name, _: name == "progress")
        await bench.client.delete("/api/v1/jobs/1")
        ended = await read_events(lines, lambda name, _: name == "end")
        assert ended[-1][0] == "end"
