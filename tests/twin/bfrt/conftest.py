# SPDX-License-Identifier: Apache-2.0
"""A raw BF-Runtime client: grpc.aio and the message classes, nothing of switch-agent's client.

Ids and widths come from the server's own bf-rt.json, as for any client.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest_asyncio

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program, Port
from switch_agent import bfrt_proto as p

ALL = p.TargetDevice(device_id=0, pipe_id=0xFFFF, direction=0xFF, prsr_id=0xFF)
OPTIONS = [("grpc.max_receive_message_length", 1 << 30), ("grpc.max_metadata_size", 1 << 20)]
P4 = "symphony"


def pipe(number: int) -> p.TargetDevice:
    """The target of one pipe."""
    return p.TargetDevice(device_id=0, pipe_id=number, direction=0xFF, prsr_id=0xFF)


@dataclass(frozen=True)
class Failure:
    """A failed batch: gRPC code and text, and the nested errors."""

    code: grpc.StatusCode
    text: str
    errors: list[p.Error]

    @property
    def codes(self) -> list[int]:
        """Canonical codes of the nested errors, padding included."""
        return [error.canonical_code for error in self.errors]


class Names:
    """Builds messages from names, with the ids of a bf-rt.json."""

    def __init__(self, *documents: Mapping[str, Any]) -> None:
        self.tables = {t["name"].removeprefix("pipe."): t for d in documents for t in d["tables"]}

    def table(self, name: str) -> Mapping[str, Any]:
        """The JSON of a table by its full name or a suffix."""
        return next(t for n, t in self.tables.items() if n == name or n.endswith(f".{name}"))

    def id(self, name: str) -> int:
        """A table's id."""
        return int(self.table(name)["id"])

    def key(self, table: str, **values: Any) -> p.TableKey:
        """``__`` in a field name stands for ".", a leading ``S_`` for "$"; see ``fields``."""
        return self.fields(table, {_real(name): value for name, value in values.items()})

    def fields(self, table: str, values: Mapping[str, Any]) -> p.TableKey:
        """int = exact, ("lpm", v, n), ("ternary", v, m), ("range", lo, hi)."""
        key = p.TableKey()
        for node in self.table(table)["key"]:
            if node["name"] not in values:
                continue
            value, field = values[node["name"]], key.fields.add(field_id=node["id"])
            if isinstance(value, int):
                field.exact.value = value.to_bytes(size(node["type"]), "big")
                continue
            kind, first, second = value
            stream = first.to_bytes(size(node["type"]), "big")
            if kind == "lpm":
                field.lpm.value, field.lpm.prefix_len = stream, second
            elif kind == "ternary":
                field.ternary.value, field.ternary.mask = stream, second.to_bytes(size(node["type"]), "big")
            else:
                field.range.low, field.range.high = stream, second.to_bytes(size(node["type"]), "big")
        return key

    def data(self, table: str, action: str | None = None, **values: Any) -> p.TableData:
        """Data by field name; int, bool, str, or a list of int or bool."""
        data, nodes = p.TableData(), self.data_nodes(table, action)
        if action:
            data.action_id = self.action(table, action)["id"]
        for name, value in values.items():
            node = next(n for n in nodes if n["name"] == _real(name) or n["name"].endswith(f".{name}"))
            field = data.fields.add(field_id=node["id"])
            if isinstance(value, bool):
                field.bool_val = value
            elif isinstance(value, int):
                field.stream = value.to_bytes(size(node["type"]), "big")
            elif isinstance(value, str):
                field.str_val = value
            elif node["type"]["type"] == "bool":
                field.bool_arr_val.val.extend(value)
            else:
                field.int_arr_val.val.extend(value)
        return data

    def action(self, table: str, name: str) -> Mapping[str, Any]:
        """The JSON of an action."""
        specs: list[Mapping[str, Any]] = self.table(table)["action_specs"]
        return next(a for a in specs if a["name"].rpartition(".")[2] == name)

    def data_nodes(self, table: str, action: str | None = None) -> list[Mapping[str, Any]]:
        """The JSON of an action's data fields and of the common ones."""
        nodes = list(self.action(table, action)["data"]) if action else []
        for node in self.table(table)["data"]:
            nodes += node.get("oneof", [node.get("singleton")])
        return nodes

    def entry(self, table: str, key: p.TableKey | None = None, data: p.TableData | None = None) -> p.TableEntry:
        """A TableEntry."""
        return p.TableEntry(table_id=self.id(table), key=key, data=data)

    def index(self, table: str, index: int, **values: int) -> p.TableEntry:
        """A register or counter entry."""
        field = self.table(table)["key"][0]["name"]
        return self.entry(
            table, self.fields(table, {field: index}), self.data(table, None, **values) if values else None
        )

    def show(self, entity: p.Entity) -> dict[str, Any]:
        """Data field name -> list of ints (one per DataField with that id), or the other value types."""
        entry, shown = entity.table_entry, dict[str, Any]()
        table = next(t for t in self.tables.values() if t["id"] == entry.table_id)
        action = next((a for a in table.get("action_specs", ()) if a["id"] == entry.data.action_id), None)
        name = action["name"].rpartition(".")[2] if action else None
        names = {node["id"]: node["name"] for node in self.data_nodes(table["name"].removeprefix("pipe."), name)}
        for field in entry.data.fields:
            word = field.WhichOneof("value")
            value = getattr(field, word)
            if word == "stream":
                shown.setdefault(names[field.field_id], []).append(int.from_bytes(value, "big"))
            else:
                shown[names[field.field_id]] = list(value.val) if word.endswith("arr_val") else value
        return shown


def _real(name: str) -> str:
    return name.replace("S_", "$").replace("__", ".")


def size(node: Mapping[str, Any]) -> int:
    """Bytes of a JSON type."""
    widths = {"bytes": node.get("width"), "uint32": 32, "uint64": 64}
    return (int(widths[node["type"]] or 0) + 7) // 8


class Raw:
    """One channel to a server. ``client_id`` and ``p4_name`` go into every request."""

    def __init__(self, address: str, client_id: int = 0, p4_name: str = "") -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.client_id = client_id
        self.p4_name = p4_name
        self.n = Names()
        out, req = p.WriteResponse.FromString, p.WriteRequest.SerializeToString
        self._write = self.channel.unary_unary(p.WRITE, req, out)
        self._read = self.channel.unary_stream(p.READ, p.ReadRequest.SerializeToString, p.ReadResponse.FromString)
        self._set = self.channel.unary_unary(
            p.SET_FORWARDING_PIPELINE_CONFIG,
            p.SetForwardingPipelineConfigRequest.SerializeToString,
            p.SetForwardingPipelineConfigResponse.FromString,
        )
        self._get = self.channel.unary_unary(
            p.GET_FORWARDING_PIPELINE_CONFIG,
            p.GetForwardingPipelineConfigRequest.SerializeToString,
            p.GetForwardingPipelineConfigResponse.FromString,
        )
        self.stream: Any = None

    async def learn(self) -> Names:
        """Fetch ids from the server."""
        config = await self.config()
        self.n = Names(json.loads(config.config[0].bfruntime_info), json.loads(config.non_p4_config.bfruntime_info))
        return self.n

    async def config(self) -> p.GetForwardingPipelineConfigResponse:
        """GetForwardingPipelineConfig."""
        answer: p.GetForwardingPipelineConfigResponse = await self._get(
            p.GetForwardingPipelineConfigRequest(device_id=0, client_id=self.client_id), timeout=10
        )
        return answer

    async def subscribe(self, **notifications: bool) -> p.Subscribe:
        """Open the stream and subscribe; the server's answer."""
        self.stream = self.channel.stream_stream(
            p.STREAM_CHANNEL,
            p.StreamMessageRequest.SerializeToString,
            p.StreamMessageResponse.FromString,
        )(timeout=30)
        wanted = p.Subscribe.Notifications(**notifications)
        await self.stream.write(
            p.StreamMessageRequest(client_id=self.client_id, subscribe=p.Subscribe(notifications=wanted))
        )
        message = await self.next_message()
        return message.subscribe

    async def next_message(self) -> p.StreamMessageResponse:
        """The next message of the stream; AioRpcError when the server ended it."""
        message = await self.stream.read()
        if message is grpc.aio.EOF:
            raise AssertionError(f"stream ended: {await self.stream.code()} {await self.stream.details()}")
        assert isinstance(message, p.StreamMessageResponse)
        return message

    async def bind(self, name: str = P4) -> None:
        """BIND to a program."""
        await self.set_config(p.SetForwardingPipelineConfigRequest.BIND, [p.ForwardingPipelineConfig(p4_name=name)])

    async def set_config(
        self,
        action: p.SetForwardingPipelineConfigRequest.Action,
        config: list[p.ForwardingPipelineConfig],
    ) -> None:
        """SetForwardingPipelineConfig."""
        request = p.SetForwardingPipelineConfigRequest(client_id=self.client_id, action=action, config=config)
        await self._set(request, timeout=10)

    async def write(
        self,
        *updates: p.Update,
        target: p.TargetDevice = ALL,
        atomicity: p.WriteRequest.Atomicity = p.WriteRequest.CONTINUE_ON_ERROR,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> p.WriteResponse:
        """Write a batch."""
        request = p.WriteRequest(
            target=target,
            client_id=self.client_id,
            updates=updates,
            atomicity=atomicity,
            p4_name=self.p4_name,
        )
        answer: p.WriteResponse = await self._write(request, timeout=10, metadata=metadata)
        return answer

    async def insert(self, *entries: p.TableEntry, target: p.TargetDevice = ALL) -> p.WriteResponse:
        """INSERT entries."""
        return await self.write(*(put(entry) for entry in entries), target=target)

    async def read(
        self,
        *entries: p.TableEntry | p.Entity,
        target: p.TargetDevice = ALL,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> list[p.Entity]:
        """Read entries; the entities of the one response."""
        return list((await self.responses(*entries, target=target, metadata=metadata))[0].entities)

    async def responses(
        self,
        *entries: p.TableEntry | p.Entity,
        target: p.TargetDevice = ALL,
        metadata: tuple[tuple[str, str], ...] = (),
        into: list[p.ReadResponse] | None = None,
    ) -> list[p.ReadResponse]:
        """All messages of a Read; with ``into`` they are kept when the call then fails."""
        entities = [e if isinstance(e, p.Entity) else p.Entity(table_entry=e) for e in entries]
        request = p.ReadRequest(target=target, client_id=self.client_id, entities=entities, p4_name=self.p4_name)
        got = [] if into is None else into
        async for message in self._read(request, timeout=10, metadata=metadata):
            got.append(message)  # what came before a failure counts
        return got

    async def register(self, name: str, index: int, *, from_hw: bool = True) -> dict[str, Any]:
        """One register index of all pipes."""
        entry = self.n.index(name, index)
        entry.table_flags.from_hw = from_hw
        return self.n.show((await self.read(entry))[0])

    async def close(self) -> None:
        """Close the channel, and with it the stream."""
        if self.stream is not None:
            self.stream.cancel()
        await self.channel.close()


def put(entry: p.TableEntry, kind: p.Update.Type = p.Update.INSERT) -> p.Update:
    """An update."""
    return p.Update(type=kind, entity=p.Entity(table_entry=entry))


def failure(error: grpc.aio.AioRpcError) -> Failure:
    """Decode a failed call."""
    details: list[p.Error] = []
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for packed in p.Status.FromString(value).details:  # type: ignore[arg-type]
                one = p.Error()
                assert packed.Unpack(one)
                details.append(one)
    return Failure(error.code(), error.details() or "", details)


@dataclass
class Lab:
    """A server, its memory backend, and a way to make clients that are closed at the end."""

    server: BfRtServer
    backend: MemoryBackend
    stack: AsyncExitStack

    async def client(self, client_id: int = 0, *, p4_name: str = "", bound: bool = False) -> Raw:
        """A client that knows the ids; ``bound``: subscribed and bound."""
        raw = Raw(self.server.address, client_id, p4_name)
        self.stack.push_async_callback(raw.close)
        await raw.learn()
        if bound:
            await raw.subscribe()
            await raw.bind()
        return raw

    put = staticmethod(put)
    pipe = staticmethod(pipe)
    failure = staticmethod(failure)


@pytest_asyncio.fixture
async def lab() -> AsyncIterator[Lab]:
    """The Symphony program on a memory backend, with three ports."""
    program = P4Program.from_description()
    backend = MemoryBackend(program)
    ports = [Port(dev_port=8 * n, name=f"{n}/0", speed_gbps=10) for n in range(3)]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(BfRtServer(backend, program, port=0, ports=ports))
        yield Lab(server, backend, stack)


@pytest_asyncio.fixture
async def client(lab: Lab) -> Raw:
    """A subscribed and bound client."""
    return await lab.client(bound=True)
