# SPDX-License-Identifier: Apache-2.0
"""Hosts whose processes compute: what they are told waits until they have time for it.

A process that received a step (a write with immediate) at *t* computes for *X*, drawn for each step, and sees that
completion, and whatever has come behind it, when it is done: at max(*t*, end of the computation before) + *X*. One
worker per host, in order of arrival. A completion keeps the time at which the NIC had it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fabric_twin.events import Jitter

__all__ = ["SlowHosts"]

DRAWN = 256
"""Compute times drawn at a time."""


@dataclass
class _Process:
    stream: np.random.Generator
    jitters: list[Jitter]
    """Those that hold, the newest last."""
    free_at: int = 0
    drawn: deque[int] = field(default_factory=deque)
    waiting: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)

    def compute(self) -> int:
        """The next compute time."""
        if not self.jitters:
            return 0
        if not self.drawn:
            self.drawn.extend(self.jitters[-1].draw(self.stream, DRAWN))
        return self.drawn.popleft()


class SlowHosts:
    """The processes of all hosts, by the hosts' numbers. Times are picoseconds."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}

    def slow_down(self, host: int, jitter: Jitter, seed: int) -> Callable[[], None]:
        """Compute times of a host from now on; call what is returned to end that."""
        process = self._processes.setdefault(host, _Process(Jitter.stream(seed, host), []))
        process.jitters.append(jitter)
        process.drawn.clear()

        def undo() -> None:
            process.jitters.remove(jitter)
            process.drawn.clear()
            if not process.jitters and not process.waiting:
                self._processes.pop(host, None)

        return undo

    @property
    def next_ps(self) -> int | None:
        """When the next process is done with something, or None."""
        return min((p.waiting[0][0] for p in self._processes.values() if p.waiting), default=None)

    def clear(self) -> None:
        """Forget all of them, and what waits for them."""
        self._processes.clear()

    def tell(self, host: int, time_ps: int, deliver: Callable[[], None], *, step: bool) -> None:
        """Hand over a completion of time `time_ps`: at once, or when the process is done; `step`: it computes first."""
        process = self._processes.get(host)
        if process is None:
            deliver()
            return
        ready = max(time_ps, process.free_at) + (process.compute() if step else 0)
        process.free_at = ready
        if ready <= time_ps and not process.waiting:
            deliver()
        else:
            process.waiting.append((ready, deliver))

    def release(self, now_ps: int) -> None:
        """Hand over what is ready; several at one time in order of the hosts' numbers."""
        for host in sorted(self._processes):
            process = self._processes[host]
            while process.waiting and process.waiting[0][0] <= now_ps:
                process.waiting.popleft()[1]()
            if not process.waiting and not process.jitters:
                del self._processes[host]
