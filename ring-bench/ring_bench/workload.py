# SPDX-License-Identifier: Apache-2.0
"""What ranks do between collectives: compute, issue the next collective, wait for one.

A rank has one stream of collectives, as a NCCL stream: they run one after the other in the order in which they are
issued, the same at all ranks. Beside it the rank walks through a list of actions, its computation. So a collective
begins at a rank when it has been issued there and the one before it is complete there, and communication that the
computation does not wait for overlaps with it.

A `Trace` is one step of a training: the collectives it calls, and the actions that call them. It is repeated for every
iteration; all its collectives are waited for at its end (synchronous SGD).

Plain data and arithmetic, without I/O.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import NormalDist
from typing import ClassVar, NamedTuple

from ring_bench.schedule import Collective

__all__ = ["Action", "Call", "Do", "Jitter", "Trace"]


class Do(IntEnum):
    """What an action is."""

    COMPUTE = 0
    """For so many ns."""
    ISSUE = 1
    """The collective of this number: it may begin now. They are issued in order."""
    WAIT = 2
    """Until the collective of this number (and so all before it) is complete here."""
    MARK = 3
    """Note the time: the iteration of this number has ended here."""


class Action(NamedTuple):
    """One entry of a rank's list; takes no time unless it computes or waits."""

    do: Do
    value: int


class Call(NamedTuple):
    """A collective in one step of a training."""

    name: str
    collective: Collective
    size: int
    """Bytes of the whole buffer (nccl-tests' size)."""
    along: tuple[int, ...] = (0,)
    """Numbers of the dimensions (`Trace.dimensions`) that it goes along."""


@dataclass(frozen=True)
class Trace:
    """One step of a training, the same at all ranks.

    Attributes:
        name: For tables.
        dimensions: Names of the group's dimensions, fastest first: ``("model", "data")``. If the group's grid has more,
            the last name stands for all the rest.
        calls: In the order in which they are issued.
        actions: `Do.ISSUE` and `Do.WAIT` count the calls of this step from 0; no `Do.MARK`.

    Raises:
        ValueError: Calls that are not issued once each and in order, or waited for before.
    """

    name: str
    dimensions: tuple[str, ...]
    calls: tuple[Call, ...]
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        issued = 0
        for do, value in self.actions:
            if do is Do.ISSUE:
                if value != issued:
                    raise ValueError(f"call {value} is issued where call {issued} is next")
                issued += 1
            elif do is Do.WAIT and not 0 <= value < issued:
                raise ValueError(f"call {value} is waited for before it is issued")
            elif do is Do.COMPUTE and value < 0:
                raise ValueError(f"computing takes 0 or more ns, not {value}")
        if issued != len(self.calls):
            raise ValueError(f"{issued} of {len(self.calls)} calls are issued")

    @property
    def compute_ns(self) -> int:
        """Time that a rank computes in a step, without jitter."""
        return sum(value for do, value in self.actions if do is Do.COMPUTE)

    def unrolled(self, iterations: int) -> list[Action]:
        """Give the actions of several steps: calls are counted on, each step ends by waiting for all of its calls."""
        actions = []
        for iteration in range(iterations):
            first = iteration * len(self.calls)
            for do, value in self.actions:
                actions.append(Action(do, value if do is Do.COMPUTE else first + value))
            if self.calls:
                actions.append(Action(Do.WAIT, first + len(self.calls) - 1))
            actions.append(Action(Do.MARK, iteration))
        return actions


_NORMAL = NormalDist()


@dataclass(frozen=True)
class Jitter:
    """How much longer or shorter than planned a rank computes: a factor of its own for every `Do.COMPUTE`.

    ``normal``: max(0, 1 + spread z); ``lognormal``: exp(spread z - spread^2 / 2), of mean 1; ``exponential``:
    1 + spread e, a delay of mean ``spread``. z is standard normal, e exponential of mean 1.
    """

    kind: str = "none"
    spread: float = 0.0

    KINDS: ClassVar[tuple[str, ...]] = ("none", "normal", "lognormal", "exponential")

    @classmethod
    def parse(cls, text: str) -> Jitter:
        """Read ``"none"`` or ``"normal:0.05"``.

        Raises:
            ValueError: Anything else.
        """
        kind, _, spread = text.partition(":")
        try:
            value = float(spread) if kind != "none" else 0.0 if not spread else math.nan
        except ValueError:
            value = math.nan
        if kind not in cls.KINDS or not 0 <= value < 1000:
            raise ValueError(
                f"a jitter reads 'none' or KIND:SPREAD such as normal:0.05, KIND one of {', '.join(cls.KINDS[1:])}, "
                f"SPREAD from 0 up, not {text!r}"
            )
        return cls(kind, value)

    def times(self, planned_ns: Sequence[int], *, seed: int, rank: int) -> list[int]:
        """Give how long a rank really computes, for each planned time, in ns. The same for the same seed and rank."""
        if self.kind == "none" or self.spread == 0:
            return list(planned_ns)
        dice = random.Random(f"compute jitter {seed} {rank}")
        return [round(planned * self._factor(dice)) for planned in planned_ns]

    def _factor(self, dice: random.Random) -> float:
        chance = (dice.getrandbits(52) + 0.5) / (1 << 52)  # neither 0 nor 1
        if self.kind == "exponential":
            return 1 - self.spread * math.log(chance)
        z = _NORMAL.inv_cdf(chance)
        if self.kind == "normal":
            return max(0.0, 1 + self.spread * z)
        return math.exp(self.spread * z - self.spread**2 / 2)

    def __str__(self) -> str:
        return self.kind if self.kind == "none" else f"{self.kind}:{self.spread:g}"
