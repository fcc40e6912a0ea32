# SPDX-License-Identifier: Apache-2.0
"""The twin's own REST API: what no hardware has, such as holding the clock or breaking a link.

It is served on loopback only; whoever may log in to this machine may use it. Requests must name a loopback host.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from fabric_twin.errors import FabricError, UnknownNameError
from fabric_twin.events import Event
from fabric_twin.fabric import Fabric
from fabric_twin.verbs_service import MAX_PACE, VerbsService
from symphony_common.rest import BodyLimit, HostCheck, JsonRoute, KnownHosts, UnknownHost

__all__ = ["ClockPatch", "LinkPatch", "Served", "make_app"]

MAX_BODY_BYTES = 64 << 10
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 422: "invalid"}
MAX_NS = 10**15
"""Eleven days of virtual time."""


class Served(Protocol):
    """What the API is over: a running twin (`fabric_twin.daemon.Twin`)."""

    fabric: Fabric
    service: VerbsService

    def bfrt_address(self, switch: int) -> str | None:
        """host:port of a switch's BF-Runtime server; None for one without Symphony."""
        ...

    def bfrt_address_of(self, name: str) -> str:
        """The same by name. Raises UnknownNameError."""
        ...

    async def restart_switch(self, name: str, down_s: float) -> None:
        """Stop a switch's BF-Runtime server and start it again with empty tables."""
        ...


class ClockPatch(BaseModel):
    """Change how virtual time runs; fields that are left out stay."""

    model_config = ConfigDict(extra="forbid")

    pace: Annotated[
        float | None,
        Field(gt=0, le=MAX_PACE, allow_inf_nan=False, description="virtual seconds per second; null: no limit"),
    ] = None
    hold_at_ns: Annotated[int | None, Field(ge=0, le=MAX_NS, description="stop here; null: go on")] = None
    hold_after_ns: Annotated[
        int | None, Field(ge=0, le=MAX_NS, description="stop this long after the start of the next seeded run")
    ] = None


class LinkPatch(BaseModel):
    """Degrade or mend a directed link."""

    model_config = ConfigDict(extra="forbid")

    gbps: Annotated[float | None, Field(gt=0)] = None
    drop: Annotated[float | None, Field(ge=0, le=1, description="probability that a packet is lost")] = None


class Restart(BaseModel):
    """Restart a switch's BF-Runtime server, as when bf_switchd is restarted: all entries are gone."""

    model_config = ConfigDict(extra="forbid")

    down_s: Annotated[float, Field(ge=0, le=60)] = 0.5


def _refusal(error: HTTPException) -> JSONResponse:
    code = "unknown_host" if isinstance(error, UnknownHost) else _CODES.get(error.status_code, "http_error")
    return JSONResponse({"detail": str(error.detail), "code": code}, error.status_code, error.headers)


def make_app(twin: Served) -> FastAPI:
    """The API over a running twin."""
    app = FastAPI(title="fabric-twin", version="1", docs_url="/docs")
    app.router.route_class = JsonRoute
    app.add_middleware(BodyLimit, most=MAX_BODY_BYTES, answer=_refusal)
    app.add_middleware(HostCheck, hosts=KnownHosts(), answer=_refusal, advice="ask for 127.0.0.1 or localhost")
    fabric, service = twin.fabric, twin.service

    @app.exception_handler(UnknownNameError)
    async def not_there(_: Request, error: UnknownNameError) -> JSONResponse:
        return JSONResponse({"detail": str(error), "code": "not_found"}, status_code=404)

    @app.exception_handler(FabricError)
    async def not_possible(_: Request, error: FabricError) -> JSONResponse:
        return JSONResponse({"detail": str(error), "code": "invalid"}, status_code=422)

    @app.exception_handler(RequestValidationError)
    async def not_valid(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(str(word) for word in e['loc'][1:]) or 'body'}: {e['msg']}" for e in error.errors()]
        return JSONResponse({"detail": "; ".join(problems), "code": "invalid"}, status_code=422)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return _refusal(error)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/api/v1/topology")
    async def topology() -> dict[str, Any]:
        """Hosts (one entry per NIC), switches and directed links."""
        t = fabric.topology
        return {
            "preset": fabric.preset.name,
            "description": fabric.preset.description(),
            "hosts": [
                {
                    "name": h.name,
                    "address": str(h.address),
                    "switch": t.switches[h.tor].name,
                    "machine": h.machine,
                    "rail": h.rail,
                }
                for h in t.hosts
            ],
            "switches": [{"name": s.name, "tier": s.tier, "bfrt": twin.bfrt_address(s.index)} for s in t.switches],
            "links": [{"name": p.name, "gbps": p.gbps, "delay_us": p.delay_us} for p in t.ports],
        }

    @app.get("/api/v1/clock")
    async def clock() -> dict[str, Any]:
        """Virtual time and who is attached."""
        hold = service.clock.hold_at_ps
        return {
            "now_ns": fabric.now_ns,
            "pace": service.clock.pace,
            "hold_at_ns": None if hold is None else hold // 1000,
            "held": hold is not None and fabric.now_ps >= hold,
            "attached": service.attached,
        }

    @app.patch("/api/v1/clock")
    async def patch_clock(patch: ClockPatch) -> dict[str, Any]:
        """Change pace or hold."""
        given = patch.model_dump(exclude_unset=True)
        if "pace" in given:
            service.clock.set_pace(given["pace"], fabric.now_ps)
        if "hold_at_ns" in given:
            hold = given["hold_at_ns"]
            service.clock.hold_at_ps = None if hold is None else hold * 1000
        if given.get("hold_after_ns") is not None:
            service.hold_next_run_after(given["hold_after_ns"] * 1000)
        service.wake()
        return await clock()

    @app.get("/api/v1/stats")
    async def stats() -> dict[str, Any]:
        """Work done so far; cpu_s is processor time inside the engine."""
        s = fabric.stats()
        return {
            "data_packets": s.data_packets,
            "events": s.events,
            "cpu_s": round(s.cpu_s, 6),
            "drops": s.drops,
            "cnps": s.cnps,
        }

    @app.get("/api/v1/hosts/{name}/counters")
    async def host_counters(name: str) -> dict[str, int]:
        """NIC counters of a host."""
        return fabric.host_counters(fabric.topology.host(name))

    @app.get("/api/v1/links/{name}")
    async def link(name: str) -> dict[str, Any]:
        """Counters of a directed link such as tor0->spine1."""
        return {"name": name, **fabric.link_counters(fabric.topology.port(name).index)}

    @app.patch("/api/v1/links/{name}")
    async def patch_link(name: str, patch: LinkPatch) -> dict[str, Any]:
        """Change rate or loss of a directed link while packets fly."""
        service.timeline.set_link(name, **patch.model_dump(exclude_none=True))
        return {"name": name, **fabric.link_counters(fabric.topology.port(name).index)}

    @app.get("/api/v1/events")
    async def events(since: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
        """Events under way and to come, and what has occurred since occurrence number `since`."""
        return service.timeline.view(since)

    @app.post("/api/v1/events", status_code=201)
    async def post_event(event: Event) -> dict[str, Any]:
        """Let something happen: now, `at_ms` into the run, or at a reading of the clock."""
        number = service.timeline.add(event, next_run=not service.attached)
        service.wake()
        return {"id": number, "now_ns": fabric.now_ns}

    @app.delete("/api/v1/events/{number}")
    async def end_event(number: int) -> dict[str, Any]:
        """End an event that is under way, or have one not happen."""
        service.timeline.end(number)
        service.wake()
        return {"id": number, "now_ns": fabric.now_ns}

    @app.post("/api/v1/switches/{name}/restart")
    async def restart(name: str, body: Restart) -> dict[str, str]:
        """Restart the BF-Runtime server of a switch; the answer comes when it listens again."""
        await twin.restart_switch(name, body.down_s)
        return {"name": name, "bfrt": twin.bfrt_address_of(name)}

    return app
