# SPDX-License-Identifier: Apache-2.0
"""The two edges of a rank along one axis of a ring: to the next rank and from the previous one.

Each edge has W data QPs (slots; step s uses slot s mod W) from sender to receiver and one QP pair in the
other direction, on which the receiver grants steps. Flow of a step s over an edge:

1. The sender posts it when the release rule allows (`ring_bench.ring_end`), the receiver has granted step s on its
   slot, and the slot's previous send has completed. The last write carries s as immediate.
2. The receiver's completion for s arrives and it takes the data.
3. The receiver readies the slot (per-step tagging: takes the QP through RESET to RTS with the flow label of the
   slot's next step), posts its receive, then grants that step by an empty SEND_WITH_IMM. A grant is thus a promise that
   a receive is posted: receiver-not-ready cannot happen.

Which step comes next on a slot both ends know from the schedule: s+W where every step goes over the edge.

PSNs of a slot run on when its QP is recycled, as if the QP had lived on. So a retransmission that meets the
receiver's next incarnation is an old PSN there, is acknowledged as a duplicate, and completes the sender.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ring_bench.errors import ProtocolError
from ring_bench.plan import ACK_TIMEOUT, MIN_RNR_TIMER, RETRY_COUNT, RNR_RETRY, Course, Send, first_psn
from ring_bench.rank import Rank
from ring_bench.tag import flow_label_of_sport
from ring_bench.verbs.api import Completion, Opcode, QpAttributes, QpState, QueuePair, connect
from ring_bench.work_id import (
    CREDIT,
    GRANT,
    KIND_SHIFT,
    RECV,
    SEND,
    link_part,
)

__all__ = ["Link", "LinkQueuePairs", "Neighbour"]


@dataclass(slots=True)
class LinkQueuePairs:
    """The queue pairs of one rank along one axis of one ring."""

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


class Link:
    """Queue pairs, slots and credits of the two edges.

    Args:
        rank: Whose edges they are.
        ring: Number of the ring.
        axis: Dimension of the group.
        qps: Made for it.
        previous: Where steps come from.
        following: Where they go.
        out: Steps that go out here.
        into: Steps that come in here.
    """

    def __init__(
        self,
        rank: Rank,
        ring: int,
        axis: int,
        qps: LinkQueuePairs,
        previous: Neighbour,
        following: Neighbour,
        out: Course,
        into: Course,
    ) -> None:
        config = rank.plan.config
        self.previous = previous
        self.following = following
        self._rank = rank
        self._plan = rank.plan
        self._ring = ring
        self._qps = qps
        self._out = out
        self._into = into
        self._slots = config.slots
        self._per_step = config.tagging == "per-step"
        self._retag = config.tagging == "retag"
        self._scaled = config.payload_scale > 1
        self._wr_link = link_part(ring, axis)
        # Sending edge, per slot.
        self._granted = list(out.first)
        self._idle = [True] * self._slots
        self._send_psn = [first_psn(rank.number, ring, axis, slot) for slot in range(self._slots)]
        # Receiving edge, per slot.
        self._recv_psn = [first_psn(previous.rank, ring, axis, slot) for slot in range(self._slots)]
        self._grants_posted = 0
        self._grants_done = 0
        self._held_grants: deque[int] = deque()

    def connect(self) -> None:
        """Bring all QPs to RTS with their first receives posted."""
        qps = self._qps
        for slot in range(self._slots):
            sends, receives = self._out.first[slot], self._into.first[slot]
            connect(qps.send[slot], self._send_attributes(slot if sends is None else sends))
            ids = () if receives is None else self._receive_ids(receives)
            connect(qps.recv[slot], self._recv_attributes(slot if receives is None else receives), ids)
        credits = tuple(CREDIT << KIND_SHIFT | self._wr_link for _ in range(self._slots))
        connect(
            qps.credit,
            self._attributes(self.following, self.following.numbers["grant"][0], 0, 0, 0),
            credits,
        )
        connect(
            qps.grant,
            self._attributes(self.previous, self.previous.numbers["credit"][0], 0, 0, 0),
        )

    def free(self, step: int) -> bool:
        """Say whether a step's slot is granted and drained."""
        slot = step % self._slots
        return self._idle[slot] and self._granted[slot] == step

    def blocked_by(self, step: int) -> str:
        """Say what a step that is ready to go waits for; empty when nothing."""
        slot = step % self._slots
        if not self._idle[slot]:
            return f"acknowledgement of the send before step {step}"
        return f"rank {self.following.rank}'s credit for step {step}" if self._granted[slot] != step else ""

    def recycle(self, step: int, packets: int) -> None:
        """Take a free slot for a step of so many packets."""
        slot = step % self._slots
        qp = self._qps.send[slot]
        if step != self._out.first[slot]:
            if self._per_step:
                qp.modify(QpState.RESET)
                connect(qp, self._send_attributes(step))
            elif self._retag:
                qp.modify_udp_sport(self._sport(step))
        self._idle[slot] = False
        self._send_psn[slot] = (self._send_psn[slot] + packets) & 0xFFFFFF

    def post(self, step: int, send: Send, source: int, target: int) -> None:
        """Post the writes of a step, from an offset of the own region to one of the next rank's."""
        wr_id = SEND << KIND_SHIFT | self._wr_link | step
        qp = self._qps.send[step % self._slots]
        target += self.following.address
        last = len(send.segments) - 1
        for index, (offset, length, wire_length) in enumerate(send.segments):
            final = index == last
            qp.post_send(
                wr_id,
                Opcode.RDMA_WRITE_WITH_IMM if final else Opcode.RDMA_WRITE,
                self._rank.region,
                source + offset,
                length,
                remote_address=target + offset,
                rkey=self.following.rkey,
                imm=step if final else None,
                signaled=final,
                wire_length=wire_length if self._scaled else None,
            )

    def sent(self, step: int) -> None:
        """A step's send is acknowledged: its slot's queue is drained."""
        self._idle[step % self._slots] = True

    def credited(self, completion: Completion) -> None:
        """The next rank grants a step.

        Raises:
            ProtocolError: It is not the slot's next one.
        """
        step = completion.imm
        before = None if step is None else self._granted[step % self._slots]
        if step is None or before is None or self._out.following[before] != step:
            raise ProtocolError(
                f"rank {self._rank.number} ({self._rank.host}), ring {self._ring}: unexpected grant of step "
                f"{step} from rank {self.following.rank}",
                rank=self._rank.number,
                host=self._rank.host,
                step=step,
            )
        self._granted[step % self._slots] = step
        self._qps.credit.post_recv(CREDIT << KIND_SHIFT | self._wr_link)

    def taken(self, step: int, packets: int) -> None:
        """A step's data are taken: ready its slot for the next one and grant that."""
        slot = step % self._slots
        self._recv_psn[slot] = (self._recv_psn[slot] + packets) & 0xFFFFFF
        following = self._into.following[step]
        if following < 0:
            return
        qp = self._qps.recv[slot]
        if self._per_step:
            qp.modify(QpState.RESET)
            connect(qp, self._recv_attributes(following), self._receive_ids(following))
        else:
            qp.post_recv(RECV << KIND_SHIFT | self._wr_link | following)
        if self._grants_posted - self._grants_done < 2 * self._slots:
            self._post_grant(following)
        else:
            self._held_grants.append(following)

    def grants_sent(self, serial: int) -> None:
        """All grants up to a serial number have left the send queue."""
        self._grants_done = serial + 1
        while self._held_grants and self._grants_posted - self._grants_done < 2 * self._slots:
            self._post_grant(self._held_grants.popleft())

    def _post_grant(self, step: int) -> None:
        serial = self._grants_posted
        self._grants_posted = serial + 1
        self._qps.grant.post_send(
            GRANT << KIND_SHIFT | self._wr_link | serial,
            Opcode.SEND_WITH_IMM,
            self._rank.region,
            0,
            0,
            imm=step,
            signaled=serial % self._slots == self._slots - 1,
        )

    def _receive_ids(self, step: int) -> tuple[int, ...]:
        return (RECV << KIND_SHIFT | self._wr_link | step,)

    def _sport(self, step: int) -> int:
        config = self._plan.config
        return config.layout.encode(config.job_tag, step)

    def _send_attributes(self, step: int) -> QpAttributes:
        slot = step % self._slots
        peer = self.following.numbers["recv"][slot]
        return self._attributes(self.following, peer, 0, self._send_psn[slot], self._sport(step))

    def _recv_attributes(self, step: int) -> QpAttributes:
        slot = step % self._slots
        peer = self.previous.numbers["send"][slot]
        return self._attributes(self.previous, peer, self._recv_psn[slot], 0, self._sport(step))

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
