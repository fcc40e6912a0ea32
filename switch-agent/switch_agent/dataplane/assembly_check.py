# SPDX-License-Identifier: Apache-2.0
"""Look in the compiler's assembly for what it gets wrong without an error.

``python -m switch_agent.dataplane.assembly_check build/pipe/symphony.bfa`` (``make check`` in ``switch-agent/p4``)
prints what it looked at and exits with 1 when

- an ordering comparison of steps, PSNs or times does not wrap (anything but ``.uus``);
- a parser matches on no EtherType, port or opcode: compilers between p4c e3af57f (2026-02) and pull request 5753
  (2026-09) drop the selects of a parser, and every packet takes the first branch;
- a result of a register is cut: the compiler gives each result the width of the first one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from switch_agent.dataplane.constants import DATA_OPCODES

__all__ = ["comparisons", "main", "matched", "problems", "result_widths"]

ROCE_PORT: Final = 4791
WRAPPING: Final = ("Ingress.steps", "Ingress.flow_base", "Ingress.window_start")
ETHERTYPES: Final = (0x8100, 0x0800, 0x86DD)
SELECTS: Final = {"ingress": (*ETHERTYPES, ROCE_PORT, *sorted(DATA_OPCODES)), "egress": ETHERTYPES}
WIDEST: Final = {
    "Ingress.steps": 32,
    "Ingress.flow_base": 32,
    "Ingress.psn_rec": 32,
    "Ingress.score": 32,
    "Ingress.alpha": 16,
}
"""Register -> bits of its widest result; no result of it may be narrower than this everywhere."""


def _sections(text: str, head: str) -> Iterator[tuple[str, list[str]]]:
    """What a line like ``head`` names, and the lines indented below it."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = re.match(head, line)
        if found is None:
            continue
        depth = len(line) - len(line.lstrip())
        body: list[str] = []
        for inner in lines[number + 1 :]:
            if inner.strip() and len(inner) - len(inner.lstrip()) <= depth:
                break
            body.append(inner.strip())
        yield found[1], body


def comparisons(text: str) -> list[tuple[str, str]]:
    """(register, instruction) of every ordering comparison in a stateful ALU."""
    return [
        (name, line.removeprefix("- "))
        for name, body in _sections(text, r"\s*stateful \S*?\$salu\.(\S+):")
        for line in body
        if re.match(r"- (lss|leq|geq|grt)\.", line)
    ]


def matched(text: str, gress: str) -> set[int]:
    """The fully given values that the parser of ``gress`` matches on."""
    found: set[int] = set()
    for _, body in _sections(text, rf"parser ({gress}):"):
        found |= {int(line[:-1], 16) for line in body if re.fullmatch(r"0x[0-9a-f]+:", line)}
    return found


def result_widths(text: str) -> dict[str, set[int]]:
    """Register -> widths in bits of the fields that its actions' results are written to."""
    found: dict[str, set[int]] = {}
    for first, last, name in re.findall(r"- set \S+?\((\d+)\.\.(\d+)\), \S+?\$salu\.([\w.]+)", text):
        found.setdefault(name, set()).add(int(last) - int(first) + 1)
    return found


def problems(text: str) -> Iterator[str]:
    """One line for each thing that is wrong."""
    compared = comparisons(text)
    for register in WRAPPING:
        ours = [line for name, line in compared if name == register]
        if not ours:
            yield f"{register}: no comparison at all; is this the assembly of symphony.p4?"
        for line in ours:
            if not line.partition(".")[2].startswith("uus "):
                yield f"{register}: '{line}' does not wrap: steps past the wrap would look behind"
    for gress, wanted in SELECTS.items():
        missing = [value for value in wanted if value not in matched(text, gress)]
        if missing:
            values = ", ".join(f"{value:#x}" for value in missing)
            yield f"parser {gress} does not match on {values}: this compiler drops selects, use another version"
    widths = result_widths(text)
    for register, bits in WIDEST.items():
        if max(widths.get(register, {0})) < bits:
            yield f"{register}: its results have {sorted(widths.get(register, ()))} bits, none has {bits}: cut short"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was looked at; return 0 when all is well, 1 with problems, 2 on bad input."""
    parser = argparse.ArgumentParser(prog="assembly_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="assembly (.bfa) that the compiler wrote")
    options = parser.parse_args(argv)
    try:
        text = options.file.read_text()
    except (OSError, ValueError) as error:
        print(f"assembly_check: {error}; where did the compiler write its .bfa?", file=sys.stderr)
        return 2
    for register, line in comparisons(text):
        print(f"{register}: {line}")
    for register, widths in sorted(result_widths(text).items()):
        print(f"{register}: results of {', '.join(map(str, sorted(widths)))} bits")
    found = list(problems(text))
    for line in found:
        print(f"assembly_check: {options.file}: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
