# SPDX-License-Identifier: Apache-2.0
"""The provider for real NICs: ConnectX (mlx5) and soft-RoCE (rxe), by rdma-core's pyverbs.

All of it runs in one thread. Completions are polled for, with pauses when nothing comes: waiting for a completion
event would hold Python's global lock.

Depths are accounted here by what the device granted, and posting beyond them is refused: an overrun completion
queue would be dead without a word. The device's errors come as `FabricError` with the errno's name and what to
do about it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import time
from collections import deque
from typing import Any, Literal

import numpy as np

from ring_bench.counters import Snapshot, snapshot
from ring_bench.dtypes import Array
from ring_bench.errors import FabricError, FabricGoneError, NoProgressError
from ring_bench.rdma_sysfs import Gid, choose_gid, driver_of, rate_gbps
from ring_bench.tag import SPORT_BASE, flow_label_of_sport
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
from ring_bench.verbs.pyverbs_library import (
    MASKS,
    explain_limits,
    explain_modify,
    explain_sport,
    gid_table,
    is_mlx5,
    load_mlx5,
    load_pyverbs,
    raise_memlock,
    read_devices,
    refusals,
)

__all__ = ["PyverbsProvider"]

_POLL_BATCH = 64
_SPIN_NS = {True: 1_000_000, False: 50_000_000}
"""How long a wait only yields the CPU between polls, by whether a device is software: that one needs the CPU too."""
_PAUSE_SHARE = 1 / 16
"""Then it sleeps between polls, for this share of the time waited so far ..."""
_MAX_PAUSE_S = 2e-3
"""... and no longer than this."""
_LOOK_NS = 1_000_000_000
"""A wait this long, and every so often from then on, asks the devices whether they are still there."""
_MLX5_BLOCKS_PER_SEND = 4
"""ConnectX counts ``max_qp_wr`` in blocks of 64 bytes; its library reserves four for each send of an RC QP, as it
might be the binding of a memory window."""
_HOP_LIMIT = 64
_RXE_TIMEOUT = 18
"""Least local ACK time-out on soft-RoCE, 1.1 s: it shares the CPU with what it serves and answers late, not never."""


class _Queue:
    """A completion queue and the QPs whose completions it takes."""

    def __init__(self, handle: int, cq: Any) -> None:
        self.handle = handle
        self.cq = cq
        self.free: int = cq.cqe
        self.qps: dict[int, _QueuePair] = {}


class _Region:
    def __init__(self, buffer: Array, mr: Any) -> None:
        self.buffer = buffer
        self.address = buffer.ctypes.data
        self.lkey: int = mr.lkey
        self.rkey: int = mr.rkey


class _QueuePair:
    """An RC queue pair; counts what is posted against what was granted."""

    def __init__(self, context: _Context, qp: Any, depths: tuple[int, int]) -> None:
        self._lib = context.lib
        self._context = context
        self._qp = qp
        self._max_send_wr, self._max_recv_wr = depths
        self._state = QpState.RESET
        self._attributes: QpAttributes | None = None
        self._sends: deque[int] = deque()  # requests that each signaled one retires, itself included
        self._unsignaled = 0
        self._sending = 0
        self._receiving = 0
        self._piece = self._lib.SGE(0, 0, 0)
        self._receive = self._lib.RecvWR(num_sge=1, sg=[self._piece])  # has to have a piece, until it is made
        self._receive.num_sge = 0
        self.qp_num: int = qp.qp_num

    def modify(self, state: QpState, attributes: QpAttributes | None = None) -> None:
        if attributes is not None:
            self._attributes = attributes
        if state is QpState.RTR:
            self._context.check_gid()
        self._modify(state)
        if state is QpState.RESET:
            self._sends.clear()
            self._unsignaled = self._sending = self._receiving = 0

    def modify_udp_sport(self, sport: int) -> None:
        if self._state is not QpState.RTS:
            raise FabricError("EINVAL", f"{self._name} is in {self._state}: a source port can be changed in RTS only")
        if self._sending:
            raise FabricError(
                "EBUSY",
                f"{self._name} has {self._sending} sends under way: their retransmissions would carry the new tag",
            )
        if not SPORT_BASE <= sport <= 0xFFFF:  # the library does not check
            raise FabricError("EINVAL", f"source port {sport} is outside 49152-65535, where RoCEv2 tags live")
        if is_mlx5(self._context.driver):  # it has no way into SQD
            with refusals(self._lib, f"mlx5dv_modify_qp_udp_sport on {self._name}", explain_sport):
                load_mlx5().modify_udp_sport(self._qp, sport)
        else:
            assert self._attributes is not None
            self._modify(QpState.SQD)
            self._modify(QpState.SQD, flow_label_of_sport(sport))
            self._modify(QpState.RTS)

    def post_recv(self, wr_id: int) -> None:
        if self._receiving >= self._max_recv_wr:
            raise FabricError("ENOMEM", f"the receive queue of {self._name} is full ({self._max_recv_wr})")
        self._receive.wr_id = wr_id
        with refusals(self._lib, f"post_recv on {self._name}"):
            self._qp.post_recv(self._receive)
        self._receiving += 1

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
        if self._sending >= self._max_send_wr:
            raise FabricError("ENOMEM", f"the send queue of {self._name} is full ({self._max_send_wr})")
        if length > self._context.attributes.max_msg_sz:
            raise FabricError(
                "EMSGSIZE", f"{length} bytes are more than a message of {self._name} may have: smaller --segment"
            )
        lib, piece = self._lib, self._piece
        piece.addr, piece.length, piece.lkey = region.address + offset, length, region.lkey
        request = lib.SendWR(
            wr_id=wr_id,
            opcode=lib.posted[opcode],
            num_sge=1,
            imm_data=0 if imm is None else socket.htonl(imm),
            sg=[piece],
            send_flags=lib.enums.IBV_SEND_SIGNALED if signaled else 0,
        )
        if length == 0:
            request.num_sge = 0
        if opcode in (Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_WITH_IMM):
            request.set_wr_rdma(rkey, remote_address)
        with refusals(lib, f"post_send on {self._name}"):
            try:
                self._qp.post_send(request)
            finally:
                request.close()  # pyverbs frees a request's copy of its pieces only here: its finalizer is misspelt
        self._sending += 1
        self._unsignaled += 1
        if signaled:
            self._sends.append(self._unsignaled)
            self._unsignaled = 0

    def completed(self, *, receive: bool) -> None:
        """Take back the credits of a completion."""
        if receive:
            self._receiving -= 1
        elif self._sends:
            self._sending -= self._sends.popleft()

    @property
    def _name(self) -> str:
        return f"QP {self.qp_num:#x} of {self._context.attributes.name}"

    def _modify(self, state: QpState, flow_label: int | None = None) -> None:
        """Change the state, or with a flow label: only that, in SQD."""
        lib, enums, known = self._lib, self._lib.enums, self._attributes
        attr = lib.QPAttr(
            qp_state=getattr(enums, f"IBV_QPS_{state}"), cur_qp_state=getattr(enums, f"IBV_QPS_{self._state}")
        )
        names: tuple[str, ...] = ("STATE",)
        if state not in (QpState.RESET, QpState.ERR):
            try:
                names += MASKS[self._state, state]
            except KeyError:
                raise FabricError("EINVAL", f"{self._name} cannot go from {self._state} to {state}") from None
        if state is QpState.INIT:
            attr.port_num = self._context.gid.port
            attr.qp_access_flags = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        elif state in (QpState.RTR, QpState.RTS) and self._state is not QpState.SQD:
            if known is None:
                raise FabricError("EINVAL", f"{self._name} needs attributes on its way to {state}")
            self._fill(attr, known)
        if flow_label is not None:
            assert known is not None
            attr.ah_attr = self._context.path(known, flow_label)
            names = MASKS[QpState.SQD, QpState.SQD]
        mask = 0
        for name in names:
            mask |= getattr(enums, f"IBV_QP_{name}")
        what = f"{self._name} from {self._state} to {state}"
        with refusals(lib, what, lambda number: explain_modify(state, number, known)):
            self._qp.modify(attr, mask)
        self._state = state

    def _fill(self, attr: Any, known: QpAttributes) -> None:
        attr.ah_attr = self._context.path(known, known.flow_label)
        attr.path_mtu = known.path_mtu.bit_length() - 8  # ibv_mtu: 256 is 1, 4096 is 5
        for name in ("dest_qp_num", "rq_psn", "sq_psn", "timeout", "retry_cnt", "rnr_retry", "min_rnr_timer"):
            setattr(attr, name, getattr(known, name))
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        if self._context.driver == "rxe":
            attr.timeout = max(known.timeout, _RXE_TIMEOUT)


class _Context:
    """An open device and its protection domain."""

    def __init__(self, provider: PyverbsProvider, context: Any, pd: Any, gid: Gid, driver: str) -> None:
        self.lib = provider.lib
        self.gid = gid
        self.driver = driver
        self._provider = provider
        self._context = context
        self._pd = pd
        device, port = context.query_device(), context.query_port(gid.port)
        if is_mlx5(driver):
            with contextlib.suppress(FabricError):  # who changes a source port is told
                load_mlx5()  # now, and not in the midst of the first change
        self.attributes = DeviceAttributes(
            name=gid.device,
            address=str(gid.address),
            gid=gid.gid,
            active_mtu=128 << port.active_mtu,
            max_msg_sz=port.max_msg_sz,
            rate_gbps=rate_gbps(gid.device, gid.port),
            max_qp_wr=device.max_qp_wr // (_MLX5_BLOCKS_PER_SEND if is_mlx5(driver) else 1),
            max_cqe=device.max_cqe,
        )

    def create_cq(self, entries: int) -> _Queue:
        with self._making(f"a completion queue of {entries} entries"):
            cq = self._provider.keep(self.lib.CQ(self._context, entries))
        return self._provider.add_queue(cq)

    def reg_mr(self, length: int) -> _Region:
        size = max(length, 1)
        memory = mmap.mmap(-1, size)
        buffer: Array = np.frombuffer(memory, dtype=np.uint8)
        enums = self.lib.enums
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        with self._making(f"a memory region of {size / 2**20:.1f} MiB"):
            mr = self._provider.keep(self.lib.MR(self._pd, size, access, address=buffer.ctypes.data))
        return _Region(buffer[:length], mr)

    def create_qp(self, cq: CompletionQueue, max_send_wr: int, max_recv_wr: int) -> _QueuePair:
        queue = self._provider.queues[cq.handle]
        lib = self.lib
        cap = lib.QPCap(max_send_wr=max_send_wr, max_recv_wr=max_recv_wr, max_send_sge=1, max_recv_sge=1)
        attr = lib.QPInitAttr(qp_type=lib.enums.IBV_QPT_RC, scq=queue.cq, rcq=queue.cq, cap=cap, sq_sig_all=0)
        if max_send_wr + max_recv_wr > queue.free:
            raise FabricError(
                "ENOSPC",
                f"the completion queue has {queue.free} entries left, a QP of {max_send_wr} sends and "
                f"{max_recv_wr} receives could overrun it",
            )
        with self._making(f"a QP of {max_send_wr} sends and {max_recv_wr} receives"):
            qp = self._provider.keep(lib.QP(self._pd, attr))
        granted = attr.cap
        if granted.max_send_wr < max_send_wr or granted.max_recv_wr < max_recv_wr:
            raise FabricError(
                "ENOMEM",
                f"{self.attributes.name} granted {granted.max_send_wr} sends and {granted.max_recv_wr} receives of "
                f"{max_send_wr} and {max_recv_wr}",
            )
        queue.free -= max_send_wr + max_recv_wr
        pair = _QueuePair(self, qp, (max_send_wr, max_recv_wr))
        queue.qps[pair.qp_num] = pair
        return pair

    def path(self, known: QpAttributes, flow_label: int) -> Any:
        """Give the address vector to the peer, with a flow label."""
        lib = self.lib
        route = lib.GlobalRoute(
            dgid=lib.GID(known.dest_gid),
            flow_label=flow_label,
            sgid_index=self.gid.index,
            hop_limit=_HOP_LIMIT,
            traffic_class=known.traffic_class,
        )
        return lib.AHAttr(port_num=self.gid.port, is_global=1, gr=route)

    def check_gid(self) -> None:
        """See that our GID is still at its index; a link that flapped may have moved it.

        Raises:
            FabricError: It is gone.
        """
        gid = self.gid
        with contextlib.suppress(self.lib.PyverbsError):
            entry = self._context.query_gid_ex(gid.port, gid.index)
            if (entry.gid_str(), entry.gid_type) == (gid.gid, self.lib.enums.IBV_GID_TYPE_ROCE_V2):
                return
        with refusals(self.lib, f"reading the GIDs of {gid.device}"):
            table = gid_table(self.lib, self._context, gid.device)
        for other in table:
            if (other.port, other.gid, other.kind) == (gid.port, gid.gid, gid.kind):
                self.gid = other
                return
        raise FabricError(
            "ENODEV", f"{gid.device} lost its address {gid.address} (a link flap or an address change): repeat the run"
        )

    def _making(self, what: str) -> contextlib.AbstractContextManager[None]:
        return refusals(self.lib, f"{self.attributes.name} refused {what}", explain_limits)

    def trouble(self) -> str:
        """Say what is wrong with the port; empty when it is up.

        Raises:
            FabricError: The device is gone. It never completes anything again, not even with an error.
        """
        name, port = self.gid.device, self.gid.port
        with refusals(self.lib, f"{name} does not answer any more, it was reset or removed (see dmesg)"):
            state = self._context.query_port(port).state
        return "" if state == self.lib.enums.IBV_PORT_ACTIVE else f"port {port} of {name} is down"


class PyverbsProvider:
    """The RDMA devices of this machine.

    Args:
        patience_s: Longest wait for a completion; None waits for ever.

    Raises:
        ProviderUnavailableError: pyverbs is missing or does not fit.
    """

    name = "pyverbs"
    clock: Literal["twin", "monotonic"] = "monotonic"
    scales_payload = False

    def __init__(self, *, patience_s: float | None = None) -> None:
        self.lib = load_pyverbs()
        self.queues: dict[int, _Queue] = {}
        """By handle."""
        self.retag_mechanism = "no device open"
        self.fabric: dict[str, Any] = {"description": {"pyverbs": self.lib.file, "devices": []}}
        self._patience_s = patience_s
        self._stack = contextlib.ExitStack()  # closes in reverse: QPs, CQs, regions, domains, devices
        self._interrupted = False
        self._software = False
        self._contexts: list[_Context] = []
        raise_memlock()

    def open_device(self, host: str | int) -> _Context:
        """Open the device that stands for a host (`rdma_sysfs.choose_gid` says which).

        Raises:
            ProviderUnavailableError: There is none, or it has no usable GID, or it cannot be opened.
        """
        tables, problems = read_devices(self.lib)
        netdevs = [name for _, name in socket.if_nameindex()]
        gid = choose_gid(host, list(tables), tables.__getitem__, problems, netdevs)
        driver = driver_of(gid.device)
        with refusals(self.lib, f"opening {gid.device}"):
            context = self.keep(self.lib.Context(name=gid.device))
            opened = _Context(self, context, self.keep(self.lib.PD(context)), gid, driver)
        self._contexts.append(opened)
        self._software |= driver == "rxe"
        self.retag_mechanism = (
            "mlx5dv_modify_qp_udp_sport in RTS" if is_mlx5(driver) else "flow label in SQD (RTS -> SQD -> RTS)"
        )
        attributes = opened.attributes
        self.fabric["description"]["devices"].append(
            {
                "device": gid.device,
                "driver": driver,
                "netdev": gid.netdev,
                "port": gid.port,
                "gid": gid.gid,
                "gid_index": gid.index,
                "address": attributes.address,
                "active_mtu": attributes.active_mtu,
                "rate_gbps": attributes.rate_gbps,
            }
        )
        return opened

    def clock_ns(self) -> int:
        """Read this host's monotonic clock."""
        return time.monotonic_ns()

    def wait(self, timeout_ns: int | None) -> list[Completion]:
        """Poll all queues until something completes (see `Provider.wait`).

        Raises:
            NoProgressError: Nothing completed within the patience given.
            FabricError: A device is gone, or a queue cannot be read.
            FabricGoneError: `interrupt` was called, or the provider is closed.
        """
        begin = time.monotonic_ns()
        spin_ns = _SPIN_NS[self._software]
        look_ns = _LOOK_NS
        while True:
            if self._interrupted:
                raise FabricGoneError("the wait for completions was broken off")
            completions = self._poll()
            if completions:
                return completions
            waited = time.monotonic_ns() - begin
            if timeout_ns is not None and waited >= timeout_ns:
                return []
            if self._patience_s is not None and waited > self._patience_s * 1e9:
                likely = ", ".join(self._troubles()) or (
                    "a rank hangs, or packets do not arrive (is UDP port 4791 open, the MTU right?)"
                )
                raise NoProgressError(
                    f"no completion for {self._patience_s:g} s: {likely} (--timeout 0 waits for ever)"
                )
            if waited >= look_ns:
                self._troubles()  # a device that is gone ends the wait; a port that is down may come back
                look_ns = waited + _LOOK_NS
            if waited < spin_ns:
                os.sched_yield()
            else:
                time.sleep(min(waited * 1e-9 * _PAUSE_SHARE, _MAX_PAUSE_S))

    def flush(self) -> None:
        """Do nothing: everything is handed over as it is posted."""

    def counters(self) -> Snapshot:
        """Read the counters of the opened ports from sysfs and their drivers (see `Provider.counters`)."""
        opened = self.fabric["description"]["devices"]
        return snapshot((entry["device"], entry["port"], entry["netdev"]) for entry in opened)

    def interrupt(self) -> None:
        """End a wait in progress and every later one; callable from any thread."""
        self._interrupted = True

    def close(self) -> None:
        """Destroy all objects, queue pairs first. Errors no longer matter here: the kernel cleans up behind us."""
        self.queues.clear()
        with contextlib.suppress(self.lib.PyverbsError):
            self._stack.close()
        self._interrupted = True

    def keep(self, thing: Any) -> Any:
        """Take care that an object of pyverbs is closed, after all that were made later."""
        self._stack.callback(thing.close)
        return thing

    def add_queue(self, cq: Any) -> _Queue:
        """Poll a completion queue from now on."""
        queue = _Queue(len(self.queues), cq)
        self.queues[queue.handle] = queue
        return queue

    def _troubles(self) -> list[str]:
        return [trouble for context in self._contexts if (trouble := context.trouble())]

    def _poll(self) -> list[Completion]:
        lib = self.lib
        completions: list[Completion] = []
        for queue in self.queues.values():
            try:
                count, entries = queue.cq.poll(_POLL_BATCH)
            except lib.PyverbsError as error:  # its number is no errno
                raise FabricError("EIO", f"completion queue {queue.handle} has an unreadable entry: {error}") from error
            if not count:
                continue
            now_ns = time.monotonic_ns()
            for entry in entries:
                status = lib.statuses.get(entry.status, f"STATUS_{entry.status}")
                receive = bool(entry.opcode & lib.enums.IBV_WC_RECV)
                if status == SUCCESS:
                    queue.qps[entry.qp_num].completed(receive=receive)
                # mlx5 says "with immediate" of sends as well, and leaves the field as it was.
                has_imm = status == SUCCESS and receive and entry.wc_flags & lib.enums.IBV_WC_WITH_IMM
                completions.append(
                    Completion(
                        queue.handle,
                        entry.wr_id,
                        status,
                        lib.opcodes.get(entry.opcode, ""),
                        entry.qp_num,
                        entry.byte_len,
                        socket.ntohl(entry.imm_data) if has_imm else None,
                        now_ns,
                        0 if status == SUCCESS else entry.vendor_err,
                    )
                )
        return completions
