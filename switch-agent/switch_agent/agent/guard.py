# SPDX-License-Identifier: Apache-2.0
"""What every request has to pass: it names a host that is ours, and its body is small enough.

A web page may let its own name resolve to this machine's address (DNS rebinding); the browser then lets it read what
the agent answers and send it changes. The request still carries the page's name as its Host, which gives it away.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Container, Iterable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switch_agent.agent.address import is_loopback

__all__ = ["MAX_BODY_BYTES", "Guard", "KnownHosts"]

MAX_BODY_BYTES = 1 << 20
"""The largest job, 2048 IPv6 flows, has about 250 KB."""


class KnownHosts:
    """Hosts that requests may name: localhost, loopback addresses, where the agent listens, and what is configured.

    An agent that listens on all addresses is reached by any of them, and by the machine's name.
    """

    def __init__(self, listen: str = "127.0.0.1", names: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in (listen, *names)}
        if not is_loopback(listen):
            self._names.add(socket.gethostname().lower())
        self._any_address = listen in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    def __contains__(self, host: object) -> bool:
        if host in self._names or is_loopback(str(host)):
            return True
        return self._any_address and _is_address(str(host))


class Guard:
    """ASGI middleware: 400 for the Host of somebody else, 413 for a body that grows beyond ``max_body`` bytes.

    A body is counted as it comes, so one without a length or with a wrong one is cut off as well.
    """

    def __init__(self, app: ASGIApp, hosts: Container[str], max_body: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._hosts = hosts
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        for given in headers.getlist("host"):
            if _host_of(given) not in self._hosts:
                detail = f"this agent is not {given[:200]!r}: use its address, or start it with --allow-host NAME"
                answer = JSONResponse({"status": 400, "code": "unknown_host", "detail": detail}, 400)
                await answer(scope, receive, send)
                return
        length = headers.get("content-length", "")
        announced = int(length) if length.isdecimal() else 0
        too_large = HTTPException(413, f"the body is larger than {self._max_body} bytes")
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            if announced > self._max_body:
                raise too_large
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_body:
                raise too_large
            return message

        await self._app(scope, counted, send)


def _host_of(header: str) -> str:
    """The host in ``host``, ``host:port`` or ``[v6]:port``."""
    host, colon, port = header.strip().rpartition(":")
    if not colon or not port.isdecimal():
        host = header.strip()
    return host.strip("[]").rstrip(".").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
