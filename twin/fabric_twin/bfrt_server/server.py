# SPDX-License-Identifier: Apache-2.0
"""The server: address, start, stop, restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc

from fabric_twin.bfrt_server.backend import SwitchBackend
from fabric_twin.bfrt_server.device import Device
from fabric_twin.bfrt_server.entries import EntryTable
from fabric_twin.bfrt_server.errors import BfRtServerError, BindError
from fabric_twin.bfrt_server.faults import Faults
from fabric_twin.bfrt_server.fixed_tables import Port
from fabric_twin.bfrt_server.program import P4Program
from fabric_twin.bfrt_server.schema import TableSpec
from fabric_twin.bfrt_server.service import BfRuntimeService
from fabric_twin.bfrt_server.session import Sessions
from fabric_twin.bfrt_server.tables import TableSnapshot
from symphony_common.rest import is_loopback

__all__ = ["DEFAULT_PORT", "BfRtServer"]

DEFAULT_PORT: Final = 50052
MAX_MESSAGE = 2**31 - 1
STOP_GRACE_S = 0.2  # for calls that are being answered
OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
)


class BfRtServer:
    """A BF-Runtime gRPC server for one switch, on the running asyncio loop.

    ``switch`` is the data plane behind it, ``program`` the P4 program it runs, ``ports`` the ports that are
    up from the start. ``port`` 0 takes a free one; ``address`` is known after ``start()``. BF-Runtime has no
    authentication, so ``host`` must be a loopback address (BindError otherwise).

    Use ``async with BfRtServer(...) as server`` or ``await server.start()`` ... ``await server.stop()``.
    """

    def __init__(
        self,
        switch: SwitchBackend,
        program: P4Program,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        ports: Sequence[Port] = (),
    ) -> None:
        if not is_loopback(host):
            raise BindError(
                f"BF-Runtime server of {switch.name}: {host} is not a loopback address, and BF-Runtime "
                "has no authentication; listen on 127.0.0.1 and reach it through an SSH tunnel"
            )
        self.host = host
        self.port = port
        self.faults = Faults(self._set_link, self._restart)
        self._device = Device(switch, program, ports, self._capacity)
        self._sessions = Sessions(self.faults)
        self._service = BfRuntimeService(self._device, self._sessions, self.faults)
        self._server: grpc.aio.Server | None = None
        self._device.fixed.ports.on_change = self._port_changed

    @property
    def address(self) -> str:
        """host:port that clients connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Hand the initial tables to the switch and listen; BindError when the port is taken."""
        if self._server is not None:
            raise BfRtServerError(f"BF-Runtime server of {self._device.backend.name} runs already")
        self._device.publish(self._device.tables.values())
        await self._listen()

    async def stop(self) -> None:
        """Stop listening and end all calls and streams at once; the tables keep their content."""
        server, self._server = self._server, None
        if server is not None:
            self._sessions.end_all()
            await server.stop(grace=STOP_GRACE_S)

    async def __aenter__(self) -> BfRtServer:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    def snapshot(self, table: str) -> TableSnapshot:
        """The content of a match table, action profile, selector or fixed table, by (short) name.

        KeyError when there is no such table or it has no entries.
        """
        spec = self._device.program.info.find(table) or self._device.fixed.info.find(table)
        found = self._device.table(spec.id) if spec else None
        if not isinstance(found, EntryTable):
            raise KeyError(f"{table} is no table with entries of {self._device.program.p4_name}")
        return found.snapshot()

    def set_port_up(self, dev_port: int, up: bool) -> None:
        """Tell the driver that a port's link gained or lost its signal; KeyError without such a port."""
        self._set_link(dev_port, up)

    async def _listen(self) -> None:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self._service.handlers(),))
        try:
            self.port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise BindError(
                f"BF-Runtime server of {self._device.backend.name} cannot listen on {self.address}: the "
                "port is taken or not allowed; stop the other program or choose another port (0 = any)"
            ) from error
        await server.start()
        self._server = server

    async def _restart(self, down_s: float) -> None:
        await self.stop()
        self._device.reset()
        await asyncio.sleep(down_s)
        await self._listen()

    def _capacity(self, spec: TableSpec) -> int:
        return min(spec.size, self.faults.table_capacity.get(spec.short_name, spec.size))

    def _set_link(self, dev_port: int, up: bool) -> None:
        self._device.fixed.ports.set_link(dev_port, up)

    def _port_changed(self, dev_port: int, up: bool) -> None:
        self._sessions.port_changed(self._device.fixed.ports.notification(dev_port, up))
