# SPDX-License-Identifier: Apache-2.0
"""Addresses as users write them."""

from __future__ import annotations

from switch_agent.errors import ConfigError
from symphony_common import addresses

__all__ = ["split_address"]


def split_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``. Raises ConfigError that says what is wrong."""
    try:
        return addresses.split_address(text)
    except ValueError as error:
        raise ConfigError(f"{error}: write host:port, e.g. 127.0.0.1:9401") from None
