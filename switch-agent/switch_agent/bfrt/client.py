# SPDX-License-Identifier: Apache-2.0
"""Requests to one switch over one channel: typed, batched, each with a deadline.

A client belongs to one connection and dies with it; :class:`switch_agent.bfrt.session.Session` makes a new
one after each reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast

import grpc

from switch_agent import bfrt_proto as proto
from switch_agent.bfrt.requests import (
    Entry,
    KeyValue,
    decode_entry,
    decode_tables,
    describe,
    read_all,
    read_default,
    read_keyed,
    read_usage,
    target,
)
from switch_agent.bfrt.schema import Schema, Table
from switch_agent.bfrt.status import error_from_rpc
from switch_agent.errors import BfrtError, ReadError, SwitchBusyError, SwitchUnavailableError, WriteError

__all__ = ["BATCH", "Client", "open_channel"]

BATCH = 1000
"""Updates per Write. Failing batches answer with one error per update in the metadata, which is bounded (4 MiB)."""

_GIB = 1 << 30
_BUSY_PATIENCE_S = 5.0
T = TypeVar("T")


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel that shares nothing with earlier ones.

    gRPC keeps connections, and their reconnect back-off of up to two minutes, in a pool that all channels of
    a process share; a local pool makes "a fresh channel" mean a fresh connection. Messages up to 1 GiB (as
    the SDE's own client), 4 MiB of metadata for error details, keepalive for half-dead peers. No proxy:
    the switch's driver is on this machine or behind a tunnel.
    """
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_send_message_length", _GIB),
            ("grpc.max_receive_message_length", _GIB),
            ("grpc.max_metadata_size", 1 << 22),
            ("grpc.absolute_max_metadata_size", 1 << 22),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 5_000),
        ],
    )


class Client:
    """Read and write tables of one program.

    ``p4_name`` is None for a client that is bound to the program; an independent client names it in each
    request. ``schema`` may be set later: it takes a request to fetch it. ``on_result`` hears of every RPC's
    outcome (None: it went through) and is how the session notices that the switch stopped answering.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        *,
        client_id: int,
        device_id: int = 0,
        p4_name: str | None = None,
        timeout: float = 5.0,
        on_result: Callable[[BfrtError | None], None] | None = None,
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.device_id = device_id
        self.p4_name = p4_name
        self.timeout = timeout
        self.schema: Schema | None = None
        self._on_result = on_result or (lambda _: None)
        self._write: grpc.aio.UnaryUnaryMultiCallable[bytes, proto.WriteResponse] = channel.unary_unary(
            proto.WRITE, request_serializer=None, response_deserializer=proto.WriteResponse.FromString
        )
        self._read: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            proto.READ, request_serializer=None, response_deserializer=None
        )
        self._get_config = channel.unary_unary(
            proto.GET_FORWARDING_PIPELINE_CONFIG,
            request_serializer=proto.GetForwardingPipelineConfigRequest.SerializeToString,
            response_deserializer=proto.GetForwardingPipelineConfigResponse.FromString,
        )
        self._set_config = channel.unary_unary(
            proto.SET_FORWARDING_PIPELINE_CONFIG,
            request_serializer=proto.SetForwardingPipelineConfigRequest.SerializeToString,
            response_deserializer=proto.SetForwardingPipelineConfigResponse.FromString,
        )

    # ------------------------------------------------------------------------------- programs

    async def get_config(self) -> proto.GetForwardingPipelineConfigResponse:
        """Return the loaded programs with their schemas, and the schema of the fixed tables."""
        request = proto.GetForwardingPipelineConfigRequest(device_id=self.device_id, client_id=self.client_id)
        return await self._call(
            "GetForwardingPipelineConfig",
            lambda: _unary(self._get_config(request, timeout=self.timeout)),
        )

    async def bind(self, p4_name: str) -> None:
        """Ask to own the program. Raises the plain RpcError: the session knows what each code means."""
        request = proto.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            client_id=self.client_id,
            action=proto.SetForwardingPipelineConfigRequest.BIND,
            config=[proto.ForwardingPipelineConfig(p4_name=p4_name)],
        )
        await self._call(
            "SetForwardingPipelineConfig(BIND)",
            lambda: _unary(self._set_config(request, timeout=self.timeout)),
        )

    # ---------------------------------------------------------------------------------- write

    async def write(self, updates: Sequence[proto.Update], *, rollback: bool = False) -> None:
        """Send updates in batches of :data:`BATCH`, in order.

        Without ``rollback`` every update of every batch is tried; WriteError lists the failures. With it,
        a batch stops at its first failure and is undone, later batches are not sent; earlier ones stay
        (keep what must be atomic within one batch).
        """
        failures = []
        for start in range(0, len(updates), BATCH):
            batch = updates[start : start + BATCH]
            request = self.write_header(rollback=rollback)
            request.updates.extend(batch)
            try:
                await self.write_raw(request.SerializeToString(), [_namer(self, update) for update in batch])
            except WriteError as error:
                failures += [
                    type(item)(item.index + start, item.status, item.message, item.what) for item in error.errors
                ]
                if rollback:
                    break
        if failures:
            raise WriteError(self.address, len(updates), failures)

    def write_header(self, *, rollback: bool = False) -> proto.WriteRequest:
        """Return a WriteRequest with target, ids and atomicity set and no updates."""
        atomicity = proto.WriteRequest.ROLLBACK_ON_ERROR if rollback else proto.WriteRequest.CONTINUE_ON_ERROR
        return proto.WriteRequest(
            target=target(device=self.device_id),
            client_id=self.client_id,
            atomicity=atomicity,
            p4_name=self.p4_name or "",
        )

    async def write_raw(self, request: bytes, names: Sequence[Callable[[], str]] = ()) -> None:
        """Send one serialised WriteRequest; ``names`` describes its updates for error texts."""
        await self._call("Write", lambda: _unary(self._write(request, timeout=self.timeout)), names)

    # ----------------------------------------------------------------------------------- read

    def read_request(self, entities: Iterable[proto.Entity]) -> bytes:
        """Serialise a ReadRequest for :meth:`read_raw`; it may be kept and sent again."""
        return proto.ReadRequest(
            target=target(device=self.device_id),
            client_id=self.client_id,
            p4_name=self.p4_name or "",
            entities=entities,
        ).SerializeToString()

    async def read_raw(
        self, request: bytes, names: Sequence[Callable[[], str]] = (), timeout: float | None = None
    ) -> bytes:
        """Send one serialised ReadRequest and return the serialised answer.

        Answers that come in several messages are joined: concatenated protobuf messages merge.
        """

        async def run() -> bytes:
            call = self._read(request, timeout=timeout or self.timeout)
            return b"".join([chunk async for chunk in call])

        return await self._call("Read", run, names)

    async def read(self, entities: Sequence[proto.Entity]) -> list[proto.Entity]:
        """Read entities in one RPC; raises ReadError when any of them could not be read."""
        names = [_namer(self, entity) for entity in entities]
        raw = await self.read_raw(self.read_request(entities), names)
        return list(proto.ReadResponse.FromString(raw).entities)

    async def read_entries(self, table: Table, *, from_hw: bool) -> list[Entry]:
        """Read all entries of a table, its default entry (if it has one) included, as the last."""
        (entries,) = await self.read_tables([table], from_hw=from_hw)
        return entries

    async def read_tables_raw(self, tables: Sequence[Table], *, from_hw: bool) -> bytes:
        """Read all entries of several tables in one RPC; the serialised answer is for :func:`decode_tables`."""
        entities = [read_all(table, from_hw=from_hw) for table in tables]
        return await self.read_raw(self.read_request(entities), [_namer(self, entity) for entity in entities])

    async def read_tables(self, tables: Sequence[Table], *, from_hw: bool) -> list[list[Entry]]:
        """Read all entries of several tables in one RPC; default entries are included."""
        return decode_tables(tables, await self.read_tables_raw(tables, from_hw=from_hw))

    async def read_keys(
        self, table: Table, keys: Sequence[Mapping[str, KeyValue]], *, from_hw: bool
    ) -> list[Entry | None]:
        """Read entries by key, one RPC per :data:`BATCH`; None for those that do not exist."""
        found: list[Entry | None] = []
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            try:
                entities = await self.read([read_keyed(table, key, from_hw=from_hw) for key in batch])
                found += [decode_entry(table, entity.table_entry) for entity in entities]
            except ReadError as error:
                if error.statuses() != {grpc.StatusCode.NOT_FOUND}:
                    raise
                missing = {item.index for item in error.errors}
                present = [key for index, key in enumerate(batch) if index not in missing]
                entries = iter(await self.read_keys(table, present, from_hw=from_hw) if present else [])
                found += [None if index in missing else next(entries) for index in range(len(batch))]
        return found

    async def read_default(self, table: Table, *, from_hw: bool) -> Entry:
        """Read the default entry of a table."""
        (entity,) = await self.read([read_default(table, from_hw=from_hw)])
        return decode_entry(table, entity.table_entry)

    async def usage(self, tables: Sequence[Table], *, from_hw: bool) -> list[int]:
        """Return the number of entries of each match table, in one RPC."""
        entities = await self.read([read_usage(table, from_hw=from_hw) for table in tables])
        return [entity.table_usage.usage for entity in entities]

    async def ping(self) -> None:
        """Ask something small, to learn whether the switch still answers; any answer will do."""
        assert self.schema is not None
        table = next(table for table in self.schema.tables.values() if table.kind.startswith("MatchAction"))
        with contextlib.suppress(ReadError):
            await self.usage([table], from_hw=False)

    # ------------------------------------------------------------------------------ plumbing

    async def _call(self, rpc: str, start: Callable[[], Awaitable[T]], names: Sequence[Callable[[], str]] = ()) -> T:
        """Run an RPC; wait out the driver's lock for a few seconds, translate every other failure."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + min(_BUSY_PATIENCE_S, self.timeout)
        pause = 0.01
        while True:
            try:
                result = await start()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # The channel was closed under the call: the session is gone, this task is not.
                raise self._session_ended(rpc, "during") from None
            except grpc.aio.UsageError:  # between two calls of a user that has kept this client
                raise self._session_ended(rpc, "before") from None
            except grpc.RpcError as failure:
                error = error_from_rpc(failure, rpc, self.address, names)
                self._on_result(error)
                if not isinstance(error, SwitchBusyError) or clock() + pause > give_up:
                    raise error from None
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, 0.5)
            else:
                self._on_result(None)
                return result

    def _session_ended(self, rpc: str, when: str) -> SwitchUnavailableError:
        return SwitchUnavailableError(
            rpc, self.address, grpc.StatusCode.CANCELLED, f"the session ended {when} the request"
        )


async def _unary(call: Awaitable[T]) -> T:
    return await call


def _namer(client: Client, message: proto.Update | proto.Entity) -> Callable[[], str]:
    """Return a function that describes an update or entity; called only when it failed."""

    def name() -> str:
        entity = message.entity if isinstance(message, proto.Update) else message
        verb = proto.Update.Type.Name(message.type) if isinstance(message, proto.Update) else "READ"
        which = entity.WhichOneof("entity")
        if client.schema is None or which is None:
            return verb
        part = getattr(entity, which)
        if not hasattr(part, "table_id"):
            return verb
        try:
            table = client.schema.table_of_id(part.table_id)
            if which != "table_entry":
                return f"{verb} {which} of {table.short_name}"
            return f"{verb} {describe(table, decode_entry(table, cast('proto.TableEntry', part)).key)}"
        except BfrtError:
            return verb

    return name
