# SPDX-License-Identifier: Apache-2.0
"""Write and Read batches: order, atomicity, and which failure belongs to which update."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fabric_twin.bfrt_server.device import Device
from fabric_twin.bfrt_server.status import BfError, BfStatus, nested_details, ok_error, update_error
from fabric_twin.bfrt_server.tables import Table
from switch_agent import bfrt_proto as p

__all__ = ["CallOptions", "Outcome", "run_read", "run_write"]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a client asked for in the metadata of a call.

    ``deadline``: ``time.monotonic()`` after which no further update or entity is begun (from ``deadline_sec``
    and ``deadline_nsec``, counted from the arrival of the call). ``error_in_resp``: one Error per update
    in the response as well. ``ignore_not_found``: DELETE of a missing entry is no failure.
    """

    deadline: float | None = None
    error_in_resp: bool = False
    ignore_not_found: bool = False

    @classmethod
    def from_metadata(cls, metadata: Iterable[tuple[str, str | bytes]]) -> CallOptions:
        """INVALID_ARG when a deadline is not a number or nanoseconds are not in 0..999999999."""
        given = {key: value for key, value in metadata if isinstance(value, str)}
        deadline = None
        if given.keys() & {"deadline_sec", "deadline_nsec"}:
            try:
                seconds, nanos = int(given.get("deadline_sec", "0")), int(given.get("deadline_nsec", "0"))
            except ValueError:
                seconds = nanos = -1
            if seconds < 0 or not 0 <= nanos < 1_000_000_000:
                raise BfError(BfStatus.INVALID_ARG, "Metadata deadline_sec, deadline_nsec: no duration.")
            deadline = time.monotonic() + seconds + nanos * 1e-9
        return cls(deadline, given.get("error_in_resp") == "1", given.get("ignore_not_found") == "1")

    def check_deadline(self) -> None:
        """DEADLINE_EXCEEDED when it has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise BfError(BfStatus.TIMED_OUT, "The deadline of the metadata passed inside the batch.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A batch's answer (a serialized response), and the details of its failures if there were any."""

    response: bytes
    details: bytes | None


def _details(message: str, outcomes: list[p.Error]) -> bytes | None:
    failed = any(outcome.canonical_code for outcome in outcomes)
    return nested_details(message, outcomes) if failed else None


def run_write(device: Device, request: p.WriteRequest, options: CallOptions) -> Outcome:
    """Apply a WriteRequest's updates in order, then tell the data plane which tables changed.

    Raises BfError when the whole call is refused: DATAPLANE_ATOMIC, or a deadline that passed (what was
    applied stays, unless the batch rolls back).
    """
    if request.atomicity == p.WriteRequest.DATAPLANE_ATOMIC:
        raise BfError(BfStatus.NOT_SUPPORTED, "Writes with DATAPLANE_ATOMIC are not possible.")
    rollback = request.atomicity == p.WriteRequest.ROLLBACK_ON_ERROR
    outcomes: list[p.Error] = []
    undos: list[Callable[[], None]] = []
    changed: dict[int, Table] = {}
    keep = True
    try:
        for update in request.updates:
            options.check_deadline()
            try:
                change = device.update(update, request.target, changed)
            except BfError as error:
                if _ignored(error, update, options):
                    outcomes.append(ok_error())
                    continue
                outcomes.append(update_error(error))
                if rollback:
                    keep = False
                    break
            else:
                if change is not None:
                    undos.append(change.undo)
                outcomes.append(ok_error(modified=change is not None and change.modified))
    except BfError:
        keep = not rollback
        raise
    finally:
        if keep:
            device.publish(changed.values())
        else:
            for undo in reversed(undos):
                undo()
    wanted = outcomes if options.error_in_resp else [o for o in outcomes if o.code and not o.canonical_code]
    response = p.WriteResponse(status=wanted)
    return Outcome(response.SerializeToString(), _details("Write Error Status", outcomes))


def _ignored(error: BfError, update: p.Update, options: CallOptions) -> bool:
    missing = error.status is BfStatus.OBJECT_NOT_FOUND
    return options.ignore_not_found and missing and update.type == p.Update.DELETE


def run_read(device: Device, request: p.ReadRequest, options: CallOptions) -> Outcome:
    """Answer a ReadRequest's entities in order; those that fail are left out of the response.

    Raises BfError when a deadline passes.
    """
    outcomes: list[p.Error] = []
    parts: list[bytes] = []
    for entity in request.entities:
        options.check_deadline()
        try:
            parts.append(device.read(entity, request.target))
        except BfError as error:
            outcomes.append(update_error(error))
        else:
            outcomes.append(ok_error())
    if options.error_in_resp:
        parts.append(p.ReadResponse(status=outcomes).SerializeToString())
    return Outcome(b"".join(parts), _details("Read Error Status", outcomes))
