# SPDX-License-Identifier: Apache-2.0
"""The verbs service: processes attach over a Unix socket and share virtual time.

Conservative time: virtual time stands still while any attached process computes, and advances only when all of
them wait for a completion. So ranks cost no virtual time, and who is faster in wall-clock time changes nothing:
the work requests of a turn are carried out in order of rank once the last process has begun to wait.

A frame is a 4-byte big-endian length and a msgpack map; see `docs/twin.md` for the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from fabric_twin.engine import kernel
from fabric_twin.errors import ConfigError, FabricError, UnknownNameError, VerbsError
from fabric_twin.events import Event
from fabric_twin.fabric import Fabric
from fabric_twin.timeline import Restart, Timeline
from fabric_twin.topology import Host
from fabric_twin.verbs import MAX_CQE, MAX_MSG_SZ, MAX_QP_WR, Completion, VerbsHub

__all__ = ["PROTOCOL_VERSION", "Clock", "VerbsService"]

PROTOCOL_VERSION = 1
MAX_FRAME = 64 << 20
MAX_TIMEOUT_NS = 10**15
MAX_PACE = 1e6
CATCH_UP_S = 0.1
"""Wall-clock time that a paced clock makes up for after ranks have computed."""
SLICE_EVENTS = 10_000
"""Events at a time: about 1 ms, the longest that a REST call or a table write has to wait for the loop."""
BUSY_TURN_S = 50e-6
"""A turn of the loop that took longer had work for somebody else."""
GRACE_S = 300e-6
"""How long to wait for more of it ..."""
MAX_GRACE_S = 0.005
"""... and how long virtual time may stand still for it: then events are due again."""
POLL_S = 0.002
"""How often a clock on hold or ahead of its pace is looked at."""
_LENGTH = struct.Struct(">I")


class Clock:
    """How virtual time relates to the wall clock.

    Attributes:
        pace: virtual seconds per wall-clock second, or None: as fast as possible.
        hold_at_ps: virtual time stops here until this is changed, or None.
    """

    def __init__(self, pace: float | None = None) -> None:
        self.pace = pace
        self.hold_at_ps: int | None = None
        self._wall0 = 0.0
        self._virtual0 = 0

    def allowed_ps(self, now_ps: int) -> int | None:
        """How far virtual time, which is `now_ps`, may go now; None = no limit.

        Ranks that compute for a moment do not slow the clock down: it catches up. After a longer stop it does not.
        """
        limits = []
        if self.pace is not None:
            wall = time.monotonic()
            paced = self._virtual0 + int((wall - self._wall0) * self.pace * 1e12)
            latest = now_ps + int(CATCH_UP_S * self.pace * 1e12)
            if not now_ps <= paced <= latest:
                paced = min(max(paced, now_ps), latest)
                self._wall0, self._virtual0 = wall, paced
            limits.append(paced)
        if self.hold_at_ps is not None:
            limits.append(self.hold_at_ps)
        return min(limits) if limits else None

    def set_pace(self, pace: float | None, now_ps: int) -> None:
        """Another pace from now on."""
        self.pace = pace
        self._wall0, self._virtual0 = time.monotonic(), now_ps


class _Request(NamedTuple):
    """A frame from a client, checked."""

    serial: Any
    calls: list[tuple[str, dict[str, Any]]]
    wait: bool
    timeout_ns: int | None

    @classmethod
    def parse(cls, payload: bytes) -> _Request:
        """Read a frame.

        Raises:
            ValueError: it is no request; the text says why.
        """
        try:
            frame = msgpack.unpackb(payload)
            serial, calls, wait = frame["id"], frame["calls"], frame.get("wait")
            timeout = None if wait is None else wait["timeout_ns"]
            calls = [(str(name), dict(args)) for name, args in calls]
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        if timeout is not None and not (isinstance(timeout, int) and 0 <= timeout <= MAX_TIMEOUT_NS):
            raise ValueError(f"timeout_ns is {timeout!r}; allowed are 0 to {MAX_TIMEOUT_NS} or nil")
        return cls(serial, calls, wait is not None, timeout)


class _Client:
    """One attached process."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.rank = -1
        self.job = ""
        self.pid = 0
        self.devices: list[Host] = []
        self.completions: list[Completion] = []
        self.request: _Request | None = None
        """The request that has no answer yet."""
        self.fresh = False
        """Its calls are still to be carried out."""
        self.results: list[Any] = []
        self.deadline_ps: int | None = None

    @property
    def attached(self) -> bool:
        return self.rank >= 0

    def take(self, completion: Completion) -> None:
        """A completion for one of this process's queues."""
        self.completions.append(completion)

    def reply(self, message: dict[str, Any]) -> None:
        payload = msgpack.packb(message)
        if not self.writer.is_closing():
            self.writer.write(_LENGTH.pack(len(payload)) + payload)


async def _let_others_run() -> None:
    """Give the loop to RPCs and REST calls until none of them has had work for `GRACE_S`.

    An RPC takes several turns of the loop, between them moments in which gRPC's own thread works. If events were
    handled in each of those, a table write with its read-back would wait for some ten slices.
    """
    began = turn = time.perf_counter()
    until = 0.0
    while True:
        await asyncio.sleep(0)
        now = time.perf_counter()
        if now - turn > BUSY_TURN_S:
            until = min(now + GRACE_S, began + MAX_GRACE_S)
        if now >= until:
            return
        turn = now


class VerbsService:
    """Serves `hub` on a Unix socket and runs the fabric's time.

    Args:
        fabric: what runs.
        path: of the socket; only this user may connect.
        pace: see `Clock`.
        events: what happens to the fabric in each run.
        restart: how a switch's control plane is restarted.

    Raises:
        FabricError: an event that cannot happen to this fabric.
    """

    def __init__(
        self,
        fabric: Fabric,
        path: Path,
        pace: float | None = None,
        events: Sequence[Event] = (),
        restart: Restart | None = None,
    ) -> None:
        self.fabric = fabric
        self.hub = VerbsHub(fabric)
        self.timeline = Timeline(fabric, events, slow=self.hub.slow, restart=restart)
        self.clock = Clock(pace)
        self.path = path
        self._clients: list[_Client] = []
        self._hold_after_ps: int | None = None
        self._wake = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        """What runs for the connections; nobody else waits for its end."""
        self._calls: dict[str, Callable[[_Client, dict[str, Any]], dict[str, Any]]] = {
            "attach": self._attach,
            "detach": self._detach,
            "open_device": self._open_device,
            "query_counters": self._query_counters,
            "query_events": self._query_events,
            "create_cq": self._create_cq,
            "reg_mr": self._reg_mr,
            "create_qp": self._create_qp,
            "modify_qp": self._modify_qp,
            "modify_qp_udp_sport": self._modify_qp_udp_sport,
            "destroy_qp": self._destroy_qp,
            "post_send": self._post_send,
            "post_recv": self._post_recv,
        }

    # ------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: another twin listens there, or the socket cannot be made.
        """
        if self.path.exists():
            if not stat.S_ISSOCK(self.path.stat().st_mode):
                raise ConfigError(f"{self.path} exists and is no socket; choose another --verbs path")
            try:
                _, writer = await asyncio.open_unix_connection(str(self.path))
            except OSError:
                self.path.unlink(missing_ok=True)  # left behind by a twin that was killed
            else:
                writer.close()
                raise ConfigError(f"another twin listens on {self.path}; stop it or choose another --verbs path")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._serve, str(self.path))
            finally:
                os.umask(before)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self.path} ({error.strerror or error}); choose another --verbs path"
            ) from None

    async def stop(self) -> None:
        """Close the socket and every connection; all of them have ended when this returns."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.writer.transport.abort()  # not close(): that would wait for a client that does not read
        await asyncio.gather(*self._serving, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    def wake(self) -> None:
        """Something outside changed (pace, hold): look again."""
        self._wake.set()

    def hold_next_run_after(self, after_ps: int) -> None:
        """Stop the clock `after_ps` into the run that the next seeded attach begins."""
        self._hold_after_ps = after_ps

    @property
    def attached(self) -> list[dict[str, Any]]:
        """Who is here: job, lowest rank, process and whether it waits."""
        return [
            {"job": c.job, "rank": c.rank, "pid": c.pid, "waiting": c.request is not None}
            for c in self._clients
            if c.attached
        ]

    async def run(self) -> None:
        """Let time pass, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._everybody_waits():
                await asyncio.sleep(self._turn())
                await _let_others_run()

    def _everybody_waits(self) -> bool:
        clients = [c for c in self._clients if c.attached]
        return bool(clients) and all(c.request is not None for c in clients)

    def _turn(self) -> float:
        """One slice of virtual time; returns how long to sleep."""
        for client in sorted(self._clients, key=lambda c: (c.job, c.rank)):
            if client.fresh:
                client.fresh = False
                self._begin_wait(client)
        if self._answer():
            return 0.0
        waiting = [c for c in self._clients if c.request is not None]
        deadlines = [c.deadline_ps for c in waiting if c.deadline_ps is not None]
        deadline = min(deadlines) if deadlines else None
        if deadline is None and self._nothing_on_its_way():
            for client in waiting:
                self._fail_wait(
                    client,
                    "STALLED",
                    "every rank waits for a completion and nothing is on its way: a receive or a send was never posted",
                )
            return 0.0
        allowed = self.clock.allowed_ps(self.fabric.now_ps)
        if allowed is not None and allowed < self.fabric.now_ps:
            return POLL_S
        due, ready = self.timeline.next_ps, self.hub.slow.next_ps
        until = min((t for t in (deadline, allowed, due, ready) if t is not None), default=None)
        reason = self.fabric.run(until, SLICE_EVENTS)
        self.hub.handle(self.timeline.take(self.fabric.take_events()))
        now = self.fabric.now_ps
        if reason == kernel.REACHED:
            self.hub.slow.release(now)
        over = [client for client in waiting if client.deadline_ps is not None and client.deadline_ps <= now]
        for client in over:
            self._finish_wait(client)
        if self._answer() or over:
            return 0.0
        if reason == kernel.REACHED and due is not None and due <= now:
            self.timeline.carry_out()  # last of all that happens now
            return 0.0
        return POLL_S if reason == kernel.REACHED and until == allowed else 0.0

    def _nothing_on_its_way(self) -> bool:
        """No rank will ever be told anything: background traffic and events do not help those who posted nothing."""
        if self.hub.slow.next_ps is not None:
            return False
        if self.fabric.next_event_ps is None and self.timeline.next_ps is None:
            return True
        busy = self.timeline.has_background or self.timeline.next_ps is not None
        return busy and not self.hub.anything_sent()

    def _answer(self) -> bool:
        """Reply to every client whose wait is over; True if there was one."""
        answered = False
        for client in self._clients:
            if client.request is not None and client.completions:
                self._finish_wait(client)
                answered = True
        return answered

    # ------------------------------------------------------------------------------------ connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(writer)
        self._clients.append(client)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > MAX_FRAME:
                    client.reply({"id": 0, "error": {"code": "EMSGSIZE", "message": f"frame of {length} bytes"}})
                    break
                payload = await reader.readexactly(length)
                try:
                    request = _Request.parse(payload)
                except ValueError as error:
                    client.reply({"id": 0, "error": {"code": "EPROTO", "message": f"not a request: {error}"}})
                    break
                if client.request is not None:
                    message = "one request at a time: the last one has no answer yet"
                    client.reply({"id": request.serial, "error": {"code": "EPROTO", "message": message}})
                    break
                client.request = request
                if request.wait and client.attached:
                    client.fresh = True
                    self._wake.set()
                else:
                    self._carry_out(client)
                    if client.request is not None:
                        self._finish_wait(client)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._clients.remove(client)
            self.hub.release(client)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._wake.set()

    def _carry_out(self, client: _Client) -> None:
        """Make the request's calls; an error ends it with an answer that says which call failed."""
        assert client.request is not None
        client.results = []
        for i, (name, args) in enumerate(client.request.calls):
            try:
                client.results.append(self._call(client, name, args))
            except VerbsError as error:
                self._fail_wait(client, error.code, str(error), i)
                return
            except FabricError as error:
                code = "ENODEV" if isinstance(error, UnknownNameError) else "ENOMEM"
                self._fail_wait(client, code, str(error), i)
                return
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                self._fail_wait(client, "EINVAL", f"{name}: missing or wrong argument: {error}", i)
                return

    def _call(self, client: _Client, name: str, args: dict[str, Any]) -> dict[str, Any]:
        call = self._calls.get(name)
        if call is None:
            raise VerbsError("ENOSYS", f"no call {name!r}")
        if name != "attach" and not client.attached:
            raise VerbsError("EPROTO", f"{name} before attach")
        return call(client, args)

    def _begin_wait(self, client: _Client) -> None:
        self._carry_out(client)
        if client.request is None:
            return
        if not client.attached:  # it has just detached
            self._finish_wait(client)
            return
        if client.request.timeout_ns is not None:  # counted from the time that the client has been told
            deadline = (self.fabric.now_ns + client.request.timeout_ns) * 1000
            client.deadline_ps = max(deadline, self.fabric.now_ps)

    def _finish_wait(self, client: _Client) -> None:
        assert client.request is not None
        client.reply(
            {
                "id": client.request.serial,
                "results": client.results,
                "wc": client.completions,
                "now_ns": self.fabric.now_ns,
            }
        )
        client.completions = []
        client.request = None
        client.deadline_ps = None

    def _fail_wait(self, client: _Client, code: str, message: str, call: int | None = None) -> None:
        assert client.request is not None
        error = {"code": code, "message": message, "call": call}
        client.reply({"id": client.request.serial, "error": error, "now_ns": self.fabric.now_ns})
        client.request = None
        client.deadline_ps = None

    # ------------------------------------------------------------------------------------ calls

    def _attach(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        if args["version"] != PROTOCOL_VERSION:
            raise VerbsError(
                "VERSION",
                f"this twin speaks version {PROTOCOL_VERSION} of the verbs protocol, the client {args['version']}: "
                "install both from the same release",
            )
        if client.attached:
            raise VerbsError("EPROTO", "attached already")
        job, rank, pid, seed = str(args["job"]), int(args["rank"]), int(args.get("pid", 0)), args.get("seed")
        for name, value in (("rank", rank), ("seed", seed)):
            if value is not None and int(value) < 0:
                raise VerbsError("EINVAL", f"attach: {name} {value} is negative")
        if seed is not None and not any(c.attached for c in self._clients):
            self.timeline.undo()
            self.fabric.quiesce(int(seed))
            self.timeline.begin()
            if self._hold_after_ps is not None:
                self.clock.hold_at_ps = self.fabric.now_ps + self._hold_after_ps
                self._hold_after_ps = None
        client.job, client.rank, client.pid = job, rank, pid
        preset = self.fabric.preset
        return {
            "version": PROTOCOL_VERSION,
            "now_ns": self.fabric.now_ns,
            "preset": preset.name,
            "description": preset.description(),
        }

    def _detach(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self.hub.release(client)
        client.rank = -1
        client.devices.clear()
        self._wake.set()
        return {}

    def _open_device(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        host = self.fabric.topology.host(args["host"])
        client.devices.append(host)
        return {
            "device": len(client.devices) - 1,
            "name": f"twin_{host.name}",
            "address": str(host.address),
            "gid": f"::ffff:{host.address}",
            "active_mtu": self.fabric.preset.mtu,
            "max_msg_sz": MAX_MSG_SZ,
            "rate_gbps": host.gbps,
            "max_qp_wr": MAX_QP_WR,
            "max_cqe": MAX_CQE,
        }

    def _device(self, client: _Client, args: dict[str, Any]) -> Host:
        number = int(args["device"])
        if not 0 <= number < len(client.devices):
            raise VerbsError("EINVAL", f"no device {number} open on this connection")
        return client.devices[number]

    def _query_counters(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        return dict(self.fabric.host_counters(self._device(client, args)))

    def _query_events(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        return {"events": self.timeline.this_run()}

    def _create_cq(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self._device(client, args)
        return {"cq": self.hub.create_cq(client, int(args["cqe"]), client.take).handle}

    def _reg_mr(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        host = self._device(client, args)
        access = [str(flag) for flag in args["access"]]
        region = self.hub.reg_mr(client, host, int(args["pid"]), int(args["fd"]), int(args["length"]), access)
        return {"mr": region.key, "lkey": region.key, "rkey": region.key}

    def _create_qp(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        host = self._device(client, args)
        wanted = (int(args["max_send_wr"]), int(args["max_recv_wr"]))
        qp = self.hub.create_qp(client, host, int(args["send_cq"]), int(args["recv_cq"]), *wanted)
        caps = {"max_send_wr": qp.max_send_wr, "max_recv_wr": qp.max_recv_wr}
        return {"qp": qp.handle, "qp_num": qp.qp_num, "caps": caps}

    def _modify_qp(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self.hub.modify_qp(self.hub.qp(client, int(args["qp"])), str(args["state"]), dict(args.get("attrs") or {}))
        return {}

    def _modify_qp_udp_sport(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self.hub.modify_udp_sport(self.hub.qp(client, int(args["qp"])), int(args["sport"]))
        return {}

    def _destroy_qp(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self.hub.destroy_qp(self.hub.qp(client, int(args["qp"])))
        return {}

    def _post_send(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        wire = args.get("wire_length")
        imm = args.get("imm")
        self.hub.post_send(
            self.hub.qp(client, int(args["qp"])),
            int(args["wr_id"]),
            str(args["opcode"]),
            int(args.get("lkey") or 0),
            int(args.get("offset") or 0),
            int(args.get("length") or 0),
            int(args.get("remote_rkey") or 0),
            int(args.get("remote_offset") or 0),
            None if imm is None else int(imm),
            bool(args.get("signaled", True)),
            None if wire is None else int(wire),
        )
        return {}

    def _post_recv(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self.hub.post_recv(self.hub.qp(client, int(args["qp"])), int(args["wr_id"]))
        return {}
