# SPDX-License-Identifier: Apache-2.0
"""The whole run laid out in advance: operations, actions, memory, and every transfer of a rank in bytes.

An operation is one collective of the run: an iteration of a sweep, or a call of a training step. The step index runs
on across all of them, warm-up, sizes and cycles included. Each rank has one memory region::

    | pattern (send data) | receive buffer 0 | receive buffer 1 | scratch[ring][axis][slot] ... |

Operation i works in receive buffer i mod 2, so that it can begin while data of operation i-1 are still on
their way to the next rank. Data to be reduced or copied land in the scratch buffer of the step's slot, all others
in the receive buffer. The layout is the same at every rank, so offsets need no exchange.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import NamedTuple

from ring_bench.config import Config
from ring_bench.dtypes import PATTERN_SLACK, pattern_offset
from ring_bench.errors import UsageError
from ring_bench.schedule import Schedule, Step, Take
from ring_bench.workload import Action, Do

__all__ = [
    "ACK_TIMEOUT",
    "MIN_RNR_TIMER",
    "RETRY_COUNT",
    "RNR_RETRY",
    "Course",
    "Layout",
    "Operation",
    "Plan",
    "Planned",
    "Receive",
    "Segment",
    "Send",
    "first_psn",
]

_ALIGN = 64
RECEIVE_BUFFERS = 2

ACK_TIMEOUT = 17
"""4.096 us x 2^17 = 0.54 s; with 7 retries a dead peer shows within seconds."""
RETRY_COUNT = 7
RNR_RETRY = 6
MIN_RNR_TIMER = 12


def first_psn(sender: int, ring: int, axis: int, slot: int) -> int:
    """Give the PSN at which a slot starts: spread out, and known to both ends without exchange."""
    return (sender * 0x9E3779 + ring * 0x51ED27 + axis * 0x3504F3 + slot * 0x2C1B3C + 1) & 0xFFFFFF


class Operation(NamedTuple):
    """One collective of the run."""

    shape: int
    """Index into `Plan.schedules`."""
    first_step: int
    steps: int
    cycle: int
    iteration: int
    """Of its cycle and size, or of the training: warm-up first."""
    timed: bool


class Segment(NamedTuple):
    """One RDMA write of a step; offsets count from the start of the chunk."""

    offset: int
    length: int
    wire_length: int


class Send(NamedTuple):
    """What a rank sends in a step of an operation."""

    from_pattern: bool
    """The rank's own data. Otherwise from the receive buffer."""
    to_scratch: bool
    """Otherwise into the receive buffer."""
    offset: int
    """Of the chunk in the collective's data, bytes."""
    segments: tuple[Segment, ...]
    packets: int
    needs: range
    """Steps of the operation that must have been taken before, under release rule "independent"."""


class Receive(NamedTuple):
    """What a rank receives in a step of an operation."""

    take: Take
    offset: int
    """Of the chunk in the collective's data, elements."""
    length: int
    """Elements."""
    packets: int
    needs: range
    """Steps of the operation that must have been taken before this one is, under any rule."""


class Planned(NamedTuple):
    """A rank's part in a step of an operation."""

    axis: int
    send: Send | None
    receive: Receive | None


class Course(NamedTuple):
    """Steps of the whole run that go one way over an edge, and the slots they take (step modulo slots)."""

    steps: array[int]
    first: list[int | None]
    """The first step of each slot."""
    following: array[int]
    """By step: the next one on the same slot; -1: none, or not a step of this course."""


class Layout(NamedTuple):
    """Byte offsets in a rank's memory region."""

    pattern: int
    receive: tuple[int, ...]
    scratch: int
    scratch_stride: int
    total: int


class Plan:
    """Everything that can be known before the first message.

    Args:
        config: The options.
        mtu: Path MTU that all devices agreed on, bytes.
        max_message: Largest message of all devices, bytes.

    Attributes:
        schedules: The different collectives of the run.
        operations: All collectives in the order in which they run.
        actions: What a rank does beside them, see `ring_bench.workload`; the same list at all ranks, jitter aside.
        axes: Dimensions along which anything is sent.

    Raises:
        UsageError: A segment would hold no whole element.
    """

    def __init__(self, config: Config, *, mtu: int, max_message: int) -> None:
        self.config = config
        self.mtu = mtu
        self.item_size = config.item_size
        self.schedules: list[Schedule] = config.schedules
        self.segment = min(config.segment, max_message, 1 << 30)
        moved = self.segment // config.payload_scale // self.item_size * self.item_size
        if moved == 0:
            raise UsageError(
                f"--segment {self.segment} holds no whole element: give at least "
                f"{self.item_size * config.payload_scale} bytes"
            )
        self._segment_moved = moved
        self._courses: dict[tuple[tuple[int, ...], ...], Course] = {}
        self.operations = self._operations()
        self.actions = self._actions()
        self.steps_total = sum(operation.steps for operation in self.operations)
        used = {axis for schedule in self.schedules for axis in schedule.axes}
        self.axes = [axis for axis, length in enumerate(config.grid) if length > 1 and axis in used]
        self._largest_chunk = max((s.largest_chunk() for s in self.schedules if s.steps), default=0)
        self.pattern_length = max((s.count for s in self.schedules), default=0) + PATTERN_SLACK
        self.layout = self._lay_out()
        self.max_segments = max(1, -(-self._largest_chunk * self.item_size // moved))

    def _operations(self) -> list[Operation]:
        config = self.config
        per_size = config.warmup_iters + config.iters
        if config.trace is not None:
            order = [(0, i, shape) for i in range(per_size) for shape in config.calls]
        else:
            cycles, shapes = range(config.run_cycles), range(len(self.schedules))
            order = [(cycle, i, shape) for cycle in cycles for shape in shapes for i in range(per_size)]
        operations, step = [], 0
        for cycle, iteration, shape in order:
            steps = self.schedules[shape].steps
            operations.append(Operation(shape, step, steps, cycle, iteration, iteration >= config.warmup_iters))
            step += steps
        return operations

    def _actions(self) -> list[Action]:
        config = self.config
        if config.trace is not None:
            return config.trace.unrolled(config.warmup_iters + config.iters)
        if not config.compute_ns:
            return [Action(Do.ISSUE, number) for number in range(len(self.operations))]
        actions: list[Action] = []
        for number in range(len(self.operations)):
            if number:
                actions.append(Action(Do.WAIT, number - 1))
            actions += [Action(Do.COMPUTE, config.compute_ns), Action(Do.ISSUE, number)]
        return actions

    @cached_property
    def operation_of(self) -> array[int]:
        """The operation that each step belongs to."""
        steps = array("q")
        for number, operation in enumerate(self.operations):
            steps.extend([number] * operation.steps)
        return steps

    def _lay_out(self) -> Layout:
        config = self.config
        largest = max((schedule.count for schedule in self.schedules), default=0)

        def aligned(size: int) -> int:
            return -(-size // _ALIGN) * _ALIGN

        pattern_size = aligned(self.pattern_length * self.item_size)
        receive_size = aligned(largest * self.item_size)
        stride = aligned(self._largest_chunk * self.item_size)
        scratch = pattern_size + RECEIVE_BUFFERS * receive_size
        return Layout(
            pattern=0,
            receive=tuple(pattern_size + i * receive_size for i in range(RECEIVE_BUFFERS)),
            scratch=scratch,
            scratch_stride=stride,
            total=scratch + config.rings * len(self.axes) * config.slots * stride,
        )

    @property
    def rank_bytes(self) -> int:
        """Memory that a rank needs: its region, and two times (`Record`) of every step of every ring."""
        return self.layout.total + self.config.rings * self.steps_total * 2 * 8

    def scratch_offset(self, ring: int, axis: int, slot: int) -> int:
        """Give the byte offset of the scratch buffer of a slot."""
        link = ring * len(self.axes) + self.axes.index(axis)
        return self.layout.scratch + (link * self.config.slots + slot) * self.layout.scratch_stride

    def receive_offset(self, operation: int) -> int:
        """Give the byte offset of the receive buffer of an operation."""
        return self.layout.receive[operation % RECEIVE_BUFFERS]

    def pattern_offset(self, operation: int) -> int:
        """Give the byte offset of an operation's send data in the region."""
        return self.layout.pattern + pattern_offset(operation) * self.item_size

    def size_bytes(self, shape: int) -> int:
        """Give the size of a collective on the wire's scale, as nccl-tests counts it."""
        return self.schedules[shape].count * self.config.payload_scale * self.item_size

    def steps_of(self, shape: int, ring: int, position: int) -> list[Planned]:
        """Give what the rank at ``position`` of its group does in each step of a collective."""
        return [self._planned(step) for step in self.schedules[shape].steps_of(ring, position)]

    def axes_of(self, shape: int) -> list[int]:
        """Give the axis of each step of a collective, the same for all ranks."""
        return [step.axis for step in self.schedules[shape].steps_of(0, 0)]

    def course(self, local: tuple[tuple[int, ...], ...]) -> Course:
        """Lay out steps of the run, given which steps of each shape are meant. Shared by ranks: do not change it."""
        if local in self._courses:
            return self._courses[local]
        steps, slots = array("q"), self.config.slots
        for operation in self.operations:
            steps.extend([operation.first_step + k for k in local[operation.shape]])
        first: list[int | None] = [None] * slots
        last: list[int | None] = [None] * slots
        following = array("q", [-1]) * self.steps_total
        for step in steps:
            before, last[step % slots] = last[step % slots], step
            if before is None:
                first[step % slots] = step
            else:
                following[before] = step
        return self._courses.setdefault(local, Course(steps, first, following))

    def _planned(self, step: Step) -> Planned:
        send, receive = None, None
        if step.send is not None:
            out = step.send
            segments = self._cut(out.span.length * self.item_size)
            send = Send(
                from_pattern=out.own,
                to_scratch=out.scratch,
                offset=out.span.offset * self.item_size,
                segments=segments,
                packets=self._packets(segments),
                needs=out.needs,
            )
        if step.receive is not None:
            into = step.receive
            packets = self._packets(self._cut(into.span.length * self.item_size))
            receive = Receive(into.take, into.span.offset, into.span.length, packets, into.needs)
        return Planned(step.axis, send, receive)

    def _cut(self, length: int) -> tuple[Segment, ...]:
        if length == 0:
            return (Segment(0, 0, 0),)
        scale, size = self.config.payload_scale, self._segment_moved
        return tuple(
            Segment(offset, min(size, length - offset), min(size, length - offset) * scale)
            for offset in range(0, length, size)
        )

    def _packets(self, segments: tuple[Segment, ...]) -> int:
        return sum(max(1, -(-segment.wire_length // self.mtu)) for segment in segments)
