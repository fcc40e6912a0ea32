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
import errno
import mmap
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Iterator
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
    explain_modify,
    gid_table,
    load_pyverbs,
    open_devices,
    refusal,
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
_HOP_LIMIT = 64
_RXE_TIMEOUT = 18
"""Least local ACK time-out on soft-RoCE, 1.1 s: it shares the CPU with what it serves and answers late, not never."""
_MEGABYTE = 1 << 20


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
        if self._context.driver == "mlx5_core":
            self._modify_on_mlx5(sport)
        else:
            assert self._attributes is not None
            self._modify(QpState.SQD)
            self._modify(QpState.SQD, flow_label_of_sport(sport))
            self._modify(QpState.RTS)

    def post_recv(self, wr_id: int) -> None:
        if self._receiving >= self._max_recv_wr:
            raise FabricError("ENOMEM", f"the receive queue of {self._name} is full ({self._max_recv_wr})")
        request = self._lib.RecvWR(wr_id=wr_id, num_sge=1, sg=[self._context.nothing])
        request.num_sge = 0
        with refusals(self._lib, f"post_recv on {self._name}"):
            self._qp.post_recv(request)
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
        lib = self._lib
        request = lib.SendWR(
            wr_id=wr_id,
            opcode=lib.posted[opcode],
            num_sge=1,
            imm_data=0 if imm is None else socket.htonl(imm),
            sg=[lib.SGE(region.address + offset, length, region.lkey)],
            send_flags=lib.enums.IBV_SEND_SIGNALED if signaled else 0,
        )
        if length == 0:
            request.num_sge = 0
        if opcode in (Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_WITH_IMM):
            request.set_wr_rdma(rkey, remote_address)
        with refusals(lib, f"post_send on {self._name}"):
            self._qp.post_send(request)
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

    def _modify_on_mlx5(self, sport: int) -> None:
        try:
            from pyverbs.providers.mlx5.mlx5dv import Mlx5QP
        except ImportError as error:
            raise FabricError(
                "EOPNOTSUPP",
                f"this pyverbs has no mlx5 part ({error}): install the distribution's python3-pyverbs and "
                "ibverbs-providers, or use --tagging per-step or static",
            ) from error

        def explain(number: int) -> str:
            # Driver and state are known to be right, so this errno has only one cause left.
            if number == errno.EOPNOTSUPP:
                return ": its firmware cannot (rts2rts_qp_udp_sport): update it, or use --tagging per-step or static"
            return ""

        with refusals(self._lib, f"mlx5dv_modify_qp_udp_sport on {self._name}", explain):
            Mlx5QP.modify_udp_sport(self._qp, sport)


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
        self.attributes = DeviceAttributes(
            name=gid.device,
            address=str(gid.address),
            gid=gid.gid,
            active_mtu=128 << port.active_mtu,
            max_msg_sz=port.max_msg_sz,
            rate_gbps=rate_gbps(gid.device, gid.port),
            max_qp_wr=device.max_qp_wr,
            max_cqe=device.max_cqe,
        )
        self.nothing = self.lib.SGE(0, 0, 0)

    def create_cq(self, entries: int) -> _Queue:
        with self._limited(f"a completion queue of {entries} entries"):
            cq = self._provider.keep(self.lib.CQ(self._context, entries))
        return self._provider.add_queue(cq)

    def reg_mr(self, length: int) -> _Region:
        size = max(length, 1)
        memory = mmap.mmap(-1, size)
        buffer: Array = np.frombuffer(memory, dtype=np.uint8)
        enums = self.lib.enums
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        with self._limited(f"a memory region of {size / _MEGABYTE:.1f} MiB"):
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
        with self._limited(f"a QP of {max_send_wr} sends and {max_recv_wr} receives"):
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
            if self._context.query_gid(gid.port, gid.index).gid == gid.gid:
                return
        for other in gid_table(self.lib, self._context, gid.device):
            if (other.port, other.gid, other.kind) == (gid.port, gid.gid, gid.kind):
                self.gid = other
                return
        raise FabricError(
            "ENODEV", f"{gid.device} lost its address {gid.address} (a link flap or an address change): repeat the run"
        )

    @contextlib.contextmanager
    def _limited(self, what: str) -> Iterator[None]:
        def explain(number: int) -> str:
            soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            if number != errno.ENOMEM or soft == resource.RLIM_INFINITY:
                return ""
            return (
                f": this process may lock {soft / _MEGABYTE:.1f} MiB (hard limit {hard / _MEGABYTE:.1f} MiB); "
                "raise it: systemd LimitMEMLOCK=infinity, limits.conf memlock and a new login, "
                "docker --ulimit memlock=-1"
            )

        with refusals(self.lib, f"{self.attributes.name} refused {what}", explain):
            yield


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
        _raise_memlock()

    def open_device(self, host: str | int) -> _Context:
        """Open the device that stands for a host (`rdma_sysfs.choose_gid` says which).

        Raises:
            ProviderUnavailableError: There is none, or it has no usable GID, or it cannot be opened.
        """
        with contextlib.ExitStack() as others:
            contexts, problems = open_devices(self.lib, others)

            def gids_of(name: str) -> list[Gid]:
                return gid_table(self.lib, contexts[name], name)

            gid = choose_gid(host, list(contexts), gids_of, problems, [name for _, name in socket.if_nameindex()])
        context = self.keep(self.lib.Context(name=gid.device))
        driver = driver_of(gid.device)
        with refusals(self.lib, f"a protection domain on {gid.device}"):
            opened = _Context(self, context, self.keep(self.lib.PD(context)), gid, driver)
        self._software |= driver == "rxe"
        on_mlx5 = driver == "mlx5_core"
        self.retag_mechanism = (
            "mlx5dv_modify_qp_udp_sport in RTS" if on_mlx5 else "flow label in SQD (RTS -> SQD -> RTS)"
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
            FabricGoneError: `interrupt` was called, or the provider is closed.
        """
        begin = time.monotonic_ns()
        spin_ns = _SPIN_NS[self._software]
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
                raise NoProgressError(
                    f"no completion for {self._patience_s:g} s: a rank hangs, or packets do not arrive (is UDP port "
                    "4791 open, the MTU right?) (--timeout 0 waits for ever)"
                )
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

    def _poll(self) -> list[Completion]:
        lib = self.lib
        completions: list[Completion] = []
        for queue in self.queues.values():
            try:
                count, entries = queue.cq.poll(_POLL_BATCH)
            except lib.PyverbsError as error:
                raise refusal(error, f"polling completion queue {queue.handle}") from error
            if not count:
                continue
            now_ns = time.monotonic_ns()
            for entry in entries:
                status = lib.statuses.get(entry.status, f"STATUS_{entry.status}")
                receive = bool(entry.opcode & lib.enums.IBV_WC_RECV)
                if status == SUCCESS:
                    queue.qps[entry.qp_num].completed(receive=receive)
                has_imm = status == SUCCESS and entry.wc_flags & lib.enums.IBV_WC_WITH_IMM
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
                    )
                )
        return completions


def _raise_memlock() -> None:
    """Raise the soft limit of locked memory to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
