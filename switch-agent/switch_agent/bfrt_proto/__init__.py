# SPDX-License-Identifier: Apache-2.0
"""BF-Runtime's protobuf messages and the paths of its RPCs; nothing else.

The classes are built from ``_generated/bfruntime.binpb`` in a descriptor pool of their own, so the
SDE's ``bfrt_grpc``, which registers the same names in protobuf's default pool, may be imported in
the same process. :class:`Status` and :class:`Any` (google.rpc / google.protobuf) come from the same
private pool: parse ``grpc-status-details-bin`` with them.

Raises ImportError that says what to run when the generated files are missing.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.any_pb2 import Any

    from switch_agent.bfrt_proto._generated.bfruntime_pb2 import (
        ByteCountAdj,
        DataField,
        DigestList,
        DigestListAck,
        DynHashing,
        DynKeyMask,
        Entity,
        EntryScope,
        Error,
        ForwardingPipelineConfig,
        GetForwardingPipelineConfigRequest,
        GetForwardingPipelineConfigResponse,
        HandleId,
        IdleTable,
        IdleTimeoutNotification,
        KeyField,
        KeyFieldMask,
        Mode,
        NonP4Config,
        ObjectId,
        PortStatusChg,
        PortStatusChgNotification,
        PreDeviceConfig,
        PreFastFailover,
        PreGlobalRid,
        PreMaxNodesBeforeYield,
        PreMaxNodeThreshold,
        PrePortProtection,
        ReadRequest,
        ReadResponse,
        SelectorUpdateChgNotification,
        SelectorUpdateNotify,
        SetForwardingPipelineConfigRequest,
        SetForwardingPipelineConfigResponse,
        SetForwardingPipelineConfigResponseType,
        StatePullIntvl,
        StreamMessageRequest,
        StreamMessageResponse,
        Subscribe,
        TableAttribute,
        TableData,
        TableEntry,
        TableFlags,
        TableKey,
        TableModIncFlag,
        TableOperation,
        TableReadFlag,
        TableUsage,
        TargetDevice,
        Update,
        WriteRequest,
        WriteResponse,
    )
    from switch_agent.bfrt_proto._generated.status_pb2 import Status

SERVICE: Final = "bfrt_proto.BfRuntime"
WRITE: Final = f"/{SERVICE}/Write"
READ: Final = f"/{SERVICE}/Read"
SET_FORWARDING_PIPELINE_CONFIG: Final = f"/{SERVICE}/SetForwardingPipelineConfig"
GET_FORWARDING_PIPELINE_CONFIG: Final = f"/{SERVICE}/GetForwardingPipelineConfig"
STREAM_CHANNEL: Final = f"/{SERVICE}/StreamChannel"


def _build() -> dict[str, object]:
    """Name -> message class (or enum wrapper) of every top-level type, in a pool of our own."""
    source = files(__name__) / "_generated" / "bfruntime.binpb"
    if not source.is_file():
        raise ImportError(
            f"BF-Runtime messages are not generated ({source} is missing); "
            "run `python hatch_build.py` in the checkout, or reinstall the package"
        )
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(source.read_bytes()).file:
        pool.Add(file)
    messages = pool.FindFileByName("bfruntime.proto")
    built: dict[str, object] = {
        name: GetMessageClass(descriptor) for name, descriptor in messages.message_types_by_name.items()
    }
    built |= {name: EnumTypeWrapper(enum) for name, enum in messages.enum_types_by_name.items()}
    for full_name in ("google.rpc.Status", "google.protobuf.Any"):
        built[full_name.rpartition(".")[2]] = GetMessageClass(pool.FindMessageTypeByName(full_name))
    return built


if not TYPE_CHECKING:
    globals().update(_build())

__all__ = [
    "GET_FORWARDING_PIPELINE_CONFIG",
    "READ",
    "SERVICE",
    "SET_FORWARDING_PIPELINE_CONFIG",
    "STREAM_CHANNEL",
    "WRITE",
    "Any",
    "ByteCountAdj",
    "DataField",
    "DigestList",
    "DigestListAck",
    "DynHashing",
    "DynKeyMask",
    "Entity",
    "EntryScope",
    "Error",
    "ForwardingPipelineConfig",
    "GetForwardingPipelineConfigRequest",
    "GetForwardingPipelineConfigResponse",
    "HandleId",
    "IdleTable",
    "IdleTimeoutNotification",
    "KeyField",
    "KeyFieldMask",
    "Mode",
    "NonP4Config",
    "ObjectId",
    "PortStatusChg",
    "PortStatusChgNotification",
    "PreDeviceConfig",
    "PreFastFailover",
    "PreGlobalRid",
    "PreMaxNodeThreshold",
    "PreMaxNodesBeforeYield",
    "PrePortProtection",
    "ReadRequest",
    "ReadResponse",
    "SelectorUpdateChgNotification",
    "SelectorUpdateNotify",
    "SetForwardingPipelineConfigRequest",
    "SetForwardingPipelineConfigResponse",
    "SetForwardingPipelineConfigResponseType",
    "StatePullIntvl",
    "Status",
    "StreamMessageRequest",
    "StreamMessageResponse",
    "Subscribe",
    "TableAttribute",
    "TableData",
    "TableEntry",
    "TableFlags",
    "TableKey",
    "TableModIncFlag",
    "TableOperation",
    "TableReadFlag",
    "TableUsage",
    "TargetDevice",
    "Update",
    "WriteRequest",
    "WriteResponse",
]
