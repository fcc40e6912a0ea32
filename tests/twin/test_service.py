# SPDX-License-Identifier: Apache-2.0
"""The verbs socket: conservative virtual time, determinism, clients that misbehave or die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from fabric_twin.errors import ConfigError
from fabric_twin.events import BackgroundConstant, Event, HostSlow, Jitter, LinkRate
from fabric_twin.verbs_service import Clock, VerbsService

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

LENGTH = struct.Struct(">I")


class RefusedError(Exception):
    """The twin answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code, self.call = error["code"], error.get("call")


class Client:
    """A raw client of the verbs socket; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.serial = itertools.count(1)
        self.wc: list[list[Any]] = []
        self.now_ns = 0
        self.files: list[int] = []

    @classmethod
    async def dial(cls, path: Path) -> Client:
        """Connect without attaching."""
        return cls(*await asyncio.open_unix_connection(str(path)))

    async def raw(self, payload: bytes) -> dict[str, Any]:
        """Send any bytes as a frame, give the answer."""
        self.writer.write(LENGTH.pack(len(payload)) + payload)
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next frame from the twin."""
        async with asyncio.timeout(20):
            (size,) = LENGTH.unpack(await self.reader.readexactly(4))
            frame: dict[str, Any] = msgpack.unpackb(await self.reader.readexactly(size))
        return frame

    async def request(self, *calls: tuple[str, dict[str, Any]], wait: dict[str, Any] | None = None) -> list[Any]:
        """Some calls and perhaps a wait; completions go to `wc`."""
        answer = await self.raw(msgpack.packb({"id": next(self.serial), "calls": calls, "wait": wait}))
        self.now_ns = answer.get("now_ns", self.now_ns)
        if "error" in answer:
            raise RefusedError(answer["error"])
        self.wc += answer["wc"]
        results: list[Any] = answer["results"]
        return results

    async def call(self, name: str, **args: Any) -> Any:
        """One call."""
        return (await self.request((name, args)))[0]

    async def wait(self, *calls: tuple[str, dict[str, Any]], timeout_ns: int | None = None) -> list[list[Any]]:
        """Calls, then wait; gives the new completions."""
        before = len(self.wc)
        await self.request(*calls, wait={"timeout_ns": timeout_ns})
        return self.wc[before:]

    async def finish(self, count: int, end_ns: int, *calls: tuple[str, dict[str, Any]]) -> list[list[Any]]:
        """Wait until `count` completions have come, then until `end_ns`, so that nobody has to wait for us."""
        before = len(self.wc)
        await self.wait(*calls)
        while len(self.wc) < before + count:
            await self.wait()
        await self.wait(timeout_ns=end_ns - self.now_ns)
        return self.wc[before:]

    async def attach(self, rank: int = 0, **changes: Any) -> Any:
        """As ring-bench does."""
        hello = {"version": 1, "job": "test", "rank": rank, "seed": 1, "pid": os.getpid(), **changes}
        return await self.call("attach", **hello)

    async def device(self, host: str, size: int = 4096) -> dict[str, Any]:
        """A device with queue, memory and a queue pair, and what others need to know of it."""
        opened = await self.call("open_device", host=host)
        device = opened["device"]
        cq = (await self.call("create_cq", device=device, cqe=1000))["cq"]
        descriptor = os.memfd_create("test")
        self.files.append(descriptor)
        os.ftruncate(descriptor, size)
        mr = await self.call(
            "reg_mr", device=device, pid=os.getpid(), fd=descriptor, length=size, access=["LOCAL_WRITE", "REMOTE_WRITE"]
        )
        sizes = {"max_send_wr": 100, "max_recv_wr": 100}
        qp = await self.call("create_qp", device=device, send_cq=cq, recv_cq=cq, **sizes)
        return {"address": opened["address"], "cq": cq, "fd": descriptor, **mr, **qp, "opened": opened}

    async def connect(self, me: dict[str, Any], other: dict[str, Any], **attrs: Any) -> None:
        """From RESET to RTS."""
        rtr = {"dest_address": other["address"], "dest_qp_num": other["qp_num"], "traffic_class": 2}
        rts = {"sq_psn": 0, "timeout": 8, "retry_cnt": 1, "rnr_retry": 7, **attrs}
        for state, values in (("INIT", {}), ("RTR", rtr), ("RTS", rts)):
            await self.call("modify_qp", qp=me["qp"], state=state, attrs=values)

    async def close(self) -> None:
        """As a process that ends, or dies."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
        for descriptor in self.files:
            os.close(descriptor)
        self.files.clear()


def write(me: dict[str, Any], other: dict[str, Any], length: int, wr_id: int = 1, **changes: Any) -> Any:
    """A call that writes the start of my memory to the start of another's."""
    wr = {
        "qp": me["qp"], "wr_id": wr_id, "opcode": "RDMA_WRITE_WITH_IMM", "lkey": me["lkey"], "offset": 0,
        "length": length, "remote_rkey": other["rkey"], "remote_offset": 0, "imm": 5, "signaled": True,
        "wire_length": None, **changes,
    }  # fmt: skip
    return "post_send", wr


def receive(me: dict[str, Any], wr_id: int = 1) -> Any:
    """A call that posts a receive."""
    return "post_recv", {"qp": me["qp"], "wr_id": wr_id}


async def deliver(left: Client, a: dict[str, Any], right: Client, b: dict[str, Any], length: int = 10) -> Any:
    """One message from left to right; the completions of right and left."""
    end = max(left.now_ns, right.now_ns) + 10**7
    return await asyncio.gather(right.finish(1, end, receive(b, 9)), left.finish(1, end, write(a, b, length, wr_id=3)))


class Site:
    """A running service and its clients."""

    def __init__(self, net: Net, path: Path, pace: float | None = None, events: Sequence[Event] = ()) -> None:
        self.service = VerbsService(net.fabric, path, pace, events)
        self.fabric = net.fabric
        self.clients: list[Client] = []
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Site:
        await self.service.start()
        self.task = asyncio.create_task(self.service.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            await client.close()
        assert self.task is not None
        if self.task.done():
            self.task.result()  # the service's loop must survive whatever clients do
        self.task.cancel()
        await self.service.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def client(self, *, attach: int | None = 0, **changes: Any) -> Client:
        """A new connection, attached unless told otherwise."""
        made = await Client.dial(self.service.path)
        self.clients.append(made)
        if attach is not None:
            await made.attach(attach, **changes)
        return made

    async def two(self, **attrs: Any) -> tuple[Client, dict[str, Any], Client, dict[str, Any]]:
        """Two processes, of ranks 0 and 1 on h0 and h1, with a connection."""
        left, right = await self.client(attach=0), await self.client(attach=1)
        a, b = await left.device("h0"), await right.device("h1")
        await left.connect(a, b, **attrs)
        await right.connect(b, a, **attrs)
        return left, a, right, b


@pytest.fixture
async def site(one_switch: Make, tmp_path: Path) -> AsyncIterator[Site]:
    """A service over eight hosts on one switch."""
    async with Site(one_switch(), tmp_path / "verbs.sock") as made:
        yield made


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody else run until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # the twin has no events for tests
            await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------- the ordinary case


async def test_two_processes_exchange_a_message(site: Site) -> None:
    """Data lands in the other's memory; each learns what concerns it, at the time it happened."""
    left, a, right, b = await site.two()
    os.pwrite(a["fd"], b"payload", 0)
    got, sent = await deliver(left, a, right, b, 7)
    assert os.pread(b["fd"], 8, 0) == b"payload\0"
    assert got == [[b["cq"], 9, "SUCCESS", "RECV_RDMA_WITH_IMM", b["qp_num"], 7, 5, got[0][7]]]
    assert sent[0][:3] == [a["cq"], 3, "SUCCESS"]
    assert 0 < got[0][7] - 2**30 < sent[0][7] - 2**30 < 10_000


async def test_a_device_tells_what_it_can(site: Site) -> None:
    """The answer of open_device, and that of attach."""
    client = await site.client(attach=None)
    hello = await client.attach(3)
    assert hello["version"] == 1
    assert hello["preset"] == "one-switch"
    assert hello["description"]["hosts"] == 8
    assert hello["now_ns"] == 2**30
    opened = (await client.device("h2"))["opened"]
    assert {key: opened[key] for key in ("name", "address", "gid", "active_mtu", "rate_gbps")} == {
        "name": "twin_h2", "address": "10.0.0.3", "gid": "::ffff:10.0.0.3", "active_mtu": 4096, "rate_gbps": 10.0,
    }  # fmt: skip


async def test_a_wait_ends_at_its_timeout_in_virtual_time(site: Site) -> None:
    """One second of virtual time passes at once."""
    client = await site.client()
    start = client.now_ns
    assert await client.wait(timeout_ns=10**9) == []
    assert client.now_ns == start + 10**9


async def test_time_stands_while_anybody_computes(site: Site) -> None:
    """One process waits, the other does not: nothing moves until both wait."""
    left, a, right, b = await site.two()
    await right.request(receive(b))
    waiting = asyncio.create_task(left.finish(1, right.now_ns + 10**7, write(a, b, 100)))
    await until(lambda: site.service.attached[0]["waiting"])
    now = site.fabric.now_ps
    for _ in range(5):
        assert (await right.request()) == []
    assert site.fabric.now_ps == now
    assert not waiting.done()
    end = right.now_ns + 10**7
    await right.finish(1, end)
    await waiting


async def test_completions_that_are_there_end_a_wait_at_once(site: Site) -> None:
    """Time does not pass for what has happened already; any answer brings what is there."""
    left, a, right, b = await site.two()
    await deliver(left, a, right, b)
    now = left.now_ns
    await left.request(("modify_qp", {"qp": a["qp"], "state": "ERR", "attrs": {}}))
    left.wc.clear()
    b2 = await left.device("h0")
    await left.connect(b2, b)
    await left.request(receive(b2, 1), receive(b2, 2), ("modify_qp", {"qp": b2["qp"], "state": "ERR", "attrs": {}}))
    assert [c[1:3] for c in left.wc] == [[1, "WR_FLUSH_ERR"], [2, "WR_FLUSH_ERR"]]
    assert left.now_ns == now


async def test_everybody_waits_for_nothing_is_stalled(site: Site) -> None:
    """All are told, and may go on after it."""
    left, a, right, b = await site.two(timeout=0)
    results = await asyncio.gather(left.wait(), right.wait(), return_exceptions=True)
    assert [r.code for r in results if isinstance(r, RefusedError)] == ["STALLED", "STALLED"]
    await deliver(left, a, right, b)
    assert len(left.wc) == len(right.wc) == 1


@pytest.mark.parametrize("clock", ["pace", "hold"])
async def test_a_stall_is_noticed_with_any_clock(site: Site, clock: str) -> None:
    """A paced clock or one on hold would wait for ever."""
    client = await site.client()
    if clock == "pace":
        site.service.clock.set_pace(1.0, site.fabric.now_ps)
    else:
        site.service.clock.hold_at_ps = site.fabric.now_ps + 10**12
    with pytest.raises(RefusedError, match="STALLED"):
        await client.wait()


async def exchange(site: Site, order: list[int], pause: Callable[[int], Awaitable[None]]) -> list[list[Any]]:
    """Four processes in a ring, each a message of its own size to the next; completions by rank."""
    clients: dict[int, Client] = {}
    await_first = await site.client(attach=0, seed=5)
    clients[0] = await_first
    for rank in order:
        if rank:
            clients[rank] = await site.client(attach=rank, seed=5)
    ends = {rank: (await c.device(f"h{rank}"), await c.device(f"h{rank}")) for rank, c in sorted(clients.items())}
    for rank, client in clients.items():
        out, back = ends[rank][0], ends[(rank + 1) % 4][1]
        await client.connect(out, back)
        await clients[(rank + 1) % 4].connect(back, out)

    async def rank_loop(rank: int) -> None:
        client, (out, back) = clients[rank], ends[rank]
        peer = ends[(rank + 1) % 4][1]
        for turn in range(5):
            await pause(rank)
            calls = [receive(back, turn), write(out, peer, 100, wr_id=turn, wire_length=10**6 + rank * 8192 * turn)]
            seen = len(client.wc) + 2
            await client.wait(*calls)
            while len(client.wc) < seen:
                await pause(rank)
                await client.wait()
        await client.wait(timeout_ns=2**30 + 10**9 - client.now_ns)

    await asyncio.gather(*(rank_loop(rank) for rank in order))
    return [clients[rank].wc for rank in range(4)]


async def test_who_is_faster_in_wall_clock_time_changes_nothing(one_switch: Make, tmp_path: Path) -> None:
    """Four processes that share NICs and ports, in any order and with any pauses: the same completions to the ns."""
    results = []
    for i, order in enumerate(([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0])):

        async def pause(rank: int, i: int = i) -> None:
            for _ in range((rank * 7 + i * 5) % 11):
                await asyncio.sleep(0)

        net = one_switch(hosts=4, kmin=5_000, kmax=50_000)
        async with Site(net, tmp_path / f"{i}.sock") as site:
            results.append([[c[1:4] + c[5:] for c in wc] for wc in await exchange(site, order, pause)])
    assert len(results[0][0]) == 10
    assert results[0] == results[1] == results[2]


async def test_a_seeded_attach_starts_afresh_only_when_nobody_else_is_there(site: Site) -> None:
    """The second process of a run must not move the clock of the first."""
    first = await site.client(attach=0, seed=4)
    second = await site.client(attach=1, seed=4)
    now = first.now_ns
    assert second.now_ns == now == 2**30
    assert site.fabric.seed == 4
    await first.close()
    await second.call("detach")
    third = await site.client(attach=0, seed=9)
    assert third.now_ns == 2 * 2**30
    assert site.fabric.seed == 9


# ------------------------------------------------------------------------------------------- clock


async def test_the_clock_can_be_held_and_let_go(site: Site) -> None:
    """Virtual time stops at the mark although everybody waits."""
    client = await site.client()
    start = site.fabric.now_ps
    site.service.clock.hold_at_ps = start + 10**9
    waiting = asyncio.create_task(client.wait(timeout_ns=5 * 10**6))
    await until(lambda: site.fabric.now_ps == start + 10**9)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert site.fabric.now_ps == start + 10**9
    assert not waiting.done()
    site.service.clock.hold_at_ps = None
    site.service.wake()
    await waiting
    assert site.fabric.now_ps == start + 5 * 10**9


async def test_a_hold_can_be_ordered_for_the_next_seeded_run(site: Site) -> None:
    """It counts from that run's start, and only once."""
    site.service.hold_next_run_after(10**9)
    client = await site.client(seed=3)
    assert site.service.clock.hold_at_ps == site.fabric.now_ps + 10**9
    await client.call("detach")
    site.service.clock.hold_at_ps = None
    await client.attach(0, seed=3)
    assert site.service.clock.hold_at_ps is None


def test_a_paced_clock_keeps_its_rate_over_many_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that ranks spend computing is made up for, up to a tenth of a second; a long stop is not."""
    wall = [100.0]
    monkeypatch.setattr("fabric_twin.verbs_service.time.monotonic", lambda: wall[0])
    clock = Clock(pace=0.5)
    now = 7 * 10**12
    clock.set_pace(0.5, now)
    for _ in range(1000):  # a wait every 3 ms, and virtual time takes all it may
        wall[0] += 0.003
        allowed = clock.allowed_ps(now)
        assert allowed is not None
        now = allowed
    assert now == pytest.approx(7 * 10**12 + 0.5 * 3 * 10**12, rel=1e-6)
    wall[0] += 60
    allowed = clock.allowed_ps(now)
    assert allowed == now + int(0.1 * 0.5 * 10**12)
    clock.hold_at_ps = now + 5
    assert clock.allowed_ps(now) == now + 5
    clock.set_pace(None, now)
    assert clock.allowed_ps(now) == now + 5


async def test_a_paced_run_takes_its_time(site: Site) -> None:
    """50 ms of virtual time at 1.0 take at least as long by the wall."""
    client = await site.client()
    site.service.clock.set_pace(1.0, site.fabric.now_ps)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await client.wait(timeout_ns=50_000_000)
    assert loop.time() - began >= 0.049


# ------------------------------------------------------------------------------------------- clients that die


async def test_a_process_that_dies_takes_its_objects_along(site: Site) -> None:
    """Its peer's sends end in RETRY_EXC_ERR, and nothing of it is left."""
    left, a, right, b = await site.two()
    await right.request(receive(b))
    await right.close()
    (failed,) = await left.wait(write(a, b, 1000))
    assert failed[:4] == [a["cq"], 1, "RETRY_EXC_ERR", "RDMA_WRITE"]
    hub = site.service.hub
    assert len(hub.qps) == len(hub.queues) == len(hub.regions) == 1
    assert [c["rank"] for c in site.service.attached] == [0]


async def test_a_process_that_dies_while_the_others_wait_does_not_stop_them(site: Site) -> None:
    """Time goes on without it, in the middle of its transfer."""
    left, a, right, b = await site.two()
    third = await site.client(attach=2)
    c = await third.device("h2")
    await third.connect(c, a)
    end = left.now_ns + 10**9
    tasks = [asyncio.create_task(left.finish(2, end, write(a, b, 4096, wire_length=1 << 30), receive(a)))]
    await until(lambda: site.service.attached[0]["waiting"])
    tasks.append(asyncio.create_task(third.wait(timeout_ns=10**9)))
    await until(lambda: site.service.attached[2]["waiting"])
    await right.close()
    (completions, none) = await asyncio.gather(*tasks)
    assert [x[2] for x in completions] == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert none == []
    for client in (left, third):
        await client.close()
    await until(lambda: not site.service.hub.qps)


async def test_detach_inside_a_wait_is_answered(site: Site) -> None:
    """Nobody is left to wait for."""
    client = await site.client()
    assert await client.wait(("detach", {})) == []
    with pytest.raises(RefusedError, match="before attach"):
        await client.call("open_device", host="h0")


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "args", "code", "says"),
    [
        ("fly", {}, "ENOSYS", "no call 'fly'"),
        ("attach", {"version": 1, "job": "x", "rank": 0}, "EPROTO", "attached already"),
        ("open_device", {"host": "h99"}, "ENODEV", "no host 'h99'; this fabric has h0 to h7"),
        ("open_device", {}, "EINVAL", "open_device: missing or wrong argument: 'host'"),
        ("create_cq", {"device": 3, "cqe": 10}, "EINVAL", "no device 3"),
        ("create_cq", {"device": 0, "cqe": "many"}, "EINVAL", "create_cq: missing or wrong argument"),
        ("create_cq", {"device": float("inf"), "cqe": 1}, "EINVAL", "create_cq: missing or wrong argument"),
        ("reg_mr", {"device": 0, "pid": 1 << 40, "fd": 0, "length": 1, "access": []}, "EACCES", "cannot map"),
        ("modify_qp", {"qp": 1, "state": "FLY"}, "EINVAL", "no queue pair 1"),
        ("post_recv", {"qp": 77, "wr_id": 1}, "EINVAL", "no queue pair 77"),
    ],
)
async def test_a_call_that_cannot_be_done_says_why_and_which(
    site: Site, name: str, args: dict[str, Any], code: str, says: str
) -> None:
    """The calls before it in the batch have been carried out; the connection stays."""
    client = await site.client()
    await client.call("open_device", host="h0")
    with pytest.raises(RefusedError, match=says) as caught:
        await client.request(("open_device", {"host": "h1"}), (name, args))
    assert (caught.value.code, caught.value.call) == (code, 1)
    assert (await client.call("open_device", host="h2"))["device"] == 2


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"version": 2}, "VERSION"),
        ({"rank": -1}, "EINVAL"),
        ({"seed": -1}, "EINVAL"),
        ({"rank": "first"}, "EINVAL"),
        ({"seed": "x"}, "EINVAL"),
    ],
)
async def test_a_bad_attach_leaves_no_trace(site: Site, hello: dict[str, Any], code: str) -> None:
    """Nobody is attached, time has not moved."""
    client = await site.client(attach=None)
    with pytest.raises(RefusedError) as caught:
        await client.attach(**hello)
    assert caught.value.code == code
    assert site.service.attached == []
    assert site.fabric.now_ps == 0
    await client.attach(0)


BAD_FRAMES = [
    b"",
    b"\xc1",
    msgpack.packb([1, 2]),
    msgpack.packb({"id": 1}),
    msgpack.packb({"id": 1, "calls": 5}),
    msgpack.packb({"id": 1, "calls": [["x"]]}),
    msgpack.packb({"id": 1, "calls": [["x", 3]]}),
    msgpack.packb({"id": 1, "calls": [], "wait": 7}),
    msgpack.packb({"id": 1, "calls": [], "wait": {}}),
    msgpack.packb({"id": 1, "calls": [], "wait": {"timeout_ns": "soon"}}),
    msgpack.packb({"id": 1, "calls": [], "wait": {"timeout_ns": -1}}),
    msgpack.packb({"id": 1, "calls": [], "wait": {"timeout_ns": 1 << 63}}),
    msgpack.packb({"id": 1, "calls": [], "wait": {"timeout_ns": 1.5}}),
]


async def test_a_bad_frame_ends_its_connection_and_no_other(site: Site) -> None:
    """The answer says what was wrong with it."""
    left, a, right, b = await site.two()
    for frame in BAD_FRAMES:
        bad = await site.client(attach=7)
        answer = await bad.raw(frame)
        assert answer["error"]["code"] == "EPROTO", frame
        assert await bad.reader.read() == b""
    await deliver(left, a, right, b)


async def test_frames_too_long_or_cut_off_hurt_nobody(site: Site) -> None:
    """A length that is no length; a connection that ends in the middle of a frame."""
    client = await site.client()
    for junk in (b"GET / HTTP/1.0\r\n\r\n", b"\xff\xff\xff\xff"):
        bad = await site.client(attach=None)
        bad.writer.write(junk)
        assert (await bad.answer())["error"]["code"] == "EMSGSIZE"
    half = await site.client(attach=5)
    half.writer.write(LENGTH.pack(100) + b"abc")
    await half.close()
    await until(lambda: len(site.service.attached) == 1)
    assert await client.wait(timeout_ns=10) == []


async def test_a_second_request_before_the_answer_is_refused(site: Site) -> None:
    """One request at a time; the connection ends, its objects go."""
    left, _, _, _ = await site.two()
    frame = msgpack.packb({"id": 9, "calls": [], "wait": {"timeout_ns": None}})
    left.writer.write(LENGTH.pack(len(frame)) + frame)
    answer = await left.raw(frame)
    assert answer["error"] == {"code": "EPROTO", "message": "one request at a time: the last one has no answer yet"}
    await until(lambda: [c["rank"] for c in site.service.attached] == [1])


# ------------------------------------------------------------------------------------------- the socket


async def test_only_this_user_may_connect(site: Site) -> None:
    """Mode 600; a folder that the twin makes is 700."""
    assert stat.S_IMODE(site.service.path.stat().st_mode) == 0o600


async def test_the_folder_of_the_socket_is_made_and_can_be_used(one_switch: Make, tmp_path: Path) -> None:
    """Also by somebody who is not root."""
    path = tmp_path / "a" / "b" / "verbs.sock"
    async with Site(one_switch(), path) as site:
        await (await site.client()).wait(timeout_ns=1)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


async def test_a_socket_left_behind_by_a_killed_twin_is_replaced(one_switch: Make, tmp_path: Path) -> None:
    """Nobody listens on it any more."""
    path = tmp_path / "verbs.sock"
    code = f"import socket, os; s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen(); os._exit(9)"
    await (await asyncio.create_subprocess_exec(sys.executable, "-c", code)).wait()
    assert path.exists()
    async with Site(one_switch(), path) as site:
        await (await site.client()).wait(timeout_ns=1)


async def test_a_second_twin_on_the_same_socket_is_refused(one_switch: Make, site: Site) -> None:
    """And the first one stays as it is."""
    other = VerbsService(one_switch().fabric, site.service.path)
    with pytest.raises(ConfigError, match="another twin listens on"):
        await other.start()
    assert await (await site.client()).wait(timeout_ns=1) == []


async def test_a_path_that_cannot_be_a_socket_says_what_to_do(one_switch: Make, tmp_path: Path) -> None:
    """A file in the way, a name that is too long, a folder that is a file."""
    fabric = one_switch().fabric
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ConfigError, match="is no socket; choose another --verbs path"):
        await VerbsService(fabric, file).start()
    with pytest.raises(ConfigError, match="choose another --verbs path"):
        await VerbsService(fabric, file / "verbs.sock").start()
    with pytest.raises(ConfigError, match="choose another --verbs path"):
        await VerbsService(fabric, tmp_path / ("x" * 120)).start()
    assert file.read_text() == "precious"


# ------------------------------------------------------------------------------------------- events


async def test_events_happen_at_their_time_of_each_seeded_run(one_switch: Make, tmp_path: Path) -> None:
    """Twice the same run: the rate falls 1 ms after its start, and is back at the start of the next."""
    slower = LinkRate(kind="link-rate", link="h0->tor0", gbps=1, at_ms=1)
    async with Site(one_switch(), tmp_path / "verbs.sock", events=[slower]) as site:
        port, start = site.fabric.topology.port("h0->tor0"), 0
        for _ in range(2):
            client = await site.client(seed=4)
            start = client.now_ns
            assert port.gbps == 10
            await client.wait(timeout_ns=999_999)
            assert port.gbps == 10
            await client.wait(timeout_ns=1)
            assert port.gbps == 10  # who waits for the same moment is told first
            await client.wait(timeout_ns=1)
            assert port.gbps == 1
            begun = {"t_ns": 1_000_000, "kind": "link-rate", "phase": "begin", "what": "h0->tor0 1G"}
            assert (await client.call("query_events")) == {"events": [begun]}
            await client.close()
            await until(lambda: not site.service.attached)
        assert [o.t_ns for o in site.service.timeline.log][-1] == start + 1_000_000


async def test_a_slow_host_is_told_late_and_its_nic_is_not_slow(site: Site) -> None:
    """Each step costs 50 us of one worker; the completion says when the NIC had it."""
    left, a, right, b = await site.two()
    site.service.timeline.add(
        HostSlow(kind="host-slow", host=["h1"], compute=Jitter(distribution="constant", mean_us=50))
    )
    await right.request(*(receive(b, n) for n in range(3)))
    end = left.now_ns + 10**7
    sending = asyncio.create_task(left.finish(3, end, *(write(a, b, 10, wr_id=n) for n in range(3))))
    told = []
    for _ in range(3):
        ((*_, nic_ns),) = await right.wait()
        told.append((right.now_ns, nic_ns))
    await asyncio.gather(sending, right.wait(timeout_ns=end - right.now_ns))
    assert told[2][1] - told[0][1] < 1_000
    assert [told[i][0] - told[0][1] for i in range(3)] == [50_000, 100_000, 150_000]
    assert [wc[2] for wc in left.wc] == ["SUCCESS"] * 3
    assert max(wc[7] for wc in left.wc) < told[0][0]


@pytest.mark.parametrize("what", ["background", "event"])
async def test_a_stall_is_noticed_whatever_goes_on_in_the_fabric(site: Site, what: str) -> None:
    """Background traffic has always something on its way, and events come; none of it helps ranks that sent nothing."""
    client = await site.client()
    if what == "background":
        flow = BackgroundConstant(kind="background-constant", source="h2", target="h3", gbps=1)
        site.service.timeline.add(flow)
    else:
        site.service.timeline.add(LinkRate(kind="link-rate", link="h0->tor0", gbps=1, at_ms=10_000))
    with pytest.raises(RefusedError, match="STALLED"):
        await client.wait()


async def test_background_traffic_is_none_of_the_ranks_business(site: Site) -> None:
    """A message passes beside it, and nobody sees its completions."""
    left, a, right, b = await site.two()
    for source in ("h0", "h2"):
        flow = BackgroundConstant(kind="background-constant", source=source, target="h1", gbps=3)
        site.service.timeline.add(flow)
    await deliver(left, a, right, b)
    assert [len(left.wc), len(right.wc)] == [1, 1]
    assert all(entry["bytes"] > 2_000_000 for entry in site.service.timeline.view()["active"])
