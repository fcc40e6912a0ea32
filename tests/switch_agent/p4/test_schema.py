# SPDX-License-Identifier: Apache-2.0
"""The generated bf-rt.json against the file that the Tofino compiler wrote for the prototype."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from switch_agent.dataplane.program import (
    PROGRAM,
    Action,
    ActionProfile,
    Field,
    Header,
    MatchKind,
    Program,
    Sizes,
    Table,
    build_program,
)
from switch_agent.dataplane.schema import action_id, bfrt_json, object_hash, program_json, table_id

GOLDEN = Path(__file__).parents[2] / "data" / "symphony-prototype.bf-rt.json"


def without_params(action: Action, *names: str) -> Action:
    params = tuple(param for param in action.params if param.name not in names)
    return dataclasses.replace(action, params=params)


def without_fields(header: Header, *names: str) -> Header:
    return dataclasses.replace(header, fields=tuple(f for f in header.fields if f.name not in names))


def prototype_of(program: Program) -> Program:
    """Undo what the merge added to the prototype: IPv6, the state scope, copied addresses, the ECT flag."""

    def strip(action: Action) -> Action:
        return without_params(action, "port_index", "scope_mask")

    def table(table: Table) -> Table:
        return dataclasses.replace(table, actions=tuple(strip(action) for action in table.actions))

    def profile(profile: ActionProfile) -> ActionProfile:
        return dataclasses.replace(profile, actions=tuple(strip(action) for action in profile.actions))

    copied = {"ig_md.flow_src": "hdr.ipv4.src", "ig_md.flow_dst": "hdr.ipv4.dst"}
    return dataclasses.replace(
        program,
        tables=tuple(table(t) for t in program.tables if "6" not in t.name),
        profiles=tuple(profile(p) for p in program.profiles if "6" not in p.name),
        selectors=tuple(s for s in program.selectors if "6" not in s.name),
        hashes=tuple(
            dataclasses.replace(h, inputs=tuple(Field(copied.get(f.name, f.name), f.width) for f in h.inputs))
            for h in program.hashes
        ),
        headers=tuple(h for h in program.headers if h.name != "ipv6"),
        ingress_metadata=without_fields(
            program.ingress_metadata, "port_index", "scope_mask", "flow_src", "flow_dst"
        ),
        egress_metadata=without_fields(program.egress_metadata, "ect"),
    )


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {table["name"]: table for table in document["tables"]}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(GOLDEN.read_text())
    return document


def test_the_prototype_is_described_value_for_value(golden: dict[str, Any]) -> None:
    """Every table, key, field, id and size of the compiler's own file comes out of the generator."""
    generated = program_json(prototype_of(PROGRAM))
    assert list(by_name(generated)) == list(by_name(golden))
    for name, table in by_name(golden).items():
        assert by_name(generated)[name] == table, name
    assert generated == golden
