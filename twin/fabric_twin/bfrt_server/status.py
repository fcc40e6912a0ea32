# SPDX-License-Identifier: Apache-2.0
"""The driver's status words and how they look on the wire.

A failure is raised as :class:`BfError` close to its cause. The service turns it into the gRPC status of a
whole RPC, or into one ``bfrt_proto.Error`` per update inside ``grpc-status-details-bin``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import grpc

from switch_agent import bfrt_proto as p

__all__ = ["DETAILS_KEY", "BfError", "BfStatus", "nested_details", "ok_error", "update_error"]

DETAILS_KEY: Final = "grpc-status-details-bin"


class BfStatus(Enum):
    """A status of the driver: the gRPC code it becomes, and the words appended to the message."""

    NOT_READY = (grpc.StatusCode.UNAVAILABLE, "Not ready")
    IN_USE = (grpc.StatusCode.UNAVAILABLE, "In use")
    NO_SPACE = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Not enough space")
    INVALID_ARG = (grpc.StatusCode.INVALID_ARGUMENT, "Invalid arguments")
    ALREADY_EXISTS = (grpc.StatusCode.ALREADY_EXISTS, "Already exists")
    ENTRY_REFERENCES_EXIST = (grpc.StatusCode.ALREADY_EXISTS, "Entry is still referenced")
    OBJECT_NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "Object not found")
    TABLE_NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "Table not found")
    NOT_SUPPORTED = (grpc.StatusCode.UNIMPLEMENTED, "Operation not supported")
    PROGRAM_GONE = (grpc.StatusCode.CANCELLED, "Cancelled")
    TIMED_OUT = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded")

    @property
    def grpc_code(self) -> grpc.StatusCode:
        """The canonical code that a client sees."""
        return self.value[0]

    @property
    def text(self) -> str:
        """The driver's words for it."""
        return self.value[1]


class BfError(Exception):
    """A request, or one update of a batch, failed with a status of the driver."""

    def __init__(self, status: BfStatus, message: str) -> None:
        super().__init__(f"{message} {status.text}")
        self.status = status

    @property
    def grpc_code(self) -> grpc.StatusCode:
        """The canonical code that a client sees."""
        return self.status.grpc_code


def canonical(code: grpc.StatusCode) -> int:
    """The number of a gRPC code."""
    return int(code.value[0])


def update_error(error: BfError) -> p.Error:
    """The wire form of one failed update or entity."""
    return p.Error(canonical_code=canonical(error.grpc_code), message=str(error))


def ok_error(*, modified: bool = False) -> p.Error:
    """The wire form of an update that went well; ``modified``: INSERT_OR_MODIFY found the entry."""
    return p.Error(code=canonical(grpc.StatusCode.ALREADY_EXISTS) if modified else 0)


def nested_details(message: str, outcomes: Sequence[p.Error]) -> bytes:
    """The serialized google.rpc.Status of a batch with failures.

    ``outcomes`` holds one Error per update in order. Successes before the last failure stay as padding, so
    that detail i belongs to update i; nothing follows the last failure.
    """
    last = max(i for i, outcome in enumerate(outcomes) if outcome.canonical_code)
    status = p.Status(code=canonical(grpc.StatusCode.UNKNOWN), message=message)
    for outcome in outcomes[: last + 1]:
        detail = status.details.add()
        if outcome.canonical_code:
            detail.Pack(outcome)
        else:
            detail.Pack(p.Error())
    return status.SerializeToString()
