# SPDX-License-Identifier: Apache-2.0
"""The live table: rates between two screens, the overlap's past, narrow terminals, an agent that goes away."""

from __future__ import annotations

import io
import time
from datetime import datetime
from typing import Any

import pytest
from rich.console import Console

from switch_agent.agent import watch as watching
from switch_agent.agent.console import RestClient
from switch_agent.agent.watch import Board, watch
from switch_agent.errors import AgentUnreachableError


def session(**changes: Any) -> dict[str, Any]:
    """An answer of /api/v1/switch, as far as it is shown."""
    sampler = {"interval_ms": 50.0, "last_success_unix_s": time.time()}
    view = {"name": "tor0", "state": "ready", "bfrt": "127.0.0.1:50052", "owner": "this agent", "last_error": None}
    return {**view, "sampler": sampler, "reconcile_error": None, **changes}


def job(job_id: int = 1, *, enabled: bool = True) -> dict[str, Any]:
    """A job as /api/v1/jobs shows it."""
    return {"job_id": job_id, "name": f"ring-{job_id}", "symphony": {"enabled": enabled, "variant": "refined"}}


def sample(seq: int, job_id: int = 1, *, overlap: int = 3, packets: int = 0, marked: int = 0) -> dict[str, Any]:
    """A sample, half a second after the one with the number before."""
    return {
        "seq": seq,
        "job_id": job_id,
        "name": f"ring-{job_id}",
        "time_unix_s": 1000 + seq / 2,
        "step_min": 1022,
        "step_max": (1021 + overlap) % 1024,
        "overlap": overlap,
        "alpha": 7,
        "psn_recorded": 99,
        "packets": {"all": packets, "outpacing": packets // 4},
        "marked": {"symphony": marked, "queue": 0},
        "live_pipes": [0, 2],
    }


def shown(board: Board, width: int = 130) -> str:
    """What a terminal of that width would show."""
    board.width = width
    console = Console(file=io.StringIO(), width=width)
    console.print(board.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_screen_shows_state_steps_rates_and_the_overlaps_past() -> None:
    """Rates are since the screen before; the same sample twice changes none of them."""
    board = Board()
    board.update(session(), [job()], [sample(1, packets=1000)])
    assert " - " in shown(board), "no rate is known yet"
    for _ in range(2):
        board.update(session(), [job()], [sample(2, overlap=8, packets=7000, marked=30)])
    text = shown(board)
    assert "tor0  ready" in text
    for part in ("ring-1", "refined", "1022-5", "12.0k", "25 %", "60", "0,2", "█"):
        assert part in text


def test_a_narrow_terminal_gets_fewer_columns_and_none_cut_off() -> None:
    """80 columns are enough for what matters."""
    board = Board()
    for seq in (1, 2):
        board.update(session(), [job()], [sample(seq, packets=seq * 10**9, marked=seq * 10**6)])
    text = shown(board, 80)
    assert "…" not in text
    assert "overlap over time" not in text
    assert "2.0G" in text


def test_more_jobs_than_lines_say_how_many_are_missing() -> None:
    """Instead of scrolling off."""
    board = Board(height=10)
    jobs = range(1, 21)
    board.update(session(), [job(number) for number in jobs], [sample(1, number) for number in jobs])
    text = shown(board)
    assert "ring-3 " in text
    assert "ring-4 " not in text
    assert "and 17 more jobs" in text


def test_trouble_is_said_and_what_was_seen_stays() -> None:
    """The owner of a read-only switch, the reason of a lost session, a refused reconcile, a silent agent."""
    board = Board()
    assert "no answer yet" in shown(board)
    board.update(session(state="read-only", owner="client 7"), [job(enabled=False)], [sample(1)])
    assert "owned by client 7" in shown(board)
    assert "off" in shown(board)
    board.update(session(state="lost", last_error="connection refused"), [], [])
    assert "connection refused" in shown(board)
    assert "no samples" in shown(board)
    board.update(session(reconcile_error="table full"), [job()], [sample(2)])
    assert "table full" in shown(board)
    board.trouble("no answer from a switch-agent")
    text = shown(board)
    assert "no answer from a switch-agent" in text
    assert "ring-1" in text


def test_without_a_terminal_there_is_a_line_per_job_and_interval() -> None:
    """For files and pipes: words with = between, nothing but text; and a line for what goes wrong."""
    board = Board()
    board.update(session(), [job(), job(2, enabled=False)], [sample(1, packets=1000), sample(1, 2)])
    board.update(session(), [job(), job(2, enabled=False)], [sample(2, packets=7000, marked=30), sample(2, 2)])
    first, second = (line.split(" ", 1) for line in board.lines())
    assert datetime.fromisoformat(first[0]).tzinfo is not None
    assert first[1] == (
        "tor0 ready id=1 job=ring-1 Symphony=refined steps=1022-0 overlap=3 alpha=7 psn=99 "
        "pkts/s=12.0k ahead=25% marks/s=60 RED/s=0 pipes=0,2"
    )
    assert "id=2 job=ring-2 Symphony=off " in second[1]
    board.trouble("no answer from a switch-agent")
    assert [line.split(" ", 1)[1] for line in board.lines()] == ["tor0 ready no answer from a switch-agent"]
    board.update(session(state="lost", last_error="connection refused"), [], [])
    assert [line.split(" ", 1)[1] for line in board.lines()] == ["tor0 lost connection refused"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (999, "999"), (1234, "1.2k"), (56_789_000, "56.8M"), (3.2e9, "3.2G"), (1e13, "1.0e+13")],
)
def test_numbers_stay_short(value: float | None, text: str) -> None:
    """At most a few characters."""
    assert watching._short(value) == text


def test_an_agent_that_goes_away_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when it never answered; Ctrl-C ends it."""
    answers: list[Any] = [{"samples": [sample(1)]}, session(), {"jobs": [job()]}, AgentUnreachableError("no answer")]

    class Agent(RestClient):
        def get(self, path: str, **query: Any) -> dict[str, Any]:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)

    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", pause)
    console = Console(file=io.StringIO(), width=130)
    with Agent("http://127.0.0.1:9") as client, pytest.raises(KeyboardInterrupt):
        watch(client, console, interval=0.25, job=None)
    assert pauses == [0.25, 0.25]
    answers.append(AgentUnreachableError("no answer"))
    with Agent("http://127.0.0.1:9") as client, pytest.raises(AgentUnreachableError):
        watch(client, console, interval=0.25, job=None)
