# SPDX-License-Identifier: Apache-2.0
"""Which job a packet belongs to: rules as in the switch's classification table, then the job tag of the port.

The tag (the testbed's contract): UDP source port = 0xC000 | job_tag << step_bits | step mod 2^step_bits.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.dataplane.constants import STEP_BITS
from switch_agent.replay.errors import OptionError
from switch_agent.replay.jit import inlined

__all__ = ["SPORT_BASE", "TAG_BITS", "JobMap", "JobRule", "RuleTable", "job_of", "parse_rule"]

Ints = npt.NDArray[np.int64]

SPORT_BASE = 0xC000
"""Lowest source port that carries a tag."""
TAG_BITS = 14
"""Bits of the source port that carry job tag and step."""
MIN_STEP_BITS = 2

_ANY = ("*", "any")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TAG_NAME = re.compile(r"tag\d+")
_HALF = (1 << 64) - 1

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class JobRule:
    """Packets of one job: source and destination (None: any) and the source port under a mask."""

    name: str
    src: _Network | None
    dst: _Network | None
    sport: int
    mask: int

    def __str__(self) -> str:
        src, dst = (str(network) if network else "*" for network in (self.src, self.dst))
        return f"{self.name}={src},{dst},{self.sport:#06x}/{self.mask:#06x}"


def _network(text: str, where: str) -> _Network | None:
    if text.lower() in _ANY:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise OptionError(f"{where}: {text!r} is no address, network (10.0.0.0/24) or *: {error}") from error


def _port(text: str, what: str, where: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value <= 0xFFFF:
        raise OptionError(f"{where}: {what} {text!r} is no number from 0 to 65535 (0xffff)")
    return value


def parse_rule(text: str) -> JobRule:
    """Read a rule ``NAME=src,dst,sport/mask``; ``*`` is any address or port, no mask means all 16 bits.

    Raises:
        OptionError: says which part is wrong.
    """
    where = f"job rule {text!r}"
    name, equals, rest = text.partition("=")
    parts = [part.strip() for part in rest.split(",")]
    if not equals or len(parts) != 3:
        raise OptionError(f"{where}: write NAME=src,dst,sport/mask, e.g. train=10.0.0.1,*,0xc400/0xfc00")
    if not _NAME.fullmatch(name):
        raise OptionError(f"{where}: the name is 1 to 64 letters, digits and _ . : -")
    if _TAG_NAME.fullmatch(name):
        raise OptionError(f"{where}: {name} is the name of a job derived from its tag; choose another")
    src, dst = _network(parts[0], where), _network(parts[1], where)
    if src and dst and src.version != dst.version:
        raise OptionError(f"{where}: source and destination are of different IP versions")
    sport, mask = 0, 0
    if parts[2] not in _ANY:
        value, _, bits = parts[2].partition("/")
        mask = _port(bits, "mask", where) if bits else 0xFFFF
        sport = _port(value, "source port", where)
        if sport & ~mask:
            raise OptionError(f"{where}: source port {sport:#06x} has bits outside its mask {mask:#06x}")
    return JobRule(name, src, dst, sport, mask)


class RuleTable(NamedTuple):
    """Rules as the compiled loop reads them, int64[n_rules] each; the first that matches wins.

    ``version`` 0 matches IPv4 and IPv6. Addresses are halves of 128 bits; IPv4 uses the low one.
    """

    job: Ints
    version: Ints
    src_high: Ints
    src_high_mask: Ints
    src_low: Ints
    src_low_mask: Ints
    dst_high: Ints
    dst_high_mask: Ints
    dst_low: Ints
    dst_low_mask: Ints
    sport: Ints
    mask: Ints


class JobMap:
    """All jobs a replay can meet: one for each name in the rules, then one for each job tag.

    Args:
        rules: rules; several of one name are several flows of one job.
        step_bits: bits of the step in the tag, 2 to 14.

    Attributes:
        n_named: jobs that have rules; they come first.
        names: name of each job, by its index.

    Raises:
        OptionError: step_bits out of range.
    """

    def __init__(self, rules: Sequence[JobRule] = (), step_bits: int = STEP_BITS) -> None:
        if not MIN_STEP_BITS <= step_bits <= TAG_BITS:
            raise OptionError(f"--step-bits {step_bits}: give {MIN_STEP_BITS} to {TAG_BITS}")
        self.rules = tuple(rules)
        self.step_bits = step_bits
        named = list(dict.fromkeys(rule.name for rule in rules))
        self.n_named = len(named)
        self.names = (*named, *(f"tag{tag}" for tag in range(1 << (TAG_BITS - step_bits))))
        rows = [self._row(rule, named.index(rule.name)) for rule in rules]
        columns = np.array(rows, np.uint64).reshape(len(rows), len(RuleTable._fields)).T.astype(np.int64)
        self.table = RuleTable(*(np.ascontiguousarray(column) for column in columns))

    @staticmethod
    def _row(rule: JobRule, job: int) -> tuple[int, ...]:
        row = [job, next((network.version for network in (rule.src, rule.dst) if network), 0)]
        for network in (rule.src, rule.dst):
            value, mask = (int(network.network_address), int(network.netmask)) if network else (0, 0)
            row += [value >> 64, mask >> 64, value & _HALF, mask & _HALF]
        return (*row, rule.sport, rule.mask)

    def match(self, job: int) -> tuple[str, ...]:
        """Return what makes a packet one of job ``job``, as text."""
        name = self.names[job]
        if job < self.n_named:
            return tuple(str(rule).partition("=")[2] for rule in self.rules if rule.name == name)
        low = SPORT_BASE | job - self.n_named << self.step_bits
        return (f"*,*,{low:#06x}/{0xFFFF & -1 << self.step_bits:#06x}",)

    def tag(self, job: int) -> int | None:
        """Return the job tag of a job that is derived from it."""
        return job - self.n_named if job >= self.n_named else None


@inlined
def job_of(
    rules: RuleTable,
    n_named: int,
    step_bits: int,
    version: int,
    src_high: int,
    src_low: int,
    dst_high: int,
    dst_low: int,
    sport: int,
) -> int:
    """Return the index of the packet's job, or -1: no rule matches and the port carries no tag."""
    for r in range(rules.job.shape[0]):
        if (
            (rules.version[r] == 0 or rules.version[r] == version)
            and (sport & rules.mask[r]) == rules.sport[r]
            and (src_low & rules.src_low_mask[r]) == rules.src_low[r]
            and (dst_low & rules.dst_low_mask[r]) == rules.dst_low[r]
            and (src_high & rules.src_high_mask[r]) == rules.src_high[r]
            and (dst_high & rules.dst_high_mask[r]) == rules.dst_high[r]
        ):
            return int(rules.job[r])
    if sport < SPORT_BASE:
        return -1
    return n_named + ((sport & ((1 << TAG_BITS) - 1)) >> step_bits)
