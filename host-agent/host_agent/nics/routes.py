# SPDX-License-Identifier: Apache-2.0
"""REST of the NICs: what there is, what would change, changing it and back, and the doctor from inside the service."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel, ConfigDict, Field, field_validator

from host_agent.auth import TokenGate, bearer
from host_agent.nics.checks import CHECKS
from host_agent.nics.models import RestoreRequest, Wishes
from host_agent.nics.service import NicService
from ring_bench.doctor import Options
from ring_bench.hosts import expand_hosts

__all__ = ["LONGEST_WATCH_S", "DoctorRequest", "add_nic_routes"]

LONGEST_WATCH_S: Final = 10.0
"""Longest interval over which the service watches counters. The command by itself may take longer: here every other
request about NICs waits for it, and so does the end of the service.
"""


class DoctorRequest(BaseModel):
    """What to examine; as the options of `host-agent doctor`."""

    model_config = ConfigDict(extra="forbid")

    only: list[str] = []
    devices: list[str] = []
    peers: list[str] = []
    memory: Annotated[int, Field(ge=0)] = 256 << 20
    traffic_class: Annotated[int, Field(ge=0, le=255)] = 106
    gid_index: Annotated[int, Field(ge=0, le=0xFFFF)] | None = None
    switch_mtu: Annotated[int, Field(ge=576, le=0xFFFF)] | None = None
    interval_s: Annotated[float, Field(ge=0, le=LONGEST_WATCH_S)] = 1.0
    probe: bool = False

    @field_validator("only")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        known = sorted(name for check in CHECKS for name in check.ids)
        for name in names:
            if name not in known:
                raise ValueError(f"no check {name!r}; there are {', '.join(known)}")
        return names

    @field_validator("peers")
    @classmethod
    def _hosts(cls, peers: list[str]) -> list[str]:
        return [name for peer in peers for name in expand_hosts(peer)]

    def options(self) -> Options:
        """As the doctor takes them."""
        given = self.model_dump(exclude={"only"})
        return Options(**{**given, "devices": tuple(self.devices), "peers": tuple(self.peers)})


def add_nic_routes(app: FastAPI, nics: NicService, gate: TokenGate) -> None:
    """Add the routes; all but the inventory need the token where there is one."""

    async def may_change(authorization: Annotated[str | None, Header()] = None) -> None:
        gate.check(bearer(authorization))

    guarded = [Depends(may_change)]

    @app.get("/api/v1/nics")
    async def show_nics() -> dict[str, Any]:
        """Network and RDMA devices of this machine as they are, and what host-agent has set on them."""
        return await nics.later(nics.show)

    @app.post("/api/v1/nics/plan", dependencies=guarded)
    async def plan_nics(wishes: Wishes) -> dict[str, Any]:
        """What would change to make the NICs as wished; changes nothing."""
        return (await nics.later(lambda: nics.plan(wishes))).model_dump()

    @app.post("/api/v1/nics/apply", dependencies=guarded)
    async def apply_nics(wishes: Wishes) -> dict[str, Any]:
        """Make the NICs as wished, all or nothing; answers with before and after of each value."""
        return (await nics.later(lambda: nics.apply(wishes))).model_dump()

    @app.post("/api/v1/nics/restore", dependencies=guarded)
    async def restore_nics(request: RestoreRequest) -> dict[str, Any]:
        """Put back everything that was changed, last change first."""
        return (await nics.later(lambda: nics.restore(force=request.force))).model_dump()

    @app.post("/api/v1/doctor", dependencies=guarded)
    async def doctor(request: DoctorRequest) -> dict[str, Any]:
        """Examine the machine from inside this service: its limits, capabilities, devices."""
        return (await nics.later(lambda: nics.doctor(request.options(), request.only))).as_data()
