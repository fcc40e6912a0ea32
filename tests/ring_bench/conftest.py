# SPDX-License-Identifier: Apache-2.0
"""Fixtures: an AllReduce on the loopback fabric, and a stand-in for the twin's verbs service."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from ring_bench.config import Config
from ring_bench.errors import FabricError, StalledError
from ring_bench.rendezvous import LocalRendezvous
from ring_bench.run import run_ranks
from ring_bench.setup import World, set_up
from ring_bench.verbs.api import Completion, Opcode, QpAttributes, QpState
from ring_bench.verbs.loopback import LoopbackProvider


def run_on_loopback(config: Config, provider: LoopbackProvider | None = None) -> World:
    """Run a whole world in memory."""
    fabric = provider or LoopbackProvider(seed=config.seed)
    rendezvous = LocalRendezvous()
    ranks = range(config.world)
    world = set_up(config, fabric, rendezvous, local_ranks=ranks, hosts=list(ranks))
    run_ranks(world, fabric, rendezvous)
    return world


@pytest.fixture
def loopback_run() -> Callable[..., World]:
    """Give `run_on_loopback`."""
    return run_on_loopback


@dataclass(eq=False)
class _Client:
    connection: socket.socket
    attached: bool = False
    completions: list[Completion] = field(default_factory=list)
    request: dict[str, Any] | None = None


class FakeTwin:
    """Speaks the wire protocol of the twin's verbs service over a loopback fabric, with conservative time.

    Written from the contract, independently of the real service. ``silent`` makes waits never end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.silent = False
        self.lost = 0
        """What its NICs count as out of sequence."""
        self.queries = 0
        self.version = 1
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.waiting = threading.Event()
        self._fabric = LoopbackProvider(seed=1)
        self._lock = threading.Lock()
        self._clients: list[_Client] = []
        self._contexts: list[Any] = []
        self._qps: list[Any] = []
        self._owner: dict[int, _Client] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Drop everybody, as a twin that is killed does."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(timeout=5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            client = _Client(connection)
            self._clients.append(client)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: _Client) -> None:
        with client.connection:
            try:
                while True:
                    (length,) = struct.unpack(">I", _read(client.connection, 4))
                    request = msgpack.unpackb(_read(client.connection, length))
                    with self._lock:
                        self._take(client, request)
            except (EOFError, OSError):
                with self._lock:
                    client.attached = False
                    self._clients.remove(client)
                    self._advance()

    def _take(self, client: _Client, request: dict[str, Any]) -> None:
        results = []
        for index, (name, args) in enumerate(request["calls"]):
            self.calls.append((name, args))
            try:
                results.append(getattr(self, f"do_{name}")(client, args))
            except FabricError as error:
                self._reply(
                    client,
                    {"id": request["id"], "error": {"code": error.code, "message": str(error), "call": index}},
                )
                return
        client.request = {**request, "results": results}
        if request["wait"] is None:
            self._finish(client)
        else:
            self.waiting.set()
        self._advance()

    def _advance(self) -> None:
        while not self.silent:
            attached = [client for client in self._clients if client.attached]
            if not attached or any(client.request is None for client in attached):
                return
            timeouts = [client.request["wait"]["timeout_ns"] for client in attached if client.request]
            finite = [timeout for timeout in timeouts if timeout is not None]
            if not any(client.completions for client in attached):
                try:
                    for completion in self._fabric.wait(min(finite) if finite else None):
                        self._owner[completion.cq].completions.append(completion)
                except StalledError:
                    for client in attached:
                        assert client.request is not None
                        error = {"code": "STALLED", "message": "nothing is on its way", "call": None}
                        self._reply(client, {"id": client.request["id"], "error": error})
                    return
            for client, timeout in zip(attached, timeouts, strict=True):
                if client.completions or timeout is not None:
                    self._finish(client)

    def _finish(self, client: _Client) -> None:
        assert client.request is not None
        done, client.completions = client.completions, []
        self._reply(
            client,
            {
                "id": client.request["id"],
                "results": client.request["results"],
                "wc": [tuple(completion) for completion in done],
                "now_ns": self._fabric.clock_ns(),
            },
        )

    def _reply(self, client: _Client, message: dict[str, Any]) -> None:
        client.request = None
        body = msgpack.packb(message)
        with contextlib.suppress(OSError):
            client.connection.sendall(struct.pack(">I", len(body)) + body)

    def do_attach(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        client.attached = True
        return {"version": self.version, "now_ns": 0, "preset": "fake", "description": {"hosts": 32}}

    def do_detach(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        client.attached = False
        return {}

    def do_open_device(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        if args["host"] == "nowhere":
            raise FabricError("ENODEV", "no host nowhere; there are h0 to h31")
        context = self._fabric.open_device(args["host"])
        self._contexts.append(context)
        known = context.attributes
        return {
            "device": len(self._contexts) - 1,
            **{name: getattr(known, name) for name in known.__slots__},
            "rate_gbps": 100.0,
            "name": f"twin_h{args['host']}" if isinstance(args["host"], int) else f"twin_{args['host']}",
        }

    def do_query_events(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        """What happened to the fabric: nothing."""
        return {"events": []}

    def do_query_counters(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self.queries += 1
        return {"tx_packets": 10 * self.queries, "out_of_sequence": self.lost, "rnr_nak_retry_err": 0}

    def do_create_cq(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        queue = self._contexts[args["device"]].create_cq(args["cqe"])
        self._owner[queue.handle] = client
        return {"cq": queue.handle}

    def do_reg_mr(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        descriptor = os.open(f"/proc/{args['pid']}/fd/{args['fd']}", os.O_RDWR)
        memory = mmap.mmap(descriptor, args["length"])
        os.close(descriptor)
        region = self._fabric.add_region(0)
        region.buffer = np.frombuffer(memory, dtype=np.uint8)
        region.address = 0
        return {"mr": region.rkey, "lkey": region.lkey, "rkey": region.rkey}

    def do_create_qp(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        context = self._contexts[args["device"]]
        queue = self._fabric._queues[args["send_cq"]]
        qp = context.create_qp(queue, args["max_send_wr"], args["max_recv_wr"])
        self._qps.append(qp)
        return {"qp": len(self._qps) - 1, "qp_num": qp.qp_num, "caps": {}}

    def do_modify_qp(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        qp, attrs = self._qps[args["qp"]], args["attrs"]
        base = dict.fromkeys(QpAttributes.__dataclass_fields__, 0)
        qp.modify(QpState(args["state"]), QpAttributes(**{**base, **attrs}) if attrs else None)
        return {}

    def do_modify_qp_udp_sport(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self._qps[args["qp"]].modify_udp_sport(args["sport"])
        return {}

    def do_post_recv(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self._qps[args["qp"]].post_recv(args["wr_id"])
        return {}

    def do_post_send(self, client: _Client, args: dict[str, Any]) -> dict[str, Any]:
        self._qps[args["qp"]].post_send(
            args["wr_id"],
            Opcode(args["opcode"]),
            self._fabric._regions[args["lkey"]],
            args["offset"],
            args["length"],
            remote_address=args["remote_offset"],
            rkey=args["remote_rkey"],
            imm=args["imm"],
            signaled=args["signaled"],
            wire_length=args["wire_length"],
        )
        return {}


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


@pytest.fixture
def fake_twin(tmp_path: Path) -> Iterator[FakeTwin]:
    """A stand-in for the twin, listening."""
    twin = FakeTwin(tmp_path / "verbs.sock")
    yield twin
    twin.close()
