# SPDX-License-Identifier: Apache-2.0
"""The live page with a running job on faked switches, as a process of its own: NiceGUI serves one page per process.

Prints its port; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).parent))

from conftest import FakeSwitch, SwitchTransport, make_testbed
from host_agent.app import create_app
from host_agent.hub import Hub
from host_agent.models import EventBatch, JobRequest, SymphonySettings
from host_agent.page import attach_page
from host_agent.store import Store
from host_agent.switches import SwitchClient
from host_agent.testbed import SwitchEntry

SWITCHES = 4
HOSTS = 8


class Server(uvicorn.Server):
    """uvicorn that says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        self.serves.set()


async def report(hub: Hub, job_id: int, first: int, last: int) -> None:
    """Steps first .. last - 1 of two groups: all but the last two are complete, and many ranks are in the lowest."""
    events = []
    for step in range(first, last):
        for rank in range(SWITCHES * HOSTS):
            events.append((rank, rank % HOSTS, 0, step // 6, step, "post", step * 20_000_000))
            if step < last - 2:
                events.append((rank, rank % HOSTS, 0, step // 6, step, "done", (step + 1) * 20_000_000))
    body = {"run": "r", "clock": "twin", "host": "h0", "events": events, "collectives": [(0, 0, 0, 150_000_000, 0.2)]}
    hub.ingest(job_id, hub.jobs.get(job_id).events_token, EventBatch.model_validate(body))


async def main() -> None:
    """Set it up, say where, serve."""
    testbed = make_testbed(SWITCHES, HOSTS)
    switches = {entry.name: FakeSwitch(entry.name) for entry in testbed.switches}

    def client(entry: SwitchEntry) -> SwitchClient:
        return SwitchClient(entry, transport=SwitchTransport(switches[entry.name]))

    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(testbed, Store(Path(folder)), client_factory=client, poll_s=0.1)
        app = create_app(hub)
        attach_page(app, hub)
        server = Server(uvicorn.Config(app, port=0, log_level="error"))
        serving = asyncio.create_task(server.serve())
        await server.serves.wait()
        job = await hub.create(JobRequest.model_validate({"name": "browsed", "provider": "external"}))
        await report(hub, job.id, 0, 60)
        for tick in range(1, 40):
            more = {"packets": tick * 100_000, "marked": {"symphony": tick * 700, "queue": 9}}
            for switch in switches.values():
                switch.feed(job.id, at=1000 + tick * 0.05, ns=tick * 30_000_000, low=tick, high=tick, **more)
        for variant in ("paper", "refined"):
            await hub.set_symphony(job.id, SymphonySettings.model_validate({"enabled": True, "variant": variant}))
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.should_exit = True
        await serving


asyncio.run(main())
