# SPDX-License-Identifier: Apache-2.0
"""What the doctor says about a switch's ports and program, and about an agent's jobs."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program, Port
from switch_agent.agent import doctor
from switch_agent.agent.doctor import Finding, examine
from switch_agent.dataplane.program import P4_NAME

NOBODY = "http://127.0.0.1:9"


async def findings(server: BfRtServer, p4_name: str = P4_NAME) -> dict[str, Finding]:
    """The findings about a switch without an agent, by id."""
    return {finding.id: finding for finding in await examine(NOBODY, server.address, p4_name)}


async def test_ports_are_shown_with_speed_fec_and_state(program: P4Program) -> None:
    """All up is fine; one without a signal is a warning that names it; a disabled one is no fault."""
    ports = [Port(0, "1/0", 100), Port(1, "1/1", 100), Port(8, "3/0", 400)]
    async with BfRtServer(MemoryBackend(program), program, port=0, ports=ports) as server:
        found = (await findings(server))["switch.ports"]
        assert (found.level, found.evidence) == ("ok", "3 ports: 2 x 100G FEC none up, 1 x 400G FEC none up")
        server.faults.port_down(8)
        found = (await findings(server))["switch.ports"]
        assert found.level == "warning"
        assert found.evidence.endswith("Enabled but down: 8 (400G FEC none down)")
        assert "FEC" in found.fix


async def test_a_switch_with_another_program_is_a_failure(program: P4Program) -> None:
    """It says which programs there are."""
    async with BfRtServer(MemoryBackend(program), program, port=0) as server:
        found = (await findings(server, "other"))["switch.program"]
        assert (found.level, found.evidence) == ("failure", "loaded: symphony")


def view(**changes: Any) -> dict[str, Any]:
    """An answer of /api/v1/switch of a healthy agent."""
    sampler = {"last_error": None, "last_success_unix_s": 2e9, "last_duration_ms": 3.0}
    healthy = {
        "state": "ready",
        "program": "symphony",
        "client_id": 101,
        "reconcile_error": None,
        "misplaced_jobs": {},
        "usage": {"job_classify": {"entries": 1, "peak": 2, "size": 2048}, "exp2": {"peak": 897, "size": 900}},
        "sampler": sampler,
        "per_pipe_writes": True,
    }
    return healthy | changes


class Agent:
    """Answers the drift that it was made with."""

    def __init__(self, drift: int = 0) -> None:
        self._drift = {"entries": drift, "details": ["missing: job_params[ig_md.job=1]"]}

    def get(self, path: str) -> dict[str, Any]:
        """Only one path is asked for."""
        assert path == "/api/v1/drift"
        return self._drift


@pytest.mark.parametrize(
    ("changes", "drift", "wanted"),
    [
        ({}, 0, {}),
        ({}, 1, {"agent.drift": "failure"}),
        ({"misplaced_jobs": {"3": "its id is too high"}}, 0, {"agent.places": "failure"}),
        ({"usage": {"job_params": {"peak": 1000, "size": 1024}}}, 0, {"agent.usage": "warning"}),
        ({"reconcile_error": "table full"}, 0, {"agent.reconcile": "failure"}),
        ({"per_pipe_writes": False}, 0, {"agent.pipes": "warning"}),
        ({"state": "read-only", "owner": "client 7"}, 0, {"agent.session": "warning"}),
        ({"state": "lost", "last_error": "refused"}, 0, {"agent.session": "failure"}),
        ({"sampler": {"last_error": None, "last_success_unix_s": None}}, 0, {"agent.samples": "failure"}),
    ],
)
def test_what_an_agent_says_becomes_findings(changes: dict[str, Any], drift: int, wanted: dict[str, str]) -> None:
    """Only what is wrong is more than ok, and says what to do."""
    found = list(doctor._agent_findings(Agent(drift), view(**changes)))  # type: ignore[arg-type]
    assert {finding.id: finding.level for finding in found if finding.level != "ok"} == wanted
    assert all(finding.fix for finding in found if finding.level != "ok")


def test_a_bfrt_server_on_a_machine_without_a_way_out_is_not_called_unexposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be other networks; which address to try is not known."""

    class NoWayOut(socket.socket):
        def connect(self, _: object) -> None:
            raise OSError("Network is unreachable")

    monkeypatch.setattr(doctor.socket, "socket", NoWayOut)
    (finding,) = doctor._exposure("127.0.0.1:50052")
    assert (finding.level, finding.id) == ("unknown", "switch.exposure")
    assert "ss -ltn" in finding.fix


@pytest.mark.parametrize(
    ("data", "state"),
    [
        ({"$PORT_ENABLE": True, "$PORT_UP": True}, "up"),
        ({"$PORT_ENABLE": True, "$PORT_UP": False}, "down"),
        ({"$PORT_ENABLE": False, "$PORT_UP": False}, "disabled"),
        ({"$PORT_ENABLE": True}, "of unknown state"),
        ({}, "of unknown state"),
    ],
)
def test_a_port_that_does_not_tell_its_state_is_neither_down_nor_disabled(data: dict[str, Any], state: str) -> None:
    assert doctor._port_kind(data) == f"? FEC ? {state}"
