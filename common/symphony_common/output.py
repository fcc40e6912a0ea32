# SPDX-License-Identifier: Apache-2.0
"""Standard output may be closed or full, and a file's reader must never see half of it."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["drop_stdout", "with_any_text", "with_stdout_checked", "write_file"]


def with_any_text() -> None:
    """Have standard output show what its encoding (LC_ALL, PYTHONIOENCODING) cannot hold as ``\\u2192``, not fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def with_stdout_checked(program: str, command: Callable[[], int]) -> int:
    """Run a command that prints; gives its exit status, or 1 when standard output cannot be written.

    Whoever closes our standard output (head, less) has seen enough: not a word then. Otherwise, one line on stderr.

    Args:
        program: Name for that line.
        command: Has errors of its own for all else that it reads and writes.
    """
    with_any_text()
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where an error can be told, not when Python ends
    except OSError as error:
        drop_stdout()
        if not isinstance(error, BrokenPipeError):
            print(f"{program}: cannot write to standard output: {error.strerror or error}", file=sys.stderr)
        return 1


def drop_stdout() -> None:
    """Let what is still in the buffer, and all that follows, go nowhere: it would fail once more when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def write_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file beside ``path`` and rename it over the old one, whose permissions it keeps; links are followed.

    With ``sync`` it is on the disk before that, so that a power cut leaves the old or the new one. That takes
    milliseconds or more, in which an event loop stands.

    What is there and no regular file (a pipe, ``/dev/stdout``, a device) is opened and written as it is.

    Raises:
        OSError: It cannot be written; an old file is untouched.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        path.write_bytes(content)
    else:
        _replace(path.resolve(), content, mode, sync)


def _replace(path: Path, content: bytes, mode: int | None, sync: bool) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with new.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
