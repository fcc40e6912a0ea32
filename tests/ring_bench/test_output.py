# SPDX-License-Identifier: Apache-2.0
"""Files and standard output that cannot be written are said in one line, and nothing is destroyed by writing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ring_bench.cli import main
from ring_bench.errors import UsageError
from ring_bench.output import check_writable

SHORT = ["--provider", "loopback", "--world", "2", "-b", "1K", "-n", "1"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [("no/r.json", "there is no folder"), ("", "is a folder"), ("file/r.json", "there is no folder")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: str, reason: str
) -> None:
    """The table of a run of hours would be all that is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as left:
        main([*SHORT, "-J", path])
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err


def test_a_folder_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, who runs the tests in CI, may write everywhere: the kernel's answer is made up."""
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    with pytest.raises(UsageError, match="permission denied"):
        check_writable(tmp_path / "r.json")


@pytest.mark.parametrize("arguments", [SHORT, ["--print-schema"], ["flows", "--provider", "loopback", "--size", "4K"]])
def test_standard_output_that_is_full_is_one_line_and_status_1(arguments: list[str]) -> None:
    """No traceback, and none at exit either."""
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "ring_bench", *arguments], stdout=full, stderr=-1, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("ring-bench")
    assert line.endswith("standard output could not be written: No space left on device")


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_doctor_on_a_full_disk_is_one_line_and_status_1(options: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ring_bench", "doctor", "--only", "memlock", *options],
            stdout=full,
            stderr=-1,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert done.stderr == "ring-bench: cannot write to standard output: No space left on device\n"


def test_a_reader_that_leaves_ends_the_run_with_one_line() -> None:
    """As in ``ring-bench ... | head -1``."""
    rows = ["--world", "2", "-b", "4", "-e", "20K", "-i", "4", "-n", "1"]  # 5,120 of them
    command = [sys.executable, "-m", "ring_bench", "--provider", "loopback", *rows]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("# ring-bench")
        process.stdout.close()
        assert process.stderr.read().splitlines() == ["ring-bench: standard output could not be written: Broken pipe"]
    assert process.returncode == 1
