# SPDX-License-Identifier: Apache-2.0
"""Result files: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from switch_agent.replay.errors import OutputError

__all__ = ["write_file"]


def write_file(what: str, path: Path, content: bytes) -> None:
    """Write a file beside ``path`` and rename it over the old one; links are followed.

    What is there and no regular file (a pipe, ``/dev/stdout``, a device) is opened and written as it is.

    Raises:
        OutputError: it cannot be written; an old file is untouched. The text names ``what`` and the path.
    """
    try:
        mode = _mode_of(path)
        if mode is not None and not stat.S_ISREG(mode):
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content, mode)
    except OSError as error:
        raise OutputError(f"cannot write the {what} {path}: {error.strerror or error}") from error


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    """Rename a new file over ``path``, with the old one's permissions (None: there is none, the umask decides)."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with new.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
