# SPDX-License-Identifier: Apache-2.0
"""The whole run laid out in advance: iterations, memory, and every transfer of a rank in bytes.

The step index runs on across warm-up, iterations, sizes and cycles: step s belongs to iteration
``s // steps_per_iteration``. Each rank has one memory region::

    | pattern (send data) | receive buffer 0 | receive buffer 1 | scratch[ring][slot] ... |

Iteration i works in receive buffer i mod 2, so that it can begin while data of iteration i-1 are still on
their way to the next rank. Reduce-scatter data land in the scratch buffer of the step's slot, all-gather data
in the receive buffer. The layout is the same at every rank, so offsets need no exchange.
"""

from __future__ import annotations

from typing import NamedTuple

from ring_bench.config import Config
from ring_bench.dtypes import PATTERN_SLACK, pattern_offset
from ring_bench.errors import UsageError
from ring_bench.schedule import Phase, RingSchedule

__all__ = ["Iteration", "Layout", "Plan", "Receive", "Segment", "Send"]

_ALIGN = 64
RECEIVE_BUFFERS = 2


class Iteration(NamedTuple):
    """One AllReduce of the run."""

    cycle: int
    size: int
    """Index into `Config.counts`."""
    timed: bool


class Segment(NamedTuple):
    """One RDMA write of a step; offsets count from the start of the chunk."""

    offset: int
    length: int
    wire_length: int


class Send(NamedTuple):
    """What a rank sends in a step of an iteration."""

    from_pattern: bool
    """First step: the rank's own data. Otherwise from the receive buffer."""
    to_scratch: bool
    """Reduce-scatter. Otherwise into the receive buffer."""
    offset: int
    """Of the chunk in the AllReduce's data, bytes."""
    segments: tuple[Segment, ...]
    packets: int


class Receive(NamedTuple):
    """What a rank receives in a step of an iteration."""

    reduce: bool
    offset: int
    """Of the chunk in the AllReduce's data, elements."""
    length: int
    """Elements."""
    packets: int


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

    Raises:
        UsageError: A segment would hold no whole element.
    """

    def __init__(self, config: Config, *, mtu: int, max_message: int) -> None:
        self.config = config
        self.mtu = mtu
        self.ranks = len(config.groups[0])
        self.steps = config.steps_per_iteration
        self.counts = config.counts
        self.item_size = config.item_size
        self.segment = min(config.segment, max_message, 1 << 30)
        moved = self.segment // config.payload_scale // self.item_size * self.item_size
        if moved == 0:
            raise UsageError(
                f"--segment {self.segment} holds no whole element: give at least "
                f"{self.item_size * config.payload_scale} bytes"
            )
        self._segment_moved = moved
        per_size = [False] * config.warmup_iters + [True] * config.iters
        self.iterations = [
            Iteration(cycle, size, timed)
            for cycle in range(config.run_cycles)
            for size in range(len(self.counts))
            for timed in per_size
        ]
        self.steps_total = len(self.iterations) * self.steps
        self.pattern_length = max(self.counts) + PATTERN_SLACK
        self.layout = self._lay_out()
        self._schedules = [RingSchedule(count, self.ranks, config.rings) for count in self.counts]
        chunks = [schedule.largest_chunk() * self.item_size for schedule in self._schedules]
        self.max_segments = max(1, -(-max(chunks) // moved))

    def _lay_out(self) -> Layout:
        config, largest = self.config, max(self.counts)

        def aligned(size: int) -> int:
            return -(-size // _ALIGN) * _ALIGN

        pattern_size = aligned(self.pattern_length * self.item_size)
        receive_size = aligned(largest * self.item_size)
        scratch_chunk = RingSchedule(largest, self.ranks, config.rings).largest_chunk()
        stride = aligned(scratch_chunk * self.item_size) if self.steps else 0
        scratch = pattern_size + RECEIVE_BUFFERS * receive_size
        return Layout(
            pattern=0,
            receive=tuple(pattern_size + i * receive_size for i in range(RECEIVE_BUFFERS)),
            scratch=scratch,
            scratch_stride=stride,
            total=scratch + config.rings * config.slots * stride,
        )

    @property
    def rank_bytes(self) -> int:
        """Memory that a rank needs: its region, and two times (`Record`) of every step of every ring."""
        return self.layout.total + self.config.rings * self.steps_total * 2 * 8

    def scratch_offset(self, ring: int, slot: int) -> int:
        """Give the byte offset of the scratch buffer of a slot."""
        return self.layout.scratch + (ring * self.config.slots + slot) * self.layout.scratch_stride

    def receive_offset(self, iteration: int) -> int:
        """Give the byte offset of the receive buffer of an iteration."""
        return self.layout.receive[iteration % RECEIVE_BUFFERS]

    def pattern_offset(self, iteration: int) -> int:
        """Give the byte offset of an iteration's send data in the region."""
        return self.layout.pattern + pattern_offset(iteration) * self.item_size

    def sends(self, size: int, ring: int, position: int) -> list[Send]:
        """Give what the rank at ``position`` of its group sends in each step of an iteration of a size."""
        schedule = self._schedules[size]
        table = []
        for step in range(self.steps):
            transfer = schedule.send(ring, position, step)
            segments = self._cut(transfer.span.length * self.item_size)
            table.append(
                Send(
                    from_pattern=step == 0,
                    to_scratch=transfer.phase is Phase.REDUCE_SCATTER,
                    offset=transfer.span.offset * self.item_size,
                    segments=segments,
                    packets=self._packets(segments),
                )
            )
        return table

    def receives(self, size: int, ring: int, position: int) -> list[Receive]:
        """Give what the rank at ``position`` of its group receives in each step of an iteration of a size."""
        schedule = self._schedules[size]
        table = []
        for step in range(self.steps):
            transfer = schedule.recv(ring, position, step)
            segments = self._cut(transfer.span.length * self.item_size)
            table.append(
                Receive(
                    reduce=transfer.phase is Phase.REDUCE_SCATTER,
                    offset=transfer.span.offset,
                    length=transfer.span.length,
                    packets=self._packets(segments),
                )
            )
        return table

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
