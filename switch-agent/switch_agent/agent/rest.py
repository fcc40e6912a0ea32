# SPDX-License-Identifier: Apache-2.0
"""The REST interface, see ``docs/switch-agent.md``.

Errors are JSON: ``{"status", "code", "detail"}`` (plus ``"problems"`` for bad input), ``code`` being the word
that :mod:`switch_agent.errors` gives. A 200 to a change means that the switch has confirmed it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from switch_agent.agent.metrics import CONTENT_TYPE, render
from switch_agent.agent.models import JobSpec, SymphonySettings
from switch_agent.agent.service import Agent
from switch_agent.errors import (
    CapacityError,
    CodecError,
    InvalidJobError,
    JobConflictError,
    JobNotFoundError,
    ReadOnlyError,
    ReconcileError,
    StoreError,
    SwitchAgentError,
    WriteError,
)
from symphony_common.rest import BodyLimit, HostCheck, JsonRoute, KnownHosts, UnknownHost, UnreadableBody

__all__ = ["build_app"]

MAX_STREAMS = 32
MAX_BODY_BYTES = 1 << 20
"""The largest job, 2048 IPv6 flows, has about 250 KB."""
_CODES = {
    401: "unauthorized",
    404: "no_such_path",
    405: "method_not_allowed",
    413: "body_too_large",
    422: "invalid_request",
}

_STATUS: tuple[tuple[type[SwitchAgentError], int], ...] = (
    (JobNotFoundError, 404),
    (JobConflictError, 409),
    (CapacityError, 409),
    (ReadOnlyError, 409),
    (InvalidJobError, 422),
    (CodecError, 422),
    (StoreError, 507),
    (WriteError, 502),
    (ReconcileError, 502),
    (SwitchAgentError, 503),
)


def _problem(status: int, code: str, detail: str, **more: Any) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"status": status, "code": code, "detail": detail, **more}, status, headers)


def _http_problem(error: HTTPException) -> JSONResponse:
    code = "unknown_host" if isinstance(error, UnknownHost) else _CODES.get(error.status_code, "http_error")
    more = {"problems": [{"field": "", "problem": error.detail}]} if isinstance(error, UnreadableBody) else {}
    return _problem(error.status_code, code, str(error.detail), **more)


def build_app(agent: Agent, token: str | None = None, hosts: Container[str] | None = None) -> FastAPI:
    """Build the application of an agent; its lifespan runs the agent.

    With a ``token``, requests that change something need ``Authorization: Bearer <token>``. Requests must name one of
    ``hosts`` as their Host; without that, a loopback name or address.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with agent.running():
            yield

    app = FastAPI(title="switch-agent", version="1", lifespan=lifespan, redoc_url=None)
    app.add_middleware(BodyLimit, most=MAX_BODY_BYTES, answer=_http_problem)
    app.add_middleware(
        HostCheck,
        hosts=KnownHosts() if hosts is None else hosts,
        answer=_http_problem,
        advice="use its address, or start it with --allow-host NAME",
    )
    app.router.route_class = JsonRoute
    _add_error_handlers(app)

    async def authorised(request: Request) -> None:  # async: a plain function would run in a thread
        if token is None:
            return
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "this needs the agent's token: Authorization: Bearer <token>")

    changes = [Depends(authorised)]

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive; says nothing about the switch."""
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics, from the newest snapshot."""
        return Response(render(agent), media_type=CONTENT_TYPE)

    @app.get("/api/v1/switch")
    async def switch() -> dict[str, Any]:
        """Session, owner, program, tables found, drift."""
        return agent.view()

    @app.get("/api/v1/drift")
    async def drift() -> dict[str, Any]:
        """Compare the switch with the desired state now; changes nothing."""
        return (await agent.compare()).view()

    @app.post("/api/v1/reconcile", dependencies=changes)
    async def reconcile() -> dict[str, Any]:
        """Compare and repair now."""
        return (await agent.reconcile()).view()

    @app.get("/api/v1/jobs")
    async def list_jobs() -> dict[str, Any]:
        """All jobs."""
        return {"switch": agent.name, "jobs": [job.view() for job in agent.jobs.all()]}

    @app.get("/api/v1/jobs/{job_id}")
    async def get_job(job_id: int) -> dict[str, Any]:
        """One job."""
        return agent.jobs.get(job_id).view()

    @app.put("/api/v1/jobs/{job_id}", dependencies=changes)
    async def put_job(job_id: int, spec: JobSpec) -> dict[str, Any]:
        """Add a job or replace it."""
        return (await agent.jobs.put(job_id, spec)).view()

    @app.patch("/api/v1/jobs/{job_id}", dependencies=changes)
    async def patch_job(job_id: int, change: SymphonySettings) -> dict[str, Any]:
        """Change Symphony's settings of a job; fields that are left out stay."""
        return (await agent.jobs.patch(job_id, change)).view()

    @app.delete("/api/v1/jobs/{job_id}", dependencies=changes, status_code=204)
    async def delete_job(job_id: int) -> Response:
        """Remove a job."""
        await agent.jobs.delete(job_id)
        return Response(status_code=204)

    @app.get("/api/v1/registers")
    async def registers(job: int | None = None) -> dict[str, Any]:
        """The newest sample of all jobs, or of one."""
        if job is not None:
            _known(agent, job)
        samples = [sample for sample in agent.samples() if job in (None, sample["job_id"])]
        return {"switch": agent.name, "samples": samples}

    @app.get("/api/v1/samples")
    async def samples(
        job: int,
        since: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> dict[str, Any]:
        """Samples of a job with seq > since, oldest first."""
        _known(agent, job)
        return {"switch": agent.name, "samples": list(agent.sampler.history.since(job, since, limit))}

    _add_stream(app, agent)
    return app


def _known(agent: Agent, job_id: int) -> None:
    """Raise JobNotFoundError unless the job is ours, or on the switch of another owner."""
    frame = agent.sampler.history.latest
    if agent.session.owned or frame is None or frame.find(job_id) is None:
        agent.jobs.get(job_id)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(SwitchAgentError)
    async def on_agent_error(_: Request, error: SwitchAgentError) -> JSONResponse:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        more: dict[str, Any] = {"table": error.table} if isinstance(error, CapacityError) else {}
        return _problem(status, error.code, str(error), **more)

    @app.exception_handler(RequestValidationError)
    async def on_bad_input(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            {"field": ".".join(str(part) for part in item["loc"] if part != "body"), "problem": item["msg"]}
            for item in error.errors()
        ]
        text = "; ".join(f"{item['field'] or 'body'}: {item['problem']}" for item in problems)
        return _problem(422, "invalid_request", text, problems=problems)

    @app.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> JSONResponse:
        return _http_problem(error)


def _add_stream(app: FastAPI, agent: Agent) -> None:
    streams: set[object] = set()

    async def events(job: int | None) -> AsyncIterator[ServerSentEvent]:
        me = object()
        streams.add(me)
        try:
            with agent.sampler.listen() as queue:
                while not agent.stopping.is_set():
                    try:
                        frame = await asyncio.wait_for(queue.get(), 0.5)
                    except TimeoutError:
                        continue
                    rows = range(len(frame.rows)) if job is None else [frame.find(job)]
                    for at in rows:
                        if at is not None:
                            yield ServerSentEvent(json.dumps(frame.view(at)), event="sample", id=str(frame.seq))
        finally:
            streams.discard(me)

    @app.get("/api/v1/stream")
    async def stream(job: int | None = None) -> Response:
        """Server-sent events: one ``sample`` event per job and tick."""
        if job is not None:
            _known(agent, job)
        if len(streams) >= MAX_STREAMS:
            return _problem(
                503, "too_many_streams", f"{MAX_STREAMS} streams are open: close one, or poll /api/v1/samples"
            )
        return EventSourceResponse(events(job), ping=10, send_timeout=10)
