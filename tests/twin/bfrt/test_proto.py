# SPDX-License-Identifier: Apache-2.0
"""The message classes: generated, typed, and in a descriptor pool of their own."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import pytest

from switch_agent import bfrt_proto as p

# What the SDE's bfrt_grpc does at import: register the same file in protobuf's default pool.
DESCRIPTORS = str(files(p) / "_generated/bfruntime.binpb")
REGISTER_SDE = f"""
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.rpc import status_pb2
files = descriptor_pb2.FileDescriptorSet.FromString(open({DESCRIPTORS!r}, "rb").read())
ours = next(f for f in files.file if f.name == "bfruntime.proto")
ours.name = "bfrt_grpc/bfruntime.proto"
descriptor_pool.Default().AddSerializedFile(ours.SerializeToString())
find = descriptor_pool.Default().FindMessageTypeByName
TheirEntry = message_factory.GetMessageClass(find("bfrt_proto.TableEntry"))
"""
IMPORT_OURS = "from switch_agent.bfrt_proto import TableEntry, Status"
CHECK = """
assert TheirEntry is not TableEntry and Status is not status_pb2.Status
assert TheirEntry.FromString(TableEntry(table_id=7).SerializeToString()).table_id == 7
"""


@pytest.mark.parametrize(
    "order", [(REGISTER_SDE, IMPORT_OURS), (IMPORT_OURS, REGISTER_SDE)], ids=["sde-first", "ours-first"]
)
def test_our_messages_and_the_sde_s_live_in_one_process(order: tuple[str, str]) -> None:
    """Either import order works although both define bfrt_proto.* (field-notes 60, design)."""
    done = subprocess.run([sys.executable, "-c", "\n".join([*order, CHECK])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_ours_leaves_the_default_pool_alone() -> None:
    """Nothing named bfrt_proto.* turns up in protobuf's default pool."""
    code = f"{IMPORT_OURS}\nfrom google.protobuf import descriptor_pool\n" + (
        "try: descriptor_pool.Default().FindMessageTypeByName('bfrt_proto.TableEntry')\n"
        "except KeyError: pass\nelse: raise SystemExit('registered')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_top_level_type_of_the_proto_is_exported() -> None:
    """A type added to the .proto must be added to __all__ too."""
    assert set(p._build()) == {name for name in p.__all__ if not name.isupper()}


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        # golden vectors, worked out by hand from the numbers of bfrt-facts.md
        (
            p.TargetDevice(device_id=1, pipe_id=0xFFFF, direction=0xFF, prsr_id=0xFF),
            "0801 10ffff03 18ff01 20ff01",
        ),
        (p.KeyField(field_id=1, exact=p.KeyField.Exact(value=b"\x01\xff")), "0801 1204 0a0201ff"),
        (p.KeyField(lpm=p.KeyField.LPM(value=b"\x0a", prefix_len=8)), "2205 0a010a 1008"),
        (p.KeyField(optional=p.KeyField.Optional(value=b"\x0a", is_valid=True)), "3205 0a010a 1001"),
        (
            p.TableEntry(table_id=5, handle_id=3, table_flags=p.TableFlags(from_hw=True)),
            "0805 3803 4a02 0801",
        ),
        (p.DataField(field_id=2, bool_val=True), "0802 4001"),
        (p.DataField(int_arr_val=p.DataField.IntArray(val=[1, 2])), "2a04 0a02 0102"),
        (
            p.Update(type=p.Update.INSERT_OR_MODIFY, entity=p.Entity(table_usage=p.TableUsage(table_id=1))),
            "0805 1204 1202 0801",
        ),
        (
            p.WriteRequest(client_id=4, atomicity=p.WriteRequest.ROLLBACK_ON_ERROR, p4_name="x"),
            "1004 2001 2a0178",
        ),
        (p.ReadRequest(client_id=4, p4_name="x"), "1004 220178"),
        (p.Error(canonical_code=6, message="m", code=9), "0806 12016d 2009"),
        (p.StreamMessageRequest(client_id=1, subscribe=p.Subscribe(device_id=0)), "0801 1200"),
        (
            p.SetForwardingPipelineConfigRequest(config=[p.ForwardingPipelineConfig(p4_name="x")]),
            "3203 0a0178",
        ),
        (
            p.GetForwardingPipelineConfigResponse(non_p4_config=p.NonP4Config(bfruntime_info=b"{}")),
            "1204 0a027b7d",
        ),
        (p.EntryScope(pipe_scope=p.Mode(predef=p.Mode.SINGLE)), "1202 0801"),
    ],
)
def test_the_wire_form_is_the_documented_one(message: p.TableEntry, wire: str) -> None:
    """Field numbers and types are the interface."""
    assert message.SerializeToString().hex() == wire.replace(" ", "")
    assert type(message).FromString(bytes.fromhex(wire.replace(" ", ""))) == message
