# SPDX-License-Identifier: Apache-2.0
"""Numbers, hosts and addresses as users write them: options, environment, configuration.

``str.isdigit`` holds for "²", which ``int`` refuses, and ``int`` takes "1_0" and digits of other scripts; a host name
with an empty or over-long label ends a look-up with UnicodeError, not OSError. So what comes from outside passes here.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = ["checked_host", "checked_url", "split_address", "whole"]

_LONGEST_NUMBER = 18
"""Digits: below 2^63, and far below what Python refuses to convert."""
_LONGEST_NAME = 253
_LONGEST_LABEL = 63
_NAME = re.compile(r"[A-Za-z0-9_.:%@+~-]+")
"""Host names, network and RDMA devices, IP addresses with their scope."""


def whole(text: str) -> int | None:
    """The number that 1 to 18 ASCII digits stand for; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER else None


def checked_host(text: str) -> str:
    """Give a name or IP address back, if it can be one.

    Raises:
        ValueError: It can be none (RFC 1123, 2.1: labels of 1 to 63 characters, 253 in all); says why.
    """
    labels = text.removesuffix(".").split(".")
    if _NAME.fullmatch(text) is None:
        reason = "it is empty" if not text else "it has characters that no host name or address has"
    elif not all(labels):
        reason = "a label is empty"
    elif len(text) > _LONGEST_NAME or any(len(label) > _LONGEST_LABEL for label in labels):
        reason = f"labels have at most {_LONGEST_LABEL} characters, names {_LONGEST_NAME}"
    else:
        return text
    raise ValueError(f"{text[:300]!r} is no host name: {reason}")


def split_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``; without a port, ``default_port`` if there is one.

    Raises:
        ValueError: It is no such thing; says why.
    """
    host, colon, port = text.rpartition(":")
    if default_port is not None and (not colon or text.endswith("]")):
        host, port = text, str(default_port)
    number = whole(port)
    if not host or number is None or number > 0xFFFF:
        raise ValueError(f"{text[:300]!r} is no HOST:PORT")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError(f"{text[:300]!r} is no HOST:PORT: an IPv6 address stands in brackets, as in [::1]:{port}")
    return checked_host(host[1:-1] if bracketed else host), number


def checked_url(text: str) -> str:
    """Give the address of an HTTP service back, if it can be one.

    Raises:
        ValueError: It can be none; says why.
    """
    parts = urlsplit(text)  # raises ValueError itself for brackets that are open
    if parts.scheme not in ("http", "https") or not parts.netloc or not text.isascii() or " " in text:
        raise ValueError(f"{text[:300]!r} is no http:// or https:// address")
    split_address(parts.netloc.rpartition("@")[2], default_port=80)
    return text
