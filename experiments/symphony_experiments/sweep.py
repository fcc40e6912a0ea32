# SPDX-License-Identifier: Apache-2.0
"""From a scenario to its runs: dotted overrides, lists that become axes of the sweep, named variants, seeds.

A *case* is a nested table of plain values. Where the case's model wants one value and the table has a list, the list is
an axis: the sweep has a run for every combination. So ``chunk = ["4M", "8M"]`` is a sweep and ``hosts = ["h0", "h1"]``,
where the model wants a list, is none.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import tomllib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from symphony_experiments.errors import ScenarioError

__all__ = ["axes", "combinations", "known_keys", "parse_override", "put"]

Table = dict[str, Any]


def known_keys(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> annotation, for every field of a model and of the models in it."""
    keys: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is None:
            keys[prefix + name] = field.annotation
        else:
            keys |= known_keys(inner, f"{prefix}{name}.")
    return keys


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model behind `X` or `X | None`; None for everything else."""
    for candidate in _alternatives(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _wants_list(annotation: Any) -> bool:
    return any(get_origin(candidate) in (list, tuple) for candidate in _alternatives(annotation))


def put(case: Table, key: str, value: Any, model: type[BaseModel]) -> None:
    """Set the dotted `key` of a case, making the tables on the way.

    Raises:
        ScenarioError: the model has no such key; names the nearest one.
    """
    keys = known_keys(model)
    whole = {name.rpartition(".")[0] for name in keys} - {""}
    if key not in keys and key not in whole:
        raise ScenarioError(unknown_key(key, [*keys, *whole]))
    *tables, last = key.split(".")
    place = case
    for name in tables:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ScenarioError(f"{key}: {name} is {inner!r}, not a table")
        place = inner
    place[last] = value


def unknown_key(key: str, known: list[str]) -> str:
    """The text for a key that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:  # perhaps the last part alone is right
        near = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
    return f"unknown key {key}{hint}"


def parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` of ``--set``; the value is TOML, and a bare word is a string.

    Raises:
        ScenarioError: there is no ``=``.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"--set {text}: write key=value, for instance --set case.algorithm=off")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return key.strip(), parsed


def axes(case: Mapping[str, Any], model: type[BaseModel]) -> dict[str, list[Any]]:
    """Dotted key -> values, for every list where the model wants one value, in the order of the table."""
    keys = known_keys(model)
    found: dict[str, list[Any]] = {}
    for key, value in _leaves(case):
        if isinstance(value, list) and key in keys and not _wants_list(keys[key]):
            if not value:
                raise ScenarioError(f"{key}: an empty list is no sweep")
            found[key] = value
    return found


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def combinations(case: Table, model: type[BaseModel]) -> list[Table]:
    """Every combination of the axes' values, the last axis varying fastest."""
    found = axes(case, model)
    result = []
    for values in itertools.product(*found.values()):
        one = copy.deepcopy(case)
        for key, value in zip(found, values, strict=True):
            put(one, key, value, model)
        result.append(one)
    return result
