# SPDX-License-Identifier: Apache-2.0
"""Everything that can go wrong in ring-bench.

::

    RingBenchError
    ├── UsageError                  options that contradict each other or the fabric; nothing was started
    ├── ProviderError               the way to the fabric
    │   ├── ProviderUnavailableError    package, socket or device is not there
    │   ├── FabricError                 the fabric refused a call (``code`` as errno name)
    │   ├── FabricGoneError             the fabric's process ended or the connection broke
    │   └── StalledError                every rank waits and nothing can ever happen
    ├── RunError                    the run itself; names the rank and step
    │   ├── CompletionError             a work completion with a status other than SUCCESS
    │   ├── ProtocolError               a completion that the ring protocol does not allow here
    │   ├── NoProgressError             no completion for longer than --timeout
    │   └── PeerFailedError             another rank failed first; carries its failure
    ├── RendezvousError             ranks did not find together (missing, duplicate or disagreeing)
    ├── InterruptedRunError         SIGINT or SIGTERM
    ├── OutputError                 standard output cannot be written: nobody reads it, or the disk is full
    └── ResultWriteError            the table was printed, the file could not be written
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CompletionError",
    "FabricError",
    "FabricGoneError",
    "InterruptedRunError",
    "NoProgressError",
    "OutputError",
    "PeerFailedError",
    "ProtocolError",
    "ProviderError",
    "ProviderUnavailableError",
    "RendezvousError",
    "ResultWriteError",
    "RingBenchError",
    "RunError",
    "StalledError",
    "UsageError",
]


class RingBenchError(Exception):
    """Base of all errors of this package; its text is fit for the user."""

    kind = "error"
    """A short stable name for results and messages between ranks."""

    def describe(self) -> dict[str, Any]:
        """Give the failure as plain data: kind and message, and where known rank, host, step, status."""
        return {"kind": self.kind, "message": str(self)}


class UsageError(RingBenchError):
    """The options contradict each other or ask for what the fabric does not have."""

    kind = "usage"


class ProviderError(RingBenchError):
    """The way to the fabric."""

    kind = "provider"


class ProviderUnavailableError(ProviderError):
    """The package, socket or device of a provider is not there."""

    kind = "provider_unavailable"


class FabricError(ProviderError):
    """The fabric refused a call; ``code`` is an errno name such as EINVAL."""

    kind = "fabric_error"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class FabricGoneError(ProviderError):
    """The process that is the fabric ended, or the connection to it broke."""

    kind = "fabric_gone"


class StalledError(ProviderError):
    """Every rank waits for a completion and no event is left that could bring one."""

    kind = "stalled"


class RunError(RingBenchError):
    """A failure of the run, pinned to a rank and, where one is known, a step."""

    kind = "run"

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        step: int | None = None,
        status: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.step = step
        self.status = status

    def describe(self) -> dict[str, Any]:
        """Give the failure as plain data, with rank, host, step and status."""
        return {
            **super().describe(),
            "rank": self.rank,
            "host": self.host,
            "step": self.step,
            "status": self.status,
        }


class CompletionError(RunError):
    """A work completion came with a status other than SUCCESS."""

    kind = "completion"


class ProtocolError(RunError):
    """A completion that the ring protocol does not allow at this point: duplicate, unknown or out of turn."""

    kind = "protocol"


class NoProgressError(RunError):
    """No completion came for longer than the time-out."""

    kind = "no_progress"


class PeerFailedError(RunError):
    """Another rank failed first and told everyone; the fields are those of the first failure."""

    kind = "peer"


class RendezvousError(RingBenchError):
    """The ranks did not find together."""

    kind = "rendezvous"


class InterruptedRunError(RingBenchError):
    """The run was stopped by SIGINT or SIGTERM; ``signal_number`` says which."""

    kind = "interrupted"

    def __init__(self, signal_number: int, name: str) -> None:
        super().__init__(f"stopped by {name}")
        self.signal_number = signal_number


class OutputError(RingBenchError):
    """Standard output cannot be written."""

    kind = "output"


class ResultWriteError(RingBenchError):
    """The result could not be written to its file."""

    kind = "result"
