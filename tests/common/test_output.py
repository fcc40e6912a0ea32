# SPDX-License-Identifier: Apache-2.0
"""Files are whole or not there, and standard output that cannot be written is one line, not a traceback."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from symphony_common.output import write_file

PROGRAM = """
import sys
from symphony_common.output import with_stdout_checked
def command():
    print("text")
    return 7
sys.exit(with_stdout_checked("program", command))
"""


def test_a_file_is_replaced_as_a_whole_behind_its_links(tmp_path: Path) -> None:
    """Whoever reads the old one goes on reading it; links stay links, permissions stay as they were."""
    file, link, before = tmp_path / "testbed.yaml", tmp_path / "link", tmp_path / "before"
    file.write_text("old")
    file.chmod(0o640)
    before.hardlink_to(file)
    link.symlink_to(file)
    write_file(link, b"new")
    assert (file.read_text(), before.read_text()) == ("new", "old")
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "link", "testbed.yaml"]


def test_what_is_no_regular_file_is_written_in_place(tmp_path: Path) -> None:
    """A pipe gets the text; a device that takes none is an error, and both are still there."""
    pipe, device = tmp_path / "pipe", tmp_path / "device"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, b"text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    device.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        write_file(device, b"text")
    assert pipe.is_fifo()
    assert device.is_char_device()


def test_a_full_disk_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is given up as a whole."""
    file = tmp_path / "testbed.yaml"
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_file(file, b"new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("device", "status", "words"),
    [("/dev/null", 7, ""), ("/dev/full", 1, "program: cannot write to standard output: No space left on device\n")],
)
def test_standard_output_that_is_full_is_one_line(device: str, status: int, words: str) -> None:
    """And status 1, whatever the command would have given."""
    with open(device, "w") as out:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (status, words)


def test_a_closed_standard_output_is_no_word() -> None:
    """Whoever closed it has seen enough."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_what_the_encoding_of_the_terminal_lacks_is_written_out() -> None:
    """Not a traceback, and not lost."""
    program = PROGRAM.replace('"text"', '"h\\u2192"')
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (7, "h\\u2192\n", "")
