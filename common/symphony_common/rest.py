# SPDX-License-Identifier: Apache-2.0
"""What every REST request has to pass: it names a host that is ours, its body is small enough, and JSON.

A web page may let its own name resolve to this machine's address (DNS rebinding); the browser then lets it read what
a service answers and send it changes. The request still carries the page's name as its Host, which gives it away.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Callable, Container, Coroutine, Iterable
from typing import Any

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BodyLimit", "HostCheck", "JsonRoute", "KnownHosts", "UnknownHost", "UnreadableBody", "is_loopback"]

Answer = Callable[[HTTPException], Response]
"""Gives a refusal the form that the service's errors have."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class UnknownHost(HTTPException):
    """400: the request is for somebody else. Only this 400 is; the framework has others."""


class UnreadableBody(HTTPException):
    """422: the body is no JSON that can be read."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``; names other than localhost count as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class KnownHosts:
    """Hosts that requests may name: localhost, loopback addresses, where the service listens, and what is configured.

    A service that listens on all addresses is reached by any of them, and by the machine's name.
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


class HostCheck:
    """ASGI middleware: 400 for the Host of somebody else.

    Args:
        app: What is asked.
        hosts: Names and addresses that are ours.
        answer: Makes the refusal.
        advice: What the user can do about it.
    """

    def __init__(self, app: ASGIApp, hosts: Container[str], answer: Answer, advice: str) -> None:
        self._app = app
        self._hosts = hosts
        self._answer = answer
        self._advice = advice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        given = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        for header in given:
            if _host_of(header) not in self._hosts:
                refusal = UnknownHost(400, f"this service is not {header[:200]!r}: {self._advice}")
                await self._answer(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """ASGI middleware: 413 for a body beyond ``most`` bytes, by the length it announces, else while it comes in.

    So one without a length, or with a wrong one, is cut off as well. Of a body that grows too large the application
    is told by an HTTPException when it reads: FastAPI lets no other kind through there.
    """

    def __init__(self, app: ASGIApp, most: int, answer: Answer) -> None:
        self._app = app
        self._most = most
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = HTTPException(413, f"the request body is larger than {self._most} bytes, which is the most")
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._most:
            await self._answer(too_large)(scope, receive, send)
            return
        came = 0

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._most:
                raise too_large
            return message

        await self._app(scope, counted, send)


class JsonRoute(APIRoute):
    """Reads bodies such that each that is no JSON is an `UnreadableBody`. Set it as ``app.router.route_class``.

    FastAPI by itself knows malformed JSON only: bytes that are no UTF-8, nesting without end and numbers of thousands
    of digits become a 400 without a reason, and half a surrogate pair fails when it is to be written or sent.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Give the route's handler another request to read from."""
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return read_strictly


class _JsonRequest(Request):
    async def json(self) -> Any:
        try:
            content = await super().json()
            if _SURROGATE.search(await self.body()):
                json.dumps(content, ensure_ascii=False).encode()
        except json.JSONDecodeError:  # FastAPI says where
            raise
        except UnicodeError as error:
            raise UnreadableBody(422, f"body: no text: {error}"[:200]) from error
        except RecursionError as error:
            raise UnreadableBody(422, "body: nested too deeply") from error
        except ValueError as error:
            raise UnreadableBody(422, f"body: {error}".partition(";")[0][:200]) from error
        return content


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
