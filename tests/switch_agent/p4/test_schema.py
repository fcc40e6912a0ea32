# SPDX-License-Identifier: Apache-2.0
"""The generated bf-rt.json against the file that the Tofino compiler wrote for the prototype."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from switch_agent.dataplane.lookup import lookup_tables
from switch_agent.dataplane.params import PARAM_FIELDS
from switch_agent.dataplane.program import PROGRAM, Action, Field, Header, Program, Sizes, build_program
from switch_agent.dataplane.schema import action_id, bfrt_json, object_hash, program_json, table_id
from switch_agent.dataplane.schema_check import differences, main, sizes_from_macros

GOLDEN = Path(__file__).parents[2] / "data" / "symphony-prototype.bf-rt.json"

# What the merged program has and the prototype has not, apart from the objects of IPv6.
ADDED_PARAMS = {"port_index", "scope_mask"}
ADDED_METADATA = {"port_index", "scope_mask", "flow_src", "flow_dst", "ect"}
COPIED_INPUTS = {"ig_md.flow_src": "hdr.ipv4.src", "ig_md.flow_dst": "hdr.ipv4.dst"}


def _strip(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    return tuple(
        dataclasses.replace(action, params=tuple(param for param in action.params if param.name not in ADDED_PARAMS))
        for action in actions
    )


def _original(header: Header) -> Header:
    return dataclasses.replace(
        header, fields=tuple(field for field in header.fields if field.name not in ADDED_METADATA)
    )


def prototype_of(program: Program) -> Program:
    """Undo what the merge added: IPv6, RETH, the scope of the state, the copied addresses, the ECT flag."""
    return dataclasses.replace(
        program,
        tables=tuple(
            dataclasses.replace(table, actions=_strip(table.actions))
            for table in program.tables
            if "6" not in table.name
        ),
        profiles=tuple(
            dataclasses.replace(profile, actions=_strip(profile.actions))
            for profile in program.profiles
            if "6" not in profile.name
        ),
        selectors=tuple(selector for selector in program.selectors if "6" not in selector.name),
        hashes=tuple(
            dataclasses.replace(
                hash_,
                inputs=tuple(Field(COPIED_INPUTS.get(f.name, f.name), f.width) for f in hash_.inputs),
            )
            for hash_ in program.hashes
        ),
        headers=tuple(header for header in program.headers if header.name not in ("ipv6", "reth")),
        ingress_metadata=_original(program.ingress_metadata),
        egress_metadata=_original(program.egress_metadata),
    )


def _by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {table["name"]: table for table in document["tables"]}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    """The compiler's file."""
    document: dict[str, Any] = json.loads(GOLDEN.read_text())
    return document


def test_the_prototype_is_described_value_for_value(golden: dict[str, Any]) -> None:
    """Every table, key, field, id and size of the compiler's file comes out of the generator, in order."""
    generated = program_json(prototype_of(PROGRAM))
    assert differences(generated, golden) == []
    assert generated == golden


def test_the_merged_program_adds_exactly_the_ipv6_tables(golden: dict[str, Any]) -> None:
    """No table of the prototype is lost, and nothing but IPv6 is added."""
    added = set(_by_name(bfrt_json())) - set(_by_name(golden))
    names = ("job_classify6", "ipv6_lpm", "nexthop6", "ecmp6", "ecmp6_get_member")
    assert added == {f"pipe.Ingress.{name}" for name in names}
    assert set(_by_name(golden)) <= set(_by_name(bfrt_json()))


def test_ipv6_tables_look_like_their_ipv4_counterparts() -> None:
    """Same actions and key kinds; only addresses are wider and the route points to its own selector."""
    tables = _by_name(bfrt_json())
    classify, classify6 = tables["pipe.Ingress.job_classify"], tables["pipe.Ingress.job_classify6"]
    assert classify6["action_specs"] == classify["action_specs"]
    assert [(key["id"], key["match_type"], key["type"].get("width")) for key in classify6["key"]] == [
        (1, "Ternary", 128),
        (2, "Ternary", 128),
        (3, "Ternary", 16),
        (65537, "Exact", None),
    ]
    route6 = tables["pipe.Ingress.ipv6_lpm"]
    assert route6["depends_on"] == [
        tables["pipe.Ingress.ecmp6"]["id"],
        tables["pipe.Ingress.nexthop6"]["id"],
    ]
    assert [(key["name"], key["match_type"], key["type"]["width"]) for key in route6["key"]] == [
        ("hdr.ipv6.dst", "LPM", 128)
    ]


def test_ids_are_unique_and_refer_to_tables_that_exist() -> None:
    """A hash collision between two names, or a dangling reference, would confuse every client."""
    tables = bfrt_json()["tables"]
    ids = [table["id"] for table in tables]
    assert len(set(ids)) == len(ids)
    assert {target for table in tables for target in table["depends_on"]} <= set(ids)


def test_ids_follow_the_hash_of_the_name(golden: dict[str, Any]) -> None:
    """Ids do not depend on the program around them: the prototype's objects keep theirs."""
    table = _by_name(golden)["pipe.Ingress.job_params"]
    assert table["id"] == table_id("pipe.Ingress.job_params") == 0x02B72C3D
    assert table["action_specs"][0]["id"] == action_id("Ingress.set_params")
    assert object_hash("pipe.Ingress.steps") == 0x356FA0


def test_other_sizes_change_sizes_and_nothing_else() -> None:
    """A build for 16k jobs differs in sizes and in the width of the flow slot's hash."""
    sizes = sizes_from_macros(["N_STATE=16384", "N_JOB=16384", "N_FLOW=32768", "FLOW_BITS=15"])
    assert sizes == Sizes(n_state=16384, n_job=16384, n_flow=32768)
    changed = {line.partition(":")[0] for line in differences(bfrt_json(sizes), bfrt_json())}
    registers = ("window_start", "steps", "psn_rec", "score", "alpha", "flow_base")
    per_job = ("Ingress.job_params", "Ingress.job_all", "Ingress.job_outpacing")
    marks = ("Egress.job_marked_symphony", "Egress.job_marked_queue")
    assert changed == {
        *(f"tables/pipe.Ingress.{name}/size" for name in registers),
        *(f"tables/pipe.{name}/size" for name in (*per_job, *marks)),
        "tables/pipe.Ingress.slot_hash.compute/data[0]/singleton/type/width",
    }


@pytest.mark.parametrize("slots", [0, 1, 10000])
def test_flow_slots_must_be_a_power_of_two(slots: int) -> None:
    """A hash indexes the slots: other sizes are refused."""
    with pytest.raises(ValueError, match="power of two"):
        Sizes(n_flow=slots)


def test_set_params_carries_the_ten_integers_of_the_parameter_module() -> None:
    """Order, width and sign of the action data agree with params.py."""
    action = PROGRAM.table("job_params").action("Ingress.set_params")
    assert [(field.name, (field.width, field.signed)) for field in action.params] == list(PARAM_FIELDS.items())


def test_generated_look_up_entries_fit_their_tables() -> None:
    """Width of key and data, sign, default and size agree with lookup.py, and the entries fit."""
    for lookup in lookup_tables().values():
        table = PROGRAM.table(lookup.name)
        (key,) = table.keys
        (action,) = table.actions
        (data,) = action.params
        assert (key.width, data.width, data.signed) == (lookup.key_bits, lookup.data_bits, lookup.signed)
        assert (table.size, dict(table.default_data)) == (lookup.size, {data.name: lookup.default})
        assert len(lookup.entries) <= table.size


@pytest.mark.parametrize("name", ["steps", "Ingress.steps", "pipe.Ingress.steps"])
def test_objects_are_found_by_every_name_that_clients_use(name: str) -> None:
    """With the pipe, with the control, or by the last part alone."""
    assert PROGRAM.register(name).name == "Ingress.steps"


def test_an_unknown_object_is_refused_with_the_names_there_are() -> None:
    """The message helps to see the typing error."""
    with pytest.raises(KeyError, match=r"no speps; it has .*Ingress\.steps"):
        PROGRAM.register("speps")


def test_check_accepts_the_compilers_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document of the described program, built with the same sizes, passes."""
    path = tmp_path / "symphony.bf-rt.json"
    path.write_text(json.dumps(bfrt_json(Sizes(n_state=2048))))
    assert main(["-DN_STATE=2048", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{path}: {len(bfrt_json()['tables'])} tables, as described in program.py\n"
    assert captured.err == ""


def test_the_order_of_the_snapshots_is_free() -> None:
    """The compiler takes it from memory addresses; an id that is neither gress's is a difference."""
    document = bfrt_json()
    cfg = next(table for table in document["tables"] if table["table_type"] == "SnapshotCfg")
    egress, ingress = cfg["depends_on"]
    cfg["depends_on"] = [ingress, egress]
    cfg["id"] = cfg["id"] & ~0xFFFFFF | ingress & 0xFFFFFF
    assert differences(document, bfrt_json()) == []
    cfg["id"] ^= 1
    assert any(line.startswith("tables/pipe.snapshot.cfg/id") for line in differences(document, bfrt_json()))


def test_check_names_every_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A renamed table, a width and a size are each reported by path, and the exit code is 1."""
    document = copy.deepcopy(program_json(build_program()))
    tables = _by_name(document)
    tables["pipe.Ingress.exp2"]["size"] = 512
    tables["pipe.Ingress.alpha"]["data"][0]["singleton"]["type"]["width"] = 32
    tables["pipe.Ingress.steps"]["name"] = "pipe.Ingress.step"
    path = tmp_path / "symphony.bf-rt.json"
    path.write_text(json.dumps(document))
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "tables/pipe.Ingress.exp2/size: is 512, expected 1024",
        "tables/pipe.Ingress.steps: missing",
        "tables/pipe.Ingress.alpha/data[0]/singleton/type/width: is 32, expected 16",
        "tables/pipe.Ingress.step: unexpected",
    ]


@pytest.mark.parametrize("macros", [["N_STATES=1"], ["N_STATE=many"], ["N_FLOW=32768", "FLOW_BITS=14"]])
def test_check_refuses_macros_it_does_not_know(macros: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt macro would compare with the wrong program: exit code 2 and one line."""
    arguments = [f"-D{macro}" for macro in macros]
    assert main([*arguments, str(GOLDEN)]) == 2
    assert capsys.readouterr().err.startswith("schema_check: ")
