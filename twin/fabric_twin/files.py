# SPDX-License-Identifier: Apache-2.0
"""Files that others read while we write: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from fabric_twin.errors import ConfigError

__all__ = ["write_file"]


def write_file(path: Path, text: str) -> None:
    """Write a file beside `path` and rename it over the old one; links are followed.

    What is there and no regular file (a pipe, `/dev/stdout`, a device) is opened and written as it is.

    Raises:
        ConfigError: it cannot be written; an old file is untouched.
    """
    try:
        mode = _mode_of(path)
        if mode is not None and not stat.S_ISREG(mode):
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path.resolve(), text, mode)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str, mode: int | None) -> None:
    """Rename a new file over `path`, with the old one's permissions (None: there is none, the umask decides)."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with new.open("x", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
