# SPDX-License-Identifier: Apache-2.0
"""Everything that switch-agent can raise.

::

    SwitchAgentError
    ├── BfrtError                      talking BF-Runtime to a switch
    │   ├── CodecError                 a value does not fit its field (also a ValueError)
    │   ├── SchemaError                the loaded program lacks tables, fields or widths that we need
    │   ├── RpcError                   a whole RPC failed: gRPC code and the server's words
    │   │   ├── SwitchUnavailableError no connection, stream ended, deadline passed
    │   │   └── SwitchBusyError        the driver holds its lock: retry, no reason to reconnect
    │   ├── ClientIdInUseError         another client has our id
    │   ├── ProgramNotFoundError       the switch has not loaded our program
    │   ├── WriteError                 some updates of a batch failed: one UpdateError each
    │   ├── ReadError                  some entities of a read failed: one UpdateError each
    │   ├── NotReadyError              the session is not up (why: in the text)
    │   └── ReadOnlyError              the session is up, but somebody else owns the program
    ├── JobError                       what a REST client asked for cannot be done
    │   ├── JobNotFoundError
    │   ├── JobConflictError           clashes with another job
    │   ├── CapacityError              a table or register of the switch is full
    │   └── InvalidJobError            out of range for this switch or program
    ├── ReconcileError                 the switch does not hold what we wrote
    ├── StoreError                     the desired state cannot be read or saved
    ├── AgentUnreachableError          a command asked an agent that does not answer or refused
    └── ConfigError                    options, config file, token or address of the agent itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

__all__ = [
    "AgentUnreachableError",
    "BfrtError",
    "CapacityError",
    "ClientIdInUseError",
    "CodecError",
    "ConfigError",
    "InvalidJobError",
    "JobConflictError",
    "JobError",
    "JobNotFoundError",
    "NotReadyError",
    "ProgramNotFoundError",
    "ReadError",
    "ReadOnlyError",
    "ReconcileError",
    "RpcError",
    "SchemaError",
    "StoreError",
    "SwitchAgentError",
    "SwitchBusyError",
    "SwitchUnavailableError",
    "UpdateError",
    "WriteError",
]


class SwitchAgentError(Exception):
    """Base of the tree. ``code`` is the short word that REST answers carry."""

    code = "switch_agent_error"


class BfrtError(SwitchAgentError):
    """Something between us and the switch's driver went wrong."""

    code = "switch_error"


class CodecError(BfrtError, ValueError):
    """A value does not fit the field it is meant for; nothing was sent."""

    code = "bad_value"


class SchemaError(BfrtError):
    """The program on the switch is not the one we can drive. ``problems`` holds every finding."""

    code = "schema_mismatch"

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class RpcError(BfrtError):
    """An RPC failed as a whole. ``status`` is the gRPC code, ``details`` the server's text."""

    code = "switch_rpc_failed"

    def __init__(self, rpc: str, address: str, status: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{rpc} on switch {address} failed: {status.name}: {details}")
        self.rpc = rpc
        self.address = address
        self.status = status
        self.details = details


class SwitchUnavailableError(RpcError):
    """No answer from the switch: refused, reset, stream ended or deadline passed."""

    code = "switch_unavailable"


class SwitchBusyError(RpcError):
    """The driver's lock is held, e.g. while a program is being loaded."""

    code = "switch_busy"


class ClientIdInUseError(BfrtError):
    """Another client is subscribed with our client id (the switch answers INVALID_ARGUMENT)."""

    code = "client_id_in_use"


class ProgramNotFoundError(BfrtError):
    """The switch has no program of our name; ``loaded`` lists those it has."""

    code = "program_not_found"

    def __init__(self, message: str, loaded: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.loaded = tuple(loaded)


@dataclass(frozen=True, slots=True)
class UpdateError:
    """One failed update of a Write, or entity of a Read.

    ``index`` counts from 0 in the caller's batch; ``what`` names operation, table and key.
    """

    index: int
    status: grpc.StatusCode
    message: str
    what: str = ""

    def __str__(self) -> str:
        where = f"{self.what}: " if self.what else f"entry {self.index}: "
        return f"{where}{self.status.name}{': ' if self.message else ''}{self.message}"


class _BatchError(BfrtError):
    """Common part of WriteError and ReadError."""

    def __init__(self, verb: str, address: str, total: int, errors: Sequence[UpdateError]) -> None:
        shown = "; ".join(str(error) for error in errors[:3])
        more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
        super().__init__(f"{verb} on switch {address}: {len(errors)} of {total} failed: {shown}{more}")
        self.errors = tuple(errors)

    def statuses(self) -> set[grpc.StatusCode]:
        """Return the distinct codes of the failures."""
        return {error.status for error in self.errors}


class WriteError(_BatchError):
    """Updates of a Write failed; the others were applied unless the batch was to roll back."""

    code = "write_failed"

    def __init__(self, address: str, total: int, errors: Sequence[UpdateError]) -> None:
        super().__init__("write", address, total, errors)


class ReadError(_BatchError):
    """Entities of a Read failed, e.g. keyed reads of entries that do not exist."""

    code = "read_failed"

    def __init__(self, address: str, total: int, errors: Sequence[UpdateError]) -> None:
        super().__init__("read", address, total, errors)


class NotReadyError(BfrtError):
    """There is no usable session with the switch now; the text says why and what happens next."""

    code = "switch_not_ready"


class ReadOnlyError(BfrtError):
    """Another client owns the program: reads work, changes do not."""

    code = "read_only"


class JobError(SwitchAgentError):
    """A job request that cannot be carried out."""

    code = "job_error"


class JobNotFoundError(JobError):
    """No job of that id on this agent."""

    code = "job_not_found"


class JobConflictError(JobError):
    """The request clashes with another job: same name, or overlapping flows with the same tag."""

    code = "job_conflict"


class CapacityError(JobError):
    """A table or register has no room; ``table`` names it."""

    code = "table_full"

    def __init__(self, table: str, message: str) -> None:
        super().__init__(message)
        self.table = table


class InvalidJobError(JobError):
    """A value is out of range for this switch or its program."""

    code = "invalid_job"


class ReconcileError(SwitchAgentError):
    """Entries differ from the desired state even after they were written."""

    code = "reconcile_failed"


class StoreError(SwitchAgentError):
    """The state directory or its database cannot be used."""

    code = "store_failed"


class AgentUnreachableError(SwitchAgentError):
    """A command line client could not get its answer from the agent's REST interface."""

    code = "agent_unreachable"


class ConfigError(SwitchAgentError):
    """The agent's own options are wrong; fix them and start again."""

    code = "bad_config"
