# SPDX-License-Identifier: Apache-2.0
"""Addresses and tokens as users give them; what cannot be used is a ConfigError that says what is wrong."""

from __future__ import annotations

from pathlib import Path

from switch_agent.errors import ConfigError
from symphony_common import addresses, tokens

__all__ = ["checked_url", "read_token", "split_address"]


def split_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``."""
    try:
        return addresses.split_address(text)
    except ValueError as error:
        raise ConfigError(f"{error}: write host:port, e.g. 127.0.0.1:9401") from None


def checked_url(text: str) -> str:
    """Give the agent's address of ``--url`` back."""
    try:
        return addresses.checked_url(text)
    except ValueError as error:
        raise ConfigError(f"--url: {error}") from None


def read_token(path: Path | None) -> str | None:
    """Give the token of ``--token-file``, else of SWITCH_AGENT_TOKEN, else None."""
    try:
        return tokens.read_token(path, "SWITCH_AGENT_TOKEN")
    except ValueError as error:
        raise ConfigError(str(error)) from error
