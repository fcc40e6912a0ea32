# SPDX-License-Identifier: Apache-2.0
"""Step events reach a host-agent, and never hold up a run."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ring_bench.cli import main
from ring_bench.events import EventSender


class Agent:
    """A host-agent that keeps what is posted to it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.status = 204
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                agent.tokens.add(self.headers.get("Authorization"))
                if agent.status == 204:
                    agent.bodies.append(body)
                self.send_response(agent.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}/api/v1/jobs/7/events"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def events(self) -> list[list[Any]]:
        return [event for body in self.bodies for event in body["events"]]


@pytest.fixture
def agent() -> Iterator[Agent]:
    """A listening host-agent."""
    agent = Agent()
    yield agent
    agent.close()


def sender(url: str, warnings: list[str], **options: Any) -> EventSender:
    return EventSender(
        url, run="r", clock="twin", host="h", group_of={0: 0, 1: 1}, token=None, warn=warnings.append, **options
    )


def test_a_run_sends_every_step_collective_and_the_result(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_EVENTS_TOKEN", "s3cret-of-the-job")
    arguments = "--provider loopback --world 4 --split %2 --rings 2 -b 4K -n 3 -w 1 --events"
    with pytest.raises(SystemExit) as left:
        main([*arguments.split(), agent.url])
    assert left.value.code == 0
    assert agent.tokens == {"Bearer s3cret-of-the-job"}
    # 4 ranks, 2 rings, 4 iterations of 2 steps, a post and a completion each.
    assert len(agent.events) == 4 * 2 * 4 * 2 * 2
    posts = {tuple(event[:5]): event[6] for event in agent.events if event[5] == "post"}
    dones = {tuple(event[:5]): event[6] for event in agent.events if event[5] == "done"}
    assert posts.keys() == dones.keys()
    assert all(posts[key] <= dones[key] for key in posts)
    assert {(rank, group) for rank, group, *_ in posts} == {(0, 0), (1, 1), (2, 0), (3, 1)}
    assert all(step // 2 == iteration for _, _, _, iteration, step in posts)
    collectives = [record for body in agent.bodies for record in body["collectives"]]
    assert sorted(record[:2] for record in collectives) == [[g, i] for g in range(2) for i in range(4)]
    assert all(start < end and busbw > 0 for _, _, start, end, busbw in collectives)
    (result,) = [body["result"] for body in agent.bodies if "result" in body]
    assert result["complete"] is True
    assert {(body["clock"], body["dropped"]) for body in agent.bodies} == {("twin", 0)}


def test_what_does_not_fit_is_dropped_and_counted(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ring_bench.events.PERIOD_S", 60.0)
    warnings: list[str] = []
    events = sender(agent.url, warnings, capacity=3)
    for step in range(5):
        events.step(0, 0, 0, step, "post", step)
    assert events.close(None) == 2
    assert [event[4] for event in agent.events] == [0, 1, 2]
    assert agent.bodies[0]["dropped"] == 2
    assert warnings == []


def test_an_agent_that_refuses_costs_one_warning_and_counts_as_dropped(agent: Agent) -> None:
    agent.status = 401
    warnings: list[str] = []
    events = sender(agent.url, warnings)
    events.step(0, 0, 0, 0, "post", 1)
    assert events.close({"x": 1}) == 1
    assert len(warnings) == 1
    assert "401" in warnings[0]


def test_what_answers_and_speaks_no_http_costs_one_warning() -> None:
    """Not the thread, in silence: http.client has errors that are no OSError."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with other.accept()[0] as caller:
                caller.sendall(b"220 mail\r\n")
                while caller.recv(1 << 16):
                    pass

        threading.Thread(target=greet).start()
        warnings: list[str] = []
        events = sender(f"http://127.0.0.1:{other.getsockname()[1]}/x", warnings)
        events.step(0, 0, 0, 0, "post", 1)
        assert events.close(None) == 1
    assert len(warnings) == 1
    assert "220 mail" in warnings[0]


def test_a_token_that_no_header_can_carry_is_refused_before_the_run(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYMPHONY_EVENTS_TOKEN", "secret-secret\nsecret")
    with pytest.raises(SystemExit) as left:
        main(["--provider", "loopback", "--world", "2", "-b", "1K", "-n", "1", "--events", agent.url])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "SYMPHONY_EVENTS_TOKEN holds no token" in error
    assert "secret" not in error


def test_an_agent_that_is_not_there_does_not_fail_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--provider", "loopback", "--world", "2", "-b", "1K", "-n", "1", "--events", "http://127.0.0.1:9/x"])
    assert left.value.code == 0
    printed = capsys.readouterr()
    assert "# Out of bounds values : 0 OK" in printed.out
    assert "do not reach http://127.0.0.1:9/x" in printed.err
    assert "16 step events were dropped" in printed.err
