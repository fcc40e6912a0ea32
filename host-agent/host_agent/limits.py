# SPDX-License-Identifier: Apache-2.0
"""Whether a benchmark can run at all, by ring-bench's own rules, before anything of it is on a switch."""

from __future__ import annotations

import os

from host_agent.errors import BadInputError
from host_agent.models import BenchSpec, parse_bytes
from ring_bench.config import Config
from ring_bench.errors import UsageError
from ring_bench.plan import Plan

__all__ = ["check_bench"]

MTU = 4096
LARGEST_MESSAGE = 1 << 30
"""What any device takes in one message; a smaller one needs no less memory."""


def check_bench(bench: BenchSpec, world: int) -> None:
    """Raises BadInputError for what ring-bench would refuse, and for more memory than this machine has."""
    size = parse_bytes(bench.size)
    try:
        config = Config(
            world=world,
            split=bench.split,
            rings=bench.rings,
            minbytes=size,
            maxbytes=size,
            iters=bench.iterations,
            warmup_iters=bench.warmup,
            check=int(bench.check),
            datatype=bench.datatype,
            op=bench.redop,
            tagging=bench.tagging,
            release=bench.release,
            payload_scale=bench.payload_scale,
        )
        plan = Plan(config, mtu=MTU, max_message=LARGEST_MESSAGE)
    except (UsageError, ValueError) as error:
        raise BadInputError(f"bench: ring-bench cannot run this: {error}") from error
    needed = world * plan.rank_bytes
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > machine:
        raise BadInputError(
            f"bench: {world} ranks of size {bench.size} need {needed / 2**30:.3g} GiB of memory, this machine has "
            f"{machine / 2**30:.3g} GiB: a smaller size, fewer ranks, or a larger payload_scale"
        )
