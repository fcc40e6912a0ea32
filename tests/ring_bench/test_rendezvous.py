# SPDX-License-Identifier: Apache-2.0
"""Processes find together, name who is missing or differs, and learn of a failure elsewhere."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ring_bench import rendezvous as module
from ring_bench.errors import PeerFailedError, RendezvousError, UsageError
from ring_bench.hub import Hub
from ring_bench.rendezvous import Joining, TcpRendezvous, proof, receive_frame, send_frame

AGREEMENT = {"world": 2, "op": "sum"}


@pytest.fixture
def hub_of() -> Iterator[Callable[..., Hub]]:
    """Make hubs that are closed afterwards."""
    hubs: list[Hub] = []

    def make(world: int, **options: Any) -> Hub:
        hubs.append(Hub(("127.0.0.1", 0), world, **options))
        return hubs[-1]

    yield make
    for hub in hubs:
        hub.close(linger_s=0)


class Process:
    """A process that joins in a thread; its connection or its error is kept."""

    def __init__(self, hub: Hub, *ranks: int, agreement: dict[str, Any] | None = None, token: str | None = None):
        self.aborted = threading.Event()
        self.connection: TcpRendezvous | None = None
        self.error: RendezvousError | None = None
        joining = Joining(ranks, f"host{ranks[0]}", 1000 + ranks[0], agreement or AGREEMENT, token)
        self._thread = threading.Thread(target=self._join, args=(hub.address, joining))
        self._thread.start()

    def _join(self, address: tuple[str, int], joining: Joining) -> None:
        try:
            self.connection = TcpRendezvous(address, joining, on_failure=self.aborted.set)
        except RendezvousError as error:
            self.error = error

    def joined(self) -> TcpRendezvous:
        self._thread.join(10)
        assert self.connection is not None, self.error
        return self.connection

    def refused(self) -> str:
        self._thread.join(10)
        assert self.error is not None
        return str(self.error)


@contextlib.contextmanager
def world_of(hub: Hub, count: int) -> Iterator[list[tuple[Process, TcpRendezvous]]]:
    processes = [Process(hub, rank) for rank in range(count)]
    connections = [process.joined() for process in processes]
    yield list(zip(processes, connections, strict=True))
    for connection in connections:
        connection.close()


def test_everybody_gets_everybodys_data(hub_of: Callable[..., Hub]) -> None:
    with world_of(hub_of(3), 3) as members:
        answers: list[dict[int, Any]] = []
        threads = [
            threading.Thread(target=lambda c=connection, r=rank: answers.append(c.exchange({r: {"qp": r}})))
            for rank, (_, connection) in enumerate(members)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert answers == [{0: {"qp": 0}, 1: {"qp": 1}, 2: {"qp": 2}}] * 3


def test_all_are_finished_when_each_has_said_so(hub_of: Callable[..., Hub]) -> None:
    with world_of(hub_of(2), 2) as ((_, first), (_, second)):
        first.finish()
        assert not second.all_finished
        second.finish()
        assert first._all_finished.wait(10)
        assert second._all_finished.wait(10)


def test_missing_ranks_are_named(hub_of: Callable[..., Hub]) -> None:
    hub = hub_of(4, timeout_s=0.3)
    first, third = Process(hub, 0), Process(hub, 2)
    for process in (first, third):
        assert "only 2 of 4 ranks joined within 0.3 s, missing: rank 1, 3" in process.refused()


def test_a_rank_that_is_there_twice_is_named_with_both_hosts(hub_of: Callable[..., Hub]) -> None:
    hub = hub_of(3)
    first = Process(hub, 1)
    while not hub._members:
        time.sleep(0.001)
    second = Process(hub, 1)
    for process in (first, second):
        assert "rank 1 is there twice" in process.refused()
        assert "host1" in process.refused()


def test_ranks_that_disagree_are_named_with_the_option(hub_of: Callable[..., Hub]) -> None:
    hub = hub_of(2)
    first = Process(hub, 0)
    while not hub._members:
        time.sleep(0.001)
    second = Process(hub, 1, agreement={"world": 2, "op": "max"})
    for process in (first, second):
        assert "disagree about op: sum != max" in process.refused()


def test_a_rank_outside_the_world_is_refused(hub_of: Callable[..., Hub]) -> None:
    assert "rank 7 (host host7) is outside the world of 2" in Process(hub_of(2), 7).refused()


def test_a_wrong_token_is_refused_and_the_right_one_admitted(hub_of: Callable[..., Hub]) -> None:
    assert "does not know your token" in Process(hub_of(2, token="right"), 0, token="wrong").refused()
    hub = hub_of(1, token="right")
    Process(hub, 0, token="right").joined().close()


def test_a_hub_others_can_reach_needs_a_token() -> None:
    with pytest.raises(UsageError, match="RING_BENCH_TOKEN"):
        Hub(("0.0.0.0", 0), 2)  # noqa: S104


def test_an_occupied_port_is_an_error_of_rank_0(hub_of: Callable[..., Hub]) -> None:
    with pytest.raises(RendezvousError, match="cannot listen"):
        Hub(hub_of(2).address, 2)


def test_nobody_at_the_master_is_an_error_after_the_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = unused.getsockname()
    with pytest.raises(RendezvousError, match="rank 0 is not listening"):
        TcpRendezvous(address, Joining((1,), "h", 1, {}), on_failure=lambda: None, timeout_s=0.2)


def test_a_stranger_at_the_port_does_no_harm(hub_of: Callable[..., Hub]) -> None:
    hub = hub_of(1)
    with socket.create_connection(hub.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    Process(hub, 0).joined().close()


def test_a_process_that_dies_aborts_all_others_with_its_name(hub_of: Callable[..., Hub]) -> None:
    with world_of(hub_of(3), 3) as members:
        started = time.monotonic()
        members[1][1]._socket.shutdown(socket.SHUT_RDWR)  # what the kernel does for a killed process
        for process, connection in (members[0], members[2]):
            assert process.aborted.wait(5)
            with pytest.raises(PeerFailedError, match=r"rank 1 \(host host1, pid 1001\) died") as caught:
                connection.check()
            assert caught.value.rank == 1
        assert time.monotonic() - started < 5


def test_a_process_that_falls_silent_counts_as_dead(
    hub_of: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While data flow. Before and after that a process may be silent: it registers or frees memory."""
    monkeypatch.setattr("ring_bench.hub.SILENCE_S", 0.3)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    hub = hub_of(2)
    silent = socket.create_connection(hub.address)
    process = Process(hub, 0)
    with silent:
        hello = receive_frame(silent)
        send_frame(
            silent,
            {
                "t": "join",
                "version": module.PROTOCOL_VERSION,
                "ranks": [1],
                "host": "frozen",
                "pid": 7,
                "agreement": AGREEMENT,
                "proof": proof(None, hello["nonce"]),
            },
        )
        connection = process.joined()
        send_frame(silent, {"t": "beat"})
        assert not process.aborted.wait(0.6)
        send_frame(silent, {"t": "begin"})
        assert process.aborted.wait(5)
        with pytest.raises(PeerFailedError, match=r"frozen.* fell silent"):
            connection.check()
        connection.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (EOFError("connection closed"), "died"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "died"),
        (TimeoutError("timed out"), "fell silent for 3 s"),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "is out of reach: its host answers no more"),
    ],
)
def test_how_a_connection_ends_says_what_became_of_the_process(error: Exception, words: str) -> None:
    """A host without power is found by the kernel's keep-alives, however patient the reader is."""
    with socket.socket() as connection:
        connection.settimeout(3.0)
        module.notice_dead_hosts(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
        assert module.what_ended(connection, error) == words


def test_a_reported_failure_reaches_the_others_with_rank_step_and_status(hub_of: Callable[..., Hub]) -> None:
    failure = {"kind": "completion", "message": "no", "rank": 1, "host": "h1", "step": 9, "status": "RETRY_EXC_ERR"}
    with world_of(hub_of(2), 2) as ((process, first), (_, second)):
        assert second.report(failure) == failure
        assert process.aborted.wait(5)
        with pytest.raises(PeerFailedError) as caught:
            first.check()
        assert (caught.value.rank, caught.value.step, caught.value.status) == (1, 9, "RETRY_EXC_ERR")


def test_of_reports_at_the_same_time_the_cause_wins(hub_of: Callable[..., Hub]) -> None:
    """Rank 2 sees its peer not answering; the death of rank 1 explains it."""
    symptom = {"kind": "completion", "message": "retry exceeded", "rank": 2, "status": "RETRY_EXC_ERR"}
    with world_of(hub_of(3), 3) as members:
        reporter = threading.Thread(target=lambda: verdicts.append(members[2][1].report(symptom)))
        verdicts: list[dict[str, Any]] = []
        reporter.start()
        members[1][1]._socket.shutdown(socket.SHUT_RDWR)
        reporter.join(10)
        assert verdicts[0]["kind"] == "died"
        assert verdicts[0]["rank"] == 1


def test_an_exchange_does_not_hang_when_a_process_dies(hub_of: Callable[..., Hub]) -> None:
    with world_of(hub_of(2), 2) as ((_, first), (_, second)):
        second._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(PeerFailedError):
            first.exchange({0: None})


def test_the_end_of_rank_0_is_noticed(hub_of: Callable[..., Hub]) -> None:
    hub = hub_of(2)
    with world_of(hub, 2) as ((process, first), _):
        hub.close(linger_s=0)
        assert process.aborted.wait(5)
        with pytest.raises(PeerFailedError, match=r"rank 0 \(host "):
            first.check()


def test_a_failure_that_names_no_rank_gets_the_one_of_its_process(hub_of: Callable[..., Hub]) -> None:
    """ "stopped by SIGINT" alone would read as if the reader had been stopped."""
    with world_of(hub_of(2), 2) as ((process, first), (_, second)):
        second.report({"kind": "interrupted", "message": "stopped by SIGINT"})
        assert process.aborted.wait(5)
        with pytest.raises(PeerFailedError, match=r"^rank 1 \(host host1\): stopped by SIGINT$") as caught:
            first.check()
        assert (caught.value.rank, caught.value.host) == (1, "host1")
