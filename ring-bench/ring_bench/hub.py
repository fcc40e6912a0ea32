# SPDX-License-Identifier: Apache-2.0
"""The meeting point of a run's processes: a small TCP server in a thread of rank 0's process.

It admits ranks until the world is complete, passes data around, and turns any failure, death or silence of
one process into an abort for all others that names the first failure. Bound to a loopback address it needs no
token; on any other address it refuses to start without one (environment variable RING_BENCH_TOKEN).
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import platform
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ring_bench.clocks import clock_identity
from ring_bench.errors import RendezvousError, UsageError
from ring_bench.rendezvous import (
    HEARTBEAT_S,
    JOIN_TIMEOUT_S,
    PATIENCE_S,
    PROTOCOL_VERSION,
    SILENCE_S,
    VERDICT_S,
    notice_dead_hosts,
    proof,
    receive_frame,
    send_frame,
    what_ended,
)

__all__ = ["Hub"]

# Which of several reports is the cause of the others: a death explains what its neighbours see.
_PRECEDENCE = ("died", "interrupted", "usage", "completion", "protocol", "error")


@dataclass(eq=False)
class _Member:
    connection: socket.socket
    nonce: bytes
    ranks: tuple[int, ...] = ()
    host: str = "?"
    pid: int = 0
    agreement: dict[str, Any] = field(default_factory=dict)
    left: bool = False
    begun: bool = False
    finished: bool = False
    silence_s: float = PATIENCE_S
    sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def title(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        return f"rank {ranks} (host {self.host}, pid {self.pid})"

    def send(self, message: dict[str, Any]) -> None:
        with self.sending, contextlib.suppress(OSError):  # its reader thread notices the broken connection
            send_frame(self.connection, message)


class Hub:
    """Serve the rendezvous of ``world`` ranks.

    Args:
        address: Where to listen; port 0 takes a free one (see `address`).
        world: Ranks to wait for.
        token: Shared secret, needed unless the address is a loopback one.
        timeout_s: How long to wait for all ranks to join.

    Raises:
        UsageError: A non-loopback address without a token.
        RendezvousError: The address cannot be bound.
    """

    def __init__(
        self,
        address: tuple[str, int],
        world: int,
        *,
        token: str | None = None,
        timeout_s: float = JOIN_TIMEOUT_S,
    ) -> None:
        self._world = world
        self._token = token
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._members: list[_Member] = []
        self._started = False
        self._refused: str | None = None
        self._puts: dict[int, dict[int, Any]] = {}
        self._failures: list[dict[str, Any]] = []
        self._aborted = threading.Event()
        self._closing = threading.Event()
        self._listener = self._bind(address, token)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._threads: list[threading.Thread] = []
        for target in (self._accept, self._beat):
            self._spawn(target)

    def close(self, linger_s: float = 2.0) -> None:
        """Stop; gives the others a moment to say good-bye first, so that nobody takes this for a death."""
        deadline = time.monotonic() + linger_s
        while time.monotonic() < deadline and any(not member.left for member in self._members):
            time.sleep(0.01)
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            members = list(self._members)
        for member in members:
            with contextlib.suppress(OSError):
                member.connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=2.0)

    @staticmethod
    def _bind(address: tuple[str, int], token: str | None) -> socket.socket:
        host, port = address
        where = f"{host}:{port}"
        try:
            family, kind, protocol, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise RendezvousError(f"--master {where}: {error.strerror or error}") from error
        if not ipaddress.ip_address(str(resolved[0]).split("%")[0]).is_loopback and not token:
            raise UsageError(
                f"--master {where} is reachable from other hosts: set RING_BENCH_TOKEN to the same secret "
                "for every rank (mpirun -x RING_BENCH_TOKEN)"
            )
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(resolved)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise RendezvousError(
                f"rank 0 cannot listen at --master {where} ({error.strerror or error}): "
                "choose another port, or an address of this host"
            ) from error
        return listener

    def _spawn(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="rendezvous-hub", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not self._closing.is_set():
            with self._lock:
                waiting = not self._started and self._refused is None
            if waiting and time.monotonic() > deadline:
                self._refuse(self._missing())
            self._listener.settimeout(0.2)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            member = _Member(connection, os.urandom(16))
            self._spawn(self._serve, member)

    def _beat(self) -> None:
        while not self._closing.wait(HEARTBEAT_S):
            with self._lock:
                members = [member for member in self._members if self._started and not member.left]
            for member in members:
                member.send({"t": "beat"})

    def _serve(self, member: _Member) -> None:
        connection = member.connection
        with connection:
            try:
                notice_dead_hosts(connection)
                connection.settimeout(self._timeout_s)
                hello = {"t": "hello", "nonce": member.nonce, "host": platform.node(), "clock": clock_identity()}
                send_frame(connection, hello)
                join = receive_frame(connection)
                problem = self._admit(member, join)
            except (OSError, EOFError, ValueError, KeyError, TypeError):
                return  # a stranger; the missing rank is named when the time is over
            if problem is not None:
                member.send({"t": "reject", "message": problem})
                return
            try:
                while not member.left:
                    connection.settimeout(member.silence_s)
                    self._take(member, receive_frame(connection))
            except (OSError, EOFError, ValueError) as error:
                self._lost(member, what_ended(connection, error))

    def _admit(self, member: _Member, join: dict[str, Any]) -> str | None:
        if not hmac.compare_digest(join["proof"], proof(self._token, member.nonce)):
            return "the rendezvous does not know your token: set the same RING_BENCH_TOKEN for every rank"
        if join["version"] != PROTOCOL_VERSION:
            return f"rank 0 speaks rendezvous version {PROTOCOL_VERSION}, this rank {join['version']}"
        with self._lock:
            member.ranks = tuple(join["ranks"])
            member.host, member.pid = str(join["host"]), int(join["pid"])
            member.agreement = join["agreement"]
            problem = self._refused or self._conflict(member)
            if problem is not None:
                self._refuse(problem)
                return problem
            self._members.append(member)
            if sum(len(other.ranks) for other in self._members) == self._world:
                self._started = True
                for other in self._members:
                    other.send({"t": "start"})
        return None

    def _conflict(self, member: _Member) -> str | None:
        for other in self._members:
            if shared := set(other.ranks) & set(member.ranks):
                ranks = ", ".join(map(str, sorted(shared)))
                return f"rank {ranks} is there twice: {other.title} and {member.title}; give each its own --rank"
        if bad := [rank for rank in member.ranks if not 0 <= rank < self._world]:
            return f"rank {bad[0]} (host {member.host}) is outside the world of {self._world} ranks"
        if self._members and (first := self._members[0]).agreement != member.agreement:
            names = sorted(
                name
                for name in first.agreement.keys() | member.agreement.keys()
                if first.agreement.get(name) != member.agreement.get(name)
            )
            differences = ", ".join(
                f"{name}: {first.agreement.get(name)} != {member.agreement.get(name)}" for name in names
            )
            return f"{first.title} and {member.title} disagree about {differences}; give all the same options"
        return None

    def _missing(self) -> str:
        with self._lock:
            joined = {rank for member in self._members for rank in member.ranks}
        missing = ", ".join(str(rank) for rank in range(self._world) if rank not in joined)
        return (
            f"only {len(joined)} of {self._world} ranks joined within {self._timeout_s:g} s, missing: "
            f"rank {missing}; start them with the same --master and --world"
        )

    def _refuse(self, problem: str) -> None:
        with self._lock:
            self._refused = problem
            for member in self._members:
                member.left = True
                member.send({"t": "reject", "message": problem})

    def _take(self, member: _Member, message: dict[str, Any]) -> None:
        kind = message["t"]
        if kind == "ask":
            heard = time.monotonic_ns()
            member.send({"t": "time", "heard": heard, "answered": time.monotonic_ns()})
        elif kind == "put":
            with self._lock:
                gathered = self._puts.setdefault(message["n"], {})
                gathered.update(message["data"])
                if len(gathered) == self._world:
                    del self._puts[message["n"]]
                    for other in self._members:
                        other.send({"t": "all", "n": message["n"], "data": gathered})
        elif kind == "begin":
            with self._lock:
                member.begun, member.silence_s = True, SILENCE_S
                if all(other.begun for other in self._members):
                    for other in self._members:
                        other.send({"t": "all_begun"})
        elif kind == "finished":
            with self._lock:
                member.finished = True
                if all(other.finished for other in self._members):
                    for other in self._members:
                        other.silence_s = PATIENCE_S
                        other.send({"t": "all_finished"})
        elif kind == "failed":
            self._note(message["failure"])
        elif kind == "bye":
            member.left = True

    def _lost(self, member: _Member, reason: str) -> None:
        if self._closing.is_set() or member.left:
            return
        if not self._started:
            with self._lock:
                self._members.remove(member)
            return
        member.left = True
        self._note(
            {
                "kind": "died",
                "message": f"{member.title} {reason}",
                "rank": member.ranks[0],
                "host": member.host,
            }
        )

    def _note(self, failure: dict[str, Any]) -> None:
        with self._lock:
            self._failures.append(failure)
            first = len(self._failures) == 1
        if first:
            self._spawn(self._abort)

    def _abort(self) -> None:
        self._closing.wait(VERDICT_S)
        with self._lock:
            if self._aborted.is_set():
                return
            self._aborted.set()
            verdict = min(self._failures, key=_precedence)
            for member in self._members:
                if not member.left:
                    member.send({"t": "abort", "failure": verdict})


def _precedence(failure: dict[str, Any]) -> int:
    kind = failure.get("kind")
    return _PRECEDENCE.index(kind) if kind in _PRECEDENCE else len(_PRECEDENCE)
