# SPDX-License-Identifier: Apache-2.0
"""Parameters: ranges, named variants, and the integers of the P4 action."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agent.dataplane.errors import ParameterError
from switch_agent.dataplane.params import PARAM_FIELDS, PARAM_RANGES, VARIANTS, ParamEntry, SymphonyParams

params = st.builds(
    SymphonyParams,
    k=st.floats(1e-6, 1.0),
    tau=st.integers(1, 256).map(lambda n: n / 256),
    window_us=st.floats(0.256, 10_000.0),
    n_warmup=st.integers(0, (1 << 24) - 1),
    n_sample=st.integers(0, (1 << 31) - 1),
    gate=st.booleans(),
    alpha_max=st.integers(1, 65535),
    ratio_floor=st.none() | st.floats(1 / 1024, 1024.0),
    scope=st.sampled_from(["job", "port"]),
)


def test_paper_form_has_the_published_values() -> None:
    """Table 1 and 4.1; no refinement is on."""
    paper = SymphonyParams.variant("paper")
    assert (paper.k, paper.tau, paper.window_us) == (0.01, 0.25, 100.0)
    assert (paper.gate, paper.alpha_max, paper.ratio_floor, paper.scope) == (False, 65535, None, "job")
    assert paper == SymphonyParams()


def test_refined_form_differs_in_the_refinements_only() -> None:
    """Gate, bound of alpha, floor of the ratio."""
    refined = SymphonyParams.variant("refined")
    assert refined == dataclasses.replace(SymphonyParams(), gate=True, alpha_max=128, ratio_floor=1.0)


def test_entry_of_the_paper_form() -> None:
    """The ten integers, in the order of the P4 action."""
    entry = SymphonyParams().to_entry()
    assert entry.values() == (0, 0, -1701, -32768, 192, -64, 8, -391, 16 << 8, 65535)
    assert list(PARAM_FIELDS) == [field.name for field in dataclasses.fields(ParamEntry)]


def test_entry_of_the_refined_form_per_port() -> None:
    """The refinements and the scope reach the entry."""
    entry = dataclasses.replace(SymphonyParams.variant("refined"), scope="port").to_entry()
    assert (entry.scope_mask, entry.gate, entry.lg_floor, entry.amax) == (0xFFFF, 1, 0, 128)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_survive_the_switch_unchanged(name: str) -> None:
    """What is read back from a switch shows 0.01 and 100 us, not 0.009996 and 100.096 us."""
    assert VARIANTS[name].to_entry().to_params() == VARIANTS[name]


@given(params)
def test_entry_round_trip(given_params: SymphonyParams) -> None:
    """Entry -> raw words -> entry -> parameters -> entry is the identity.

    Parameters come back within one step of what the switch can tell apart: 1/256 octave, 256 ns.
    """
    entry = given_params.to_entry()
    data = entry.to_data()
    assert list(data) == list(PARAM_FIELDS)
    assert all(0 <= data[name] < 1 << bits for name, (bits, _) in PARAM_FIELDS.items())
    assert ParamEntry.from_data(data) == entry
    back = entry.to_params()
    assert back.to_entry() == entry
    assert back.k == pytest.approx(given_params.k, rel=2 ** (1 / 256) - 1)
    assert back.window_us == pytest.approx(given_params.window_us, abs=0.2561)
    exact = ("tau", "n_warmup", "n_sample", "gate", "alpha_max", "scope")
    assert all(getattr(back, name) == getattr(given_params, name) for name in exact)
    assert (back.ratio_floor is None) == (given_params.ratio_floor is None)


@pytest.mark.parametrize("field", PARAM_RANGES)
def test_ends_of_a_range_are_allowed(field: str) -> None:
    """Both ends, and they survive the switch."""
    for end in PARAM_RANGES[field][:2]:
        changes: dict[str, Any] = {field: end}
        given_params = dataclasses.replace(SymphonyParams(), **changes)
        assert given_params.to_entry().to_params().to_entry() == given_params.to_entry()


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("k", 0.0, "1e-06 to 1"),
        ("k", 1.5, "1e-06 to 1"),
        ("k", float("nan"), "1e-06 to 1"),
        ("k", "0.01", "1e-06 to 1"),
        ("tau", 0.0, "0.00390625 to 1"),
        ("tau", 1.01, "0.00390625 to 1"),
        ("window_us", 0.1, "0.256 to 10000"),
        ("window_us", 1e6, "0.256 to 10000"),
        ("n_warmup", -1, "0 to 16777215"),
        ("n_warmup", 2.0, "0 to 16777215"),
        ("n_sample", 1 << 31, "0 to 2147483647"),
        ("n_sample", True, "0 to 2147483647"),
        ("alpha_max", 0, "1 to 65535"),
        ("alpha_max", 65536, "1 to 65535"),
        ("ratio_floor", 0.0, "0.0009765625 to 1024"),
        ("ratio_floor", 2000, "0.0009765625 to 1024"),
        ("gate", 1, "true or false"),
        ("scope", "switch", "'job' or 'port'"),
    ],
)
def test_value_out_of_range_is_named_with_its_range(field: str, value: Any, allowed: str) -> None:
    """Field, value and allowed range are in the message."""
    with pytest.raises(ParameterError) as error:
        dataclasses.replace(SymphonyParams(), **{field: value})
    message = str(error.value)
    assert f"{field} = {value!r}" in message
    assert allowed in message


def test_unknown_variant_lists_the_known_ones() -> None:
    """A typo is answered with the choice."""
    with pytest.raises(ParameterError, match=r"'fast'.*paper, refined"):
        SymphonyParams.variant("fast")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("gate", 2, "0 or 1"),
        ("scope_mask", 3, "0 or 65535"),
        ("d_op", 193, "192"),
        ("warmup", 4097, "multiple of 256"),
        ("lg_k", 256, "k = 2.0 .*1e-06 to 1"),
        ("neg_window", 391, "window_us"),
    ],
)
def test_entry_of_other_software_is_refused_with_the_field(field: str, value: int, expected: str) -> None:
    """Entries that no parameters give are not guessed at."""
    entry = dataclasses.replace(SymphonyParams().to_entry(), **{field: value})
    with pytest.raises(ParameterError, match=expected):
        entry.to_params()


def test_entry_fields_must_fit_their_width() -> None:
    """A number too wide would be truncated on its way to the switch."""
    with pytest.raises(ParameterError, match=r"lg_k = 40000: .* -32768 to 32767"):
        dataclasses.replace(SymphonyParams().to_entry(), lg_k=40000)


def test_action_data_of_another_program_are_refused_by_field() -> None:
    """Another version of the P4 program shows in its fields."""
    data = SymphonyParams().to_entry().to_data()
    data["beta"] = data.pop("amax")
    with pytest.raises(ParameterError, match="amax, beta"):
        ParamEntry.from_data(data)
