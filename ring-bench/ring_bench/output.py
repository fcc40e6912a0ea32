# SPDX-License-Identifier: Apache-2.0
"""Where results go: lines on the terminal, and files that are whole or not there at all."""

from __future__ import annotations

import os
from pathlib import Path

from ring_bench.errors import OutputError, ResultWriteError, UsageError
from symphony_common.output import drop_stdout, write_file

__all__ = ["check_writable", "say", "write_result_file"]


def say(text: str) -> None:
    """Print a line on standard output, at once.

    Raises:
        OutputError: Nobody reads it any more (``| head``), or the disk is full; later lines go nowhere.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        drop_stdout()
        raise OutputError(f"standard output could not be written: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """See that a file can be written, before it takes hours to get to its content.

    Raises:
        UsageError: It cannot: no such folder, no right to write there, or a folder itself.
    """
    folder = path.resolve().parent
    in_place = path.exists() and not path.is_file()  # a pipe or device; a file gets another in its place
    if path.is_dir():
        reason = "is a folder"
    elif not in_place and not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(path if in_place else folder, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise UsageError(f"{str(path)!r} cannot be written: {reason}")


def write_result_file(path: Path, text: str) -> None:
    """Write a file whole or not at all (see `symphony_common.output.write_file`).

    Raises:
        ResultWriteError: The folder is missing or not writable, the disk is full. An old file is untouched.
    """
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise ResultWriteError(
            f"the result could not be written to {path}: {error.strerror or error}; "
            "the table above stands, give -J another place"
        ) from error
