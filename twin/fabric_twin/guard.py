# SPDX-License-Identifier: Apache-2.0
"""What every REST request has to pass: it is meant for this machine, and its body is small enough.

A web page may let its own name resolve to 127.0.0.1 (DNS rebinding) and then read and change the twin by the user's
browser. The request still carries the page's name as its Host, which gives it away.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MAX_BODY_BYTES", "Guard"]

MAX_BODY_BYTES = 64 << 10


class Guard:
    """ASGI middleware: 400 for a Host that is no loopback name or address, 413 for a body beyond `MAX_BODY_BYTES`.

    A body is counted as it comes, so one without a length or with a wrong one is cut off as well.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        for given in headers.getlist("host"):
            if not _is_loopback(given):
                detail = f"this twin is not {given[:200]!r}: ask for 127.0.0.1 or localhost"
                await JSONResponse({"detail": detail, "code": "unknown_host"}, 400)(scope, receive, send)
                return
        length = headers.get("content-length", "")
        announced = int(length) if length.isdecimal() else 0
        too_large = HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            if announced > MAX_BODY_BYTES:
                raise too_large
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MAX_BODY_BYTES:
                raise too_large
            return message

        await self._app(scope, counted, send)


def _is_loopback(header: str) -> bool:
    """Whether `host`, `host:port` or `[v6]:port` is this machine and nothing else."""
    host, colon, port = header.strip().rpartition(":")
    if not colon or not port.isdecimal():
        host = header.strip()
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
