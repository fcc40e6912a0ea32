# SPDX-License-Identifier: Apache-2.0
"""Where results go: lines on the terminal, and files that are whole or not there at all."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from ring_bench.errors import OutputError, ResultWriteError, UsageError

__all__ = ["check_writable", "say", "write_file"]


def say(text: str) -> None:
    """Print a line on standard output, at once.

    Raises:
        OutputError: Nobody reads it any more (``| head``), or the disk is full; later lines go nowhere.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer would fail once more when Python flushes it at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise OutputError(f"standard output could not be written: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """See that a file can be written, before it takes hours to get to its content.

    Raises:
        UsageError: It cannot: no such folder, no right to write there, or a folder itself.
    """
    target = _target(path)
    if target.is_dir():
        reason = "is a folder"
    elif not target.parent.is_dir():
        reason = f"there is no folder {target.parent}"
    elif not os.access(target if _in_place(target) else target.parent, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise UsageError(f"{str(path)!r} cannot be written: {reason}")


def write_file(path: Path, text: str) -> None:
    """Write a file: a temporary one beside it, to disk, then renamed over the old one; links are followed.

    What is no regular file, such as a pipe or ``/dev/stdout``, is written as it is.

    Raises:
        ResultWriteError: The folder is missing or not writable, the disk is full. An old file is untouched.
    """
    target = _target(path)
    temporary: str | None = None
    try:
        if _in_place(target):
            with target.open("w", encoding="utf-8") as file:
                file.write(text)
            return
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise ResultWriteError(
            f"the result could not be written to {path}: {error.strerror or error}; "
            "the table above stands, give -J another place"
        ) from error


def _target(path: Path) -> Path:
    """Follow links, but not those of the kernel that lead to no path: /dev/stdout may be a pipe."""
    return path if _in_place(path) else Path(os.path.realpath(path))


def _in_place(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
