# SPDX-License-Identifier: Apache-2.0
"""Entries without a switch-agent are those that a switch-agent installs through BF-Runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fabric_twin.bfrt_server import BfRtServer, P4Program
from fabric_twin.entries import JobEntries
from fabric_twin.errors import ConfigError
from fabric_twin.fabric import Fabric
from fabric_twin.presets import get_preset
from fabric_twin.switch import TwinSwitch
from ring_bench.tag import TagLayout
from switch_agent.agent import Agent, AgentOptions, build_app
from switch_agent.bfrt import SessionState
from switch_agent.dataplane.params import SymphonyParams

JOB_TAG = 3
RING = [0, 4, 1, 5]
"""Hosts; every second hop stays below a ToR."""


def edges(fabric: Fabric) -> list[tuple[Any, Any]]:
    """Source and destination of each hop."""
    hosts = [fabric.topology.hosts[i] for i in RING]
    return list(zip(hosts, hosts[1:] + hosts[:1], strict=True))


@asynccontextmanager
async def agents(fabric: Fabric, folder: Path) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A switch-agent on each ToR, ready."""
    async with AsyncExitStack() as stack:
        program = P4Program.from_description()
        clients = []
        for switch in fabric.topology.symphony_switches:
            backend = TwinSwitch(fabric, switch.index)
            server = await stack.enter_async_context(BfRtServer(backend, program, port=0))
            options = AgentOptions(
                bfrt=server.address, state_dir=folder / switch.name, name=switch.name, sample_interval=3600.0
            )
            agent = Agent(options)
            await stack.enter_async_context(agent.running())
            await agent.session.wait_for(SessionState.READY, timeout=60)
            transport = httpx.ASGITransport(build_app(agent))
            clients.append(
                await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://localhost"))
            )
        yield clients


def state_of(fabric: Fabric) -> dict[str, Any]:
    """All that the pipelines of the ToRs work with."""
    layout = TagLayout()
    sports = [layout.encode(tag, step) for tag in (JOB_TAG, JOB_TAG + 1) for step in (0, 1, 700, 1023)]
    hosts = fabric.topology.hosts
    found: dict[str, Any] = {
        f"{group}.{name}": array.copy()
        for group in ("regs", "lut")
        for name, array in getattr(fabric.planes, group)._asdict().items()
    }
    found["params"], found["enabled"] = fabric.planes.params.copy(), fabric.view.enabled.copy()
    found["counts"] = fabric.view.counts.copy()
    pairs = [(a, b) for a in hosts for b in hosts if a is not b]
    found["routes"] = [
        fabric.view.route[start : start + 4 * len(path)].tolist()
        for a, b in pairs
        for sport in sports
        for start, path in [(fabric.route(a, b, sport)[0], fabric.topology.path(a, b, sport))]
    ]
    return found


def assert_same(fabric: Fabric, other: Fabric) -> None:
    """Every register, look-up, parameter and classification."""
    one, two = state_of(fabric), state_of(other)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert np.array_equal(value, two[name]) if name != "routes" else value == two[name], name


async def test_entries_are_those_of_switch_agents(tmp_path: Path) -> None:
    """From registration over a toggle off and on again to other parameters."""
    with_agents, without = Fabric(get_preset("small"), 1), Fabric(get_preset("small"), 1)
    async with agents(with_agents, tmp_path) as clients:
        for number, client in enumerate(clients):
            flows = [{"src": str(a.address), "dst": str(b.address)} for a, b in edges(with_agents) if a.tor == number]
            job = {
                "name": "ring",
                "job_tag": JOB_TAG,
                "flows": flows,
                "symphony": {"enabled": True, "variant": "paper"},
            }
            answer = await client.put("/api/v1/jobs/1", json=job)
            assert answer.status_code == 200, answer.text
        entries = JobEntries(without)
        tag = TagLayout().classify(JOB_TAG)
        entries.add("ring", set(edges(without)), tag, SymphonyParams.variant("paper"))
        assert_same(with_agents, without)
        classified = sum(job >= 0 for route in state_of(without)["routes"] for job in route[1::4])
        assert classified == 4 * len(RING), "four steps of each hop, at one switch each"
        for params, settings in (
            (None, {"enabled": False}),
            (SymphonyParams.variant("paper"), {"enabled": True}),
            (SymphonyParams.variant("refined"), {"variant": "refined"}),
        ):
            for fabric in (with_agents, without):
                fabric.planes.regs.score[:, 0], fabric.planes.regs.alpha[:, 0] = 77, 9  # as packets leave them
            for client in clients:
                answer = await client.patch("/api/v1/jobs/1", json=settings)
                assert answer.status_code == 200, answer.text
            entries.set_params("ring", params)
            assert_same(with_agents, without)


def test_what_the_switches_cannot_hold_is_refused() -> None:
    fabric = Fabric(get_preset("small"), 1)
    entries = JobEntries(fabric)
    tag = TagLayout().classify(JOB_TAG)
    entries.add("ring", set(edges(fabric)), tag, SymphonyParams())
    with pytest.raises(ConfigError, match="no job 'other'"):
        entries.set_params("other", None)
    with pytest.raises(ConfigError, match="state block per port"):
        entries.set_params("ring", SymphonyParams(scope="port"))
