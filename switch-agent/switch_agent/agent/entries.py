# SPDX-License-Identifier: Apache-2.0
"""What a job is on the switch: its entries, its parameters, the initial values of its state.

**Tracking without marking.** A packet is only tracked (steps, counters) when its job has a ``job_params``
entry, and the step overlap is wanted with Symphony off, too. So a disabled job keeps its entry, with a gain
so low that the marking threshold is always 0. The gain must not be arbitrarily low: the program adds
logarithms in 16 bits, and a sum that wraps would turn into "always mark". :data:`DISABLED_LG_K` is chosen
so that no sum leaves the range in which ``exp2`` answers 0.

Score and alpha run on while a job is disabled (they are state of the tracking), so enabling it again starts
them afresh: alpha 1, score 0, as at the job's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import numpy as np

from switch_agent import bfrt_proto as proto
from switch_agent.agent.models import Flow, Job
from switch_agent.agent.tables import Tables
from switch_agent.bfrt.bulk import encode_register_updates
from switch_agent.bfrt.client import Client
from switch_agent.bfrt.requests import ALL_PIPES, Entry, Ternary, modify_update
from switch_agent.bfrt.schema import Table
from switch_agent.dataplane.constants import STEP_BITS, STEP_SHIFT
from switch_agent.dataplane.params import DISABLED_LG_K

__all__ = [
    "DISABLED_LG_K",
    "SEED",
    "SEED_OPPOSITE",
    "classify_entries",
    "classify_table",
    "counter_resets",
    "gain_resets",
    "job_of_classify_entry",
    "params_entry",
    "step_word",
    "write_initial_state",
]

SEED: Final = 0
"""``window_start`` of a state block that no packet has touched yet, see :func:`write_initial_state`."""
SEED_OPPOSITE: Final = 1 << 31
"""The other untouched value, half the clock's circle away."""

_EXACT_PRIORITY, _ANY_PRIORITY = 10, 20  # the lower number wins: a flow to one host before one to anybody
_BULK = 512  # register entries per Write


def classify_table(tables: Tables, flow: Flow) -> Table:
    """Return the classification table of the flow's address family."""
    return tables.classify if flow.src.version == 4 else tables.classify6


def classify_entries(job: Job, tables: Tables) -> Iterator[tuple[Table, Entry]]:
    """Yield one classification entry per flow: (src, dst, tag) -> (Job_ID, first state block).

    The tag is 0xC000 | job_tag << step_bits | step in the UDP source port; the step's bits are masked out.
    """
    sport = Ternary(0xC000 | job.spec.job_tag << STEP_BITS, 0xFFFF & ~((1 << STEP_BITS) - 1))
    for flow in job.spec.flows:
        family = "ipv4" if flow.src.version == 4 else "ipv6"
        yield (
            classify_table(tables, flow),
            Entry(
                key={
                    f"hdr.{family}.src": _address(flow.src),
                    f"hdr.{family}.dst": _address(flow.dst) if flow.dst else Ternary(0, 0),
                    "hdr.udp.sport": sport,
                    "$MATCH_PRIORITY": _EXACT_PRIORITY if flow.dst else _ANY_PRIORITY,
                },
                action="Ingress.set_job",
                data={"job": job.job_id, "state": job.state},
            ),
        )


def _address(address: IPv4Address | IPv6Address) -> Ternary:
    return Ternary(int(address), (1 << address.max_prefixlen) - 1)


def job_of_classify_entry(entry: Entry) -> int | None:
    """Return the Job_ID that a classification entry gives, None when it gives none (default, NoAction)."""
    job = entry.data.get("job")
    return job if entry.action == "Ingress.set_job" and not entry.is_default and isinstance(job, int) else None


def params_entry(job: Job) -> Entry:
    """Return the job's ``job_params`` entry; without marking when the job is disabled."""
    values = job.spec.symphony.params().to_entry()
    if not job.enabled:
        values = replace(values, lg_k=DISABLED_LG_K)
    fields = {name: getattr(values, name) for name in values.__dataclass_fields__}
    return Entry(key={"ig_md.job": job.job_id}, action="Ingress.set_params", data=fields)


def step_word(step: int) -> int:
    """Return what a step register holds for a step: the tag left-aligned, bit 0 set (p4-findings §3)."""
    return (step % (1 << STEP_BITS)) << STEP_SHIFT | 1


def gain_resets(job: Job, tables: Tables) -> list[proto.Update]:
    """Return the updates that start score and alpha afresh, in all state blocks and pipes of the job."""
    updates = []
    for index in range(job.state, job.state + job.n_states):
        key = {"$REGISTER_INDEX": index}
        score = {"Ingress.score.score": 0, "Ingress.score.count": 0}
        updates.append(modify_update(tables.score, Entry(key=key, data=score)))
        updates.append(modify_update(tables.alpha, Entry(key=key, data={"Ingress.alpha.f1": 1})))
    return updates


def counter_resets(job: Job, tables: Tables) -> list[proto.Update]:
    """Return the updates that zero the job's counters in all pipes."""
    zero = {"$COUNTER_SPEC_PKTS": 0, "$COUNTER_SPEC_BYTES": 0}
    entry = Entry(key={"$COUNTER_INDEX": job.job_id}, data=zero)
    return [modify_update(table, entry) for table in tables.counters.values()]


async def write_initial_state(
    client: Client, tables: Tables, jobs: Iterable[tuple[Job, int]], *, seed: int = SEED
) -> None:
    """Bring the state blocks and counters of jobs to their start values, on all pipes.

    ``jobs`` are pairs of a job and the step that it is at. ``seed`` is written to ``window_start``: the window
    test is a serial comparison with the switch's clock, which half of the time would say "not over yet" for
    minutes to a start of 0. When the clock is roughly known, the caller picks the seed behind it.
    """
    header = client.write_header().SerializeToString()
    batch: list[bytes] = []
    waiting = 0
    for job, step in jobs:
        for entries, piece in _initial_state(tables, job, step, seed):
            batch.append(piece)
            waiting += entries
            if waiting >= _BULK:
                await client.write_raw(b"".join([header, *batch]))
                batch, waiting = [], 0
    if batch:
        await client.write_raw(b"".join([header, *batch]))


def _initial_state(tables: Tables, job: Job, step: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number of updates, serialised updates) for one job."""
    indexes = np.arange(job.state, job.state + job.n_states, dtype=np.uint32)
    values: list[tuple[Table, dict[str, int]]] = [
        (tables.steps, {"Ingress.steps.mn": step_word(step), "Ingress.steps.mx": step_word(step)}),
        (tables.psn_rec, {"Ingress.psn_rec.f1": 0}),
        (tables.window_start, {"Ingress.window_start.f1": seed}),
        (tables.score, {"Ingress.score.score": 0, "Ingress.score.count": 0}),
        (tables.alpha, {"Ingress.alpha.f1": 1}),
    ]
    for table, fields in values:
        columns = {name: np.full(len(indexes), value, np.uint32) for name, value in fields.items()}
        yield len(indexes), encode_register_updates(table, indexes, columns, ALL_PIPES)
    resets = counter_resets(job, tables)
    yield len(resets), proto.WriteRequest(updates=resets).SerializeToString()
