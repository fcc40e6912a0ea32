# SPDX-License-Identifier: Apache-2.0
"""Addresses as users write them."""

from __future__ import annotations

from switch_agent.errors import ConfigError

__all__ = ["split_address"]


def split_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``. Raises ConfigError that says what is wrong."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address: write host:port, e.g. 127.0.0.1:9401")
    return host, int(port)
