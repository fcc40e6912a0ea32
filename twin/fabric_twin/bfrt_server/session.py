# SPDX-License-Identifier: Apache-2.0
"""Clients: who is subscribed, who owns the program, and what is to be sent to them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from fabric_twin.bfrt_server.faults import Faults
from fabric_twin.bfrt_server.status import BfError, BfStatus
from switch_agent import bfrt_proto as p

__all__ = ["Session", "Sessions"]

log = logging.getLogger(__name__)
OUTBOX_SIZE = 1024


@dataclass(eq=False, slots=True)
class Session:
    """One subscribed client. ``end`` closes its stream from this side, e.g. when its program is gone."""

    client_id: int
    notifications: p.Subscribe.Notifications
    p4_name: str | None = None
    outbox: asyncio.Queue[p.StreamMessageResponse] = field(default_factory=lambda: asyncio.Queue(OUTBOX_SIZE))
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    reason: BfError | None = None

    def end(self, reason: BfError) -> None:
        """Close the stream with that status."""
        self.reason = reason
        self.ended.set()

    def send(self, message: p.StreamMessageResponse) -> None:
        """Queue a message; a client that does not read loses the oldest ones."""
        if self.outbox.full():
            self.outbox.get_nowait()
            log.warning("client %d does not read its stream, a notification is lost", self.client_id)
        self.outbox.put_nowait(message)


class Sessions:
    """All subscribed clients of one server."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._sessions: dict[int, Session] = {}
        self._unnoticed: list[Session] = []

    def open(self, client_id: int, subscribe: p.Subscribe) -> Session:
        """Subscribe a client; INVALID_ARG while its id is taken."""
        self._bury()
        if client_id in self._sessions:
            raise BfError(BfStatus.INVALID_ARG, f"Can't have two clients with the same client id ({client_id}).")
        session = Session(client_id, subscribe.notifications)
        answer = p.Subscribe(device_id=subscribe.device_id, notifications=subscribe.notifications)
        answer.status.code = 0
        session.send(p.StreamMessageResponse(subscribe=answer))
        self._sessions[client_id] = session
        return session

    def close(self, session: Session) -> None:
        """The client's stream ended: id and binding are free, unless a fault hides it."""
        if self._faults.half_open:
            self._unnoticed.append(session)
        elif self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    def bind(self, client_id: int, p4_name: str, loaded: str) -> None:
        """Make the client the owner of a program."""
        self._bury()
        session = self._sessions.get(client_id)
        if session is None:
            raise BfError(BfStatus.NOT_READY, f"Unknown client {client_id}: subscribe before BIND.")
        if p4_name != loaded:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"Failed to find BfRtInfo for program {p4_name}.")
        for other in self._sessions.values():
            if other.p4_name == p4_name:
                raise BfError(
                    BfStatus.ALREADY_EXISTS,
                    f"Client {client_id} trying to bind but Client {other.client_id} already owns {p4_name}.",
                )
        session.p4_name = p4_name

    def bound_program(self, client_id: int) -> str:
        """The program the client is bound to, "" for strangers and unbound clients."""
        session = self._sessions.get(client_id)
        return (session.p4_name or "") if session else ""

    def broadcast(self, message: p.StreamMessageResponse) -> None:
        """To every subscribed client."""
        for session in self._sessions.values():
            session.send(message)

    def port_changed(self, message: p.StreamMessageResponse) -> None:
        """To the clients that subscribed to port notifications."""
        for session in self._sessions.values():
            if session.notifications.enable_port_status_change_notifications:
                session.send(message)

    def end_all_but(self, p4_name: str) -> None:
        """Close the streams of clients bound to any other program."""
        for session in self._sessions.values():
            if session.p4_name not in (None, p4_name):
                reason = "The program that this client was bound to is gone."
                session.end(BfError(BfStatus.PROGRAM_GONE, reason))

    def end_all(self) -> None:
        """Close all streams and forget everybody: the server stops."""
        for session in self._sessions.values():
            session.end(BfError(BfStatus.NOT_READY, "The server stops."))
        self._sessions.clear()
        self._unnoticed.clear()

    def _bury(self) -> None:
        """Let go of streams whose end a fault had hidden."""
        if not self._faults.half_open:
            dead, self._unnoticed = self._unnoticed, []
            for session in dead:
                self.close(session)
