# SPDX-License-Identifier: Apache-2.0
"""A rank's part in one ring: which step is sent when, and what is done with the steps that arrive.

A step is sent when its operation has begun here and the release rule allows it:

- "in-order": every step before it that this rank receives is here and taken.
- "independent": the steps whose data it sends on are taken.
- "count": as many steps have arrived as "in-order" would wait for, whichever they are.

A step is taken (reduced, copied, or just noted) when its operation has begun here and what it is combined with is
complete. Until then it waits in its slot, ungranted.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping

from ring_bench.dtypes import REDUCTIONS
from ring_bench.errors import ProtocolError
from ring_bench.link import Link, LinkQueuePairs, Neighbour
from ring_bench.plan import Planned, Receive
from ring_bench.rank import Rank
from ring_bench.schedule import Take
from ring_bench.verbs.api import Completion
from ring_bench.work_id import CREDIT, RECV, SEND, axis_of, kind_of, value_of

__all__ = ["Ends", "RingEnd"]

Ends = Mapping[int, tuple[LinkQueuePairs, Neighbour, Neighbour]]
"""By axis: queue pairs, the previous and the next rank."""


class RingEnd:
    """What is under way at a rank in one ring, along all axes."""

    def __init__(self, rank: Rank, ring: int, ends: Ends) -> None:
        plan, config = rank.plan, rank.plan.config
        self._rank = rank
        self._plan = plan
        self._ring = ring
        self._operation_of = plan.operation_of
        self._reduce = REDUCTIONS[config.op]
        self._post_ns = rank.record.post_ns[ring]
        self._done_ns = rank.record.done_ns[ring]
        shapes = range(len(plan.schedules))
        self._steps: list[list[Planned]] = [plan.steps_of(shape, ring, rank.position) for shape in shapes]
        self.sends_of = [sum(step.send is not None for step in steps) for steps in self._steps]
        """Number of sends in an operation of each shape."""
        self.receives_of = [sum(step.receive is not None for step in steps) for steps in self._steps]
        """Number of receives in an operation of each shape."""
        self._links: dict[int, Link] = {}
        for axis, (qps, previous, following) in ends.items():
            out = plan.course(_steps_along(self._steps, axis, sends=True))
            into = plan.course(_steps_along(self._steps, axis, sends=False))
            self._links[axis] = Link(rank, ring, axis, qps, previous, following, out, into)
        self._sends = plan.course(_steps_along(self._steps, None, sends=True)).steps
        self._receives = plan.course(_steps_along(self._steps, None, sends=False)).steps
        self._taken = bytearray(plan.steps_total)
        self._held: list[int] = []
        """Steps that arrived and cannot be taken yet, in order of arrival."""
        self._ready: deque[int] = deque()
        self._next = 0
        """Index in `_sends` of the first step not released, where they are released in order."""
        self._arrivals = 0
        self._leading = 0
        """Index in `_receives` of the first step not arrived."""
        self._in_order = config.release == "in-order"
        self._count = config.release == "count"
        independent = config.release == "independent"
        self._waiting = [_waiting_sends(steps, independent) for steps in self._steps]
        self._waited_for = _receives_before(self._sends, self._receives) if self._count else array("q")

    def handle(self, completion: Completion) -> None:
        """Take a successful completion.

        Raises:
            ProtocolError: It does not fit the state of its edge.
        """
        wr_id = completion.wr_id
        kind = kind_of(wr_id)
        link = self._links[axis_of(wr_id)]
        if kind == RECV:
            self._arrived(value_of(wr_id), completion, link)
        elif kind == SEND:
            step = value_of(wr_id)
            link.sent(step)
            self._rank.sent(self._operation_of[step])
            self._pump()
        elif kind == CREDIT:
            link.credited(completion)
            self._pump()
        else:
            link.grants_sent(value_of(wr_id))

    def connect(self) -> None:
        """Bring all QPs to RTS with their first receives posted."""
        for link in self._links.values():
            link.connect()

    def begin(self, operation: int) -> None:
        """The rank begins an operation: release what needs nothing, take what came early."""
        if not self._count and not self._in_order:
            shape, first, *_ = self._plan.operations[operation]
            for k, step in enumerate(self._steps[shape]):
                if step.send is not None and not step.send.needs:
                    self._ready.append(first + k)
        self._take_held()
        self._release_in_order()
        self._pump()

    def _arrived(self, step: int, completion: Completion, link: Link) -> None:
        """A step's data are all here."""
        if completion.imm != step:
            raise ProtocolError(
                f"rank {self._rank.number} ({self._rank.host}), ring {self._ring}: expected step {step} "
                f"on QP {completion.qp_num:#x} from rank {link.previous.rank}, got immediate {completion.imm}",
                rank=self._rank.number,
                host=self._rank.host,
                step=step,
            )
        t_ns = completion.t_ns
        self._done_ns[step] = t_ns
        observer = self._rank.observer
        if observer is not None:
            observer.step(link.previous.rank, self._ring, self._operation_of[step], step, "done", t_ns)
        self._arrivals += 1
        done, receives = self._done_ns, self._receives
        while self._leading < len(receives) and done[receives[self._leading]] >= 0:
            self._leading += 1
        self._held.append(step)
        self._take_held()
        self._release_in_order()
        self._pump()

    @property
    def missing(self) -> int | None:
        """The first step that has not arrived; None: all have."""
        return self._receives[self._leading] if self._leading < len(self._receives) else None

    def waiting_for(self) -> str:
        """Say what this ring waits for; empty when nothing."""
        texts = []
        if self.missing is not None:
            texts.append(f"step {self.missing} from rank {self._link_in(self.missing).previous.rank}")
        if self._ready:
            step = self._ready[0]
            if blocked := self._link_out(step).blocked_by(step):
                texts.append(blocked)
        return f"ring {self._ring}: " + " and ".join(texts) if texts else ""

    def _release_in_order(self) -> None:
        """Release steps in order: by data ("in-order"), or by the number of arrivals ("count")."""
        sends = self._sends
        if self._count:
            while self._next < len(sends) and self._waited_for[self._next] <= self._arrivals:
                step = sends[self._next]
                self._next += 1
                self._ready.append(step)
                while self._operation_of[step] > self._rank.current:
                    self._rank.force_begin()
        elif self._in_order:
            missing = self._plan.steps_total if self.missing is None else self.missing
            current = self._rank.current
            while self._next < len(sends) and (step := sends[self._next]) <= missing:
                if self._operation_of[step] > current:
                    break
                self._ready.append(step)
                self._next += 1

    def _pump(self) -> None:
        """Post what is released and has its slot."""
        ready = self._ready
        if self._in_order or self._count:
            while ready and self._link_out(ready[0]).free(ready[0]):
                self._post(ready.popleft())
        else:
            for _ in range(len(ready)):
                step = ready.popleft()
                if self._link_out(step).free(step):
                    self._post(step)
                else:
                    ready.append(step)

    def _planned(self, step: int) -> Planned:
        shape, first, *_ = self._plan.operations[self._operation_of[step]]
        return self._steps[shape][step - first]

    def _link_out(self, step: int) -> Link:
        return self._links[self._planned(step).axis]

    _link_in = _link_out

    def _post(self, step: int) -> None:
        rank, plan = self._rank, self._plan
        operation = self._operation_of[step]
        axis, send, _ = self._planned(step)
        assert send is not None
        link = self._links[axis]
        link.recycle(step, send.packets)
        place = plan.receive_offset(operation) + send.offset
        source = plan.pattern_offset(operation) + send.offset if send.from_pattern else place
        target = plan.scratch_offset(self._ring, axis, step % plan.config.slots) if send.to_scratch else place
        t_ns = rank.provider.clock_ns()
        self._post_ns[step] = t_ns
        if rank.observer is not None:
            rank.observer.step(rank.number, self._ring, operation, step, "post", t_ns)
        link.post(step, send, source, target)

    def _take_held(self) -> None:
        """Take what can be taken of the steps that have arrived."""
        found = True
        while found:  # anew after each: taking one can begin the next operation, or complete what another needs
            found = False
            for step in self._held:
                if self._takeable(step):
                    self._held.remove(step)
                    self._take(step)
                    found = True
                    break

    def _takeable(self, step: int) -> bool:
        number = self._operation_of[step]
        if number > self._rank.current:
            return False
        shape, first, *_ = self._plan.operations[number]
        receive = self._steps[shape][step - first].receive
        return receive is not None and all(self._taken[first + need] for need in receive.needs)

    def _take(self, step: int) -> None:
        """Reduce or copy what arrived, ready its slot, grant the slot's next step, release what needed it."""
        number = self._operation_of[step]
        shape, first, *_ = self._plan.operations[number]
        axis, _, receive = self._steps[shape][step - first]
        assert receive is not None
        if receive.take is not Take.KEEP and receive.length:
            self._combine(number, self._plan.scratch_offset(self._ring, axis, step % self._plan.config.slots), receive)
        self._taken[step] = 1
        self._links[axis].taken(step, receive.packets)
        for k, needs in self._waiting[shape][step - first]:
            if all(self._taken[first + need] for need in needs):
                self._ready.append(first + k)
        self._rank.received(number)

    def _combine(self, operation: int, scratch: int, receive: Receive) -> None:
        rank, plan = self._rank, self._plan
        offset = receive.offset * plan.item_size
        arrived = rank.data(scratch, receive.length)
        result = rank.data(plan.receive_offset(operation) + offset, receive.length)
        if receive.take is Take.COPY:
            result[:] = arrived
        elif receive.take is Take.REDUCE_OWN:
            self._reduce(arrived, rank.data(plan.pattern_offset(operation) + offset, receive.length), out=result)
        else:
            self._reduce(arrived, result, out=result)


def _steps_along(shapes: list[list[Planned]], axis: int | None, *, sends: bool) -> tuple[tuple[int, ...], ...]:
    """Give the steps of each shape that go out (or come in) along an axis, or along any."""
    return tuple(
        tuple(
            k
            for k, step in enumerate(steps)
            if (axis is None or step.axis == axis) and (step.send if sends else step.receive) is not None
        )
        for steps in shapes
    )


def _waiting_sends(steps: list[Planned], independent: bool) -> list[list[tuple[int, range]]]:
    """Give for each step of a shape the sends, with their needs, that wait for its data."""
    waiting: list[list[tuple[int, range]]] = [[] for _ in steps]
    for k, step in enumerate(steps):
        if independent and step.send is not None:
            for need in step.send.needs:
                waiting[need].append((k, step.send.needs))
    return waiting


def _receives_before(sends: array[int], receives: array[int]) -> array[int]:
    """For each step sent, count the steps received that come before it."""
    counts, passed = array("q"), 0
    for step in sends:
        while passed < len(receives) and receives[passed] < step:
            passed += 1
        counts.append(passed)
    return counts
