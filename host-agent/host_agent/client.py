# SPDX-License-Identifier: Apache-2.0
"""One request to a running host-agent, for the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from host_agent.auth import load_token
from host_agent.errors import BadInputError, HostAgentError
from symphony_common.addresses import checked_url

__all__ = ["RequestError", "call"]


class RequestError(HostAgentError):
    """The service said no (its own words are in the detail), or there is none."""


def call(server: str, token_file: Path | None, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Make a request and give what its JSON says. Raises RequestError, BadInputError."""
    try:
        checked_url(server)
    except ValueError as error:
        raise BadInputError(f"--server: {error}") from None
    token = load_token(token_file)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.request(method, server.rstrip("/") + path, json=body, headers=headers, timeout=60)
    except httpx.HTTPError as error:
        raise RequestError(f"no host-agent answers at {server}: {error}; start `host-agent serve`") from error
    content = answer.json() if answer.content and "json" in answer.headers.get("content-type", "") else None
    if answer.is_error:
        detail = content.get("detail") if isinstance(content, dict) else answer.text[:200]
        raise RequestError(f"{method} {path}: {answer.status_code}: {detail}")
    return content
