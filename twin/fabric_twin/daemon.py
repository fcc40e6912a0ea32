# SPDX-License-Identifier: Apache-2.0
"""The twin as a process: fabric, verbs socket, BF-Runtime servers and a REST API on one asyncio loop.

The engine runs in slices of about 2 ms between which the loop serves everybody else, so no state needs a lock and
a table write lands between two packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import yaml

from fabric_twin.bfrt_server import BfRtServer, BindError, P4Program, Port
from fabric_twin.errors import ConfigError, UnknownNameError
from fabric_twin.events import Event
from fabric_twin.fabric import Fabric, warm_up
from fabric_twin.presets import Settings
from fabric_twin.rest import make_app
from fabric_twin.switch import TwinSwitch, device_ports
from fabric_twin.verbs_service import VerbsService
from symphony_common.output import write_file

__all__ = ["Twin", "TwinConfig", "serve"]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class TwinConfig:
    """Where a twin listens. Port 0 takes a free port; BF-Runtime servers take `bfrt_port` and the ones above."""

    preset: Settings
    seed: int
    verbs: Path
    bfrt_port: int = 50052
    http_port: int = 9301
    agent_port: int = 9401
    pace: float | None = None
    testbed_file: Path | None = None
    events: Sequence[Event] = ()


class Twin:
    """A fabric and everything that is served from it.

    Raises:
        FabricError: an event that cannot happen to this fabric.
    """

    def __init__(self, config: TwinConfig) -> None:
        self.config = config
        self.fabric = Fabric(config.preset, config.seed)
        self.service = VerbsService(self.fabric, config.verbs, config.pace, config.events, self._restart_later)
        program = P4Program.from_description()
        self.bfrt = [
            BfRtServer(
                TwinSwitch(self.fabric, switch.index),
                program,
                port=config.bfrt_port + switch.pipeline if config.bfrt_port else 0,
                ports=self._ports(switch.index),
            )
            for switch in self.fabric.topology.symphony_switches
        ]
        self.http_port = config.http_port
        self._restarts: set[asyncio.Task[None]] = set()

    def _ports(self, switch: int) -> list[Port]:
        topology = self.fabric.topology
        return [
            Port(number, f"{number // 4 + 1}/{number % 4}", speed_gbps=round(topology.ports[index].gbps))
            for number, index in device_ports(topology, switch).items()
        ]

    def bfrt_address(self, switch: int) -> str | None:
        """host:port of a switch's BF-Runtime server; None for one without Symphony, which has none."""
        pipeline = self.fabric.topology.switches[switch].pipeline
        return self.bfrt[pipeline].address if pipeline >= 0 else None

    def bfrt_address_of(self, name: str) -> str:
        """The same by name.

        Raises:
            UnknownNameError: no Symphony switch has it.
        """
        return self._server_of(name).address

    def _server_of(self, name: str) -> BfRtServer:
        switches = self.fabric.topology.symphony_switches
        for switch, server in zip(switches, self.bfrt, strict=True):
            if switch.name == name:
                return server
        known = f"there are {switches[0].name} to {switches[-1].name}" if switches else "there is none at all"
        raise UnknownNameError(f"no switch {name!r} with Symphony; {known}")

    async def restart_switch(self, name: str, down_s: float) -> None:
        """Stop a switch's BF-Runtime server and start it again with empty tables, as when bf_switchd restarts."""
        await self._server_of(name).faults.restart(down_s)

    def _restart_later(self, name: str, down_ms: float, finished: Callable[[], None]) -> None:
        """The same for an event; it is over when the server listens again."""
        task = asyncio.get_running_loop().create_task(self.restart_switch(name, down_ms / 1000))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)
        task.add_done_callback(lambda _: finished())

    def _write_testbed(self, path: Path) -> None:
        text = yaml.safe_dump(self.testbed(), sort_keys=False)
        try:
            write_file(path, f"# Written by fabric-twin; host-agent reads it.\n{text}".encode())
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None

    def testbed(self) -> dict[str, Any]:
        """What `testbed.yaml` says about this twin."""
        topology = self.fabric.topology
        listed = {switch.index for switch in topology.symphony_switches}
        return {
            "name": f"twin-{self.config.preset.name}",
            "switches": [
                {
                    "name": switch.name,
                    "tier": switch.tier,
                    "url": f"http://{LOOPBACK}:{self.config.agent_port + switch.pipeline}",
                    "bfrt": self.bfrt_address(switch.index),
                }
                for switch in topology.symphony_switches
            ],
            "hosts": [
                {"name": h.name, "address": str(h.address)}
                | ({"switch": topology.switches[h.tor].name} if h.tor in listed else {})
                for h in topology.hosts
            ],
            "twin": {
                "http": f"http://{LOOPBACK}:{self.http_port}",
                "verbs": str(self.config.verbs.absolute()),
            },
        }

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Serve until cancelled.

        Raises:
            ConfigError: a port or path is taken, or the testbed file cannot be written.
        """
        listener = _listen(self.config.http_port)
        warm_up()  # before anybody attaches: ranks would take the pause for a dead twin
        self.http_port = listener.getsockname()[1]
        try:
            async with contextlib.AsyncExitStack() as stack:
                await self.service.start()
                stack.push_async_callback(self.service.stop)
                for server in self.bfrt:
                    try:
                        await stack.enter_async_context(server)
                    except BindError as error:
                        raise ConfigError(str(error)) from None
                http = _HttpServer(
                    uvicorn.Config(make_app(self), log_level="warning", timeout_graceful_shutdown=2, lifespan="off")
                )
                if self.config.testbed_file is not None:
                    self._write_testbed(self.config.testbed_file)
                serving = asyncio.create_task(http.serve([listener]))
                running = asyncio.create_task(self.service.run())
                if ready is not None:
                    ready.set()
                try:
                    done, _ = await asyncio.wait({serving, running}, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                finally:
                    running.cancel()
                    http.should_exit = True
                    await asyncio.gather(serving, running, return_exceptions=True)
        finally:
            listener.close()


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the daemon has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {LOOPBACK}:{port} ({error.strerror}): stop the other program "
            "or choose another --http-port"
        ) from None
    return listener


async def _serve(config: TwinConfig) -> None:
    twin = Twin(config)
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    ready = asyncio.Event()
    announce = asyncio.create_task(_announce(twin, ready))
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await twin.run(ready)
    finally:
        announce.cancel()
        await asyncio.gather(announce, return_exceptions=True)  # a twin whose output nobody reads runs all the same


async def _announce(twin: Twin, ready: asyncio.Event) -> None:
    await ready.wait()
    topology = twin.fabric.topology
    hosts, nics = len({host.machine for host in topology.hosts}), len(topology.hosts)
    size = f"{hosts} hosts" if hosts == nics else f"{hosts} hosts with {nics} NICs"
    print(f"fabric-twin: {twin.config.preset.name}, {size}, seed {twin.config.seed}")
    print(f"  verbs   {twin.config.verbs}")
    for switch, server in zip(topology.symphony_switches, twin.bfrt, strict=True):
        print(f"  {switch.name:7} BF-Runtime {server.address}")
    print(f"  REST    http://{LOOPBACK}:{twin.http_port}/docs", flush=True)


def serve(config: TwinConfig) -> None:
    """Run a twin until SIGINT or SIGTERM."""
    asyncio.run(_serve(config))
