# SPDX-License-Identifier: Apache-2.0
"""The FastAPI application: routes, error answers, and the hub's life around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from host_agent.auth import TokenGate, bearer
from host_agent.errors import HostAgentError
from host_agent.experiments import Experiments, add_experiment_routes
from host_agent.hub import Hub
from host_agent.metrics import HubCollector, metrics_text
from host_agent.models import EventBatch, JobRequest, SymphonySettings
from host_agent.nics import NicCounters, NicService
from host_agent.nics.exporter import NicCollector
from host_agent.nics.routes import add_nic_routes
from host_agent.openapi import describe
from host_agent.streams import EventStream, StreamSlots, job_events
from host_agent.views import cct_view, overlap_view, progress_view, switch_series
from symphony_common.rest import BodyLimit, HostCheck, JsonRoute, KnownHosts, UnknownHost

__all__ = ["create_app"]

MAX_BODY_BYTES = 16 * 1024 * 1024
CODES = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large", 422: "bad_input"}


def create_app(
    hub: Hub,
    *,
    token: str | None = None,
    local_only: bool = True,
    max_streams: int = 64,
    nics: NicService | None = None,
    nic_counters: NicCounters | None = None,
    experiments: Experiments | None = None,
) -> FastAPI:
    """Build the application around a hub, with this machine's NICs, NIC counters and results where they are given.

    With `token`, state changes need it. With `local_only` (a loopback bind) requests that name another host
    are refused, so that a web page elsewhere cannot reach host-agent through a DNS name of its own (DNS
    rebinding).
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await hub.start()
        counting = asyncio.create_task(nic_counters.run()) if nic_counters is not None else None
        try:
            yield
        finally:
            if counting is not None:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)
            await hub.close()
            if nics is not None:
                nics.close()

    gate = TokenGate(token)
    slots = StreamSlots(max_streams)
    registry = CollectorRegistry(auto_describe=False)
    others = {"nics": nic_counters.status} if nic_counters is not None else {}
    registry.register(HubCollector(hub, slots, others))
    if nic_counters is not None:
        registry.register(NicCollector(nic_counters))
    ProcessCollector(registry=registry)
    app = FastAPI(
        title="host-agent",
        version="1",
        description="Jobs, step overlap and collective completion times of the Symphony testbed.",
        lifespan=life,
        docs_url=None,  # the interactive pages load scripts from the internet
        redoc_url=None,
    )
    app.state.hub, app.state.gate, app.state.experiments = hub, gate, experiments
    app.router.route_class = JsonRoute
    _add_error_answers(app)
    _add_service_routes(app, registry)
    _add_job_routes(app, hub, gate)
    _add_history_routes(app, hub, slots)
    if nics is not None:
        add_nic_routes(app, nics, gate)
    if experiments is not None:
        add_experiment_routes(app, experiments)
    describe(app)
    app.add_middleware(_Methods, routes=tuple(app.routes))
    app.add_middleware(BodyLimit, most=MAX_BODY_BYTES, answer=_error_answer)
    if local_only:
        app.add_middleware(HostCheck, hosts=KnownHosts(), answer=_error_answer, advice="ask for 127.0.0.1 or localhost")
    return app


def _add_service_routes(app: FastAPI, registry: CollectorRegistry) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Alive; says nothing about switches or jobs and does no I/O."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Prometheus text exposition."""
        return Response(metrics_text(registry), media_type=CONTENT_TYPE_LATEST)


def _add_job_routes(app: FastAPI, hub: Hub, gate: TokenGate) -> None:
    async def may_change(authorization: Annotated[str | None, Header()] = None) -> None:
        gate.check(bearer(authorization))

    guarded = [Depends(may_change)]

    @app.get("/api/v1/testbed")
    async def show_testbed() -> dict[str, Any]:
        """Switches, hosts, twin, and how the last poll of each switch agent went."""
        return hub.testbed_view()

    @app.get("/api/v1/jobs")
    async def list_jobs() -> dict[str, Any]:
        """All jobs, newest last."""
        return {"jobs": [job.view(brief=True) for job in hub.jobs]}

    @app.post("/api/v1/jobs", status_code=201, dependencies=guarded)
    async def create_job(request: JobRequest) -> dict[str, Any]:
        """Register a job on its switches and start its benchmark, if it has one.

        A job whose ranks somebody else starts gets the address and the token for their events in "reporting".
        """
        job = await hub.create(request)
        out = job.view()
        if request.bench is None:
            out["reporting"] = {"url": hub.events_url(job), "token": job.events_token}
        return out

    @app.get("/api/v1/jobs/{job_id}")
    async def show_job(job_id: int) -> dict[str, Any]:
        """Everything about one job."""
        return hub.jobs.get(job_id).view()

    @app.delete("/api/v1/jobs/{job_id}", status_code=204, dependencies=guarded)
    async def delete_job(job_id: int) -> None:
        """Stop a job and forget it."""
        await hub.delete(job_id)

    @app.post("/api/v1/jobs/{job_id}/stop", dependencies=guarded)
    async def stop_job(job_id: int) -> dict[str, Any]:
        """Stop a job; its figures stay."""
        return (await hub.stop(job_id)).view()

    @app.patch("/api/v1/jobs/{job_id}/symphony", dependencies=guarded)
    async def set_symphony(job_id: int, settings: SymphonySettings) -> dict[str, Any]:
        """Change Symphony on all switches of the job; answers when every one has read it back."""
        return (await hub.set_symphony(job_id, settings)).view()

    @app.post("/api/v1/jobs/{job_id}/events", status_code=202, openapi_extra={"security": [{"token": []}]})
    async def take_events(
        job_id: int, batch: EventBatch, authorization: Annotated[str | None, Header()] = None
    ) -> dict[str, int]:
        """Reports of the job's ranks; needs the job's own token."""
        hub.ingest(job_id, bearer(authorization), batch)
        return {"accepted": len(batch.events)}


def _add_history_routes(app: FastAPI, hub: Hub, slots: StreamSlots) -> None:
    @app.get("/api/v1/jobs/{job_id}/overlap")
    async def show_overlap(job_id: int, since: Annotated[int | None, Query()] = None) -> dict[str, Any]:
        """Degree of step overlap over time, from hosts and switches, and how well they agree."""
        return overlap_view(hub.jobs.get(job_id), since)

    @app.get("/api/v1/jobs/{job_id}/cct")
    async def show_cct(job_id: int, since: Annotated[int, Query(ge=-1)] = -1) -> dict[str, Any]:
        """Collective completion times."""
        return cct_view(hub.jobs.get(job_id), since)

    @app.get("/api/v1/jobs/{job_id}/progress")
    async def show_progress(job_id: int) -> dict[str, Any]:
        """Where each ring is, and who holds it up."""
        return progress_view(hub.jobs.get(job_id))

    @app.get("/api/v1/jobs/{job_id}/switches")
    async def show_switches(job_id: int) -> dict[str, Any]:
        """Alpha, packets and marks over time, per switch."""
        job = hub.jobs.get(job_id)
        return {"job": job.id, "switches": {name: switch_series(job, name) for name in job.flows}}

    @app.get("/api/v1/jobs/{job_id}/result")
    async def show_result(job_id: int) -> dict[str, Any]:
        """ring-bench's result, once there is one."""
        return hub.result(job_id)

    @app.get(
        "/api/v1/jobs/{job_id}/stream",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def stream(job_id: int) -> Response:
        """Server-sent events: job, overlap, cct, progress, end."""
        job = hub.jobs.get(job_id)
        slots.check()
        return EventStream(job_events(hub, job), slots)


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(HostAgentError)
    async def ours(_: Request, error: HostAgentError) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        return JSONResponse(
            {"detail": error.detail, "code": error.code, **error.extra},
            status_code=error.status,
            headers=headers,
        )

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            {"where": ".".join(str(part) for part in item["loc"]), "what": item["msg"]} for item in error.errors()
        ][:20]
        first = problems[0]
        detail = f"{first['where']}: {first['what']}"
        return JSONResponse({"detail": detail, "code": "bad_input", "errors": problems}, status_code=422)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return _error_answer(error)


class _Methods:
    """Answers 405 where a path is one of `routes`, but not with this method.

    The page answers whatever no route takes, so that the framework's own 405 would never come.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = self._allowed(scope) if scope["type"] == "http" else None
        if allowed:
            error = HTTPException(405, f"{scope['path']} takes {allowed}", {"Allow": allowed})
            await _error_answer(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> str:
        """Methods that there are instead of the one asked for; empty if that one is fine or the path unknown."""
        matches = [(route.matches(scope)[0], route) for route in self._routes]
        if any(match is Match.FULL for match, _ in matches):
            return ""
        return ", ".join(
            sorted(m for match, r in matches if match is Match.PARTIAL for m in getattr(r, "methods", None) or ())
        )


def _error_answer(error: HTTPException) -> JSONResponse:
    code = "unknown_host" if isinstance(error, UnknownHost) else CODES.get(error.status_code, "http_error")
    return JSONResponse({"detail": error.detail, "code": code}, status_code=error.status_code, headers=error.headers)
