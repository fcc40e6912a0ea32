# SPDX-License-Identifier: Apache-2.0
"""What fits on the switch: how full its tables are, and jobs whose place does not suit it (any more).

A state block is addressed by job_classify's ``state`` plus, for a job of scope ``port``, the next hop's
``port_index``. The hardware does not check the sum: an index beyond the register, or beyond the job's own
blocks, would count for somebody else (``p4-findings.md`` §11). So the agent does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from switch_agent.agent.models import Job
from switch_agent.agent.tables import Tables
from switch_agent.bfrt.client import Client
from switch_agent.bfrt.schema import Schema, Table

__all__ = ["TableUse", "Usage", "highest_port_index", "misplaced"]

_NEXT_HOPS = ("nexthop", "nexthop6")


class TableUse:
    """Entries of one table: now, at most so far, and how many it holds."""

    def __init__(self, size: int) -> None:
        self.entries = 0
        self.peak = 0
        self.size = size


class Usage:
    """How full the match tables are and have been since the agent started, by short table name."""

    def __init__(self) -> None:
        self.tables: dict[str, TableUse] = {}

    def note(self, table: Table, entries: int) -> None:
        """The table holds that many entries now."""
        use = self.tables.setdefault(table.short_name, TableUse(table.size))
        use.size = table.size
        use.entries = entries
        use.peak = max(use.peak, entries)

    def removed(self, table: Table, entries: int) -> None:
        """That many entries have gone."""
        use = self.tables.get(table.short_name)
        if use is not None:
            use.entries = max(0, use.entries - entries)

    async def read(self, client: Client, tables: Iterable[Table]) -> None:
        """Ask the switch. Raises BfrtError."""
        asked = list(tables)
        for table, entries in zip(asked, await client.usage(asked, from_hw=False), strict=True):
            self.note(table, entries)

    def view(self) -> dict[str, Any]:
        """Return it as REST shows it."""
        return {name: {"entries": use.entries, "peak": use.peak, "size": use.size} for name, use in self.tables.items()}


async def highest_port_index(client: Client, schema: Schema) -> int | None:
    """Return the highest ``port_index`` of all next hops; None when the switch has none, as the twin."""
    tables = [schema.table(name) for name in _NEXT_HOPS if name in schema]
    entries = await client.read_tables(tables, from_hw=False) if tables else []
    indexes = [entry.data.get("port_index") for hops in entries for entry in hops if not entry.is_default]
    found = [index for index in indexes if isinstance(index, int)]
    return max(found, default=None)


def misplaced(jobs: Iterable[Job], tables: Tables, port_index: int | None) -> dict[int, str]:
    """Return the jobs that must not be on the switch, with the reason, by id.

    Their place was chosen for another program size, or before a next hop got a higher ``port_index``.
    """
    reasons: dict[int, str] = {}
    for job in jobs:
        last = job.state + job.n_states - 1
        if job.job_id >= tables.n_job:
            reasons[job.job_id] = f"its id is beyond the program's {tables.n_job} jobs"
        elif last >= tables.n_state:
            reasons[job.job_id] = f"its state blocks {job.state} to {last} are beyond the program's {tables.n_state}"
        elif port_index is not None and job.spec.symphony.params().scope == "port" and port_index >= job.n_states:
            reasons[job.job_id] = (
                f"it has {job.n_states} state blocks, and a next hop has port_index {port_index}: give --ports a "
                "number above it"
            )
    return reasons
