# SPDX-License-Identifier: Apache-2.0
"""Verbs objects: state machine, data movement, completions and every way to fail."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fabric_twin.engine import kernel
from fabric_twin.errors import VerbsError
from fabric_twin.verbs import Completion, CompletionQueue, MemoryRegion, QueuePair, VerbsHub

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]


class End:
    """A process with one device, one completion queue and a memory region."""

    def __init__(self, rig: Rig, host: int, size: int = 1 << 16) -> None:
        self.rig = rig
        self.host = rig.net.fabric.topology.hosts[host]
        self.completions: list[Completion] = []
        self.cq: CompletionQueue = rig.hub.create_cq(self, 1000, self.completions.append)
        self.fd = os.memfd_create("test")
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)
        self.mr: MemoryRegion = rig.hub.reg_mr(self, self.host, os.getpid(), self.fd, size)

    def qp(self, max_send_wr: int = 16, max_recv_wr: int = 16) -> QueuePair:
        """A new queue pair in RESET."""
        return self.rig.hub.create_qp(self, self.host, self.cq.handle, self.cq.handle, max_send_wr, max_recv_wr)

    def close(self) -> None:
        """Free what the test process holds."""
        self.memory.close()
        os.close(self.fd)


class Rig:
    """A hub over a small fabric."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.hub = VerbsHub(net.fabric)
        self.ends: list[End] = []

    def end(self, host: int, **options: Any) -> End:
        """A process on `host`."""
        self.ends.append(End(self, host, **options))
        return self.ends[-1]

    def connect(self, a: QueuePair, b: QueuePair, **attrs: Any) -> None:
        """Both from RESET to RTS."""
        for me, other in ((a, b), (b, a)):
            self.hub.modify_qp(me, "INIT", {})
            rtr = {"dest_address": str(other.host.address), "dest_qp_num": other.qp_num, "traffic_class": 2, **attrs}
            self.hub.modify_qp(me, "RTR", rtr)
        for me in (a, b):
            self.hub.modify_qp(me, "RTS", {"sq_psn": 0, "timeout": 8, "retry_cnt": 1, "rnr_retry": 7})

    def pair(self, **attrs: Any) -> tuple[End, QueuePair, End, QueuePair]:
        """Processes on h0 and h1 with a connection."""
        left, right = self.end(0), self.end(1)
        a, b = left.qp(), right.qp()
        self.connect(a, b, **attrs)
        return left, a, right, b

    def write(self, end: End, qp: QueuePair, target: End, length: int, wr_id: int = 1, **changes: Any) -> None:
        """An RDMA write from the start of one region to the start of the other."""
        wr: dict[str, Any] = {
            "opcode": "RDMA_WRITE_WITH_IMM", "lkey": end.mr.key, "offset": 0, "length": length,
            "remote_rkey": target.mr.key, "remote_offset": 0, "imm": 77, "signaled": True, "wire_length": None,
            **changes,
        }  # fmt: skip
        self.hub.post_send(qp, wr_id, **wr)

    def run(self) -> None:
        """Until nothing happens any more."""
        while self.net.fabric.run() != kernel.IDLE:
            self.hub.handle(self.net.fabric.take_events())
        self.hub.handle(self.net.fabric.take_events())


def brief(completions: list[Completion]) -> list[tuple[int, str, str]]:
    """wr_id, status, opcode."""
    return [(c[1], c[2], c[3]) for c in completions]


@pytest.fixture
def rig(one_switch: Make) -> Iterator[Rig]:
    """A hub over eight hosts on one switch."""
    made = Rig(one_switch(mtu=1024))
    yield made
    for end in made.ends:
        made.hub.release(end)
        end.close()


def test_a_write_moves_its_bytes_when_it_is_delivered_and_not_before(rig: Rig) -> None:
    """Data, length, immediate and times of both completions."""
    left, a, right, b = rig.pair()
    left.memory[100:4200] = bytes(i % 251 for i in range(4100))
    rig.hub.post_recv(b, 42)
    rig.write(left, a, right, 4100, wr_id=7, offset=100, remote_offset=50)
    assert right.memory[50:4150] == bytes(4100)
    rig.run()
    assert right.memory[50:4150] == left.memory[100:4200]
    assert right.memory[:50] == bytes(50)
    (arrived,), (sent,) = right.completions, left.completions
    assert arrived[:7] == [right.cq.handle, 42, "SUCCESS", "RECV_RDMA_WITH_IMM", b.qp_num, 4100, 77]
    assert sent[:7] == [left.cq.handle, 7, "SUCCESS", "RDMA_WRITE", a.qp_num, 4100, None]
    assert sent[7] - arrived[7] == pytest.approx(2 * 1000 + 2 * 66 * 0.8, abs=1)


def test_a_plain_write_is_seen_by_its_sender_only_and_an_empty_send_by_both(rig: Rig) -> None:
    """RDMA_WRITE leaves no trace at the receiver's queue; SEND consumes a receive."""
    left, a, right, b = rig.pair()
    left.memory[:5] = b"hello"
    rig.hub.post_recv(b, 1)
    rig.write(left, a, right, 5, wr_id=1, opcode="RDMA_WRITE", imm=None)
    rig.write(left, a, right, 0, wr_id=2, opcode="SEND", imm=None)
    rig.run()
    assert right.memory[:5] == b"hello"
    assert brief(right.completions) == [(1, "SUCCESS", "RECV")]
    assert brief(left.completions) == [(1, "SUCCESS", "RDMA_WRITE"), (2, "SUCCESS", "SEND")]


def test_unsignaled_requests_leave_no_completion_but_free_their_entry(rig: Rig) -> None:
    """Only errors and signaled requests are reported."""
    left, a, right, _ = rig.pair()
    for i in range(16):
        rig.write(left, a, right, 10, wr_id=i, opcode="RDMA_WRITE", imm=None, signaled=i == 15)
    rig.run()
    assert brief(left.completions) == [(15, "SUCCESS", "RDMA_WRITE")]
    for i in range(16):
        rig.write(left, a, right, 10, wr_id=i, opcode="RDMA_WRITE", imm=None)


def test_a_sample_of_the_payload_takes_the_time_of_the_whole(rig: Rig) -> None:
    """`wire_length` is what packets and time are made of; the sample is what is copied."""
    left, a, right, b = rig.pair()
    left.memory[:8] = b"12345678"
    rig.hub.post_recv(b, 1)
    rig.write(left, a, right, 8, wire_length=100 * 1024)
    rig.run()
    assert right.memory[:8] == b"12345678"
    assert right.completions[0][5] == 8
    assert right.completions[0][7] >= 100 * (1024 + 82) * 8 // 10


def test_the_state_machine_follows_the_ib_spec(rig: Rig) -> None:
    """RESET, INIT, RTR, RTS, SQD and back; anything else is EINVAL and changes nothing."""
    left, right = rig.end(0), rig.end(1)
    a, b = left.qp(), right.qp()
    for state in ("RTR", "RTS", "SQD"):
        with pytest.raises(VerbsError, match=f"QP 0x11 of h0 cannot go RESET -> {state}"):
            rig.hub.modify_qp(a, state, {})
    rig.hub.modify_qp(a, "INIT", {})
    with pytest.raises(VerbsError, match="needs dest_address and dest_qp_num"):
        rig.hub.modify_qp(a, "RTR", {})
    with pytest.raises(VerbsError, match="INIT -> RTS"):
        rig.hub.modify_qp(a, "RTS", {})
    assert a.state == "INIT"
    rig.hub.modify_qp(a, "RESET", {})
    rig.connect(a, b)
    rig.hub.modify_qp(a, "SQD", {})
    with pytest.raises(VerbsError, match="SQD -> RTR"):
        rig.hub.modify_qp(a, "RTR", {})
    rig.hub.modify_qp(a, "RTS", {})
    rig.hub.modify_qp(a, "ERR", {})
    with pytest.raises(VerbsError, match="ERR -> RTS"):
        rig.hub.modify_qp(a, "RTS", {})
    rig.hub.modify_qp(a, "RESET", {})
    assert a.state == "RESET"


@pytest.mark.parametrize(
    ("attrs", "code", "says"),
    [
        ({"dest_qp_num": 1 << 24}, "EINVAL", "dest_qp_num = 16777216"),
        ({"min_rnr_timer": 32}, "EINVAL", "allowed are 0 to 31"),
        ({"flow_label": 1 << 20}, "EINVAL", "flow_label"),
        ({"path_mtu": 4096}, "EINVAL", "path_mtu 4096; this fabric allows 256 to 1024"),
        ({"dest_address": "10.9.9.9"}, "ETIMEDOUT", "cannot resolve 10.9.9.9"),
        ({"dest_address": "10.0.0.1"}, "EINVAL", "sends to itself"),
        ({"colour": 3}, "EINVAL", "unknown attributes colour"),
    ],
)
def test_an_attribute_out_of_range_is_refused_and_forgotten(
    rig: Rig, attrs: dict[str, Any], code: str, says: str
) -> None:
    """The error names it; the next attempt with a good one works."""
    left, right = rig.end(0), rig.end(1)
    a, b = left.qp(), right.qp()
    good = {"dest_address": str(b.host.address), "dest_qp_num": b.qp_num}
    rig.hub.modify_qp(a, "INIT", {})
    with pytest.raises(VerbsError, match=says) as caught:
        rig.hub.modify_qp(a, "RTR", {**good, **attrs})
    assert caught.value.code == code
    assert a.state == "INIT"
    rig.hub.modify_qp(a, "RTR", good)


def test_the_address_may_be_a_gid(rig: Rig) -> None:
    """::ffff:a.b.c.d, as `open_device` reports it."""
    left, right = rig.end(0), rig.end(1)
    a, b = left.qp(), right.qp()
    rig.hub.modify_qp(a, "INIT", {})
    rig.hub.modify_qp(a, "RTR", {"dest_gid": f"::ffff:{b.host.address}", "dest_qp_num": b.qp_num})
    assert a.state == "RTR"


def test_the_source_port_comes_from_the_flow_label_and_can_be_set_when_drained(rig: Rig) -> None:
    """At RTR, in SQD, and as mlx5dv does it in RTS; never while packets are on their way."""
    left, a, right, b = rig.pair(flow_label=0x123)
    assert a.sport == 0xC123
    rig.hub.modify_udp_sport(a, 0xC400)
    assert a.sport == 0xC400
    rig.hub.post_recv(b, 1)
    rig.write(left, a, right, 5000)
    changes: list[Callable[[], None]] = [
        lambda: rig.hub.modify_udp_sport(a, 0xC401),
        lambda: rig.hub.modify_qp(a, "SQD", {}),
    ]
    for change in changes:
        with pytest.raises(VerbsError, match="still sends") as caught:
            change()
        assert caught.value.code == "EBUSY"
    rig.run()
    rig.hub.modify_qp(a, "SQD", {})
    with pytest.raises(VerbsError, match="is in SQD, needs RTS"):
        rig.hub.modify_udp_sport(a, 0xC401)
    rig.hub.modify_qp(a, "SQD", {"flow_label": 0x77})
    assert a.sport == 0xC077
    with pytest.raises(VerbsError, match="takes no flow_label"):
        rig.hub.modify_qp(a, "RTS", {"flow_label": 0x78})
    rig.hub.modify_qp(a, "RTS", {})
    with pytest.raises(VerbsError, match="allowed are 0xc000 to 0xffff"):
        rig.hub.modify_udp_sport(a, 0x1234)


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"opcode": "RDMA_READ"}, "EINVAL", "the twin has RDMA_WRITE"),
        ({"lkey": 1}, "EINVAL", "lkey 0x1 is no memory region of this device"),
        ({"offset": 65_000}, "EINVAL", "bytes 65000 to 66000 of a region of 65536"),
        ({"offset": -1}, "EINVAL", "bytes -1"),
        ({"length": -5}, "EMSGSIZE", "-5 bytes"),
        ({"wire_length": 999}, "EMSGSIZE", "999 bytes; allowed are 1000"),
        ({"wire_length": (1 << 30) + 1}, "EMSGSIZE", "allowed are 1000"),
        ({"opcode": "SEND"}, "EINVAL", "a send must be empty"),
        ({"imm": 1 << 32}, "EINVAL", "does not fit 32 bits"),
    ],
)
def test_a_bad_work_request_is_refused_at_once(rig: Rig, changes: dict[str, Any], code: str, says: str) -> None:
    """As ibv_post_send does, with a text that says which limit it broke."""
    left, a, right, _ = rig.pair()
    with pytest.raises(VerbsError, match=says) as caught:
        rig.write(left, a, right, **{"length": 1000, **changes})
    assert caught.value.code == code
    assert not a.sends


def test_work_requests_need_the_right_state(rig: Rig) -> None:
    """Sends need RTS, receives any state but RESET and ERR."""
    left, right = rig.end(0), rig.end(1)
    a = left.qp()
    with pytest.raises(VerbsError, match="it is in RESET, needs RTS"):
        rig.write(left, a, right, 10)
    with pytest.raises(VerbsError, match="is in RESET"):
        rig.hub.post_recv(a, 1)
    rig.hub.modify_qp(a, "INIT", {})
    rig.hub.post_recv(a, 1)
    rig.hub.modify_qp(a, "ERR", {})
    assert brief(left.completions) == [(1, "WR_FLUSH_ERR", "RECV")]
    with pytest.raises(VerbsError, match="is in ERR"):
        rig.hub.post_recv(a, 2)


def test_full_queues_say_so_and_have_room_again_after_completions(rig: Rig) -> None:
    """ENOMEM at max_send_wr and max_recv_wr."""
    left, right = rig.end(0), rig.end(1)
    a, b = left.qp(max_send_wr=2), right.qp(max_recv_wr=2)
    rig.connect(a, b)
    for i in range(2):
        rig.hub.post_recv(b, i)
        rig.write(left, a, right, 10, wr_id=i)
    too_much: list[Callable[[], None]] = [
        lambda: rig.write(left, a, right, 10),
        lambda: rig.hub.post_recv(b, 9),
    ]
    for post in too_much:
        with pytest.raises(VerbsError) as caught:
            post()
        assert caught.value.code == "ENOMEM"
    rig.run()
    rig.hub.post_recv(b, 3)
    rig.write(left, a, right, 10)


@pytest.mark.parametrize(("sends", "receives"), [(0, 1), (1, 0), (8193, 1), (1, 8193)])
def test_queue_sizes_have_limits(rig: Rig, sends: int, receives: int) -> None:
    """1 to 8192 work requests; 1 to 4 Mi completions."""
    left = rig.end(0)
    with pytest.raises(VerbsError, match="allowed are 1 to 8192"):
        left.qp(sends, receives)
    for size in (0, (1 << 22) + 1):
        with pytest.raises(VerbsError, match="create_cq"):
            rig.hub.create_cq(left, size, left.completions.append)


@pytest.mark.parametrize(
    "wrong", [{"remote_rkey": 1}, {"remote_offset": 65_000}, {"remote_offset": -1}, {"key": "of another host"}, {}]
)
def test_a_write_to_memory_that_is_not_open_to_it_fails_both_ends(rig: Rig, wrong: dict[str, Any]) -> None:
    """REM_ACCESS_ERR at the sender, the rest flushed; the responder's queue pair goes down too; no byte moves."""
    left, a, right, b = rig.pair()
    if "key" in wrong:
        wrong = {"remote_rkey": rig.end(2).mr.key}
    elif not wrong:
        locked = rig.hub.reg_mr(right, right.host, os.getpid(), right.fd, 1 << 16, ["LOCAL_WRITE"])
        wrong = {"remote_rkey": locked.key}
    left.memory[:1000] = b"x" * 1000
    rig.hub.post_recv(b, 1)
    rig.hub.post_recv(b, 2)
    rig.write(left, a, right, 1000, wr_id=1, **wrong)
    rig.write(left, a, right, 1000, wr_id=2)
    rig.run()
    assert brief(left.completions) == [(1, "REM_ACCESS_ERR", "RDMA_WRITE"), (2, "WR_FLUSH_ERR", "RDMA_WRITE")]
    assert brief(right.completions) == [(1, "WR_FLUSH_ERR", "RECV"), (2, "WR_FLUSH_ERR", "RECV")]
    assert (a.state, b.state) == ("ERR", "ERR")
    assert right.memory[:] == bytes(1 << 16)


def test_a_peer_that_went_away_ends_in_retry_exc_err_and_flushes_the_rest(rig: Rig) -> None:
    """Its process has died; the first send times out, everything behind it is flushed."""
    left, a, right, _ = rig.pair()
    rig.hub.post_recv(a, 5)
    rig.hub.release(right)
    rig.write(left, a, right, 1000, wr_id=1)
    rig.write(left, a, right, 1000, wr_id=2, signaled=False)
    rig.run()
    assert brief(left.completions) == [
        (1, "RETRY_EXC_ERR", "RDMA_WRITE"),
        (2, "WR_FLUSH_ERR", "RDMA_WRITE"),
        (5, "WR_FLUSH_ERR", "RECV"),
    ]
    assert left.completions[0][7] == 2 * 4096 * 2**8
    assert a.state == "ERR"
    assert not rig.hub.regions.get(right.mr.key)


def test_a_receiver_without_receives_ends_in_rnr_retry_exc_err(rig: Rig) -> None:
    """After rnr_retry attempts; the pause between them is what the receiver asked for."""
    left, right = rig.end(0), rig.end(1)
    a, b = left.qp(), right.qp()
    rig.connect(a, b, min_rnr_timer=31)
    rig.hub.modify_qp(a, "RESET", {})
    rig.hub.modify_qp(b, "RESET", {})
    for me, other, timer in ((b, a, 14), (a, b, 1)):
        rig.hub.modify_qp(me, "INIT", {})
        rtr = {"dest_address": str(other.host.address), "dest_qp_num": other.qp_num, "min_rnr_timer": timer}
        rig.hub.modify_qp(me, "RTR", rtr)
        rig.hub.modify_qp(me, "RTS", {"timeout": 14, "retry_cnt": 7, "rnr_retry": 3})
    rig.write(left, a, right, 100)
    rig.run()
    assert brief(left.completions) == [(1, "RNR_RETRY_EXC_ERR", "RDMA_WRITE")]
    assert 3 * 1280_000 < left.completions[0][7] < 3 * 1280_000 + 40_000  # encoded timer 14 is 1.28 ms


def test_reset_forgets_requests_without_completions_and_starts_anew(rig: Rig) -> None:
    """Both ends reset in mid-message and connected again: only the new message arrives."""
    left, a, right, b = rig.pair()
    rig.hub.post_recv(b, 1)
    rig.write(left, a, right, 60_000, wr_id=1)
    rig.net.fabric.run(until_ps=20_000_000)
    rig.hub.handle(rig.net.fabric.take_events())
    rig.hub.modify_qp(a, "RESET", {})
    rig.hub.modify_qp(b, "RESET", {})
    rig.connect(a, b)
    rig.hub.post_recv(b, 2)
    left.memory[:3] = b"new"
    rig.write(left, a, right, 3, wr_id=2)
    rig.run()
    assert brief(left.completions) == [(2, "SUCCESS", "RDMA_WRITE")]
    assert brief(right.completions) == [(2, "SUCCESS", "RECV_RDMA_WITH_IMM")]
    assert right.memory[:4] == b"new\0"
    rig.net.check_idle()


def test_nobody_uses_the_objects_of_another_process(rig: Rig) -> None:
    """Handles are looked up with their owner."""
    left, a, right, _ = rig.pair()
    with pytest.raises(VerbsError, match="no queue pair"):
        rig.hub.qp(right, a.handle)
    with pytest.raises(VerbsError, match="no completion queue"):
        rig.hub.create_qp(right, right.host, left.cq.handle, right.cq.handle, 1, 1)
    with pytest.raises(VerbsError, match="is no memory region of this device"):
        rig.write(left, a, right, 10, lkey=right.mr.key)


def test_memory_that_cannot_be_mapped_is_refused(rig: Rig) -> None:
    """A dead process, a closed descriptor, a length beyond the file, an unknown access flag."""
    left = rig.end(0)
    hub, host, me = rig.hub, left.host, os.getpid()
    with pytest.raises(VerbsError, match="cannot map /proc/4194305/fd/3") as caught:
        hub.reg_mr(left, host, 4194305, 3, 10)
    assert caught.value.code == "EACCES"
    with pytest.raises(VerbsError, match="cannot map"):
        hub.reg_mr(left, host, me, 99_999, 10)
    for length in (0, -1, 1 << 17):
        with pytest.raises(VerbsError, match=f"{length} bytes asked for"):
            hub.reg_mr(left, host, me, left.fd, length)
    with pytest.raises(VerbsError, match="access ATOMIC"):
        hub.reg_mr(left, host, me, left.fd, 10, ["ATOMIC"])


def test_queue_pair_numbers_count_up_per_host_and_are_reused(rig: Rig) -> None:
    """From 0x11; hosts count for themselves."""
    left, right = rig.end(0), rig.end(1)
    assert [left.qp().qp_num for _ in range(3)] == [0x11, 0x12, 0x13]
    first = right.qp()
    assert first.qp_num == 0x11
    rig.hub.destroy_qp(first)
    assert right.qp().qp_num == 0x11
