# SPDX-License-Identifier: Apache-2.0
"""The session with a switch: connect, subscribe, bind, learn the schema, reconcile; again when lost.

::

    connecting ──> binding ──> reconciling ──> ready          we own the program
        ^             │             └────────> read-only      another client owns it
        └── lost <────┴── stream ended, no answers, program being replaced

The stream is the session: when it ends, the switch has forgotten us and our binding. Each attempt uses a
fresh channel, because a used one may sit in gRPC's own back-off for two minutes. Whatever made the session
go away, the way back is the same and ends with the reconcile callback, so entries lost in a restart or
a program load come back. In read-only mode BIND is tried again every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import grpc

from switch_agent import bfrt_proto as proto
from switch_agent.bfrt.client import Client, open_channel
from switch_agent.bfrt.schema import Schema
from switch_agent.bfrt.status import client_id_in_use, error_from_rpc, owner_from_details
from switch_agent.errors import (
    BfrtError,
    ClientIdInUseError,
    NotReadyError,
    ProgramNotFoundError,
    ReadOnlyError,
    RpcError,
    SchemaError,
    SwitchAgentError,
    SwitchUnavailableError,
)

__all__ = ["Session", "SessionOptions", "SessionState"]

log = logging.getLogger(__name__)

_Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, proto.StreamMessageResponse]"


class SessionState(StrEnum):
    """Where the session stands; the module's docstring draws the transitions."""

    CONNECTING = "connecting"
    BINDING = "binding"
    RECONCILING = "reconciling"
    READY = "ready"
    READ_ONLY = "read-only"
    LOST = "lost"
    CLOSED = "closed"


@dataclass(frozen=True)
class SessionOptions:
    """How to reach the switch. Times are in seconds.

    ``client_id`` is the first id to try; ids up to ``client_id + client_id_tries - 1`` follow when it is
    taken. ``probe_interval``: after that long without any RPC a small one is sent, so that a dead peer is
    noticed. ``signed`` names the program's fields that hold two's complement (:meth:`Schema.parse`).
    """

    address: str
    p4_name: str
    client_id: int = 101
    client_id_tries: int = 8
    device_id: int = 0
    rpc_timeout: float = 5.0
    backoff_first: float = 0.05
    backoff_max: float = 0.5
    rebind_interval: float = 3.0
    probe_interval: float = 5.0
    signed: frozenset[str] = frozenset()


class Session:
    """A supervised session with one switch.

    ``check`` returns every problem of a schema (missing tables, fields, widths); none may remain.
    ``on_up(client, owned)`` is awaited before the session counts as ready: reconcile there when ``owned``.
    Run :meth:`run` as a task; it ends only when cancelled.
    """

    def __init__(
        self,
        options: SessionOptions,
        *,
        check: Callable[[Schema], list[str]] = lambda _: [],
        on_up: Callable[[Client, bool], Awaitable[None]] | None = None,
    ) -> None:
        self.options = options
        self.state = SessionState.CONNECTING
        self.last_error: str | None = None
        self.owner: int | None = None
        self.owner_text: str | None = None
        self.client_id: int | None = None
        self.schema: Schema | None = None
        self._schema_source: tuple[bytes, bytes] | None = None
        self.programs: tuple[str, ...] = ()
        self.generation = 0
        """Counts sessions that came up; hardware counters may have restarted between two of them."""
        self.reconnects = 0
        self._check = check
        self._on_up = on_up
        self._client: Client | None = None
        self._failures = 0
        self._lost = asyncio.Event()
        self._lost_reason = ""
        self._last_rpc = 0.0
        self._changed = asyncio.Condition()

    # ------------------------------------------------------------------------------- for users

    @property
    def owned(self) -> bool:
        """Whether we are bound to the program and reconciled."""
        return self.state is SessionState.READY

    def reader(self) -> Client:
        """Return a client for reads. Raises NotReadyError, which says why there is none."""
        if self._client is None or self.state not in (SessionState.READY, SessionState.READ_ONLY):
            why = f": {self.last_error}" if self.last_error else ""
            raise NotReadyError(
                f"no session with switch {self.options.address} (state {self.state}){why}; "
                "the agent keeps trying, repeat the request in a moment"
            )
        return self._client

    def writer(self) -> Client:
        """Return a client for changes. Raises NotReadyError, or ReadOnlyError when we are not the owner."""
        client = self.reader()
        if self.state is SessionState.READ_ONLY:
            raise ReadOnlyError(
                f"program {self.options.p4_name} on switch {self.options.address} is owned by "
                f"{self.owner_name}; this agent only reads. Stop that client, this agent takes over by itself"
            )
        return client

    @property
    def owner_name(self) -> str:
        """Who owns the program when it is not us, in words."""
        if self.owner is not None:
            return f"client {self.owner}"
        return f"another client ({self.owner_text})" if self.owner_text else "another client"

    async def wait_for(self, *states: SessionState, timeout: float | None = None) -> SessionState:
        """Wait until the session is in one of ``states``; TimeoutError after ``timeout`` seconds."""
        await self.wait_until(lambda: self.state in states, timeout)
        return self.state

    async def wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until ``condition``, checked at every change of state, holds; TimeoutError otherwise."""
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(condition)

    def lose(self, reason: str) -> None:
        """Give up the current connection and build a new one."""
        if not self._lost.is_set():
            self._lost_reason = reason
            self._lost.set()

    # ------------------------------------------------------------------------------ supervision

    async def run(self) -> None:
        """Keep the session up until cancelled."""
        backoff = self.options.backoff_first
        try:
            while True:
                generation = self.generation
                try:
                    await self._connection()
                except (SwitchAgentError, OSError) as error:
                    self.last_error = str(error)
                if self.generation != generation:  # it was up: what follows is a reconnect, soon
                    backoff = self.options.backoff_first
                    self.reconnects += 1
                    log.warning("session with switch %s lost: %s", self.options.address, self.last_error)
                else:
                    log.info("no session with switch %s: %s", self.options.address, self.last_error)
                await self._enter(SessionState.LOST if self.generation else SessionState.CONNECTING)
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(2 * backoff, self.options.backoff_max)
        finally:
            await self._enter(SessionState.CLOSED)

    async def _enter(self, state: SessionState) -> None:
        async with self._changed:
            self.state = state
            self._changed.notify_all()

    def _heard(self, error: BfrtError | None) -> None:
        """Watch every RPC's outcome: two in a row without an answer and the connection is given up."""
        self._last_rpc = asyncio.get_running_loop().time()
        if isinstance(error, SwitchUnavailableError):
            self._failures += 1
            if self._failures >= 2:
                self.lose(str(error))
        else:
            self._failures = 0

    async def _connection(self) -> None:
        """One connection from its first byte to its loss: ends in an exception or with a reason set."""
        self._lost = asyncio.Event()
        self._failures = 0
        channel = open_channel(self.options.address)
        stream = None
        tasks: list[asyncio.Task[None]] = []
        try:
            client_id, stream = await self._subscribe(channel)
            self.client_id = client_id
            tasks.append(asyncio.create_task(self._watch(stream)))
            tasks.append(asyncio.create_task(self._work(channel, client_id)))
            lost = asyncio.create_task(self._wait_lost())
            tasks.append(lost)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and task.exception() is not None:
                    await task
            self.last_error = self._lost_reason
        finally:
            self._client = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if stream is not None:
                stream.cancel()
            await channel.close()

    async def _wait_lost(self) -> None:
        await self._lost.wait()

    async def _subscribe(self, channel: grpc.aio.Channel) -> tuple[int, _Stream]:
        open_stream = channel.stream_stream(
            proto.STREAM_CHANNEL,
            request_serializer=proto.StreamMessageRequest.SerializeToString,
            response_deserializer=proto.StreamMessageResponse.FromString,
        )
        first, tries = self.options.client_id, self.options.client_id_tries
        for client_id in range(first, first + tries):
            stream = open_stream()
            try:
                async with asyncio.timeout(self.options.rpc_timeout):
                    await stream.write(
                        proto.StreamMessageRequest(
                            client_id=client_id, subscribe=proto.Subscribe(device_id=self.options.device_id)
                        )
                    )
                    answer = await stream.read()
            except (grpc.RpcError, asyncio.InvalidStateError, TimeoutError) as failure:
                error = await self._stream_error(stream, failure)
                stream.cancel()
                if isinstance(error, RpcError) and client_id_in_use(error):
                    log.info("client id %d is taken on switch %s", client_id, self.options.address)
                    continue
                raise error from None
            if isinstance(answer, proto.StreamMessageResponse) and answer.subscribe.status.code == 0:
                return client_id, stream
            error = await self._stream_error(stream, None)
            stream.cancel()
            if not (isinstance(error, RpcError) and client_id_in_use(error)):
                raise error
        last = first + tries - 1
        raise ClientIdInUseError(
            f"client ids {first} to {last} are all taken on switch {self.options.address}; "
            "stop the other clients or choose another --client-id"
        )

    async def _stream_error(self, stream: _Stream, failure: BaseException | None) -> BfrtError:
        address = self.options.address
        if isinstance(failure, TimeoutError):
            return SwitchUnavailableError(
                "StreamChannel", address, grpc.StatusCode.DEADLINE_EXCEEDED, "no answer to the subscription"
            )
        if isinstance(failure, grpc.aio.AioRpcError):
            return error_from_rpc(failure, "StreamChannel", address)
        status = await stream.code() if stream.done() else grpc.StatusCode.UNKNOWN
        details = (await stream.details() if stream.done() else "") or "subscription refused"
        if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK):
            return SwitchUnavailableError("StreamChannel", address, status, details)
        return RpcError("StreamChannel", address, status, details)

    async def _watch(self, stream: _Stream) -> None:
        """Read the stream until it ends; a notice that programs are being loaded ends the connection too."""
        while True:
            try:
                message = await stream.read()
            except grpc.RpcError as failure:
                raise error_from_rpc(failure, "StreamChannel", self.options.address) from None
            if not isinstance(message, proto.StreamMessageResponse):
                raise SwitchUnavailableError(
                    "StreamChannel",
                    self.options.address,
                    await stream.code(),
                    await stream.details() or "the switch ended the session",
                )
            if message.WhichOneof("update") == "set_forwarding_pipeline_config_response":
                self.lose("the switch is loading a program: entries and ids may change")

    async def _work(self, channel: grpc.aio.Channel, client_id: int) -> None:
        """Bind, learn the schema, reconcile, then keep an eye on the session until cancelled."""
        options = self.options
        client = Client(
            channel,
            options.address,
            client_id=client_id,
            device_id=options.device_id,
            timeout=options.rpc_timeout,
            on_result=self._heard,
        )
        await self._enter(SessionState.BINDING)
        owned = await self._bind(client)
        client.schema = self.schema = await self._fetch_schema(client)
        while True:
            client.p4_name = None if owned else options.p4_name
            await self._enter(SessionState.RECONCILING)
            if self._on_up is not None:
                await self._on_up(client, owned)
            self._client = client
            self.generation += 1
            self.last_error = None
            await self._enter(SessionState.READY if owned else SessionState.READ_ONLY)
            if owned:
                log.info("bound to program %s on switch %s", options.p4_name, options.address)
                await self._probe(client)
            log.warning("program %s on switch %s: %s owns it", options.p4_name, options.address, self.owner_name)
            while not owned:
                await asyncio.sleep(options.rebind_interval)
                owned = await self._bind(client)

    async def _probe(self, client: Client) -> None:
        """Send a small request whenever nothing else was sent for a while."""
        assert client.schema is not None
        while True:
            now = asyncio.get_running_loop().time()
            idle = now - self._last_rpc
            if idle < self.options.probe_interval:
                await asyncio.sleep(self.options.probe_interval - idle)
                continue
            try:
                await client.ping()
            except BfrtError as error:
                log.debug("probe of switch %s: %s", self.options.address, error)
                await asyncio.sleep(min(1.0, self.options.probe_interval))

    async def _bind(self, client: Client) -> bool:
        """Try to own the program; False when another client does (owner and owner_text then say who)."""
        name = self.options.p4_name
        try:
            await client.bind(name)
        except RpcError as error:
            if error.status is grpc.StatusCode.ALREADY_EXISTS:
                self.owner = owner_from_details(error.details)
                self.owner_text = error.details
                return False
            if error.status is grpc.StatusCode.NOT_FOUND:
                loaded = [config.p4_name for config in (await client.get_config()).config]
                raise ProgramNotFoundError(
                    f"switch {self.options.address} has no program {name}; "
                    f"it has {', '.join(loaded) or 'none'}: start bf_switchd with the right program (-p)",
                    loaded,
                ) from error
            raise
        self.owner = self.owner_text = None
        return True

    async def _fetch_schema(self, client: Client) -> Schema:
        """Fetch and check the schema; what is known already, byte for byte, is not parsed again."""
        answer = await client.get_config()
        self.programs = tuple(config.p4_name for config in answer.config)
        name, address = self.options.p4_name, self.options.address
        config = next((config for config in answer.config if config.p4_name == name), None)
        if config is None:
            raise ProgramNotFoundError(
                f"switch {address} has no program {name}; it has {', '.join(self.programs) or 'none'}",
                self.programs,
            )
        source = (config.bfruntime_info, answer.non_p4_config.bfruntime_info)
        if self.schema is not None and source == self._schema_source:
            return self.schema
        schema = Schema.parse(name, *source, self.options.signed)
        if self.schema is not None and self.schema.digest != schema.digest:
            log.warning("program %s on switch %s changed: schema %s", name, address, schema.digest[:12])
        problems = self._check(schema)
        if problems:
            raise SchemaError(
                f"program {name} on switch {address} is not the one this agent drives "
                f"({len(problems)} problems): {'; '.join(problems)}",
                problems,
            )
        self._schema_source = source
        return schema
