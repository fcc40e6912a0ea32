# SPDX-License-Identifier: Apache-2.0
"""Make the switch hold what it should: compare, add what is missing, fix what differs, remove our orphans.

Look-up tables and the RED profile belong to the agent as a whole. In the classification and parameter tables
its own key space is the range of Job_IDs it manages; entries of other ids, or with other actions, stay. Ports
are only added and modified. Running a reconcile twice changes nothing the second time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from switch_agent import bfrt_proto as proto
from switch_agent.agent.config import SwitchConfig
from switch_agent.agent.entries import (
    classify_entries,
    job_of_classify_entry,
    params_entry,
    write_initial_state,
)
from switch_agent.agent.models import Job
from switch_agent.agent.tables import Tables
from switch_agent.bfrt.client import Client
from switch_agent.bfrt.requests import (
    Entry,
    KeyValue,
    Ternary,
    decode_tables,
    default_update,
    delete_update,
    describe,
    insert_update,
    modify_update,
)
from switch_agent.bfrt.schema import Table
from switch_agent.dataplane.lookup import LookupTable, lookup_tables
from switch_agent.errors import ReconcileError, SchemaError

__all__ = ["Drift", "Reconciler"]

log = logging.getLogger(__name__)

_ECMP_ACTION: Final = "Ingress.set_hash_sport"
_Key = tuple[tuple[str, KeyValue], ...]


@dataclass
class Drift:
    """What differed between desired state and switch. ``details`` names the first differences."""

    added: int = 0
    modified: int = 0
    deleted: int = 0
    seconds: float = 0.0
    repaired: bool = False
    tables: dict[str, int] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of entries that differed."""
        return self.added + self.modified + self.deleted

    def view(self) -> dict[str, Any]:
        """Return the drift as REST shows it."""
        return {
            "entries": self.total,
            "added": self.added,
            "modified": self.modified,
            "deleted": self.deleted,
            "repaired": self.repaired,
            "seconds": round(self.seconds, 4),
            "tables": self.tables,
            "details": self.details,
        }


class _Lookup:
    """A look-up table as it should be. ``updates`` insert its entries: made once, needed after each restart."""

    def __init__(self, table: Table, lookup: LookupTable) -> None:
        self.table = table
        self.entries = {_key(entry): entry for entry in _lookup_entries(table, lookup)}

    @cached_property
    def updates(self) -> dict[_Key, proto.Update]:
        """The updates by key."""
        return {key: insert_update(self.table, entry) for key, entry in self.entries.items()}


@dataclass
class _Plan:
    """Differences of one table, and whether its default entry is to be set."""

    table: Table
    lookup: _Lookup | None = None
    add: dict[_Key, Entry] = field(default_factory=dict)
    modify: list[Entry] = field(default_factory=list)
    delete: list[Entry] = field(default_factory=list)
    default: Entry | None = None

    @property
    def total(self) -> int:
        return len(self.add) + len(self.modify) + len(self.delete) + (self.default is not None)

    def inserts(self) -> list[proto.Update]:
        """Return the updates that add what is missing."""
        if self.lookup is not None:
            return [self.lookup.updates[key] for key in self.add]
        return [insert_update(self.table, entry) for entry in self.add.values()]


class Reconciler:
    """Compares and repairs. ``job_ids`` is the range of Job_IDs that are ours to manage.

    ``step_of(job)`` and ``seed()`` give the start values for jobs whose state the switch has lost.
    """

    def __init__(
        self,
        config: SwitchConfig,
        *,
        job_ids: range,
        step_of: Callable[[Job], int],
        seed: Callable[[], int],
    ) -> None:
        self._config = config
        self._job_ids = job_ids
        self._step_of = step_of
        self._seed = seed
        self._lookups: list[_Lookup] = []
        self._lookups_good: bytes | None = None
        """An answer to reading the look-up tables that was right: an equal one need not be decoded."""

    async def compare(self, client: Client, tables: Tables, jobs: Iterable[Job]) -> Drift:
        """Return what a reconcile would change, without changing it."""
        started = time.monotonic()
        drift = _summary(await self._plans(client, tables, list(jobs)))
        drift.seconds = time.monotonic() - started
        return drift

    async def apply(self, client: Client, tables: Tables, jobs: Iterable[Job]) -> Drift:
        """Repair everything and verify it by reading back; returns what had to be done.

        Raises ReconcileError when entries still differ afterwards, WriteError when the switch refused.
        """
        started = time.monotonic()
        wanted = list(jobs)
        plans = await self._plans(client, tables, wanted)
        drift = _summary(plans)
        if drift.total:
            await self._repair(client, tables, wanted, plans)
            left = _summary(await self._plans(client, tables, wanted))
            if left.total:
                raise ReconcileError(
                    f"switch {client.address} still differs in {left.total} entries after they were "
                    f"written: {'; '.join(left.details)}"
                )
            drift.repaired = True
            log.info(
                "switch %s: %d entries added, %d modified, %d deleted",
                client.address,
                drift.added,
                drift.modified,
                drift.deleted,
            )
        drift.seconds = time.monotonic() - started
        return drift

    # ------------------------------------------------------------------------------ comparing

    async def _plans(self, client: Client, tables: Tables, jobs: list[Job]) -> list[_Plan]:
        plans = await self._lookup_plans(client, tables)
        if self._config.ecmp is not None:
            plans.append(await self._ecmp_plan(client, tables.ecmp_config, self._config.ecmp.mask))
        if self._config.ports:
            plans.append(await self._port_plan(client))
        red = self._config.red_entries()
        wanted = self._job_entries(tables, jobs)
        if red is not None:
            wanted[tables.red_profile] = red
        for table, found in zip(wanted, await client.read_tables(list(wanted), from_hw=True), strict=True):
            ours = [entry for entry in found if self._is_ours(table, tables, entry)]
            plans.append(_compare(table, {_key(entry): entry for entry in wanted[table]}, ours))
        return plans

    async def _lookup_plans(self, client: Client, tables: Tables) -> list[_Plan]:
        asked = list(tables.lookups.values())
        if [lookup.table for lookup in self._lookups] != asked:  # another program than before
            self._lookups = [_Lookup(table, lookup_tables()[name]) for name, table in tables.lookups.items()]
            self._lookups_good = None
        raw = await client.read_tables_raw(asked, from_hw=True)
        if raw == self._lookups_good:
            return []
        plans = []
        for lookup, found in zip(self._lookups, decode_tables(asked, raw), strict=True):
            plan = _compare(lookup.table, lookup.entries, [entry for entry in found if not entry.is_default])
            plan.lookup = lookup
            plans.append(plan)
        if not any(plan.total for plan in plans):
            self._lookups_good = raw
        return plans

    def _job_entries(self, tables: Tables, jobs: list[Job]) -> dict[Table, list[Entry]]:
        wanted: dict[Table, list[Entry]] = {tables.params: [], tables.classify: [], tables.classify6: []}
        for job in jobs:
            wanted[tables.params].append(params_entry(job))
            for table, entry in classify_entries(job, tables):
                wanted[table].append(entry)
        return wanted

    def _is_ours(self, table: Table, tables: Tables, entry: Entry) -> bool:
        if table is tables.red_profile:
            return not entry.is_default
        job_id = entry.key.get("ig_md.job") if table is tables.params else job_of_classify_entry(entry)
        return isinstance(job_id, int) and job_id in self._job_ids

    async def _ecmp_plan(self, client: Client, table: Table, mask: int) -> _Plan:
        current = await client.read_default(table, from_hw=True)
        plan = _Plan(table)
        if (current.action, current.data.get("mask")) != (_ECMP_ACTION, mask):
            plan.default = Entry(action=_ECMP_ACTION, data={"mask": mask}, is_default=True)
        return plan

    async def _port_plan(self, client: Client) -> _Plan:
        assert client.schema is not None
        if "$PORT" not in client.schema:
            raise SchemaError(f"switch {client.address} has no table $PORT: take ports out of the config file")
        table = client.schema.table("$PORT")
        wanted = [port.entry() for port in self._config.ports]
        found = await client.read_keys(table, [entry.key for entry in wanted], from_hw=True)
        plan = _Plan(table)
        for entry, current in zip(wanted, found, strict=True):
            if current is None:
                plan.add[_key(entry)] = entry
            elif any(current.data.get(name) != value for name, value in entry.data.items()):
                plan.modify.append(entry)
        return plan

    # ------------------------------------------------------------------------------ repairing

    async def _repair(self, client: Client, tables: Tables, jobs: list[Job], plans: list[_Plan]) -> None:
        # Deletions first (they free room and keys), then look-ups, then jobs: state, parameters, packets.
        await client.write([delete_update(plan.table, entry.key) for plan in plans for entry in plan.delete])
        lost = [(job, self._step_of(job)) for job in _lost_jobs(jobs, tables, plans)]
        await write_initial_state(client, tables, lost, seed=self._seed())
        updates = []
        for plan in plans:
            updates += plan.inserts()
            updates += [modify_update(plan.table, entry) for entry in plan.modify]
            if plan.default is not None and plan.default.action is not None:
                updates.append(default_update(plan.table, plan.default.action, plan.default.data))
        await client.write(updates)


def _lost_jobs(jobs: list[Job], tables: Tables, plans: list[_Plan]) -> list[Job]:
    """Return the jobs of which the switch has nothing: its registers have forgotten them, too."""
    missing: dict[int, int] = {}
    no_params: set[int] = set()
    for plan in plans:
        for entry in plan.add.values():
            if plan.table is tables.params:
                job_id = entry.key["ig_md.job"]
                assert isinstance(job_id, int)
                no_params.add(job_id)
            elif plan.table in (tables.classify, tables.classify6):
                owner = job_of_classify_entry(entry)
                assert owner is not None
                missing[owner] = missing.get(owner, 0) + 1
    return [job for job in jobs if job.job_id in no_params and missing.get(job.job_id, 0) == len(job.spec.flows)]


def _lookup_entries(table: Table, lookup: LookupTable) -> list[Entry]:
    (key,) = (name for name in table.keys if not name.startswith("$"))
    (action,) = (action for action in table.actions.values() if action.data)
    (param,) = action.data
    return [
        Entry(
            key={key: Ternary(entry.value, entry.mask), "$MATCH_PRIORITY": entry.priority},
            action=action.name,
            data={param: entry.data},
        )
        for entry in lookup.entries
    ]


def _key(entry: Entry) -> _Key:
    """Return the key in a form that is equal for equal matches: bits that the mask ignores do not count."""
    parts: list[tuple[str, KeyValue]] = []
    for name, value in sorted(entry.key.items()):
        if isinstance(value, Ternary):
            parts.append((name, Ternary(value.value & value.mask, value.mask)))
        else:
            parts.append((name, value))
    return tuple(parts)


def _compare(table: Table, wanted: Mapping[_Key, Entry], found: Iterable[Entry]) -> _Plan:
    if len(wanted) > table.size:
        raise ReconcileError(
            f"table {table.name} of the switch has {table.size} entries, {len(wanted)} are wanted: "
            "nothing was changed; ask for less, or compile the program with larger tables"
        )
    plan = _Plan(table)
    present: Mapping[_Key, Entry] = {_key(entry): entry for entry in found}
    for key, entry in wanted.items():
        current = present.get(key)
        if current is None:
            plan.add[key] = entry
        elif current.action != entry.action or any(
            current.data.get(name) != value for name, value in entry.data.items()
        ):
            plan.modify.append(entry)
    plan.delete = [entry for key, entry in present.items() if key not in wanted]
    return plan


def _summary(plans: list[_Plan]) -> Drift:
    drift = Drift()
    for plan in plans:
        if not plan.total:
            continue
        drift.added += len(plan.add)
        drift.modified += len(plan.modify) + (plan.default is not None)
        drift.deleted += len(plan.delete)
        drift.tables[plan.table.short_name] = plan.total
        for verb, entries in (("missing", [*plan.add.values()]), ("differs", plan.modify), ("orphan", plan.delete)):
            drift.details += [f"{verb}: {describe(plan.table, entry.key)}" for entry in entries[:2]]
        if plan.default is not None:
            drift.details.append(f"differs: default entry of {plan.table.short_name}")
    drift.details = drift.details[:10]
    return drift
