# SPDX-License-Identifier: Apache-2.0
"""Bearer tokens: what one is, and where it comes from. The same rule for every program, server and client."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SHORTEST", "checked_token", "read_token"]

SHORTEST = 16
"""Characters of a token that nobody guesses."""
_MAKE = "`openssl rand -hex 16` makes one"


def read_token(path: Path | None, variable: str) -> str | None:
    """Give the token in a file; without a file that of an environment variable; None where that is unset or blank.

    Raises:
        ValueError: The file cannot be read, or what is there is no token (see `checked_token`); says which.
    """
    if path is None:
        text = os.environ.get(variable, "")
        return checked_token(text, f"the environment variable {variable}") if text.strip() else None
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ValueError(f"cannot read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        text = ""  # what cannot be read is nothing that could be shown, either
    return checked_token(text, f"the token file {path}")


def checked_token(text: str, where: str) -> str:
    """Give the token in a text: one line of printable ASCII, `SHORTEST` characters or more, without blanks around it.

    Raises:
        ValueError: There is none. The message names ``where``, and shows nothing of the text.
    """
    token = text.strip()
    if not token or not all(" " <= letter <= "~" for letter in token):
        raise ValueError(f"{where} holds no token: that is one line of printable ASCII; {_MAKE}")
    if len(token) < SHORTEST:
        raise ValueError(f"the token in {where} is shorter than {SHORTEST} characters; {_MAKE}")
    return token
