# SPDX-License-Identifier: Apache-2.0
"""``switch-agent serve``: the process around an agent: address, token, signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from switch_agent.agent.address import is_loopback, split_address
from switch_agent.agent.rest import build_app
from switch_agent.agent.service import Agent, AgentOptions
from switch_agent.errors import ConfigError

__all__ = ["listen", "read_token", "serve"]

_GRACE_S = 3


def read_token(path: Path | None) -> str | None:
    """Return the token from ``--token-file``, else from SWITCH_AGENT_TOKEN, else None."""
    if path is None:
        return os.environ.get("SWITCH_AGENT_TOKEN") or None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read token file {path}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"token file {path} is empty: put one line with a random token into it")
    return token


def listen(address: str, token: str | None) -> socket.socket:
    """Open the listening socket. Raises ConfigError when the port is taken or the address too open."""
    host, port = split_address(address)
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"refusing to listen on {address} without a token: anybody there could reprogram the switch; "
            "give --token-file (or SWITCH_AGENT_TOKEN), or listen on 127.0.0.1"
        )
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror}; is another switch-agent running? Choose another --listen"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn that leaves signals to us: it would end streams too late and exit with the signal's code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(options: AgentOptions, listener: socket.socket, token: str | None) -> None:
    """Serve until SIGTERM or SIGINT; then end streams, finish requests, close session and store."""
    agent = Agent(options)
    config = uvicorn.Config(
        build_app(agent, token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        lifespan="on",
    )
    server = _Server(config)

    def stop() -> None:
        agent.stopping.set()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await server.serve(sockets=[listener])
