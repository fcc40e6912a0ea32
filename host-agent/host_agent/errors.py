# SPDX-License-Identifier: Apache-2.0
"""Everything host-agent can refuse or fail at.

    HostAgentError                     500 internal
    ├── BadInputError                  422 bad_input          the request contradicts itself or the testbed
    │   └── TestbedError               (start-up)             testbed.yaml is missing or wrong
    ├── UnauthorizedError              401 unauthorized       no token, or a wrong one
    ├── NotPermittedError              403 not_permitted      this process lacks a capability
    ├── UnknownJobError                404 unknown_job
    ├── UnknownExperimentError         404 unknown_experiment no such results, or no report
    ├── UnknownNicError                404 unknown_nic        no such network or RDMA device
    ├── ResultNotReadyError            404 result_not_ready
    ├── ConflictError                  409 conflict           the job is in no state for that
    │   └── CapacityError              409 capacity           no free Job_ID, job_tag or place
    ├── SwitchError                    502 switch_error
    │   ├── SwitchRefusedError         502 switch_refused     the agent answered, and said no
    │   ├── SwitchUnreachableError     503 switch_unreachable nobody answered
    │   └── PartialUpdateError         502 partial_update     some switches took it, some did not
    ├── NicError                       502 nic_error          the kernel or a program did not do what was asked
    ├── StreamLimitError               503 stream_limit       too many open event streams
    └── StorageError                   507 storage            the state folder cannot be written

Each carries the HTTP status and the `code` that REST answers use: {"detail": str, "code": str, ...}. The framework's
own are 404 not_found, 405 method_not_allowed and 413 payload_too_large (`host_agent.app`).
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BadInputError",
    "CapacityError",
    "ConflictError",
    "HostAgentError",
    "NicError",
    "NotPermittedError",
    "PartialUpdateError",
    "ResultNotReadyError",
    "StorageError",
    "StreamLimitError",
    "SwitchError",
    "SwitchRefusedError",
    "SwitchUnreachableError",
    "TestbedError",
    "UnauthorizedError",
    "UnknownExperimentError",
    "UnknownJobError",
    "UnknownNicError",
]


class HostAgentError(Exception):
    """Root of the tree. `extra` is merged into the REST answer beside "detail" and "code"."""

    status = 500
    code = "internal"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra


class BadInputError(HostAgentError):
    """The request is well-formed but cannot be meant."""

    status = 422
    code = "bad_input"


class TestbedError(BadInputError):
    """testbed.yaml cannot be read or contradicts itself."""

    __test__ = False  # not a test class, whatever its name suggests to pytest
    code = "testbed"


class UnauthorizedError(HostAgentError):
    """A state change without the right bearer token."""

    status = 401
    code = "unauthorized"


class UnknownJobError(HostAgentError):
    """No job has this id (never had, was deleted, or was evicted)."""

    status = 404
    code = "unknown_job"


class UnknownExperimentError(HostAgentError):
    """There are no such results of an experiment, or they have no report."""

    status = 404
    code = "unknown_experiment"


class NotPermittedError(HostAgentError):
    """The kernel wants a capability that this process does not have; the text names it."""

    status = 403
    code = "not_permitted"


class UnknownNicError(HostAgentError):
    """No such network or RDMA device in this namespace."""

    status = 404
    code = "unknown_nic"


class NicError(HostAgentError):
    """The kernel, a driver or a program did not do what was asked of a NIC."""

    status = 502
    code = "nic_error"


class ResultNotReadyError(HostAgentError):
    """The job has not reported a result (yet)."""

    status = 404
    code = "result_not_ready"


class ConflictError(HostAgentError):
    """The job's state does not allow the request."""

    status = 409
    code = "conflict"


class CapacityError(ConflictError):
    """Nothing free: Job_IDs, job_tags or places in the job list."""

    code = "capacity"


class SwitchError(HostAgentError):
    """A switch agent did not do what was asked; `switch` names it."""

    status = 502
    code = "switch_error"


class SwitchRefusedError(SwitchError):
    """The switch agent answered with an error, or read back something else than was asked."""

    code = "switch_refused"


class SwitchUnreachableError(SwitchError):
    """The switch agent did not answer within the retries."""

    status = 503
    code = "switch_unreachable"


class PartialUpdateError(SwitchError):
    """Some switches changed and others did not; `switches` says which and why."""

    code = "partial_update"


class StreamLimitError(HostAgentError):
    """The bound on open event streams is reached."""

    status = 503
    code = "stream_limit"


class StorageError(HostAgentError):
    """The state folder cannot be written (full disk, permissions)."""

    status = 507
    code = "storage"
