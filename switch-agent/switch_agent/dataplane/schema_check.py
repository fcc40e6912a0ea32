# SPDX-License-Identifier: Apache-2.0
"""Compare the compiler's ``bf-rt.json`` with the program's description.

``python -m switch_agent.dataplane.schema_check [-DN_STATE=16384 ...] build/symphony.bf-rt.json``
(``make check`` in ``switch-agent/p4``) exits with 1 and one line per difference when agent and twin
expect another program.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from switch_agent.dataplane.program import Sizes
from switch_agent.dataplane.schema import bfrt_json

__all__ = ["differences", "main", "sizes_from_macros"]

LOW_BYTES = 0xFFFFFF  # of an id: the hash of the object's name


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return one line per value in which two bf-rt.json documents differ; the order of tables is free."""
    return list(_walk("", _by_name(actual), _by_name(expected)))


def _by_name(document: dict[str, Any]) -> dict[str, Any]:
    tables = {table["name"]: _settled(table) for table in document.get("tables", [])}
    return {**document, "tables": tables}


def _settled(table: dict[str, Any]) -> dict[str, Any]:
    """The table without what differs from run to run of the compiler.

    It keeps the snapshots of ingress and egress in a map ordered by memory addresses: which of the two comes
    first, and gives ``snapshot.cfg`` the low bytes of its id, is chance.
    """
    gresses = sorted(int(other) for other in table.get("depends_on", ()))
    if table.get("table_type") != "SnapshotCfg" or table["id"] & LOW_BYTES not in {g & LOW_BYTES for g in gresses}:
        return table
    return {**table, "depends_on": gresses, "id": table["id"] & ~LOW_BYTES}


def _walk(path: str, actual: object, expected: object) -> Iterator[str]:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            here = f"{path}/{key}" if path else str(key)
            if key not in actual:
                yield f"{here}: missing"
            elif key not in expected:
                yield f"{here}: unexpected"
            else:
                yield from _walk(here, actual[key], expected[key])
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
            yield from _walk(f"{path}[{number}]", left, right)
    elif actual != expected or type(actual) is not type(expected):
        yield f"{path}: is {json.dumps(actual)[:200]}, expected {json.dumps(expected)[:200]}"


def sizes_from_macros(definitions: Sequence[str]) -> Sizes:
    """Return the sizes that ``NAME=VALUE`` macro definitions give the P4 program.

    Raises:
        ValueError: an unknown macro, a value that is no number, or FLOW_BITS that does not index N_FLOW.
    """
    known = {field.name.upper(): field.name for field in dataclasses.fields(Sizes)}
    values: dict[str, int] = {}
    for definition in definitions:
        macro, _, value = definition.partition("=")
        if macro not in {*known, "FLOW_BITS"} or not value.isdecimal():
            raise ValueError(f"-D{definition}: give NAME=NUMBER with a name of {', '.join(known)}, FLOW_BITS")
        values[macro] = int(value)
    flow_bits = values.pop("FLOW_BITS", None)
    sizes = Sizes(**{known[macro]: value for macro, value in values.items()})
    if flow_bits not in (None, sizes.flow_bits):
        raise ValueError(f"FLOW_BITS={flow_bits} does not index N_FLOW={sizes.n_flow} slots: set both")
    return sizes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; return 0 when the documents agree, 1 when they differ, 2 on bad input."""
    parser = argparse.ArgumentParser(prog="schema_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="bf-rt.json that the compiler wrote")
    parser.add_argument("-D", dest="macros", metavar="NAME=VALUE", action="append", default=[])
    options = parser.parse_args(argv)
    try:
        expected = bfrt_json(sizes_from_macros(options.macros))
        actual = json.loads(options.file.read_text())
    except (OSError, ValueError) as error:
        print(f"schema_check: {error}", file=sys.stderr)
        return 2
    found = differences(actual, expected)
    for line in found:
        print(line)
    if found:
        print(f"schema_check: {options.file} differs from program.py in {len(found)} values", file=sys.stderr)
        return 1
    print(f"{options.file}: {len(actual['tables'])} tables, as described in program.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
