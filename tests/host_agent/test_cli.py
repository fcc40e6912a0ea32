# SPDX-License-Identifier: Apache-2.0
"""The command line: refusals, the served program as a process, and the thin client against it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from host_agent.cli import main

TESTBED = """
name: lab
switches: [{name: tor0, url: "http://127.0.0.1:9"}]
hosts: [{name: h0, address: 10.0.0.1, switch: tor0}]
"""


@pytest.fixture
def testbed_file(tmp_path: Path) -> Path:
    """One host on a switch whose agent nobody runs."""
    path = tmp_path / "testbed.yaml"
    path.write_text(TESTBED)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "--token-file"),
        (["--listen", "9400"], "HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "HOST:PORT"),
        (["--token-file", "/nonexistent"], "/nonexistent"),
        (["--testbed", "/nonexistent.yaml"], "/nonexistent.yaml"),
    ],
)
def test_serve_refuses_what_cannot_work(
    capsys: pytest.CaptureFixture[str], testbed_file: Path, arguments: list[str], words: str
) -> None:
    """Exit code 2, one line on stderr that names the cause."""
    assert main(["serve", "--testbed", str(testbed_file), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("host-agent: ")
    assert words in error
    assert error.count("\n") == 1


def test_a_short_token_is_refused(capsys: pytest.CaptureFixture[str], testbed_file: Path, tmp_path: Path) -> None:
    """Guessable tokens are not accepted; the line says how to make a good one."""
    token = tmp_path / "token"
    token.write_text("1234\n")
    assert main(["serve", "--testbed", str(testbed_file), "--token-file", str(token)]) == 2
    assert "openssl rand" in capsys.readouterr().err


def test_more_than_one_worker_is_refused(
    capsys: pytest.CaptureFixture[str], testbed_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State lives in one process."""
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    assert main(["serve", "--testbed", str(testbed_file)]) == 2
    assert "WEB_CONCURRENCY" in capsys.readouterr().err


def test_an_occupied_port_is_named(capsys: pytest.CaptureFixture[str], testbed_file: Path) -> None:
    """Which address, and what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--testbed", str(testbed_file), "--listen", f"127.0.0.1:{port}"]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_the_client_says_when_no_service_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1."""
    assert main(["jobs", "--server", "http://127.0.0.1:9", "list"]) == 1
    assert "host-agent serve" in capsys.readouterr().err


def run_into(output: object, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The command as a process, with its output going elsewhere."""
    command = [sys.executable, "-m", "host_agent", *arguments]
    environment = {**_environment(), "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=environment, check=False)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["nics", "--json", "show"]])
def test_a_full_disk_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    """Exit code 1, whichever command has something to say."""
    with Path("/dev/full").open("wb") as full:
        done = run_into(full, *arguments)
    assert done.returncode == 1
    assert done.stderr == b"host-agent: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("arguments", [["--version"], ["nics", "--json", "show"]])
def test_a_reader_who_has_seen_enough_is_no_error_message(arguments: list[str]) -> None:
    """As with `| head`: nothing on stderr."""
    read, write = os.pipe()
    os.close(read)
    done = run_into(write, *arguments)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """That of the installed package."""
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"host-agent {metadata.version('symphony-testbed')}\n"


@pytest.fixture
def served(tmp_path: Path, testbed_file: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`host-agent serve` as a process, with a token; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "token").write_text("correct horse battery\n")
    command = [sys.executable, "-m", "host_agent", "serve", "--listen", f"127.0.0.1:{port}"]
    command += ["--testbed", str(testbed_file), "--token-file", str(tmp_path / "token")]
    command += ["--state-dir", str(tmp_path / "state")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment())
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process)
        yield url, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _environment() -> dict[str, str]:
    """This environment without what pytest put into it for NiceGUI."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("NICEGUI", "PYTEST"))}


def _wait_for(url: str, process: subprocess.Popen[bytes], timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0].decode()
        try:
            httpx.get(f"{url}/healthz", timeout=1)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("host-agent serve did not come up")


def test_the_served_program(
    served: tuple[str, subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Page, metrics and API answer; the client works; SIGTERM ends it cleanly and soon, an open stream or
    not.
    """
    url, process = served
    page = httpx.get(url)
    assert page.status_code == 200
    assert "Symphony testbed" in page.text
    assert "http://" not in page.text.replace(url, "").replace("http://www.w3.org", "")
    assert httpx.get(f"{url}/metrics").status_code == 200
    missing = httpx.get(f"{url}/api/v1/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert httpx.put(f"{url}/api/v1/jobs").status_code == httpx.post(f"{url}/metrics").status_code == 405

    client = ["jobs", "--server", url]
    assert main([*client, "list"]) == 0
    assert "symphony" in capsys.readouterr().out
    assert main([*client, "start", "j", "--register-only"]) == 1
    assert "401" in capsys.readouterr().err
    assert main([*client, "--token-file", str(tmp_path / "token"), "start", "j", "--register-only"]) == 1
    assert "503" in (error := capsys.readouterr().err)
    assert "tor0" in error
    assert main([*client, "show", "5"]) == 1
    assert "404" in capsys.readouterr().err

    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=20)[0].decode()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert "correct horse" not in output
