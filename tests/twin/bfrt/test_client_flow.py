# SPDX-License-Identifier: Apache-2.0
"""What the SDE's Python client does, call by call, works against this server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import grpc
import pytest

from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab


async def test_subscribe_bind_learn_read_lists(lab: Lab) -> None:
    """ClientInterface, bind_pipeline_config, bfrt_info_get, entry_get(...)["Ingress.steps.mn"] == [p0..p3]."""
    raw = await lab.client(0)
    await raw.subscribe(
        enable_learn_notifications=True,
        enable_idletimeout_notifications=True,
        enable_port_status_change_notifications=True,
    )
    await raw.bind("symphony")  # device_id stays 0
    config = (await raw.config()).config[0]  # config[0] when no name is given
    tables = {table["name"]: table for table in json.loads(config.bfruntime_info)["tables"]}
    assert tables["pipe.Ingress.steps"]["key"][0]["name"] == "$REGISTER_INDEX"
    lab.backend.registers["steps"]["mn"][:, 3] = [1, 2, 3, 4]
    entry = raw.n.index("steps", 3)
    entry.table_flags.from_hw = True  # entry_get's default in that client
    folded = raw.n.show((await raw.read(entry))[0])
    assert folded["Ingress.steps.mn"] == [1, 2, 3, 4]


async def test_reads_are_lazy(lab: Lab) -> None:
    """Nothing fails before the client iterates; then data comes first, and the error after it."""
    raw = await lab.client(0, bound=True)
    request = p.ReadRequest(client_id=0, entities=[p.Entity(table_entry=p.TableEntry(table_id=1))])
    call = raw._read(request, timeout=10)
    assert isinstance(await call.read(), p.ReadResponse)
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()


SDE_STYLE = """
import os, queue, sys, grpc
from importlib.resources import files
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.rpc import status_pb2

path = files("switch_agent.bfrt_proto") / "_generated/bfruntime.binpb"
for f in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
    if f.name == "bfruntime.proto":
        descriptor_pool.Default().AddSerializedFile(f.SerializeToString())

def cls(name):
    descriptor = descriptor_pool.Default().FindMessageTypeByName("bfrt_proto." + name)
    return message_factory.GetMessageClass(descriptor)

def rpc(kind, name, request, response):
    path = "/bfrt_proto.BfRuntime/" + name
    return getattr(channel, kind)(path, cls(request).SerializeToString, cls(response).FromString)

channel = grpc.insecure_channel(sys.argv[1])
outbox = queue.Queue()
try:
    request = cls("StreamMessageRequest")(client_id=11)
    request.subscribe.device_id = 0
    outbox.put(request)
    stream_channel = rpc("stream_stream", "StreamChannel", "StreamMessageRequest", "StreamMessageResponse")
    stream = stream_channel(iter(outbox.get, None), timeout=20)
    assert next(stream).subscribe.status.code == 0
    bind = cls("SetForwardingPipelineConfigRequest")(client_id=11, action=0)
    bind.config.add(p4_name="symphony")
    name = "SetForwardingPipelineConfig"
    rpc("unary_unary", name, name + "Request", name + "Response")(bind, timeout=20)
    read = cls("ReadRequest")(client_id=11)
    read.target.pipe_id = 0xFFFF
    read.entities.add().table_entry.table_id = 1
    try:
        list(rpc("unary_stream", "Read", "ReadRequest", "ReadResponse")(read, timeout=20))
    except grpc.RpcError as error:
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        packed = status_pb2.Status.FromString(details).details[0]
        nested = cls("Error")()
        assert packed.Unpack(nested) and nested.canonical_code == 5, packed
        print("done", flush=True)
        os._exit(0)  # gRPC's sync client can deadlock when the interpreter ends with a stream open
finally:
    outbox.put(None)
"""


async def test_a_blocking_client_with_protobuf_s_default_pool(lab: Lab) -> None:
    """As bfrt_grpc does it, in a process of its own: sync stubs, messages in the default pool."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SDE_STYLE, lab.server.address, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert out == b"done\n", err.decode()
