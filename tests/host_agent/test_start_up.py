# SPDX-License-Identifier: Apache-2.0
"""What `host-agent serve` checks before it begins: state folder, programs, files, tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from host_agent.cli import main
from host_agent.errors import StorageError
from host_agent.store import Store, default_state_dir

TESTBED = """
name: lab
switches: [{name: tor0, url: "http://127.0.0.1:9"}]
hosts: [{name: h0, address: 10.0.0.1, switch: tor0}]
"""


@pytest.fixture
def serve(tmp_path: Path) -> list[str]:
    """A command line that would start."""
    (tmp_path / "testbed.yaml").write_text(TESTBED)
    state = str(tmp_path / "state")
    return ["serve", "--testbed", str(tmp_path / "testbed.yaml"), "--state-dir", state, "--listen", "127.0.0.1:0"]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr."""
    error = capsys.readouterr().err
    assert error.startswith("host-agent: ")
    assert error.count("\n") == 1, error
    return error


def test_a_state_folder_serves_one_service(
    serve: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second one would take the first one's benchmarks for leftovers and end them."""
    with Store(tmp_path / "state").claimed():
        assert main(serve) == 2
    assert "in use by another host-agent" in one_line(capsys)


def test_the_default_state_folder_is_locked_as_well(
    serve: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two services of one user, on different ports and without --state-dir."""
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Store(default_state_dir()).claimed():
        assert main([*serve[:3], *serve[5:]]) == 2
    assert str(tmp_path / "symphony") in one_line(capsys)


def test_a_claim_ends_with_its_process_and_is_not_inherited(tmp_path: Path) -> None:
    """A killed host-agent's folder is free, though a benchmark that it started may live on."""
    code = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from host_agent.store import Store\n"
        "with Store(Path(sys.argv[1])).claimed():\n"
        "    child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "    print(child.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, check=False)
    try:
        with Store(tmp_path).claimed():
            pass
    finally:
        os.kill(int(done.stdout), 9)


@pytest.mark.parametrize(
    "content", [b"secret-secret-1\nline2\n", b"secret-secret-1\xe4\n", b"secret-\x01secret-123\n", b"\n"]
)
def test_a_token_file_that_holds_no_token_is_refused_by_both_sides(
    serve: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes
) -> None:
    """More than one line, or what no header can carry; the line shows nothing of it."""
    (tmp_path / "token").write_bytes(content)
    token = ["--token-file", str(tmp_path / "token")]
    for arguments in (
        [*serve, *token],
        ["jobs", *token, "stop", "1"],
        ["nics", "--server", "http://127.0.0.1:9", *token, "show"],
    ):
        assert main(arguments) == 2
        error = one_line(capsys)
        assert str(tmp_path / "token") in error
        assert "secret" not in error


@pytest.mark.parametrize("token", ["b\udce4d-b\udce4d-b\udce4d-b\udce4d", "two\nlines-and-more", "b\u00e4d"])
def test_an_unusable_token_of_the_environment_is_refused_by_both_sides(
    serve: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """Bytes that are no ASCII arrive as surrogates."""
    monkeypatch.setenv("HOST_AGENT_TOKEN", token)
    for arguments in (serve, ["jobs", "stop", "1"]):
        assert main(arguments) == 2
        assert "HOST_AGENT_TOKEN holds no token" in one_line(capsys)


def test_an_unusable_token_of_a_switch_is_refused_at_start(
    serve: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each answer about that switch would show it as an illegal header."""
    (tmp_path / "token").write_text("secret-secret-1\nline2\n")
    text = TESTBED.replace('127.0.0.1:9"', f'127.0.0.1:9", token_file: {tmp_path}/token')
    (tmp_path / "testbed.yaml").write_text(text)
    assert main(serve) == 2
    assert "secret" not in one_line(capsys)
    (tmp_path / "testbed.yaml").write_text(TESTBED)
    monkeypatch.setenv("SWITCH_AGENT_TOKEN", "secret\nsecret")
    assert main(serve) == 2
    assert "SWITCH_AGENT_TOKEN holds no token" in one_line(capsys)


def test_files_that_are_no_text_are_refused_in_one_line(
    serve: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A testbed and a wish list."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"nics: [\xff\xfe]")
    for arguments in ([*serve, "--testbed", str(binary)], ["nics", "--state-dir", str(tmp_path), "plan", str(binary)]):
        assert main(arguments) == 2
        assert f"{binary} is no UTF-8 text: byte 7" in one_line(capsys)


def test_a_senseless_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever httpx says of it."""
    assert main(["jobs", "--server", "http://[", "list"]) == 2
    one_line(capsys)


@pytest.mark.parametrize(("folder", "reason"), [("/proc/x", "No such file"), ("/dev/null", "File exists")])
def test_an_unusable_state_folder_is_refused_at_start(
    serve: list[str], capsys: pytest.CaptureFixture[str], folder: str, reason: str
) -> None:
    """Not by the first job's 507; and the advice is not to free space."""
    assert main([*serve, "--state-dir", folder]) == 2
    error = one_line(capsys)
    assert folder in error
    assert reason in error or "Not a directory" in error
    assert "free some space" not in error


def test_a_state_folder_that_cannot_be_written_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a HOME of somebody else. (Root may write everywhere, so the kernel's answer is given here.)"""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError, match="Permission denied"), Store(tmp_path).claimed():
        pass


def test_a_user_without_home_is_told_to_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Path.home()` knows none."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(StorageError, match="--state-dir"):
        default_state_dir()


def test_a_benchmark_that_cannot_be_executed_is_refused_at_start(
    serve: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Missing, or without the executable bit."""
    (tmp_path / "text").write_text("no program")
    for program in ("/nope", str(tmp_path / "text")):
        assert main([*serve, "--ring-bench", program]) == 2
        assert f"--ring-bench {program}" in one_line(capsys)
