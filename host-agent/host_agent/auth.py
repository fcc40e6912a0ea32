# SPDX-License-Identifier: Apache-2.0
"""The bearer token: when one is needed, and comparing it without telling how much of it was right."""

from __future__ import annotations

import hmac
from pathlib import Path

from host_agent.errors import BadInputError, UnauthorizedError
from symphony_common.tokens import read_token

__all__ = ["TOKEN_VARIABLE", "TokenGate", "bearer", "load_token"]

TOKEN_VARIABLE = "HOST_AGENT_TOKEN"  # noqa: S105  (a variable's name, no secret)


def load_token(path: Path | None, variable: str = TOKEN_VARIABLE) -> str | None:
    """The token of a file, else of an environment variable, else none. Raises BadInputError for an unusable one."""
    try:
        return read_token(path, variable)
    except ValueError as error:
        raise BadInputError(str(error)) from error


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
