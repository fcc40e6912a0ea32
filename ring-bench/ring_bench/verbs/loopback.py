# SPDX-License-Identifier: Apache-2.0
"""A fabric inside this process: to dry-run a schedule, and to test the rank loop under every delivery order.

Messages of one QP stay in order, as RC guarantees; between QPs each message and each acknowledgement is
delayed at random, by a seed. There is no bandwidth and no congestion: times mean nothing here. What the verbs
promise is enforced strictly: states, packet sequence numbers, keys and bounds, queue depths. A message that
needs a receive and finds none fails at once (no RNR retry), so a missing credit cannot go unnoticed. Data are
copied when the message *arrives*: a sender that reuses its buffer too early is found out.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ring_bench.dtypes import Array
from ring_bench.errors import FabricError, FabricGoneError, StalledError
from ring_bench.tag import sport_of_flow_label
from ring_bench.verbs.api import (
    SUCCESS,
    Completion,
    CompletionQueue,
    DeviceAttributes,
    MemoryRegion,
    Opcode,
    QpAttributes,
    QpState,
)

__all__ = ["LoopbackProvider", "Message"]

_PSN_MASK = 0xFFFFFF
_RECEIVE_OPCODE = {Opcode.RDMA_WRITE_WITH_IMM: "RECV_RDMA_WITH_IMM", Opcode.SEND_WITH_IMM: "RECV"}
_LEGAL = {
    QpState.RESET: None,
    QpState.ERR: None,
    QpState.INIT: (QpState.RESET,),
    QpState.RTR: (QpState.INIT,),
    QpState.RTS: (QpState.RTR, QpState.SQD),
    QpState.SQD: (QpState.RTS,),
}


class Message(NamedTuple):
    """What crossed the fabric, as a packet capture would show it; kept when tracing is on."""

    t_ns: int
    qp_num: int
    sport: int
    opcode: Opcode
    psn: int
    packets: int
    imm: int | None


@dataclass(slots=True)
class _Work:
    """A posted send on its way."""

    wr_id: int
    opcode: Opcode
    data: Array
    wire_length: int
    remote_address: int
    rkey: int
    imm: int | None
    signaled: bool
    generation: int
    psn: int
    packets: int
    sport: int


class _Queue:
    def __init__(self, handle: int, entries: int) -> None:
        self.handle = handle
        self.entries = entries
        self.used = 0


class _Region:
    def __init__(self, buffer: Array, key: int) -> None:
        self.buffer = buffer
        self.address = key << 40  # a wrong key or base address shows as an access error
        self.lkey = key
        self.rkey = key


class _QueuePair:
    def __init__(self, fabric: LoopbackProvider, qp_num: int, gid: str, cq: _Queue, depths: tuple[int, int]):
        self.fabric = fabric
        self.qp_num = qp_num
        self.gid = gid
        self.cq = cq
        self.max_send_wr, self.max_recv_wr = depths
        self.state = QpState.RESET
        self.generation = 0
        self.receives: deque[int] = deque()
        self.outstanding = 0
        self.peer: tuple[str, int] = ("", 0)
        self.sport = 0
        self.mtu = 1
        self.expected_psn = 0
        self.next_psn = 0
        self.arrival_ns = 0
        self.ack_ns = 0

    def modify(self, state: QpState, attributes: QpAttributes | None = None) -> None:
        legal = _LEGAL[state]
        if legal is not None and self.state not in legal:
            raise FabricError("EINVAL", f"QP {self.qp_num:#x} cannot go from {self.state} to {state}")
        if state in (QpState.RTR, QpState.RTS) and self.state is not QpState.SQD:
            if attributes is None:
                raise FabricError("EINVAL", f"QP {self.qp_num:#x} needs attributes on its way to {state}")
            if state is QpState.RTR:
                self.peer = (attributes.dest_gid, attributes.dest_qp_num)
                self.expected_psn = attributes.rq_psn
                self.sport = sport_of_flow_label(attributes.flow_label)
                self.mtu = attributes.path_mtu
            else:
                self.next_psn = attributes.sq_psn
        if state in (QpState.RESET, QpState.ERR):
            self.generation += 1
            self.receives.clear()
            self.outstanding = 0
        self.state = state

    def modify_udp_sport(self, sport: int) -> None:
        if self.state is not QpState.RTS or self.outstanding:
            raise FabricError("EINVAL", f"QP {self.qp_num:#x} is not in RTS with a drained send queue")
        self.sport = sport

    def post_recv(self, wr_id: int) -> None:
        if self.state is QpState.RESET or len(self.receives) >= self.max_recv_wr:
            raise FabricError("ENOMEM", f"receive queue of QP {self.qp_num:#x} is full or in RESET")
        self.receives.append(wr_id)

    def post_send(
        self,
        wr_id: int,
        opcode: Opcode,
        region: MemoryRegion,
        offset: int,
        length: int,
        *,
        remote_address: int = 0,
        rkey: int = 0,
        imm: int | None = None,
        signaled: bool = True,
        wire_length: int | None = None,
    ) -> None:
        if self.state is not QpState.RTS or self.outstanding >= self.max_send_wr:
            raise FabricError("ENOMEM", f"send queue of QP {self.qp_num:#x} is full or not in RTS")
        if offset < 0 or offset + length > region.buffer.size:
            raise FabricError("EINVAL", f"bytes {offset}+{length} are outside the local memory region")
        wire = length if wire_length is None else wire_length
        packets = max(1, -(-wire // self.mtu))
        work = _Work(
            wr_id,
            opcode,
            region.buffer[offset : offset + length],
            wire,
            remote_address,
            rkey,
            imm,
            signaled,
            self.generation,
            self.next_psn,
            packets,
            self.sport,
        )
        self.next_psn = (self.next_psn + packets) & _PSN_MASK
        self.outstanding += 1
        self.fabric.launch(self, work)


class _Context:
    def __init__(self, fabric: LoopbackProvider, attributes: DeviceAttributes) -> None:
        self._fabric = fabric
        self.attributes = attributes

    def create_cq(self, entries: int) -> _Queue:
        return self._fabric.add_queue(entries)

    def reg_mr(self, length: int) -> _Region:
        return self._fabric.add_region(length)

    def create_qp(self, cq: CompletionQueue, max_send_wr: int, max_recv_wr: int) -> _QueuePair:
        return self._fabric.add_qp(self.attributes.gid, cq, (max_send_wr, max_recv_wr))


class LoopbackProvider:
    """Every host and the fabric between them, in memory.

    Args:
        seed: Decides all delays.
        min_delay_ns: Least delay of a message and of its acknowledgement.
        max_delay_ns: Largest; both 0: everything arrives at once.
        trace: Keep a `Message` for everything delivered, in `messages`.
    """

    name = "loopback"
    clock: Literal["twin", "monotonic"] = "twin"  # virtual, like the twin's
    scales_payload = True
    retag_mechanism = "modify_udp_sport in RTS (in memory)"

    def __init__(
        self,
        *,
        seed: int = 0,
        min_delay_ns: int = 1_000,
        max_delay_ns: int = 10_000,
        trace: bool = False,
    ) -> None:
        self.fabric: dict[str, Any] = {"description": {"max_delay_ns": max_delay_ns}}
        self.messages: list[Message] = []
        self._trace = trace
        self._random = random.Random(seed)
        self._delays = (min_delay_ns, max_delay_ns)
        self._now_ns = 0
        self._serial = 0
        self._events: list[tuple[int, int, _QueuePair, _Work, str]] = []
        self._ready: list[Completion] = []
        self._devices = 0
        self._queues: dict[int, _Queue] = {}
        self._regions: dict[int, _Region] = {}
        self._qps: dict[int, _QueuePair] = {}
        self._interrupted = False

    def open_device(self, host: str | int) -> _Context:
        """Open a host's device; every name and number is a host."""
        self._devices += 1
        name = host if isinstance(host, str) else f"h{host}"
        return _Context(
            self,
            DeviceAttributes(
                name="loopback0",
                address=name,
                gid=f"{name}/{self._devices}",
                active_mtu=4096,
                max_msg_sz=1 << 30,
                rate_gbps=None,
                max_qp_wr=16384,
                max_cqe=1 << 22,
            ),
        )

    def clock_ns(self) -> int:
        """Read the virtual clock; it moves from one event to the next."""
        return self._now_ns

    def wait(self, timeout_ns: int | None) -> list[Completion]:
        """Run the fabric to the next completions (see `Provider.wait`).

        Raises:
            StalledError: Nothing is under way and no time-out was given.
            FabricGoneError: After `interrupt`.
        """
        if self._interrupted:
            raise FabricGoneError("the loopback fabric was interrupted")
        deadline = None if timeout_ns is None else self._now_ns + timeout_ns
        events = self._events
        while not self._ready:
            if not events:
                if deadline is None:
                    raise StalledError("nothing is under way in the loopback fabric: every rank waits")
                self._now_ns = deadline
                break
            if deadline is not None and events[0][0] > deadline:
                self._now_ns = deadline
                break
            self._now_ns = events[0][0]
            while events and events[0][0] == self._now_ns:
                _, _, qp, work, status = heapq.heappop(events)
                if status:
                    self._complete(qp, work, status)
                else:
                    self._deliver(qp, work)
        ready, self._ready = self._ready, []
        for completion in ready:
            self._queues[completion.cq].used -= 1
        return ready

    def flush(self) -> None:
        """Do nothing: posts take effect at once here."""

    def counters(self) -> None:
        """Nothing is counted here."""

    def interrupt(self) -> None:
        """Make every later wait fail."""
        self._interrupted = True

    def close(self) -> None:
        """Forget everything."""
        self._events.clear()
        self._ready.clear()
        self._qps.clear()
        self._regions.clear()

    def add_queue(self, entries: int) -> _Queue:
        """Create a completion queue."""
        queue = _Queue(len(self._queues), entries)
        self._queues[queue.handle] = queue
        return queue

    def add_region(self, length: int) -> _Region:
        """Allocate a memory region."""
        region = _Region(np.zeros(length, dtype=np.uint8), len(self._regions) + 1)
        self._regions[region.rkey] = region
        return region

    def add_qp(self, gid: str, cq: CompletionQueue, depths: tuple[int, int]) -> _QueuePair:
        """Create a queue pair."""
        qp = _QueuePair(self, 0x11 + len(self._qps), gid, self._queues[cq.handle], depths)
        self._qps[qp.qp_num] = qp
        return qp

    def launch(self, qp: _QueuePair, work: _Work) -> None:
        """Put a posted send on its way."""
        qp.arrival_ns = max(qp.arrival_ns, self._now_ns + self._random.randint(*self._delays))
        self._schedule(qp.arrival_ns, qp, work, "")

    def _schedule(self, t_ns: int, qp: _QueuePair, work: _Work, status: str) -> None:
        self._serial += 1
        heapq.heappush(self._events, (t_ns, self._serial, qp, work, status))

    def _deliver(self, qp: _QueuePair, work: _Work) -> None:
        if work.generation != qp.generation:
            return  # the QP was reset meanwhile: the message is gone
        status = self._receive(qp, work)
        if status is SUCCESS:
            qp.ack_ns = max(qp.ack_ns, self._now_ns + self._random.randint(*self._delays))
        self._schedule(max(qp.ack_ns, self._now_ns), qp, work, status)

    def _receive(self, qp: _QueuePair, work: _Work) -> str:
        gid, number = qp.peer
        peer = self._qps.get(number)
        if (
            peer is None
            or peer.gid != gid
            or peer.peer != (qp.gid, qp.qp_num)
            or peer.state not in (QpState.RTR, QpState.RTS)
            or peer.expected_psn != work.psn
        ):
            return "RETRY_EXC_ERR"
        needs_receive = work.opcode in _RECEIVE_OPCODE
        if needs_receive and not peer.receives:
            return "RNR_RETRY_EXC_ERR"
        if work.opcode in (Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_WITH_IMM) and work.data.size:
            region = self._regions.get(work.rkey)
            if region is None:
                return "REM_ACCESS_ERR"
            begin = work.remote_address - region.address
            if begin < 0 or begin + work.data.size > region.buffer.size:
                return "REM_ACCESS_ERR"
            region.buffer[begin : begin + work.data.size] = work.data
        peer.expected_psn = (work.psn + work.packets) & _PSN_MASK
        if self._trace:
            self.messages.append(
                Message(self._now_ns, qp.qp_num, work.sport, work.opcode, work.psn, work.packets, work.imm)
            )
        if needs_receive:
            opcode = _RECEIVE_OPCODE[work.opcode]
            self._push(peer, peer.receives.popleft(), SUCCESS, opcode, work.wire_length, work.imm)
        return SUCCESS

    def _complete(self, qp: _QueuePair, work: _Work, status: str) -> None:
        if work.generation != qp.generation:
            return
        qp.outstanding -= 1
        if status != SUCCESS:
            qp.state = QpState.ERR
            qp.generation += 1
        if work.signaled or status != SUCCESS:
            opcode = "SEND" if work.opcode in (Opcode.SEND, Opcode.SEND_WITH_IMM) else "RDMA_WRITE"
            self._push(qp, work.wr_id, status, opcode, work.wire_length, None)

    def _push(self, qp: _QueuePair, wr_id: int, status: str, opcode: str, byte_len: int, imm: int | None) -> None:
        qp.cq.used += 1
        if qp.cq.used > qp.cq.entries:
            raise FabricError("EOVERFLOW", f"completion queue {qp.cq.handle} overran its {qp.cq.entries} entries")
        self._ready.append(Completion(qp.cq.handle, wr_id, status, opcode, qp.qp_num, byte_len, imm, self._now_ns))
