# SPDX-License-Identifier: Apache-2.0
"""Server-sent events of a job.

Nothing is queued: each stream keeps cursors into the job's bounded history and, twice a second, sends what
is new. A reader that stops reading blocks its own stream only, and loses it after SEND_TIMEOUT_S. A place
among the MAX_STREAMS is taken and given back inside the response itself, so that it cannot leak. Streams end
when the job is gone or host-agent stops: uvicorn waits for open connections before it shuts down.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from host_agent.errors import StreamLimitError, UnknownJobError
from host_agent.hub import Hub
from host_agent.jobs import Job
from host_agent.views import cct_view, host_overlap, progress_view, switch_overlap

__all__ = ["MAX_STREAMS", "EventStream", "StreamSlots", "job_events"]

MAX_STREAMS: Final = 64
INTERVAL_S: Final = 0.5
HEARTBEAT_S: Final = 10.0
SEND_TIMEOUT_S: Final = 20.0


class StreamSlots:
    """Counts open streams against their bound."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self.limit = limit
        self.open = 0

    def check(self) -> None:
        """Raises StreamLimitError when there is no place left."""
        if self.open >= self.limit:
            raise StreamLimitError(
                f"{self.limit} event streams are open, which is the limit; close one, or poll the history"
            )


class EventStream(Response):
    """An endless text/event-stream answer that owns its place in `slots` exactly while it runs."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], slots: StreamSlots) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end, the client leaves, or it stops reading."""
        self._slots.open += 1
        try:
            pump = asyncio.create_task(self._pump(send))
            leave = asyncio.create_task(_disconnected(receive))
            await asyncio.wait((pump, leave), return_when=asyncio.FIRST_COMPLETED)
            for task in (pump, leave):
                task.cancel()
            outcomes = await asyncio.gather(pump, leave, return_exceptions=True)
            if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], TimeoutError | OSError):
                raise outcomes[0]
        finally:
            self._slots.open -= 1

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def job_events(hub: Hub, job: Job, interval_s: float = INTERVAL_S) -> AsyncIterator[bytes]:
    """A job's events: "job" (its state, when it changed), "overlap", "cct" (what is new), "progress"; "end"
    at last.
    """
    version, host_t, switch_t, sequence = -1, None, None, -1
    silent_s = 0.0
    yield b"retry: 2000\n\n"
    while True:
        if job.version != version:
            version = job.version
            yield _event("job", job.view())
            host, switch = host_overlap(job, host_t), switch_overlap(job, switch_t)
            if host or switch:
                host_t = host[-1][0] if host else host_t
                switch_t = switch[-1][0] if switch else switch_t
                yield _event("overlap", {"host": host, "switch": switch})
            cct = cct_view(job, sequence)
            if cct["collectives"]:
                sequence = cct["collectives"][-1]["sequence"]
                yield _event("cct", cct)
            yield _event("progress", progress_view(job))
            silent_s = 0.0
        reason = _end_reason(hub, job)
        if reason is not None:
            yield _event("end", {"reason": reason})
            return
        try:
            async with asyncio.timeout(interval_s):
                await hub.stopping.wait()
        except TimeoutError:
            silent_s += interval_s
        if silent_s >= HEARTBEAT_S:
            silent_s = 0.0
            yield b": heartbeat\n\n"


def _end_reason(hub: Hub, job: Job) -> str | None:
    if hub.stopping.is_set():
        return "host-agent stops"
    try:
        gone = hub.jobs.get(job.id) is not job
    except UnknownJobError:
        gone = True
    if gone:
        return "job deleted"
    return f"job {job.state}" if job.final else None
