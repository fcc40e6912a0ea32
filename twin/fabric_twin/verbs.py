# SPDX-License-Identifier: Apache-2.0
"""Verbs objects on the twin's NICs: memory regions, completion queues, queue pairs and their state machine.

Data really moves: when the last packet of a write arrives, its bytes are copied from the sender's memory region
into the receiver's.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fabric_twin.errors import FabricError, VerbsError
from fabric_twin.fabric import ACKED, DELIVERED, RETRY_EXC, Fabric, FabricEvent
from fabric_twin.slow_hosts import SlowHosts
from fabric_twin.topology import Host
from ring_bench.tag import sport_of_flow_label

__all__ = ["Completion", "MemoryRegion", "QueuePair", "VerbsHub", "default_sport"]

ACCESS = ("LOCAL_WRITE", "REMOTE_WRITE")
MAX_QP_WR = 8192
MAX_CQE = 1 << 22
MAX_MSG_SZ = 1 << 30
FIRST_QPN = 0x11
RNR_TIMER_US = (
    655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680,
    10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
)  # fmt: skip
"""Encoded RNR NAK timer -> microseconds (IB spec table 46)."""

Completion = list[Any]
"""[cq, wr_id, status, opcode, qp_num, byte_len, imm or None, t_ns]"""


@dataclass
class MemoryRegion:
    """Registered memory of a process, mapped here."""

    key: int
    host: Host
    owner: object
    length: int
    memory: mmap.mmap
    remote_write: bool = True


@dataclass
class CompletionQueue:
    """Where completions of some QPs of one process go."""

    handle: int
    owner: object
    size: int
    deliver: Callable[[Completion], None]


@dataclass
class _SendWr:
    wr_id: int
    opcode: str
    signaled: bool
    lkey: int
    offset: int
    length: int
    rkey: int
    remote_offset: int
    imm: int | None
    message: int = -1
    status: str = "SUCCESS"


@dataclass
class QueuePair:
    """A reliable connection's end, from RESET to RTS (IB spec 10.3.1)."""

    handle: int
    row: int
    qp_num: int
    host: Host
    owner: object
    send_cq: CompletionQueue
    recv_cq: CompletionQueue
    max_send_wr: int
    max_recv_wr: int
    state: str = "RESET"
    attrs: dict[str, Any] = field(default_factory=dict)
    sport: int = 0
    sends: deque[_SendWr] = field(default_factory=deque)
    receives: deque[int] = field(default_factory=deque)


_TRANSITIONS = {
    ("RESET", "INIT"),
    ("INIT", "INIT"),
    ("INIT", "RTR"),
    ("RTR", "RTS"),
    ("RTS", "RTS"),
    ("RTS", "SQD"),
    ("SQD", "SQD"),
    ("SQD", "RTS"),
}
_LIMITS = {
    "timeout": 31,
    "retry_cnt": 7,
    "rnr_retry": 7,
    "min_rnr_timer": 31,
    "sq_psn": 0xFFFFFF,
    "rq_psn": 0xFFFFFF,
    "dest_qp_num": 0xFFFFFF,
    "flow_label": 0xFFFFF,
    "traffic_class": 0xFF,
}
_WRITES = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
_OPCODES = (*_WRITES, "SEND", "SEND_WITH_IMM")


def default_sport(qp_num: int, dest_qp_num: int) -> int:
    """The UDP source port of a QP without flow label."""
    return 0xC000 | ((qp_num * 0x9E3779B1 ^ dest_qp_num) & 0x3FFF)


class VerbsHub:
    """All verbs objects of a fabric.

    `owner` below is whoever opened an object (a connection); when it goes, `release` takes its objects along.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.slow = SlowHosts()
        self._handles = 0
        self._keys = 0x1000
        self.regions: dict[int, MemoryRegion] = {}
        self.queues: dict[int, CompletionQueue] = {}
        self.qps: dict[int, QueuePair] = {}
        self._by_row: dict[int, QueuePair] = {}
        self._by_number: dict[tuple[int, int], QueuePair] = {}
        self._pending: dict[int, tuple[QueuePair, _SendWr]] = {}

    def _handle(self) -> int:
        self._handles += 1
        return self._handles

    # ------------------------------------------------------------------------------------ memory, queues

    def reg_mr(
        self, owner: object, host: Host, pid: int, fd: int, length: int, access: Sequence[str] = ACCESS
    ) -> MemoryRegion:
        """Map a process's memfd.

        Raises:
            VerbsError: it cannot be opened or is shorter than `length`, or `access` has an unknown flag.
        """
        unknown = set(access) - set(ACCESS)
        if unknown:
            raise VerbsError("EINVAL", f"reg_mr: access {', '.join(sorted(unknown))}; the twin has {', '.join(ACCESS)}")
        path = f"/proc/{pid}/fd/{fd}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                if length < 1 or size < length:
                    raise VerbsError("EINVAL", f"reg_mr: {length} bytes asked for, {path} has {size}")
                memory = mmap.mmap(descriptor, length)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise VerbsError("EACCES", f"reg_mr: cannot map {path}: {error.strerror}") from None
        self._keys += 1
        region = MemoryRegion(self._keys, host, owner, length, memory, "REMOTE_WRITE" in access)
        self.regions[region.key] = region
        return region

    def create_cq(self, owner: object, size: int, deliver: Callable[[Completion], None]) -> CompletionQueue:
        """A completion queue whose entries go to `deliver` as they come."""
        if not 1 <= size <= MAX_CQE:
            raise VerbsError("EINVAL", f"create_cq: {size} entries; allowed are 1 to {MAX_CQE}")
        queue = CompletionQueue(self._handle(), owner, size, deliver)
        self.queues[queue.handle] = queue
        return queue

    # ------------------------------------------------------------------------------------ queue pairs

    def create_qp(
        self, owner: object, host: Host, send_cq: int, recv_cq: int, max_send_wr: int, max_recv_wr: int
    ) -> QueuePair:
        """An RC queue pair in RESET; QP numbers count up per host from 0x11."""
        for name, value in (("max_send_wr", max_send_wr), ("max_recv_wr", max_recv_wr)):
            if not 1 <= value <= MAX_QP_WR:
                raise VerbsError("EINVAL", f"create_qp: {name} = {value}; allowed are 1 to {MAX_QP_WR}")
        queues = [self._own_queue(owner, handle) for handle in (send_cq, recv_cq)]
        number = FIRST_QPN
        while (host.index, number) in self._by_number:
            number += 1
        row = self.fabric.create_qp(host, number)
        qp = QueuePair(self._handle(), row, number, host, owner, queues[0], queues[1], max_send_wr, max_recv_wr)
        self.qps[qp.handle] = qp
        self._by_row[row] = qp
        self._by_number[host.index, number] = qp
        return qp

    def _own_queue(self, owner: object, handle: int) -> CompletionQueue:
        queue = self.queues.get(handle)
        if queue is None or queue.owner is not owner:
            raise VerbsError("EINVAL", f"no completion queue {handle} on this connection")
        return queue

    def qp(self, owner: object, handle: int) -> QueuePair:
        """The owner's queue pair `handle`."""
        qp = self.qps.get(handle)
        if qp is None or qp.owner is not owner:
            raise VerbsError("EINVAL", f"no queue pair {handle} on this connection")
        return qp

    def modify_qp(self, qp: QueuePair, state: str, attrs: dict[str, Any]) -> None:
        """Move through RESET, INIT, RTR, RTS, SQD; any state goes to RESET or ERR.

        Raises:
            VerbsError: EINVAL for a transition the IB spec does not have or an attribute out of range.
        """
        if state == "RESET":
            self._reset(qp)
            return
        if state == "ERR":
            self._fail(qp, None, "WR_FLUSH_ERR")
            return
        if (qp.state, state) not in _TRANSITIONS:
            raise VerbsError(
                "EINVAL", f"modify_qp: QP {qp.qp_num:#x} of {qp.host.name} cannot go {qp.state} -> {state}"
            )
        if state == "SQD" and not self.fabric.is_drained(qp.row):
            raise VerbsError(
                "EBUSY", f"modify_qp: QP {qp.qp_num:#x} of {qp.host.name} still sends; drain it before SQD"
            )
        given = {k: v for k, v in attrs.items() if v is not None}
        unknown = set(given) - {*_LIMITS, "dest_gid", "dest_address", "path_mtu"}
        if unknown:
            raise VerbsError("EINVAL", f"modify_qp: unknown attributes {', '.join(sorted(unknown))}")
        merged = {**qp.attrs, **given}
        self._check_limits(merged)
        if state in ("RTR", "RTS") and qp.state in ("INIT", "RTR"):
            self._connect(qp, merged)
        elif "flow_label" in given and state == "SQD" == qp.state:
            self._set_sport(qp, self._sport(qp, merged))
        elif "flow_label" in given and state != "INIT":
            raise VerbsError(
                "EINVAL", f"modify_qp: {qp.state} -> {state} takes no flow_label; give it in INIT -> RTR or SQD -> SQD"
            )
        qp.attrs = merged
        qp.state = state

    @staticmethod
    def _check_limits(attrs: Mapping[str, Any]) -> None:
        for name, top in _LIMITS.items():
            if not 0 <= int(attrs.get(name, 0)) <= top:
                raise VerbsError("EINVAL", f"modify_qp: {name} = {attrs[name]}; allowed are 0 to {top}")

    def _connect(self, qp: QueuePair, attrs: Mapping[str, Any]) -> None:
        dest_address = attrs.get("dest_address") or attrs.get("dest_gid")
        if dest_address is None or "dest_qp_num" not in attrs:
            raise VerbsError("EINVAL", f"modify_qp: RTR of QP {qp.qp_num:#x} needs dest_address and dest_qp_num")
        try:
            dest = self.fabric.topology.host(str(dest_address).removeprefix("::ffff:"))
        except FabricError as error:
            raise VerbsError("ETIMEDOUT", f"modify_qp: cannot resolve {dest_address}: {error}") from None
        mtu = int(attrs.get("path_mtu", self.fabric.preset.mtu))
        if not 256 <= mtu <= self.fabric.preset.mtu:
            raise VerbsError("EINVAL", f"modify_qp: path_mtu {mtu}; this fabric allows 256 to {self.fabric.preset.mtu}")
        peer = self._by_number.get((dest.index, int(attrs["dest_qp_num"])))
        qp.sport = self._sport(qp, attrs)
        try:
            self.fabric.connect(
                qp.row,
                dest,
                peer.row if peer else None,
                mtu=mtu,
                sport=qp.sport,
                psn=int(attrs.get("sq_psn", 0)),
                ect=int(attrs.get("traffic_class", 0)) & 3 in (1, 2),
                timeout=int(attrs.get("timeout", 14)),
                retry_cnt=int(attrs.get("retry_cnt", 7)),
                rnr_retry=int(attrs.get("rnr_retry", 7)),
                rnr_timer_ps=RNR_TIMER_US[int(attrs.get("min_rnr_timer", 12))] * 1_000_000,
            )
        except FabricError as error:
            raise VerbsError("EINVAL", f"modify_qp: {error}") from None

    @staticmethod
    def _sport(qp: QueuePair, attrs: Mapping[str, Any]) -> int:
        label = int(attrs.get("flow_label", 0))
        if label:
            return sport_of_flow_label(label)
        return default_sport(qp.qp_num, int(attrs["dest_qp_num"]))

    def modify_udp_sport(self, qp: QueuePair, sport: int) -> None:
        """What mlx5dv_modify_qp_udp_sport does: RC, in RTS, and our rule: only with the send queue drained."""
        if qp.state != "RTS":
            raise VerbsError("EOPNOTSUPP", f"modify_qp_udp_sport: QP {qp.qp_num:#x} is in {qp.state}, needs RTS")
        if not 0xC000 <= sport <= 0xFFFF:
            raise VerbsError("EINVAL", f"modify_qp_udp_sport: port {sport:#x}; allowed are 0xc000 to 0xffff")
        if not self.fabric.is_drained(qp.row):
            raise VerbsError(
                "EBUSY",
                f"modify_qp_udp_sport: QP {qp.qp_num:#x} still sends; retransmissions would carry the wrong step",
            )
        self._set_sport(qp, sport)

    def _set_sport(self, qp: QueuePair, sport: int) -> None:
        qp.sport = sport
        self.fabric.set_sport(qp.row, sport)

    def _reset(self, qp: QueuePair) -> None:
        for wr in qp.sends:
            self._pending.pop(wr.message, None)
        qp.sends.clear()
        qp.receives.clear()
        self.fabric.reset_qp(qp.row)
        qp.attrs.clear()
        qp.state = "RESET"

    def destroy_qp(self, qp: QueuePair) -> None:
        """Forget the queue pair; the peer's packets find nobody."""
        self._reset(qp)
        self.fabric.destroy_qp(qp.row)
        del self.qps[qp.handle]
        del self._by_row[qp.row]
        del self._by_number[qp.host.index, qp.qp_num]

    def release(self, owner: object) -> None:
        """Everything an owner holds goes: it has closed its connection, or died."""
        for qp in [qp for qp in self.qps.values() if qp.owner is owner]:
            self.destroy_qp(qp)
        for cq in [cq for cq in self.queues.values() if cq.owner is owner]:
            del self.queues[cq.handle]
        for region in [region for region in self.regions.values() if region.owner is owner]:
            del self.regions[region.key]
            region.memory.close()

    # ------------------------------------------------------------------------------------ work requests

    def post_recv(self, qp: QueuePair, wr_id: int) -> None:
        """Post a receive without a buffer: for writes with immediate and empty sends."""
        if qp.state in ("RESET", "ERR"):
            raise VerbsError("EINVAL", f"post_recv: QP {qp.qp_num:#x} of {qp.host.name} is in {qp.state}")
        if len(qp.receives) >= qp.max_recv_wr:
            raise VerbsError("ENOMEM", f"post_recv: the {qp.max_recv_wr} receives of QP {qp.qp_num:#x} are all posted")
        qp.receives.append(wr_id)
        self.fabric.receives(qp.row, 1)

    def post_send(
        self,
        qp: QueuePair,
        wr_id: int,
        opcode: str,
        lkey: int,
        offset: int,
        length: int,
        remote_rkey: int,
        remote_offset: int,
        imm: int | None,
        signaled: bool,
        wire_length: int | None,
    ) -> None:
        """Post a write or an empty send.

        Raises:
            VerbsError: EINVAL (wrong state, key or range), ENOMEM (send queue full), EMSGSIZE.
        """
        where = f"post_send on QP {qp.qp_num:#x} of {qp.host.name}"
        if opcode not in _OPCODES:
            raise VerbsError("EINVAL", f"{where}: opcode {opcode!r}; the twin has {', '.join(_OPCODES)}")
        if qp.state != "RTS":
            raise VerbsError("EINVAL", f"{where}: it is in {qp.state}, needs RTS")
        if len(qp.sends) >= qp.max_send_wr:
            raise VerbsError("ENOMEM", f"{where}: all {qp.max_send_wr} entries of its send queue are in use")
        wire = length if wire_length is None else wire_length
        if not 0 <= length <= wire <= MAX_MSG_SZ:
            raise VerbsError("EMSGSIZE", f"{where}: {wire} bytes; allowed are {length} (the payload) to {MAX_MSG_SZ}")
        write = opcode in _WRITES
        if not write and length:
            raise VerbsError("EINVAL", f"{where}: the twin's receives have no buffers, a send must be empty")
        if length:
            region = self.regions.get(lkey)
            if region is None or region.owner is not qp.owner or region.host is not qp.host:
                raise VerbsError("EINVAL", f"{where}: lkey {lkey:#x} is no memory region of this device")
            if offset < 0 or offset + length > region.length:
                raise VerbsError(
                    "EINVAL", f"{where}: bytes {offset} to {offset + length} of a region of {region.length}"
                )
        if imm is not None and not 0 <= imm < 1 << 32:
            raise VerbsError("EINVAL", f"{where}: imm {imm} does not fit 32 bits")
        wr = _SendWr(wr_id, opcode, signaled, lkey, offset, length, remote_rkey, remote_offset, imm)
        wr.message = self.fabric.post(
            qp.row, wire, write=write, imm=opcode.endswith("_WITH_IMM") or not write, signaled=signaled
        )
        qp.sends.append(wr)
        self._pending[wr.message] = (qp, wr)

    def anything_sent(self) -> bool:
        """Some send waits for its end."""
        return any(qp.sends for qp in self.qps.values())

    # ------------------------------------------------------------------------------------ completions

    def handle(self, events: Iterable[FabricEvent]) -> None:
        """Turn what the fabric reports into data movement and completions."""
        for event in events:
            if event.kind == DELIVERED:
                self._delivered(event)
            elif event.kind == ACKED:
                self._acked(event)
            else:
                qp = self._by_row.get(event.qp)
                if qp is not None:
                    status = "RETRY_EXC_ERR" if event.kind == RETRY_EXC else "RNR_RETRY_EXC_ERR"
                    self._fail(qp, event, status)

    def _delivered(self, event: FabricEvent) -> None:
        pending = self._pending.get(event.message)
        qp = self._by_row.get(event.qp)
        if pending is None or qp is None:
            return  # one end went away at this very moment
        _, wr = pending
        if wr.opcode in _WRITES:
            target = self.regions.get(wr.rkey)
            if wr.length:
                inside = target is not None and 0 <= wr.remote_offset <= target.length - wr.length
                if target is None or not inside or target.host is not qp.host or not target.remote_write:
                    wr.status = "REM_ACCESS_ERR"
                    self._fail(qp, event, "WR_FLUSH_ERR")  # the responder's side goes down too (IB spec 9.9.5.2)
                    return
                source = self.regions[wr.lkey]
                data = memoryview(source.memory)[wr.offset : wr.offset + wr.length]
                target.memory[wr.remote_offset : wr.remote_offset + wr.length] = data
                data.release()
            if wr.opcode == "RDMA_WRITE":
                return
        opcode = "RECV_RDMA_WITH_IMM" if wr.opcode in _WRITES else "RECV"
        self._complete(qp.recv_cq, qp.receives.popleft(), "SUCCESS", opcode, qp, wr.length, wr.imm, event.time_ps)

    def _acked(self, event: FabricEvent) -> None:
        self.fabric.free_message(event.message)
        pending = self._pending.pop(event.message, None)
        if pending is None:
            return  # its QP was reset at this very moment
        qp, wr = pending
        qp.sends.popleft()
        if wr.status != "SUCCESS":
            self._error(qp, wr, wr.status, event.time_ps)
            self._fail(qp, event, "WR_FLUSH_ERR")
        elif wr.signaled:
            opcode = "RDMA_WRITE" if wr.opcode in _WRITES else "SEND"
            self._complete(qp.send_cq, wr.wr_id, "SUCCESS", opcode, qp, wr.length, None, event.time_ps)

    def _error(self, qp: QueuePair, wr: _SendWr, status: str, time_ps: int) -> None:
        opcode = "RDMA_WRITE" if wr.opcode in _WRITES else "SEND"
        self._complete(qp.send_cq, wr.wr_id, status, opcode, qp, 0, None, time_ps)

    def _fail(self, qp: QueuePair, event: FabricEvent | None, status: str) -> None:
        """To ERR: the oldest send gets `status`, everything else is flushed (IB spec 10.3.1.7)."""
        time_ps = event.time_ps if event else self.fabric.now_ps
        sends, receives = list(qp.sends), list(qp.receives)
        self._reset(qp)
        qp.state = "ERR"
        for i, wr in enumerate(sends):
            self._error(qp, wr, status if i == 0 else "WR_FLUSH_ERR", time_ps)
        for wr_id in receives:
            self._complete(qp.recv_cq, wr_id, "WR_FLUSH_ERR", "RECV", qp, 0, None, time_ps)

    def _complete(
        self,
        cq: CompletionQueue,
        wr_id: int,
        status: str,
        opcode: str,
        qp: QueuePair,
        byte_len: int,
        imm: int | None,
        time_ps: int,
    ) -> None:
        entry = [cq.handle, wr_id, status, opcode, qp.qp_num, byte_len, imm, time_ps // 1000]
        step = opcode == "RECV_RDMA_WITH_IMM" and status == "SUCCESS"
        self.slow.tell(qp.host.index, time_ps, partial(cq.deliver, entry), step=step)
