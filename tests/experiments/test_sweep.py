# SPDX-License-Identifier: Apache-2.0
"""Scenario files: overrides, axes, variants, and what is said about mistakes."""

from __future__ import annotations

import pytest

from symphony_experiments.errors import ScenarioError
from symphony_experiments.scenario import Case, Scenario, shipped
from symphony_experiments.sweep import axes, combinations, parse_override, put

SMALL = """
name = "small"
title = "a test"
[fabric]
preset = "small"
[workload]
iterations = 2
[seeds]
count = 3
"""


def scenario(more: str = "") -> Scenario:
    return Scenario.parse(SMALL + more, where="small.toml")


def test_a_list_where_one_value_is_wanted_is_an_axis():
    case = {"workload": {"chunk": ["4M", "8M"]}, "fabric": {"mtu": [1024, 4096]}, "keep": ["overlap"]}
    assert axes(case, Case) == {"workload.chunk": ["4M", "8M"], "fabric.mtu": [1024, 4096]}


def test_a_sweep_has_a_run_for_every_combination_and_the_last_axis_varies_fastest():
    case = {"workload": {"chunk": ["4M", "8M"]}, "fabric": {"mtu": [1024, 4096]}}
    pairs = [(one["workload"]["chunk"], one["fabric"]["mtu"]) for one in combinations(case, Case)]
    assert pairs == [("4M", 1024), ("4M", 4096), ("8M", 1024), ("8M", 4096)]


def test_every_variant_runs_with_every_seed():
    runs = scenario('[[variant]]\nname = "a"\n[[variant]]\nname = "b"\nset = { algorithm = "off" }\n').runs()
    assert [(run.variant, run.seed) for run in runs] == [(v, s) for v in "ab" for s in (1, 2, 3)]
    assert {run.case.algorithm for run in runs if run.variant == "b"} == {"off"}


def test_an_axis_of_one_variant_is_a_column_of_all():
    runs = scenario('[[variant]]\nname = "a"\n[[variant]]\nname = "b"\nset = { "symphony.k" = [0.1, 0.2] }\n').runs()
    assert {run.axes["symphony.k"] for run in runs} == {None, 0.1, 0.2}


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a.b=3", "a.b", 3),
        ("a=off", "a", "off"),
        ('a=["4M", "8M"]', "a", ["4M", "8M"]),
        ("a = true", "a", True),
        ("a=tor1->spine0=1.13", "a", "tor1->spine0=1.13"),
    ],
)
def test_an_override_is_toml_and_a_bare_word_a_string(text, key, value):
    assert parse_override(text) == (key, value)


def test_an_override_without_a_value_is_refused():
    with pytest.raises(ScenarioError, match="write key=value"):
        parse_override("fabric.mtu")


def test_an_unknown_key_is_refused_with_the_nearest_name():
    with pytest.raises(ScenarioError, match=r"fabric\.mtuu; did you mean fabric\.mtu\?"):
        put({}, "fabric.mtuu", 1, Case)
    with pytest.raises(ScenarioError, match=r"small\.toml: unknown key fabric\.spine; did you mean fabric\.spines\?"):
        scenario("[[variant]]\nname = 'a'\nset = {'fabric.spine' = 2}\n")


def test_an_override_replaces_the_value_of_every_variant():
    one = scenario('[[variant]]\nname = "a"\nset = { algorithm = "off" }\n').changed([("algorithm", "symphony")])
    assert {run.case.algorithm for run in one.runs()} == {"symphony"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[workload]\n", "small.toml"),  # a table twice: TOML's own error
        ('[[variant]]\nname = "a"\n[[variant]]\nname = "a"\n', "two variants are called 'a'"),
        ('[[variant]]\nname = "a"\nset = { "workload.chunk" = "8X" }\n', "chunk"),
        ('[[variant]]\nname = "a"\nset = { "workload.release" = "sometimes" }\n', "workload.release"),
        ('[[variant]]\nname = "a"\nset = { "fabric.mtu" = [] }\n', "an empty list is no sweep"),
        ('[[claim]]\nid = "c"\ntext = "t"\nsource = "s"\nmetric = "m"\nof = {}\n', 'a "change" needs "against"'),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_reason(more, said):
    with pytest.raises(ScenarioError) as error:
        scenario(more)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_scenario_written_to_a_manifest_reads_back_the_same():
    one = scenario('[[variant]]\nname = "a"\nset = { "symphony.k" = [0.1, 0.2] }\n')
    again = Scenario.from_table(one.to_table(), where="manifest.json")
    assert [run.to_case() for run in again.runs()] == [run.to_case() for run in one.runs()]


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_is_valid_in_both_sizes_and_named_like_its_file(name):
    one = Scenario.load(name)
    assert one.name == name
    quick = one.quickened()
    assert 0 < len(quick.runs()) <= len(one.runs())
    variants = {variant.name for variant in one.variant}
    for claim in one.claim:
        for selection in (claim.of, claim.against or {}):
            assert selection.get("variant", next(iter(variants))) in variants


def test_a_scenario_that_is_not_there_is_refused_with_the_nearest_name():
    with pytest.raises(ScenarioError, match="did you mean fig5"):
        Scenario.load("fig55")
    with pytest.raises(ScenarioError, match=r"cannot read nowhere/x\.toml: No such file"):
        Scenario.load("nowhere/x.toml")
