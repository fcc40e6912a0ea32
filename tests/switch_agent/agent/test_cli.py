# SPDX-License-Identifier: Apache-2.0
"""The command as a user runs it: serve, show, watch, doctor; signals and mistakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend
from switch_agent import cli
from switch_agent.agent.store import Store

from .conftest import job_spec
from .processes import output, run, served, wait_ready

CAPTURE = Path(__file__).parents[2] / "data" / "rxe-ring.pcap"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_it_cleanly_even_without_a_switch(tmp_path: Path, number: signal.Signals) -> None:
    """It serves while the switch is unreachable, and ends with 0 and without a traceback."""
    async with served("127.0.0.1:9", tmp_path) as (process, url):
        async with httpx.AsyncClient() as http:
            answer = await http.put(f"{url}/api/v1/jobs/1", json=job_spec())
            assert (answer.status_code, answer.json()["code"]) == (503, "switch_not_ready")
        process.send_signal(number)
        _, err = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 0
        assert b"Traceback" not in err


async def test_show_and_doctor_against_a_running_agent(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path
) -> None:
    """Tables and JSON of jobs, registers and session; the doctor finds nothing wrong, then drift."""
    server, _ = switch
    async with served(server.address, tmp_path, "--sample-interval-ms", "20") as (_, url):
        await wait_ready(url)
        async with httpx.AsyncClient() as http:
            body = job_spec(name="bold", symphony={"enabled": True})
            assert (await http.put(f"{url}/api/v1/jobs/1", json=body)).status_code == 200
            async with asyncio.timeout(20):
                while not (await http.get(f"{url}/api/v1/registers")).json()["samples"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        code, out, _ = await output("show", "jobs", "--url", url)
        assert (code, "bold" in out, "paper" in out) == (0, True, True)
        code, out, _ = await output("show", "jobs", "--json", "--job", "1", "--url", url)
        assert json.loads(out)["jobs"][0]["symphony"]["enabled"] is True
        code, out, _ = await output("show", "registers", "--json", "--url", url)
        assert json.loads(out)["samples"][0]["job_id"] == 1
        code, out, _ = await output("show", "session", "--url", url)
        assert (code, "read-write" in out) == (0, True)
        code, out, err = await output("show", "jobs", "--job", "9", "--url", url)
        assert (code, out) == (1, "")
        assert err.startswith("switch-agent: the agent at")
        assert "no job 9" in err

        code, out, _ = await output("doctor", "--json", "--url", url)
        report = json.loads(out)
        assert (code, report["healthy"]) == (0, True), out
        levels = {finding["id"]: finding["level"] for finding in report["findings"]}
        assert levels["agent.drift"] == levels["switch.tables"] == levels["agent.session"] == "ok"
        await server.faults.restart(down_s=0.3)
        await server.stop()
        code, out, _ = await output("doctor", "--url", url)
        assert code == 1
        assert "failure" in out
        await server.start()


async def test_watch_into_a_pipe_is_plain_lines(switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path) -> None:
    """Written at once, a line per job and interval; whoever has read enough ends it without a word."""
    server, _ = switch
    async with served(server.address, tmp_path, "--sample-interval-ms", "20") as (_, url):
        await wait_ready(url)
        async with httpx.AsyncClient() as http:
            assert (await http.put(f"{url}/api/v1/jobs/1", json=job_spec())).status_code == 200
        script = f"{sys.executable} -m switch_agent.cli watch --url {url} --interval 0.02 | grep -m 3 job=ring"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script), stdout=PIPE, stderr=PIPE, env=dict(os.environ) | {"PYTHONUNBUFFERED": ""}
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
    lines = out.decode().splitlines()
    assert len(lines) == 3
    assert all(" tor0 ready id=1 job=ring Symphony=off " in line for line in lines)
    assert err == b""


FULL = "cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize(("shell", "says"), [("> /dev/full", f"switch-agent: {FULL}"), ("| true", "")])
@pytest.mark.parametrize(
    "command", ["show session", "doctor", "doctor --json", f"replay {CAPTURE}", f"replay {CAPTURE} --json -", "--help"]
)
async def test_output_that_cannot_be_written_is_one_line_and_a_closed_pipe_none(
    tmp_path: Path, command: str, shell: str, says: str
) -> None:
    """Buffered output fails late; it must not end in a traceback or in Python's own complaint."""
    async with AsyncExitStack() as stack:
        if command.startswith("show"):
            _, url = await stack.enter_async_context(served("127.0.0.1:9", tmp_path))
            command += f" --url {url}"
        elif command.startswith("doctor"):
            command += " --url http://127.0.0.1:9"
        script = f"set -o pipefail; {sys.executable} -m switch_agent.cli {command} {shell}"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script), stdout=PIPE, stderr=PIPE, env=dict(os.environ) | {"PYTHONUNBUFFERED": ""}
        )
        _, err = await asyncio.wait_for(process.communicate(), 60)
    # `true` may live on until everything is in the pipe: then nothing has gone wrong
    assert process.returncode in ((1,) if says else (0, 1))
    assert err.decode() == says


async def test_watch_shows_registers_until_interrupted(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path
) -> None:
    """Ctrl-C ends it without a traceback."""
    server, _ = switch
    async with served(server.address, tmp_path) as (_, url):
        await wait_ready(url)
        process = await run("watch", "--url", url, "--interval", "0.05", TTY_COMPATIBLE="1", TERM="xterm")
        assert process.stdout is not None
        seen = b""
        async with asyncio.timeout(30):
            while b"sampled" not in seen or b"Ctrl-C ends it" not in seen:
                seen += await process.stdout.read(4096)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 130
        assert b"Traceback" not in err


async def test_second_agent_on_a_state_dir_is_refused(tmp_path: Path) -> None:
    """One clear line, exit code 1."""
    async with served("127.0.0.1:9", tmp_path):
        code, _, err = await output("serve", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path))
        assert code == 2
        assert err.startswith("switch-agent: state directory")
        assert err.count("\n") == 1, "it has not said that it serves"


def damaged(folder: Path, how: str) -> Path:
    """A state folder that cannot be used."""
    if how == "no folder":
        folder.write_text("a file")
        return folder
    if how == "no database":
        folder.mkdir()
        (folder / "desired.sqlite").write_bytes(b"no database at all " * 100)
        return folder
    Store(folder).close()
    with contextlib.closing(sqlite3.connect(folder / "desired.sqlite")) as database, database:
        database.execute("INSERT INTO jobs VALUES (1, '{\"name\": 3}', 1, 1, 1)")
    return folder


@pytest.mark.parametrize("how", ["no folder", "no database", "no job"])
async def test_a_state_folder_that_cannot_be_used_is_one_line_and_exit_code_2(tmp_path: Path, how: str) -> None:
    """Before anything is served or announced; systemd does not try again."""
    folder = damaged(tmp_path / "state", how)
    code, out, err = await output("serve", "--listen", "127.0.0.1:0", "--state-dir", str(folder))
    assert (code, out) == (2, "")
    assert err.startswith("switch-agent: cannot ")
    assert str(folder) in err
    assert err.count("\n") == 1


async def test_it_says_where_it_serves_when_it_does(tmp_path: Path) -> None:
    """One line of the log, with the real port."""
    process = await run("serve", "--bfrt", "127.0.0.1:9", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path))
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"agent of switch on " not in (line := await process.stderr.readline()):
                assert line, "it ended"
        url = line.decode().split("agent of switch on ")[1].strip()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{url}/healthz")).status_code == 200
    finally:
        process.terminate()
        await process.communicate()


async def test_names_are_allowed_by_option(tmp_path: Path) -> None:
    """A name under which clients ask; others stay refused."""
    async with served("127.0.0.1:9", tmp_path, "--allow-host", "tor0.lab") as (_, url), httpx.AsyncClient() as http:
        for host, status in (("tor0.lab:9401", 200), ("evil.com", 400)):
            assert (await http.get(f"{url}/api/v1/jobs", headers={"host": host})).status_code == status


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--listen", "0.0.0.0:0"), "without a token"),
        (("--listen", "nowhere"), "write host:port"),
        (("--bfrt", "50052"), "write host:port"),
        (("--ports", "0"), "--ports 0"),
        (("--client-id", "-1"), "--client-id"),
        (("--config", "/nonexistent.yaml"), "cannot read switch config"),
        (("--token-file", "/nonexistent"), "cannot read the token file"),
        (("--config", "LATIN"), "cannot read switch config"),
        (("--config", "BROKEN"), "cannot read switch config"),
        (("--token-file", "LATIN"), "holds no token"),
    ],
)
def test_mistakes_in_the_configuration_are_one_line_and_exit_code_2(
    args: tuple[str, ...], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing starts, nothing is left behind; systemd does not try again (RestartPreventExitStatus=2)."""
    files = {"LATIN": b"caf\xe9: 1\n", "BROKEN": b"red: {\n  - x: [\n"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    words = [str(tmp_path / word) if word in files else word for word in args]
    assert cli.main(["serve", "--state-dir", str(tmp_path / "state"), *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("switch-agent: ")
    assert what in err
    assert err.count("\n") == 1
    assert not (tmp_path / "state").exists()


async def test_a_switch_on_the_network_is_warned_about(tmp_path: Path) -> None:
    """BF-Runtime knows no password; the agent says so and runs."""
    async with served("192.0.2.1:50052", tmp_path) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    assert b"WARNING" in err
    assert b"192.0.2.1:50052 is not on this machine" in err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["serve"],
        ["serve", "--state-dir", "x", "--sample-interval-ms", "0"],
        ["serve", "--state-dir", "x", "--sample-interval-ms", "nan"],
        ["serve", "--state-dir", "x", "--job-ids", "5"],
        ["show", "weather"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse says what it expects."""
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    assert caught.value.code == 2
    assert "usage: switch-agent" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """As pip has it."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"switch-agent {metadata.version('symphony-testbed')}\n"


def test_commands_without_an_agent_say_where_they_looked(capsys: pytest.CaptureFixture[str]) -> None:
    """No agent: one line with the address; --debug shows the traceback."""
    assert cli.main(["show", "jobs", "--url", "http://127.0.0.1:9"]) == 1
    assert "no answer from a switch-agent at http://127.0.0.1:9" in capsys.readouterr().err
    with pytest.raises(Exception, match="no answer"):
        cli.main(["--debug", "show", "jobs", "--url", "http://127.0.0.1:9"])
    assert cli.main(["show", "jobs", "--url", "nonsense"]) == 2


def test_doctor_without_agent_and_switch_fails_with_fixes(capsys: pytest.CaptureFixture[str]) -> None:
    """Both are reported, with what to do."""
    assert cli.main(["doctor", "--json", "--url", "http://127.0.0.1:9", "--bfrt", "127.0.0.1:9"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["id"] for finding in report["findings"]] == ["agent.answers", "switch.answers"]
    assert all(finding["fix"] for finding in report["findings"])
