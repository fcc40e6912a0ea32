# SPDX-License-Identifier: Apache-2.0
"""The tables and registers of the Symphony program that the agent uses, found in the live schema.

Names and widths come from :mod:`switch_agent.dataplane.program`; ids and sizes from the switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from switch_agent.bfrt.schema import Schema, Table
from switch_agent.dataplane import program as p4

__all__ = ["COUNTERS", "LOOKUPS", "P4_NAME", "Tables", "check_schema", "signed_fields"]

P4_NAME: Final = p4.P4_NAME
LOOKUPS: Final = ("log2_psn", "log2_psn_rec", "log2_alpha", "exp2")
COUNTERS: Final = ("job_all", "job_outpacing", "job_marked_symphony", "job_marked_queue")
_MATCH_TABLES: Final = ("job_classify", "job_classify6", "job_params", *LOOKUPS, "ecmp_config", "red_profile")
_REGISTERS: Final = ("steps", "psn_rec", "window_start", "score", "alpha")
_COUNTER_FIELDS: Final = ("$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES")


@dataclass(frozen=True)
class Tables:
    """Handles of everything the agent reads or writes. Sizes are the live ones."""

    classify: Table
    classify6: Table
    params: Table
    lookups: dict[str, Table]
    ecmp_config: Table
    red_profile: Table
    steps: Table
    psn_rec: Table
    window_start: Table
    score: Table
    alpha: Table
    counters: dict[str, Table]

    @classmethod
    @lru_cache(maxsize=2)
    def of(cls, schema: Schema) -> Tables:
        """Look everything up; :func:`check_schema` has reported what is missing before."""

        def find(name: str) -> Table:
            return schema.table(_full_name(name))

        return cls(
            classify=find("job_classify"),
            classify6=find("job_classify6"),
            params=find("job_params"),
            lookups={name: find(name) for name in LOOKUPS},
            ecmp_config=find("ecmp_config"),
            red_profile=find("red_profile"),
            steps=find("steps"),
            psn_rec=find("psn_rec"),
            window_start=find("window_start"),
            score=find("score"),
            alpha=find("alpha"),
            counters={name: find(name) for name in COUNTERS},
        )

    @property
    def state_registers(self) -> tuple[Table, ...]:
        """The registers of which each state block has an entry."""
        return self.steps, self.psn_rec, self.window_start, self.score, self.alpha

    @property
    def match_tables(self) -> tuple[Table, ...]:
        """The tables that the agent fills with entries."""
        return self.classify, self.classify6, self.params, *self.lookups.values(), self.red_profile

    @property
    def n_state(self) -> int:
        """State blocks of the program: the smallest state register counts."""
        return min(table.size for table in self.state_registers)

    @property
    def n_job(self) -> int:
        """Job_IDs below this have parameters and counters."""
        return min(self.params.size, *(table.size for table in self.counters.values()))


def _full_name(name: str) -> str:
    program = p4.PROGRAM
    for lookup in (program.table, program.register, program.counter):
        try:
            return f"{program.pipe}.{lookup(name).name}"
        except KeyError:
            continue
    raise AssertionError(f"the program description has no {name}")


def signed_fields() -> frozenset[str]:
    """Return the fields that hold two's complement, as :meth:`Schema.parse` wants them named."""
    program = p4.PROGRAM
    of_actions = {
        f"{action.name}.{param.name}"
        for table in program.tables
        for action in table.actions
        for param in action.params
        if param.signed
    }
    of_registers = {
        f"{register.name}.{part.name}" for register in program.registers for part in register.fields if part.signed
    }
    return frozenset(of_actions | of_registers)


def check_schema(schema: Schema) -> list[str]:
    """Return every table, key, action, field or width that we need and the schema does not have."""
    problems: list[str] = []
    program = p4.PROGRAM
    for name in _MATCH_TABLES:
        problems += _check_match_table(schema, program.table(name), program.pipe)
    for name in _REGISTERS:
        register = program.register(name)
        fields = {f"{register.name}.{part.name}": part.width for part in register.fields}
        problems += _check_data(schema, f"{program.pipe}.{register.name}", "Register", fields)
    for name in COUNTERS:
        counter = program.counter(name)
        fields = dict.fromkeys(_COUNTER_FIELDS, 64)
        problems += _check_data(schema, f"{program.pipe}.{counter.name}", "Counter", fields)
    return problems


def _check_match_table(schema: Schema, wanted: p4.Table, pipe: str) -> list[str]:
    name = f"{pipe}.{wanted.name}"
    if name not in schema.tables:
        return [f"table {name} is missing"]
    table = schema.tables[name]
    problems: list[str] = []
    for key in wanted.keys:
        found = table.keys.get(key.name)
        if found is None:
            problems.append(f"{name} has no key {key.name}")
        elif (found.type.width, found.match) != (key.width, key.match.value):
            problems.append(
                f"{name} key {key.name} is {found.match} of {found.type.width} bits, "
                f"not {key.match.value} of {key.width}"
            )
    for action in wanted.actions:
        spec = table.actions.get(action.name)
        if spec is None:
            problems.append(f"{name} has no action {action.name}")
            continue
        for param in action.params:
            data = spec.data.get(param.name)
            if data is None:
                problems.append(f"{name} action {action.name} has no field {param.name}")
            elif data.type.width != param.width:
                problems.append(
                    f"{name} action {action.name} field {param.name} has {data.type.width} bits, not {param.width}"
                )
        extra = spec.data.keys() - {param.name for param in action.params}
        if extra:
            problems.append(f"{name} action {action.name} has unknown fields {', '.join(sorted(extra))}")
    return problems


def _check_data(schema: Schema, name: str, kind: str, fields: dict[str, int]) -> list[str]:
    table = schema.tables.get(name)
    if table is None:
        return [f"{kind.lower()} {name} is missing"]
    problems = [] if table.kind == kind else [f"{name} is a {table.kind}, not a {kind}"]
    for field, width in fields.items():
        found = table.data.get(field)
        if found is None:
            problems.append(f"{kind.lower()} {name} has no field {field}")
        elif found.type.width != width:
            problems.append(f"{name} field {field} has {found.type.width} bits, not {width}")
    return problems
