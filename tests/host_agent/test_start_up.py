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
