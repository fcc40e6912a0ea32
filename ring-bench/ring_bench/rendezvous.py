# SPDX-License-Identifier: Apache-2.0
"""How the processes of a run find together, and how they learn that one of them failed.

The process of rank 0 runs a hub (`ring_bench.hub`) at ``--master``; every process, that one included, joins
it over TCP. A join carries the options of the run: ranks that disagree, appear twice or stay away are named.
Each side sends a heartbeat every second. While data flow, silence for `SILENCE_S` is the death of that process;
before and after that for `PATIENCE_S` only, since libibverbs registers and frees memory with all threads of Python
stopped, for seconds where it is large. A connection that ends without a good-bye, and one whose host no longer
answers the kernel's keep-alives, is a death at any time. The hub tells everyone else.

Frames are a 4-byte big-endian length and a msgpack map with the message type under "t".
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgpack

from ring_bench.clocks import Ask, Offset, clock_identity, estimate
from ring_bench.errors import PeerFailedError, RendezvousError

__all__ = [
    "CLOCK_ASKS",
    "HEARTBEAT_S",
    "JOIN_TIMEOUT_S",
    "PATIENCE_S",
    "PROTOCOL_VERSION",
    "SILENCE_S",
    "VERDICT_S",
    "Joining",
    "LocalRendezvous",
    "Rendezvous",
    "TcpRendezvous",
    "notice_dead_hosts",
    "proof",
    "receive_frame",
    "send_frame",
    "what_ended",
]

PROTOCOL_VERSION = 3
JOIN_TIMEOUT_S = 30.0
HEARTBEAT_S = 1.0
SILENCE_S = 3.0
PATIENCE_S = 300.0
VERDICT_S = 0.3
"""How long the hub collects reports of a failure before it names the first one."""

CLOCK_ASKS = 32
"""How often rank 0's process is asked for the time in one measurement."""

_LENGTH = struct.Struct(">I")


class Rendezvous(Protocol):
    """What the run needs from its fellow processes."""

    def exchange(self, data: Mapping[int, Any]) -> dict[int, Any]:
        """Give each local rank's data, get every rank's; returns when all have given theirs.

        Raises:
            PeerFailedError: A rank failed meanwhile.
        """
        ...

    def measure_clock(self) -> Offset | None:
        """Find out how far rank 0's clock is ahead of this process's; None: it is the same clock.

        Raises:
            PeerFailedError: A rank failed meanwhile.
        """
        ...

    def check(self) -> None:
        """Raise PeerFailedError if any rank has failed."""
        ...

    def begin(self) -> None:
        """Tell that all local ranks are ready: from now until all are finished, silence is a death. Returns at once."""
        ...

    def finish(self) -> None:
        """Tell that all local ranks are finished; returns at once."""
        ...

    @property
    def all_finished(self) -> bool:
        """Whether all ranks of the world are finished."""
        ...

    def report(self, failure: dict[str, Any]) -> dict[str, Any]:
        """Tell everyone of a failure; gives back the first failure of the run, which may be another one."""
        ...

    def close(self) -> None:
        """Say good-bye."""
        ...


class LocalRendezvous:
    """All ranks in one process: nobody to meet."""

    def __init__(self) -> None:
        self._finished = False

    def exchange(self, data: Mapping[int, Any]) -> dict[int, Any]:
        """Give the data back."""
        return dict(data)

    def measure_clock(self) -> None:
        """There is one clock."""

    def check(self) -> None:
        """Find nothing."""

    def begin(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Note it."""
        self._finished = True

    @property
    def all_finished(self) -> bool:
        """Whether `finish` was called."""
        return self._finished

    def report(self, failure: dict[str, Any]) -> dict[str, Any]:
        """Give the failure back: there is no other."""
        return failure

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Joining:
    """What a process says of itself when it joins."""

    ranks: tuple[int, ...]
    host: str
    pid: int
    agreement: dict[str, Any]
    """Options on which all ranks must agree."""
    token: str | None = None


def send_frame(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    body = msgpack.packb(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_frame(connection: socket.socket) -> dict[str, Any]:
    """Receive one message.

    Raises:
        EOFError: The other side closed.
        OSError: The connection broke or timed out.
        ValueError: Not a message.
    """
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    message = msgpack.unpackb(_receive(connection, length), strict_map_key=False)
    if not isinstance(message, dict) or "t" not in message:
        raise ValueError("not a rendezvous message")
    return cast("dict[str, Any]", message)


def _receive(connection: socket.socket, count: int) -> bytes:
    pieces = []
    while count:
        piece = connection.recv(min(count, 1 << 20))
        if not piece:
            raise EOFError("connection closed")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def notice_dead_hosts(connection: socket.socket) -> None:
    """Have the kernel end the connection within `SILENCE_S` when the other host answers no more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_USER_TIMEOUT", round(SILENCE_S * 1000))):
        if hasattr(socket, name):  # Linux has them all
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def what_ended(connection: socket.socket, error: Exception) -> str:
    """Say what happened to the process at the other end, whose connection failed with this error."""
    if not isinstance(error, TimeoutError):
        return "died"
    if error.errno is None:
        return f"fell silent for {connection.gettimeout():g} s"
    return "is out of reach: its host answers no more"  # ETIMEDOUT, of the keep-alives


def proof(token: str | None, nonce: bytes) -> bytes:
    """Prove knowledge of the token without sending it."""
    return hmac.digest((token or "").encode(), nonce, hashlib.sha256)


class TcpRendezvous:
    """One process's connection to the hub.

    Args:
        address: Host and port of the hub (``--master``).
        joining: What to say.
        on_failure: Called from the reader's thread when another rank has failed; ends a wait in progress.

    Raises:
        RendezvousError: No hub there in time, or it refuses; the message names the ranks concerned.
    """

    def __init__(
        self,
        address: tuple[str, int],
        joining: Joining,
        *,
        on_failure: Callable[[], None],
        timeout_s: float = JOIN_TIMEOUT_S,
    ) -> None:
        self._address = address
        self._joining = joining
        self._on_failure = on_failure
        self._answers: queue.SimpleQueue[dict[int, Any] | None] = queue.SimpleQueue()
        self._times: queue.SimpleQueue[tuple[dict[str, Any], int] | None] = queue.SimpleQueue()
        self._failure: dict[str, Any] | None = None
        self._verdict = threading.Event()
        self._all_finished = threading.Event()
        self._closing = threading.Event()
        self._serial = 0
        self._sending = threading.Lock()
        self._socket = self._dial(time.monotonic() + timeout_s)
        notice_dead_hosts(self._socket)
        try:
            self._join(joining, timeout_s)
        except BaseException:
            self._socket.close()
            raise
        self._threads = [
            threading.Thread(target=self._read, name="rendezvous", daemon=True),
            threading.Thread(target=self._beat, name="heartbeat", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def exchange(self, data: Mapping[int, Any]) -> dict[int, Any]:
        """See `Rendezvous.exchange`."""
        self.check()
        self._serial += 1
        self._send({"t": "put", "n": self._serial, "data": dict(data)})
        answer = self._answers.get()
        if answer is None:
            self.check()
            raise RendezvousError(f"the rendezvous at {self._where} ended in the middle of an exchange")
        return answer

    def measure_clock(self) -> Offset | None:
        """See `Rendezvous.measure_clock`."""
        if self._hub_clock == clock_identity():
            return None
        asks = []
        for _ in range(CLOCK_ASKS):
            self.check()
            asked = time.monotonic_ns()
            self._send({"t": "ask"})
            answer = self._times.get()
            if answer is None:
                self.check()
                raise RendezvousError(f"the rendezvous at {self._where} ended while clocks were compared")
            told, received = answer
            asks.append(Ask(asked, told["heard"], told["answered"], received))
        return estimate(asks)

    def check(self) -> None:
        """See `Rendezvous.check`."""
        failure = self._failure
        if failure is not None:
            raise PeerFailedError(
                str(failure["message"]),
                rank=failure.get("rank"),
                host=failure.get("host"),
                step=failure.get("step"),
                status=failure.get("status"),
            )

    def begin(self) -> None:
        """See `Rendezvous.begin`."""
        self._send({"t": "begin"})

    def finish(self) -> None:
        """See `Rendezvous.finish`."""
        self._send({"t": "finished"})

    @property
    def all_finished(self) -> bool:
        """Whether all ranks of the world are finished."""
        return self._all_finished.is_set()

    def report(self, failure: dict[str, Any]) -> dict[str, Any]:
        """See `Rendezvous.report`."""
        if failure.get("rank") is None:  # whose it is, the others must be told
            whose = f"rank {', '.join(map(str, self._joining.ranks))} (host {self._joining.host})"
            failure = {
                **failure,
                "message": f"{whose}: {failure['message']}",
                "rank": self._joining.ranks[0],
                "host": self._joining.host,
            }
        if self._failure is None:
            self._send({"t": "failed", "failure": failure})
            self._verdict.wait(VERDICT_S + 1.0)
        return self._failure or failure

    def close(self) -> None:
        """Say good-bye and end the threads."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._send({"t": "bye"})
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=2.0)
        self._socket.close()

    @property
    def _where(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _dial(self, deadline: float) -> socket.socket:
        while True:
            try:
                return socket.create_connection(self._address, timeout=max(0.1, deadline - time.monotonic()))
            except OSError as error:
                if time.monotonic() + 0.1 > deadline:
                    raise RendezvousError(
                        f"rank 0 is not listening at {self._where} ({error.strerror or error}): "
                        "is it started, and is --master its address?"
                    ) from error
                time.sleep(0.1)

    def _join(self, joining: Joining, timeout_s: float) -> None:
        connection = self._socket
        # The hub gives up first and says who is missing.
        connection.settimeout(timeout_s + 5.0)
        try:
            hello = receive_frame(connection)
            send_frame(
                connection,
                {
                    "t": "join",
                    "version": PROTOCOL_VERSION,
                    "ranks": list(joining.ranks),
                    "host": joining.host,
                    "pid": joining.pid,
                    "agreement": joining.agreement,
                    "proof": proof(joining.token, hello["nonce"]),
                },
            )
            self._hub_host = str(hello["host"])
            answer = receive_frame(connection)
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise RendezvousError(f"no rendezvous at {self._where}: {error or 'connection closed'}") from error
        self._hub_clock = str(hello.get("clock"))
        if answer["t"] != "start":
            raise RendezvousError(str(answer.get("message", "the rendezvous refused this process")))
        connection.settimeout(PATIENCE_S)

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending, contextlib.suppress(OSError):  # the reader notices a broken connection
            send_frame(self._socket, message)

    def _beat(self) -> None:
        while not self._closing.wait(HEARTBEAT_S):
            self._send({"t": "beat"})

    def _read(self) -> None:
        try:
            while True:
                message = receive_frame(self._socket)
                kind = message["t"]
                if kind == "time":
                    self._times.put((message, time.monotonic_ns()))
                elif kind == "all":
                    self._answers.put(message["data"])
                elif kind == "all_begun":
                    self._socket.settimeout(SILENCE_S)
                elif kind == "all_finished":
                    self._socket.settimeout(PATIENCE_S)
                    self._send({"t": "beat"})  # wakes the hub, which is as patient from now on
                    self._all_finished.set()
                elif kind == "abort":
                    self._fail(message["failure"])
        except (OSError, EOFError, ValueError) as error:
            if not self._closing.is_set():
                reason = what_ended(self._socket, error)
                self._fail(
                    {
                        "kind": "died",
                        "message": f"rank 0 (host {self._hub_host}, rendezvous at {self._where}) {reason}",
                        "rank": 0,
                        "host": self._hub_host,
                    }
                )

    def _fail(self, failure: dict[str, Any]) -> None:
        if self._failure is None:
            self._failure = failure
            self._verdict.set()
            self._answers.put(None)
            self._times.put(None)
            self._on_failure()
