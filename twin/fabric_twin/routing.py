# SPDX-License-Identifier: Apache-2.0
"""Which of the links of equal cost a packet takes, and which there are: paths go up and then down, never up again.

Up-down paths have no loops, and with PFC no circle of switches that wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

__all__ = ["Detour", "ecmp_hash", "mix", "up_down"]

_M64 = (1 << 64) - 1
_GOLDEN, _SQRT3 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
"""(sqrt(5) - 1) / 2 and sqrt(3) - 1, of 2^64: the fractions of their multiples are spread evenly (Weyl)."""


class _Port(Protocol):
    node: int
    peer: int


class _Switch(Protocol):
    index: int
    tier: int
    ports: list[int]


def up_down(
    switches: Sequence[_Switch], ports: Sequence[_Port], to: int, without: Collection[int] = ()
) -> dict[int, tuple[int, ...]]:
    """Switch -> its egress ports of equal cost towards switch `to`, for all that have a path.

    A switch above `to` sends down by the fewest hops; one that is not above it sends up by the fewest hops.

    Args:
        switches, ports: the fabric.
        to: index of the switch that the destination is on.
        without: ports that must not be used.
    """
    hops = {to: 0}
    choices: dict[int, tuple[int, ...]] = {}

    def choose(switch: _Switch, down: bool) -> None:
        nearest: list[int] = []
        least = 1 << 30
        for p in switch.ports:
            peer = ports[p].peer
            if peer < 0 or (switches[peer].tier < switch.tier) is not down or p in without:
                continue
            if down and peer != to and peer not in below:
                continue
            distance = hops.get(peer, least + 1)
            if distance < least:
                nearest, least = [p], distance
            elif distance == least:
                nearest.append(p)
        if nearest:
            choices[switch.index] = tuple(nearest)
            hops[switch.index] = least + 1
            if down:
                below.add(switch.index)

    below: set[int] = set()
    """Switches from which `to` is reached by going down."""
    by_tier = sorted(switches, key=lambda switch: switch.tier)
    for switch in by_tier:
        if switch.tier > switches[to].tier:
            choose(switch, down=True)
    for switch in reversed(by_tier):
        if switch.index != to and switch.index not in below:
            choose(switch, down=False)
    return choices


def mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & _M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
    return x ^ (x >> 31)


def ecmp_hash(src: int, dst: int, sport: int, salt: int) -> int:
    """A well-mixed hash of a RoCEv2 5-tuple; a plain CRC would map neighbouring source ports alike everywhere."""
    return mix(mix(src << 32 | dst) ^ mix(sport << 16 | 4791) ^ salt)


class Detour(NamedTuple):
    """Moves flows from the other links of equal cost to `port`, so that it carries `factor` times its share.

    See `fabric_twin.presets.Skew`. What is moved follows from source and UDP port by a sequence of low discrepancy,
    not by coins: the load is as asked after some dozen steps, and a larger factor moves the same flows and more.
    """

    port: int
    factor: float

    def takes(self, choices: Sequence[int], position: int, sport: int, salt: int) -> bool:
        """The flow with this source port from the host at `position` goes by `port`, which is among `choices`."""
        share = (self.factor - 1) / (len(choices) - 1)
        return (position * _SQRT3 + sport * _GOLDEN + salt) & _M64 < share * 2**64
