# SPDX-License-Identifier: Apache-2.0
"""A rank's part in one ring: the edge to the next rank and the edge from the previous one.

Each edge has W data QPs (slots; step s uses slot s mod W) from sender to receiver and one QP pair in the
other direction, on which the receiver grants steps. Flow of a step s over an edge:

1. The sender posts it when the release rule allows, the receiver has granted step s on its slot, and the
   slot's previous send has completed. Writes go straight to their place; the last carries s as immediate.
2. The receiver's completion for s arrives. Reduce-scatter data are reduced into the receive buffer.
3. The receiver readies the slot (per-step tagging: takes the QP through RESET to RTS with the flow label of
   step s+W), posts its receive, then grants s+W by an empty SEND_WITH_IMM. A grant is thus a promise that a
   receive is posted: receiver-not-ready cannot happen.

Steps of an iteration that has not begun here wait in their slots, unreduced and ungranted.

PSNs of a slot run on when its QP is recycled, as if the QP had lived on. So a retransmission that meets the
receiver's next incarnation is an old PSN there, is acknowledged as a duplicate, and completes the sender.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ring_bench.dtypes import REDUCTIONS
from ring_bench.errors import ProtocolError
from ring_bench.plan import Receive, Send
from ring_bench.tag import flow_label_of_sport
from ring_bench.verbs.api import Completion, Opcode, QpAttributes, QpState, QueuePair, connect

if TYPE_CHECKING:
    from ring_bench.rank import Rank

__all__ = ["Neighbour", "RingEnd", "RingQueuePairs", "ring_of", "step_of"]

_SEND, _RECV, _CREDIT, _GRANT = range(4)
_KIND_SHIFT, _RING_SHIFT = 60, 48
_STEP_MASK = (1 << _RING_SHIFT) - 1
_RING_MASK = (1 << _KIND_SHIFT - _RING_SHIFT) - 1

ACK_TIMEOUT = 17
"""4.096 us x 2^17 = 0.54 s; with 7 retries a dead peer shows within seconds."""
RETRY_COUNT = 7
RNR_RETRY = 6
MIN_RNR_TIMER = 12


def ring_of(wr_id: int) -> int:
    """Give the ring of a work request."""
    return wr_id >> _RING_SHIFT & _RING_MASK


def step_of(wr_id: int) -> int | None:
    """Give the step of a work request; None for those of the credit flow."""
    return wr_id & _STEP_MASK if wr_id >> _KIND_SHIFT in (_SEND, _RECV) else None


@dataclass(slots=True)
class RingQueuePairs:
    """The queue pairs of one rank in one ring."""

    send: list[QueuePair]
    credit: QueuePair
    recv: list[QueuePair]
    grant: QueuePair

    def numbers(self) -> dict[str, list[int]]:
        """Give the QP numbers, to be told to the neighbours."""
        return {
            "send": [qp.qp_num for qp in self.send],
            "credit": [self.credit.qp_num],
            "recv": [qp.qp_num for qp in self.recv],
            "grant": [self.grant.qp_num],
        }


@dataclass(slots=True)
class Neighbour:
    """What a rank must know of the rank before or behind it in a ring."""

    rank: int
    gid: str
    numbers: dict[str, list[int]]
    address: int = 0
    rkey: int = 0


class RingEnd:
    """A rank's two edges in one ring, and what is under way on them."""

    def __init__(self, rank: Rank, ring: int, qps: RingQueuePairs, previous: Neighbour, following: Neighbour) -> None:
        plan, config = rank.plan, rank.plan.config
        self._rank = rank
        self._plan = plan
        self._ring = ring
        self._qps = qps
        self._previous = previous
        self._following = following
        self._slots = config.slots
        self._steps = plan.steps
        self._total = plan.steps_total
        self._per_step = config.tagging == "per-step"
        self._retag = config.tagging == "retag"
        self._scaled = config.payload_scale > 1
        self._reduce = REDUCTIONS[config.op]
        self._wr_ring = ring << _RING_SHIFT
        sizes = range(len(plan.counts))
        self._sends: list[list[Send]] = [plan.sends(size, ring, rank.position) for size in sizes]
        self._receives: list[list[Receive]] = [plan.receives(size, ring, rank.position) for size in sizes]
        self._post_ns = rank.record.post_ns[ring]
        self._done_ns = rank.record.done_ns[ring]
        # Sending edge, per slot.
        self._granted = list(range(self._slots))
        self._idle = [True] * self._slots
        self._send_psn = [_first_psn(rank.number, ring, slot) for slot in range(self._slots)]
        # Receiving edge, per slot.
        self._recv_psn = [_first_psn(previous.rank, ring, slot) for slot in range(self._slots)]
        self._early: list[int] = []
        self._grants_posted = 0
        self._grants_done = 0
        self._held_grants: deque[int] = deque()
        # Release.
        self._ready: deque[int] = deque()
        self._next = 0
        self._arrivals = 0
        self._leading = 0
        self._in_order = config.release == "in-order"
        self._count = config.release == "count"

    def handle(self, completion: Completion) -> None:
        """Take a successful completion.

        Raises:
            ProtocolError: It does not fit the state of its edge.
        """
        wr_id = completion.wr_id
        kind = wr_id >> _KIND_SHIFT
        if kind == _RECV:
            self._arrived(wr_id & _STEP_MASK, completion)
        elif kind == _SEND:
            self._sent(wr_id & _STEP_MASK)
        elif kind == _CREDIT:
            self._credited(completion)
        else:
            self._grants_sent(wr_id & _STEP_MASK)

    def connect(self) -> None:
        """Bring all QPs to RTS with their first receives posted."""
        qps, slots = self._qps, self._slots
        for slot in range(slots):
            connect(qps.send[slot], self._send_attributes(slot))
            connect(qps.recv[slot], self._recv_attributes(slot), self._receive_ids(slot))
        credits = tuple(_CREDIT << _KIND_SHIFT | self._wr_ring for _ in range(slots))
        connect(
            qps.credit,
            self._attributes(self._following, self._following.numbers["grant"][0], 0, 0, 0),
            credits,
        )
        connect(
            qps.grant,
            self._attributes(self._previous, self._previous.numbers["credit"][0], 0, 0, 0),
        )

    def begin(self, iteration: int) -> None:
        """The rank begins an iteration: take what came early, release the first step."""
        first = iteration * self._steps
        if not self._count and not self._in_order:
            self._ready.append(first)
        early, self._early = self._early, []
        for step in early:
            if step // self._steps <= iteration:
                self._consume(step)
            else:
                self._early.append(step)
        self._release_in_order()
        self._pump()

    def _arrived(self, step: int, completion: Completion) -> None:
        """A step's data are all here."""
        if completion.imm != step:
            raise ProtocolError(
                f"rank {self._rank.number} ({self._rank.host}), ring {self._ring}: expected step {step} "
                f"on QP {completion.qp_num:#x} from rank {self._previous.rank}, got immediate {completion.imm}",
                rank=self._rank.number,
                host=self._rank.host,
                step=step,
            )
        t_ns = completion.t_ns
        self._done_ns[step] = t_ns
        observer = self._rank.observer
        if observer is not None:
            observer.step(self._previous.rank, self._ring, step // self._steps, step, "done", t_ns)
        self._arrivals += 1
        done = self._done_ns
        while self._leading < self._total and done[self._leading] >= 0:
            self._leading += 1
        if step // self._steps <= self._rank.current:
            self._consume(step)
        else:
            self._early.append(step)
        self._release_in_order()
        self._pump()

    def _sent(self, step: int) -> None:
        """A step's send is acknowledged: its slot's queue is drained."""
        self._idle[step % self._slots] = True
        self._rank.sent(step // self._steps)
        self._pump()

    def _credited(self, completion: Completion) -> None:
        """The next rank grants a step."""
        step = completion.imm
        if step is None or self._granted[step % self._slots] != step - self._slots:
            raise ProtocolError(
                f"rank {self._rank.number} ({self._rank.host}), ring {self._ring}: unexpected grant of step "
                f"{step} from rank {self._following.rank}",
                rank=self._rank.number,
                host=self._rank.host,
                step=step,
            )
        self._granted[step % self._slots] = step
        self._qps.credit.post_recv(_CREDIT << _KIND_SHIFT | self._wr_ring)
        self._pump()

    def _grants_sent(self, serial: int) -> None:
        """All grants up to a serial number have left the send queue."""
        self._grants_done = serial + 1
        while self._held_grants and self._grants_posted - self._grants_done < 2 * self._slots:
            self._post_grant(self._held_grants.popleft())

    @property
    def missing(self) -> int | None:
        """The first step that has not arrived; None: all have."""
        return self._leading if self._leading < self._total else None

    def waiting_for(self) -> str:
        """Say what this ring waits for; empty when nothing."""
        texts = []
        if self._leading < self._total:
            texts.append(f"step {self._leading} from rank {self._previous.rank}")
        if self._ready:
            step = self._ready[0]
            slot = step % self._slots
            if not self._idle[slot]:
                texts.append(f"acknowledgement of step {step - self._slots}")
            elif self._granted[slot] != step:
                texts.append(f"rank {self._following.rank}'s credit for step {step}")
        return f"ring {self._ring}: " + " and ".join(texts) if texts else ""

    def _release_in_order(self) -> None:
        """Release steps in order: by data ("in-order"), or by the number of arrivals ("count")."""
        if self._count:
            while self._next < self._total and self._next <= self._arrivals:
                step = self._next
                self._next += 1
                self._ready.append(step)
                if step // self._steps > self._rank.current:
                    self._rank.force_begin()
        elif self._in_order:
            last = min(self._leading, (self._rank.current + 1) * self._steps - 1)
            while self._next <= last:
                self._ready.append(self._next)
                self._next += 1

    def _pump(self) -> None:
        """Post what is released and has its slot."""
        ready = self._ready
        if self._in_order or self._count:
            while ready and self._slot_free(ready[0]):
                self._post(ready.popleft())
        else:
            for _ in range(len(ready)):
                step = ready.popleft()
                if self._slot_free(step):
                    self._post(step)
                else:
                    ready.append(step)

    def _slot_free(self, step: int) -> bool:
        slot = step % self._slots
        return self._idle[slot] and self._granted[slot] == step

    def _post(self, step: int) -> None:
        rank, plan = self._rank, self._plan
        slot = step % self._slots
        iteration, step_in_iteration = divmod(step, self._steps)
        send = self._sends[plan.iterations[iteration].size][step_in_iteration]
        qp = self._qps.send[slot]
        if step >= self._slots:
            if self._per_step:
                qp.modify(QpState.RESET)
                connect(qp, self._send_attributes(step))
            elif self._retag:
                qp.modify_udp_sport(self._sport(step))
        self._idle[slot] = False
        self._send_psn[slot] = (self._send_psn[slot] + send.packets) & 0xFFFFFF
        receive_offset = plan.receive_offset(iteration) + send.offset
        source = plan.pattern_offset(iteration) + send.offset if send.from_pattern else receive_offset
        target = plan.scratch_offset(self._ring, slot) if send.to_scratch else receive_offset
        target += self._following.address
        t_ns = rank.provider.clock_ns()
        self._post_ns[step] = t_ns
        if rank.observer is not None:
            rank.observer.step(rank.number, self._ring, iteration, step, "post", t_ns)
        wr_id = _SEND << _KIND_SHIFT | self._wr_ring | step
        last = len(send.segments) - 1
        for index, (offset, length, wire_length) in enumerate(send.segments):
            final = index == last
            qp.post_send(
                wr_id,
                Opcode.RDMA_WRITE_WITH_IMM if final else Opcode.RDMA_WRITE,
                rank.region,
                source + offset,
                length,
                remote_address=target + offset,
                rkey=self._following.rkey,
                imm=step if final else None,
                signaled=final,
                wire_length=wire_length if self._scaled else None,
            )

    def _consume(self, step: int) -> None:
        """Reduce what arrived, ready its slot, grant the slot's next step."""
        slot = step % self._slots
        iteration, step_in_iteration = divmod(step, self._steps)
        receive = self._receives[self._plan.iterations[iteration].size][step_in_iteration]
        if receive.reduce and receive.length:
            self._reduce_chunk(iteration, slot, receive)
        self._recv_psn[slot] = (self._recv_psn[slot] + receive.packets) & 0xFFFFFF
        following = step + self._slots
        if following < self._total:
            qp = self._qps.recv[slot]
            if self._per_step:
                qp.modify(QpState.RESET)
                connect(qp, self._recv_attributes(following), self._receive_ids(following))
            else:
                qp.post_recv(_RECV << _KIND_SHIFT | self._wr_ring | following)
            if self._grants_posted - self._grants_done < 2 * self._slots:
                self._post_grant(following)
            else:
                self._held_grants.append(following)
        if not self._count and not self._in_order and (step + 1) % self._steps:
            self._ready.append(step + 1)
        self._rank.received(iteration)

    def _reduce_chunk(self, iteration: int, slot: int, receive: Receive) -> None:
        rank, plan = self._rank, self._plan
        offset = receive.offset * plan.item_size
        self._reduce(
            rank.data(plan.scratch_offset(self._ring, slot), receive.length),
            rank.data(plan.pattern_offset(iteration) + offset, receive.length),
            out=rank.data(plan.receive_offset(iteration) + offset, receive.length),
        )

    def _post_grant(self, step: int) -> None:
        serial = self._grants_posted
        self._grants_posted = serial + 1
        self._qps.grant.post_send(
            _GRANT << _KIND_SHIFT | self._wr_ring | serial,
            Opcode.SEND_WITH_IMM,
            self._rank.region,
            0,
            0,
            imm=step,
            signaled=serial % self._slots == self._slots - 1,
        )

    def _receive_ids(self, step: int) -> tuple[int, ...]:
        return (_RECV << _KIND_SHIFT | self._wr_ring | step,) if step < self._total else ()

    def _sport(self, step: int) -> int:
        config = self._plan.config
        return config.layout.encode(config.job_tag, step)

    def _send_attributes(self, step: int) -> QpAttributes:
        slot = step % self._slots
        peer = self._following.numbers["recv"][slot]
        return self._attributes(self._following, peer, 0, self._send_psn[slot], self._sport(step))

    def _recv_attributes(self, step: int) -> QpAttributes:
        slot = step % self._slots
        peer = self._previous.numbers["send"][slot]
        return self._attributes(self._previous, peer, self._recv_psn[slot], 0, self._sport(step))

    def _attributes(self, peer: Neighbour, qp_num: int, rq_psn: int, sq_psn: int, sport: int) -> QpAttributes:
        return QpAttributes(
            dest_gid=peer.gid,
            dest_qp_num=qp_num,
            rq_psn=rq_psn,
            sq_psn=sq_psn,
            flow_label=flow_label_of_sport(sport) if sport else 0,
            traffic_class=self._plan.config.traffic_class,
            path_mtu=self._plan.mtu,
            timeout=ACK_TIMEOUT,
            retry_cnt=RETRY_COUNT,
            rnr_retry=RNR_RETRY,
            min_rnr_timer=MIN_RNR_TIMER,
        )


def _first_psn(sender: int, ring: int, slot: int) -> int:
    """Give the PSN at which a slot starts: spread out, and known to both ends without exchange."""
    return (sender * 0x9E3779 + ring * 0x51ED27 + slot * 0x2C1B3C + 1) & 0xFFFFFF
