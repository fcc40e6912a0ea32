# SPDX-License-Identifier: Apache-2.0
"""Turn failed RPCs into typed errors.

The driver reports in two ways. A request that failed as a whole is a plain gRPC status. A batch with failing
updates is status UNKNOWN, and the trailing metadata ``grpc-status-details-bin`` holds a google.rpc.Status
whose i-th detail is the ``bfrt_proto.Error`` of update i: code OK for those that went well, nothing after
the last failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import grpc
from google.protobuf.message import DecodeError

from switch_agent import bfrt_proto as proto
from switch_agent.errors import (
    BfrtError,
    ReadError,
    RpcError,
    SwitchBusyError,
    SwitchUnavailableError,
    UpdateError,
    WriteError,
)

__all__ = ["DETAILS_KEY", "client_id_in_use", "error_from_rpc", "owner_from_details", "update_errors"]

DETAILS_KEY = "grpc-status-details-bin"

_CODES = {code.value[0]: code for code in grpc.StatusCode}
# The driver says "Failed to acquire read lock" and the like while somebody loads a program.
_BUSY = re.compile(r"\block\b|not ready|in use", re.IGNORECASE)
# "Client A trying to bind but Client B already owns this P4"; some versions write "Client ID B".
_OWNER = re.compile(r"client\s*(?:id\s*)?[:#]?\s*(\d+)\s+already\s+owns", re.IGNORECASE)
# "Can't have two clients with the same client id"
_SAME_ID = re.compile(r"same client id", re.IGNORECASE)


def owner_from_details(details: str) -> int | None:
    """Return the client id that owns the program, as the refusal of a BIND words it; None if it does not."""
    found = _OWNER.search(details)
    return int(found.group(1)) if found else None


def client_id_in_use(error: RpcError) -> bool:
    """Whether a subscription was refused because of its client id."""
    return error.status is grpc.StatusCode.INVALID_ARGUMENT and bool(_SAME_ID.search(error.details))


def update_errors(details: bytes, name: Callable[[int], str] = lambda _: "") -> list[UpdateError]:
    """Parse the value of ``grpc-status-details-bin`` into the failures it holds; [] when it is none of ours.

    ``name`` turns an update's index into words for the message.
    """
    try:
        status = proto.Status.FromString(details)
        errors = [
            (index, proto.Error.FromString(detail.value))
            for index, detail in enumerate(status.details)
            if detail.type_url.rpartition("/")[2] == "bfrt_proto.Error"
        ]
    except DecodeError:
        return []
    return [
        UpdateError(index, _CODES.get(error.canonical_code, grpc.StatusCode.UNKNOWN), error.message, name(index))
        for index, error in errors
        if error.canonical_code != 0
    ]


def error_from_rpc(error: grpc.RpcError, rpc: str, address: str, names: Sequence[Callable[[], str]] = ()) -> BfrtError:
    """Return the typed error for a failed RPC.

    ``names`` describes the batch, one callable per update or entity, for Write and Read.
    """
    assert isinstance(error, grpc.aio.AioRpcError)
    status, text = error.code(), error.details() or "no details"
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            failures = update_errors(value, lambda index: names[index]() if index < len(names) else "")
            if failures:
                kind = WriteError if rpc == "Write" else ReadError
                return kind(address, max(len(names), failures[-1].index + 1), failures)
    if status is grpc.StatusCode.UNAVAILABLE and _BUSY.search(text):
        return SwitchBusyError(rpc, address, status, text)
    # CANCELLED: our own side closed the channel under the call, i.e. the session was lost meanwhile.
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return SwitchUnavailableError(rpc, address, status, text)
    return RpcError(rpc, address, status, text)
