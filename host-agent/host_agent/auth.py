# SPDX-License-Identifier: Apache-2.0
"""The bearer token: when one is needed, and comparing it without telling how much of it was right."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from host_agent.errors import BadInputError, UnauthorizedError

__all__ = ["TOKEN_VARIABLE", "TokenGate", "bearer", "checked_token", "load_token", "read_token"]

TOKEN_VARIABLE = "HOST_AGENT_TOKEN"  # noqa: S105  (a variable's name, no secret)


def load_token(path: Path | None) -> str | None:
    """The token of --token-file, else of $HOST_AGENT_TOKEN, else none. Raises BadInputError for an unusable one."""
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        return checked_token(token, f"the environment variable {TOKEN_VARIABLE}") if token else None
    token = read_token(path)
    if len(token) < 16:
        raise BadInputError(f"the token in {path} is shorter than 16 characters; make one with `openssl rand -hex 16`")
    return token


def read_token(path: Path) -> str:
    """The token in a file; blanks and line ends around it do not count. Raises BadInputError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise BadInputError(f"cannot read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        token = ""  # what cannot be read is nothing that could be shown, either
    return checked_token(token, str(path))


def checked_token(token: str, where: str) -> str:
    """The token, if a header can carry it: one line of printable ASCII. Raises BadInputError without it."""
    if not token or not all(" " <= letter <= "~" for letter in token):
        raise BadInputError(
            f"{where} holds no token: that is one line of printable ASCII, as `openssl rand -hex 16` makes it"
        )
    return token


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header, if it has one."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


class TokenGate:
    """Lets state changes through: always without a token set, else only with that token."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    @property
    def needed(self) -> bool:
        """State changes need a token."""
        return self._token is not None

    def check(self, given: str | None) -> None:
        """Raises UnauthorizedError unless `given` is the token, or none is needed."""
        if self._token is None:
            return
        if given is None:
            raise UnauthorizedError("this needs host-agent's token: send the header `Authorization: Bearer <token>`")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise UnauthorizedError("the token is wrong; host-agent's is in its --token-file")
