# SPDX-License-Identifier: Apache-2.0
"""Lists of hosts as users write them, Slurm's short form included: ``n1,n2`` or ``node[01-03,07],gpu[1-2]-ib0``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, product

from ring_bench.errors import UsageError
from symphony_common.addresses import checked_host, whole

__all__ = ["MAX_HOSTS", "expand_hosts", "parse_hosts"]

MAX_HOSTS = 1 << 16

_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def parse_hosts(text: str) -> tuple[str | int, ...]:
    """Read ``--hosts``: names, and numbers that count hosts.

    Raises:
        UsageError: See `expand_hosts`.
    """
    try:
        names = expand_hosts(text)
    except ValueError as error:
        raise UsageError(f"--hosts: {error}") from None
    indexes = [whole(name) for name in names]
    return tuple(name if index is None else index for name, index in zip(names, indexes, strict=True))


def expand_hosts(text: str) -> list[str]:
    """Give the names in a list, in its order.

    Raises:
        ValueError: An empty or impossible name, brackets that hold no numbers, more than `MAX_HOSTS` names.
    """
    items = _ITEM.findall(text)
    if ",".join(items) != text or not items:
        raise ValueError(f"{text[:300]!r} is no list of hosts: an empty name, or a bracket that is open")
    names = list(islice((name for item in items for name in _expanded(item.strip())), MAX_HOSTS + 1))
    if len(names) > MAX_HOSTS:
        raise ValueError(f"more than {MAX_HOSTS} hosts")
    return [checked_host(name) for name in names]


def _expanded(item: str) -> Iterator[str]:
    parts = _BRACKET.split(item)  # text, bracket, text, ..
    numbers = [list(_numbers(part, item)) for part in parts[1::2]]
    for chosen in product(*numbers):
        yield parts[0] + "".join(number + text for number, text in zip(chosen, parts[2::2], strict=True))


def _numbers(text: str, item: str) -> Iterator[str]:
    """Give the numbers of a bracket, as wide as they are written: "08-10" are 08, 09, 10."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        low = whole(match[1]) if match else None
        high = whole(match[2] or match[1]) if match else None
        if match is None or low is None or high is None or not low <= high < low + MAX_HOSTS:
            raise ValueError(
                f"{item[:300]!r}: in brackets stand numbers and ranges, as in node[01-03,07] "
                "(scontrol show hostnames prints Slurm's lists name by name; an IPv6 address stands without brackets)"
            )
        yield from (f"{number:0{len(match[1])}d}" for number in range(low, high + 1))
