# SPDX-License-Identifier: Apache-2.0
"""The verbs that ring-bench needs, in the words of libibverbs.

A provider is a way to a fabric. All its objects are driven by one thread. Posting calls may be batched: they
take effect, in order, at the latest with the next `Provider.wait`; an error in a batched call is raised
there. The rank loop uses nothing but these protocols and never asks which provider it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ring_bench.dtypes import Array

if TYPE_CHECKING:
    from ring_bench.counters import Snapshot

__all__ = [
    "SUCCESS",
    "TRANSITION_ATTRIBUTES",
    "Completion",
    "CompletionQueue",
    "Context",
    "DeviceAttributes",
    "MemoryRegion",
    "Opcode",
    "Provider",
    "QpAttributes",
    "QpState",
    "QueuePair",
    "connect",
]

SUCCESS = "SUCCESS"


class QpState(StrEnum):
    """States of a queue pair (``ibv_qp_state``)."""

    RESET = "RESET"
    INIT = "INIT"
    RTR = "RTR"
    RTS = "RTS"
    SQD = "SQD"
    ERR = "ERR"


class Opcode(StrEnum):
    """Work request opcodes (``ibv_wr_opcode``)."""

    RDMA_WRITE = "RDMA_WRITE"
    RDMA_WRITE_WITH_IMM = "RDMA_WRITE_WITH_IMM"
    SEND = "SEND"
    SEND_WITH_IMM = "SEND_WITH_IMM"


_CAUSES = {
    "RETRY_EXC_ERR": "the peer does not answer: its process or host died, a link went down, wrong GID or path, UDP "
    "4791 blocked, a lossy or paused fabric, MTU too large for a link",
    "RNR_RETRY_EXC_ERR": "the peer had no receive posted: a protocol error between ranks of different versions",
    "REM_ACCESS_ERR": "the peer refused the address or key: ranks with different options or versions",
    "REM_INV_REQ_ERR": "the peer refused the request: path MTU differs at the two ends, or message too long",
    "REM_OP_ERR": "the peer's QP failed on its side",
    "LOC_LEN_ERR": "message longer than the port allows: give a smaller --segment",
    "LOC_PROT_ERR": "local memory is not registered for this: restart the run",
    "LOC_QP_OP_ERR": "the local QP is not in a state to send",
    "WR_FLUSH_ERR": "the QP was in error before: the first failure is another one",
}


class Completion(NamedTuple):
    """A work completion (``ibv_wc``)."""

    cq: int
    """`CompletionQueue.handle` it was taken from."""
    wr_id: int
    status: str
    """Name of the ``ibv_wc_status`` without prefix; "SUCCESS" is the only good one."""
    opcode: str
    """Name of the ``ibv_wc_opcode`` without prefix, such as "RECV_RDMA_WITH_IMM"."""
    qp_num: int
    byte_len: int
    imm: int | None
    t_ns: int
    """When it was created, on the provider's clock."""
    vendor_err: int = 0
    """What the driver adds to a bad status, of its own numbering; 0: nothing."""

    @property
    def failure(self) -> str:
        """Say what the bad status is, what the driver adds, and what it usually comes from."""
        detail = f" (vendor_err {self.vendor_err:#x})" if self.vendor_err else ""
        return f"{self.status}{detail}: {_CAUSES.get(self.status, 'see ibv_wc_status in the verbs documentation')}"


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """What a device and its port can do."""

    name: str
    address: str
    gid: str
    active_mtu: int
    """Largest payload of a packet, bytes."""
    max_msg_sz: int
    rate_gbps: float | None
    """Port speed, 10^9 bits per second."""
    max_qp_wr: int
    max_cqe: int


@dataclass(frozen=True, slots=True)
class QpAttributes:
    """Attributes of a connected RC queue pair; `TRANSITION_ATTRIBUTES` says which transition takes which."""

    dest_gid: str
    dest_qp_num: int
    rq_psn: int
    sq_psn: int
    flow_label: int
    traffic_class: int
    path_mtu: int
    """Bytes of payload per packet."""
    timeout: int
    """Local ACK time-out, 4.096 us x 2^timeout."""
    retry_cnt: int
    rnr_retry: int
    min_rnr_timer: int


TRANSITION_ATTRIBUTES: Mapping[QpState, tuple[str, ...]] = {
    QpState.RESET: (),
    QpState.INIT: (),
    QpState.RTR: (
        "dest_gid",
        "dest_qp_num",
        "rq_psn",
        "path_mtu",
        "min_rnr_timer",
        "flow_label",
        "traffic_class",
    ),
    QpState.RTS: ("sq_psn", "timeout", "retry_cnt", "rnr_retry"),
    QpState.SQD: (),
    QpState.ERR: (),
}
"""Which attributes are set on the way into a state (IB spec 11.2.5.2, table of modify QP)."""


class CompletionQueue(Protocol):
    """Where completions of a device's queue pairs arrive; `Provider.wait` reads it."""

    @property
    def handle(self) -> int:
        """Number that `Completion.cq` carries, unique in the process."""
        ...


class MemoryRegion(Protocol):
    """Registered memory, allocated by the provider."""

    @property
    def buffer(self) -> Array:
        """The memory, as uint8[length]."""
        ...

    @property
    def address(self) -> int:
        """Remote address of the first byte."""
        ...

    @property
    def lkey(self) -> int:
        """Key for local use."""
        ...

    @property
    def rkey(self) -> int:
        """Key for the peers."""
        ...


class QueuePair(Protocol):
    """A reliable connected queue pair."""

    @property
    def qp_num(self) -> int:
        """Queue pair number, as peers name it."""
        ...

    def modify(self, state: QpState, attributes: QpAttributes | None = None) -> None:
        """Change the state; RTR and RTS need attributes."""
        ...

    def modify_udp_sport(self, sport: int) -> None:
        """Change the UDP source port of a QP in RTS whose send queue is drained."""
        ...

    def post_recv(self, wr_id: int) -> None:
        """Post a receive without buffer: it takes the immediate of a write or of an empty send."""
        ...

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
        """Post a write or send of ``length`` bytes at ``offset`` of ``region``.

        Args:
            wr_id: Comes back in the completion.
            opcode: Operation.
            region: Local memory.
            offset: First byte in the region.
            length: Bytes; 0 posts no scatter-gather entry.
            remote_address: Where a write goes.
            rkey: Key of the remote region.
            imm: Immediate, 32 bits.
            signaled: Ask for a completion on success; failures always complete.
            wire_length: Bytes this message stands for on the wire, where the provider can scale payloads.
        """
        ...


class Context(Protocol):
    """An open device, with its protection domain."""

    @property
    def attributes(self) -> DeviceAttributes:
        """What the device can do."""
        ...

    def create_cq(self, entries: int) -> CompletionQueue:
        """Create a completion queue."""
        ...

    def reg_mr(self, length: int) -> MemoryRegion:
        """Allocate and register memory that peers may write."""
        ...

    def create_qp(self, cq: CompletionQueue, max_send_wr: int, max_recv_wr: int) -> QueuePair:
        """Create an RC queue pair in RESET; both queues complete into ``cq``."""
        ...


class Provider(Protocol):
    """A way to a fabric; one per process."""

    name: str
    clock: Literal["twin", "monotonic"]
    """"twin": virtual nanoseconds, the same in all processes. "monotonic": of this host."""
    scales_payload: bool
    """Whether ``wire_length`` may differ from ``length``."""
    retag_mechanism: str
    """How `QueuePair.modify_udp_sport` does it, for the result."""
    fabric: dict[str, Any]
    """What the fabric says about itself; "preset" where it has one."""

    def open_device(self, host: str | int) -> Context:
        """Open the device of a host, by name or index."""
        ...

    def clock_ns(self) -> int:
        """Read the clock that completions are stamped with."""
        ...

    def wait(self, timeout_ns: int | None) -> list[Completion]:
        """Hand over everything posted and return the completions of all queues.

        Returns as soon as there is one, or with an empty list after ``timeout_ns`` on the provider's clock.

        Raises:
            StalledError: Nothing can ever complete.
            FabricError: A batched call was refused.
            FabricGoneError: The fabric ended.
        """
        ...

    def flush(self) -> None:
        """Hand over everything posted, without waiting and without letting time pass.

        Raises:
            FabricError, FabricGoneError: See `wait`.
        """
        ...

    def counters(self) -> Snapshot | None:
        """Read the counters of all opened devices; None where the fabric has none.

        Raises:
            ProviderError: They cannot be read any more.
        """
        ...

    def interrupt(self) -> None:
        """Make a `wait` in progress, and every later one, raise FabricGoneError; callable from any thread."""
        ...

    def close(self) -> None:
        """Leave the fabric: destroy all objects, queue pairs first. Safe to call twice."""
        ...


def connect(qp: QueuePair, attributes: QpAttributes, receives: tuple[int, ...] = ()) -> None:
    """Take a QP from RESET to RTS, posting receives (their wr_ids) before the peer can send."""
    qp.modify(QpState.INIT)
    for wr_id in receives:
        qp.post_recv(wr_id)
    qp.modify(QpState.RTR, attributes)
    qp.modify(QpState.RTS, attributes)
