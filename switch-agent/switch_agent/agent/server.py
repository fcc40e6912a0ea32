# SPDX-License-Identifier: Apache-2.0
"""``switch-agent serve``: the process around an agent: address, token, signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from switch_agent.agent.inputs import split_address
from switch_agent.agent.rest import build_app
from switch_agent.agent.service import Agent, AgentOptions
from switch_agent.errors import ConfigError
from symphony_common.rest import KnownHosts, is_loopback

__all__ = ["listen", "serve"]

log = logging.getLogger(__name__)

_GRACE_S = 3


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
    """uvicorn that says when it serves, and leaves signals to us: it would end streams too late and exit with the
    signal's code."""

    def __init__(self, config: uvicorn.Config, name: str = "") -> None:
        super().__init__(config)
        self._name = name

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            log.info("agent of %s on http://%s:%d", self._name, f"[{host}]" if ":" in host else host, port)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(options: AgentOptions, listener: socket.socket, token: str | None, hosts: KnownHosts) -> None:
    """Serve until SIGTERM or SIGINT; then end streams, finish requests, close session and store.

    Raises StoreError when the state folder cannot be used; nothing has been served then.
    """
    agent = Agent(options)
    config = uvicorn.Config(
        build_app(agent, token, hosts),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        lifespan="on",
    )
    server = _Server(config, agent.name)

    def stop() -> None:
        agent.stopping.set()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await server.serve(sockets=[listener])
