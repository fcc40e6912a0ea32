# SPDX-License-Identifier: Apache-2.0
"""The P4 text against its description: names, widths, sizes, and the forms that the hardware needs.

The text is read with a small reader that knows just the P4 this program uses; no compiler is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from switch_agent.dataplane.constants import (
    DATA_OPCODES,
    LAST_OPCODES,
    PSN_SHIFT,
    STEP_SHIFT,
    TIME_UNIT_NS,
)
from switch_agent.dataplane.program import (
    PROGRAM,
    Action,
    ActionProfile,
    ActionSelector,
    ConstEntry,
    Counter,
    Field,
    Hash,
    Header,
    Key,
    MatchKind,
    Program,
    Register,
    Sizes,
    Table,
    build_program,
)

P4 = Path(__file__).parents[3] / "switch-agent" / "p4"
ARCHITECTURE_WIDTHS = {"eg_intr_md.egress_port": 9, "eg_intr_md.deq_qdepth": 19, "PortId_t": 9}


def preprocess(path: Path, macros: dict[str, str]) -> str:
    """Return the text with includes resolved, macros replaced and comments dropped; given macros win."""
    text = re.sub(r"/\*.*?\*/", " ", re.sub(r"//[^\n]*", "", path.read_text()), flags=re.DOTALL)
    lines = []
    for line in text.splitlines():
        if include := re.match(r'\s*#include "(.*)"', line):
            lines.append(preprocess(path.parent / include[1], macros))
        elif define := re.match(r"\s*#define (\w+)\s+(.*)", line):
            macros.setdefault(define[1], define[2].strip())
        elif not line.lstrip().startswith("#"):
            lines.append(expand(line, macros))
    return re.sub(r"\s+", " ", " ".join(lines))


def expand(text: str, macros: dict[str, str]) -> str:
    """Return the text with macros replaced, also those in the replacements."""
    return re.sub(r"\w+", lambda m: expand(macros[m[0]], macros) if m[0] in macros else m[0], text)


def braces(text: str, start: int) -> str:
    """Return what stands between the first brace at or after ``start`` and its partner."""
    begin = text.index("{", start)
    depth = 0
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin + 1 : position]
    raise AssertionError("unbalanced braces")


class P4Text:
    """The program as the P4 text gives it, in the terms of ``program.py``."""

    def __init__(self, **macros: int) -> None:
        self.text = preprocess(P4 / "symphony.p4", {name: str(value) for name, value in macros.items()})
        self.controls = {
            name: braces(self.text, self.text.index(")", self.text.index(f"control {name}(")))
            for name in ("Ingress", "Egress")
        }
        aliases = re.findall(r"typedef bit<(\d+)> (\w+);", self.text)
        self.widths = {**ARCHITECTURE_WIDTHS, **{name: int(width) for width, name in aliases}}
        self.headers = tuple(
            self._struct(name, f"header {kind}")
            for kind, name in re.findall(r"(\w+)\s+(\w+);", braces(self.text, self.text.index("struct headers_t")))
        )
        self.ingress_metadata = self._struct("ig_md", "struct ig_md_t")
        self.egress_metadata = self._struct("eg_md", "struct eg_md_t")
        for prefix, headers in (("hdr.", self.headers), ("", (self.ingress_metadata, self.egress_metadata))):
            for header in headers:
                for field in header.fields:
                    self.widths[f"{prefix}{header.name}.{field.name}"] = field.width

    def _field(self, kind: str, name: str) -> Field:
        if match := re.fullmatch(r"(bit|int)<(\d+)>", kind):
            return Field(name, int(match[2]), signed=match[1] == "int")
        return Field(name, self.widths[kind])

    def _fields(self, text: str) -> tuple[Field, ...]:
        return tuple(self._field(kind, name) for kind, name in re.findall(r"([\w<>]+)\s+(\w+)\s*[;,]", text))

    def _struct(self, name: str, declaration: str) -> Header:
        return Header(name, self._fields(braces(self.text, self.text.index(f"{declaration} {{"))))

    def _width(self, expression: str) -> int:
        if part := re.search(r"\[(\d+):(\d+)\]$", expression):
            return int(part[1]) - int(part[2]) + 1
        return self.widths[expression]

    def _everywhere(self, pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
        for control, body in self.controls.items():
            for match in re.finditer(pattern, body):
                yield control, match

    def action(self, control: str, name: str) -> Action:
        """Return an action of a control by its short name."""
        if name == "NoAction":
            return Action(name)
        params = re.search(rf"\baction {name}\((.*?)\)", self.controls[control], re.DOTALL)
        assert params, f"no action {name} in {control}"
        return Action(f"{control}.{name}", self._fields(f"{params[1]},"))

    def tables(self) -> tuple[Table, ...]:
        """Return the match tables."""
        return tuple(
            self._table(control, match[1], braces(self.controls[control], match.start()))
            for control, match in self._everywhere(r"\btable (\w+) \{")
        )

    def _table(self, control: str, name: str, body: str) -> Table:
        keys = braces(body, body.index("key")) if "key = {" in body else ""
        actions = tuple(
            self.action(control, action) for action in re.findall(r"\w+", braces(body, body.index("actions = {")))
        )
        selector = re.search(r"implementation = (\w+);", body)
        size = re.search(r"\bsize = (\d+);", body)
        assert size, f"table {name} has no size"
        default = re.search(r"(const )?default_action = (\w+)(?:\((.*?)\))?;", body)
        default_action = self.action(control, default[2]) if default else Action("NoAction")
        values = re.findall(r"\w+", default[3] or "") if default else []
        entries = braces(body, body.index("const entries")) if "const entries" in body else ""
        return Table(
            f"{control}.{name}",
            int(size[1]),
            tuple(
                Key(expression, self._width(expression), MatchKind[kind.upper()])
                for expression, kind in re.findall(r"([\w.\[\]:]+?)\s*: (\w+);", keys)
                if kind != "selector"
            ),
            actions,
            default_action=default_action.name,
            default_data=MappingProxyType(
                {p.name: int(v, 0) for p, v in zip(default_action.params, values, strict=True)}
            ),
            const_default=bool(default and default[1]),
            selector=f"{control}.{selector[1]}" if selector else None,
            const_entries=tuple(
                ConstEntry(
                    tuple(None if value == "_" else int(value) for value in re.findall(r"\w+", key)),
                    f"{control}.{action}",
                )
                for key, action in re.findall(r"\((.*?)\)\s*: (\w+)\(\);", entries)
            ),
        )

    def program(self) -> Program:
        """Return everything the control plane can see."""
        tables = self.tables()
        selectors = tuple(
            ActionSelector(f"{control}.{m[4]}", f"{control}.{m[1]}", int(m[3]), int(m[2]))
            for control, m in self._everywhere(r"ActionSelector\((\w+), .*?, (\d+), (\d+)\) (\w+);")
        )
        members = {
            selector.profile: table.actions
            for selector in selectors
            for table in tables
            if table.selector == selector.name
        }
        return Program(
            name="symphony",
            tables=tables,
            profiles=tuple(
                ActionProfile(f"{control}.{m[2]}", int(m[1]), members[f"{control}.{m[2]}"])
                for control, m in self._everywhere(r"ActionProfile\((\d+)\) (\w+);")
            ),
            selectors=selectors,
            hashes=tuple(self._hashes()),
            registers=tuple(self._registers()),
            counters=tuple(
                Counter(f"{control}.{m[2]}", int(m[1]))
                for control, m in self._everywhere(
                    r"Counter<bit<64>, job_t>\((\d+), CounterType_t.PACKETS_AND_BYTES\) (\w+);"
                )
            ),
            headers=self.headers,
            ingress_metadata=self.ingress_metadata,
            egress_metadata=self.egress_metadata,
        )

    def _hashes(self) -> Iterator[Hash]:
        for control, match in self._everywhere(r"Hash<bit<(\d+)>>\(HashAlgorithm_t.CRC(\d+)\) (\w+);"):
            calls = re.findall(rf"\b{match[3]}\.get\(\{{(.*?)\}}\)", self.controls[control])
            for inputs in calls:
                names = re.findall(r"[\w.\[\]:]+", inputs)
                yield Hash(
                    f"{control}.{match[3]}",
                    int(match[1]),
                    tuple(Field(name, self._width(name)) for name in names),
                    f"CRC_{match[2]}",
                )

    def _registers(self) -> Iterator[Register]:
        pattern = r"\bRegister<([\w<>]+), [\w<>]+>\((\d+)(?:, (\d+))?\) (\w+);"
        for control, match in self._everywhere(pattern):
            if f"struct {match[1]} {{" in self.text:
                fields = self._struct("", f"struct {match[1]}").fields
            else:
                fields = (self._field(match[1], "f1"),)
            yield Register(f"{control}.{match[4]}", int(match[2]), fields, int(match[3] or 0))

    def register_actions(self) -> dict[str, dict[str, str]]:
        """Return for each register the texts of its actions, by name."""
        found: dict[str, dict[str, str]] = {}
        for control, m in self._everywhere(r"RegisterAction2?<[^;]*?>\((\w+)\) (\w+) = \{"):
            found.setdefault(m[1], {})[m[2]] = braces(self.controls[control], m.end() - 1)
        return found


@pytest.fixture(scope="module")
def p4() -> P4Text:
    """The program with the sizes of its text."""
    return P4Text()


@pytest.mark.parametrize("table", PROGRAM.tables, ids=lambda table: table.name)
def test_a_table_is_written_as_described(p4: P4Text, table: Table) -> None:
    """Keys with widths and match kinds, actions with data, default, constant entries, size."""
    assert p4.program().table(table.name) == table


def test_the_whole_program_is_described_and_nothing_else(p4: P4Text) -> None:
    """Registers, counters, hashes, selectors and headers agree too, in the order of the text."""
    written = p4.program()
    assert [table.name for table in written.tables] == [table.name for table in PROGRAM.tables]
    assert written.registers == PROGRAM.registers
    assert written.counters == PROGRAM.counters
    assert written.hashes == PROGRAM.hashes
    assert (written.profiles, written.selectors) == (PROGRAM.profiles, PROGRAM.selectors)
    assert written.headers == PROGRAM.headers
    assert written.ingress_metadata == PROGRAM.ingress_metadata
    assert written.egress_metadata == PROGRAM.egress_metadata
    assert written == PROGRAM


def test_a_build_with_other_sizes_is_described_by_the_same_sizes() -> None:
    """Each macro that may be given on the command line reaches the tables the description says."""
    macros = {
        "N_STATE": 2048,
        "N_JOB": 4096,
        "N_FLOW": 32768,
        "FLOW_BITS": 15,
        "N_CLASS": 512,
        "N_CLASS6": 256,
    }
    sizes = Sizes(n_state=2048, n_job=4096, n_flow=32768, n_class=512, n_class6=256)
    assert P4Text(**macros).program() == build_program(sizes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Register<bit<16>, state_t>", "Register<bit<32>, state_t>"),
        ("bit<16> scope_mask", "bit<8> scope_mask"),
        ("hdr.udp.sport : ternary", "hdr.udp.dport : ternary"),
        ("default_action = set_hash_sport(0xffff)", "default_action = set_hash_sport(0)"),
        ("(1, 0, 0, 0) : a_rec_clear()", "(1, 0, 0, 0) : a_rec_max()"),
        ("size = 512", "size = 511"),
    ],
)
def test_the_reader_sees_each_kind_of_change(old: str, new: str) -> None:
    """The comparison above can fail: a changed width, key, default, entry or size is noticed."""
    p4 = P4Text()
    assert old in p4.text
    p4.controls = {name: body.replace(old, new) for name, body in p4.controls.items()}
    assert p4.program() != PROGRAM


def test_no_register_has_more_actions_than_a_stateful_alu(p4: P4Text) -> None:
    """Four RegisterActions per Register is the limit of Tofino 2."""
    actions = p4.register_actions()
    assert set(actions) == {register.name.partition(".")[2] for register in PROGRAM.registers}
    assert max(len(names) for names in actions.values()) <= 4


@pytest.mark.parametrize("register", ["steps", "flow_base", "window_start"])
def test_serial_comparisons_wrap(p4: P4Text, register: str) -> None:
    """Steps, PSNs and times are compared as "int<32> difference against 0", the only form that wraps."""
    assert all(field.signed and field.width == 32 for field in PROGRAM.register(register).fields)
    for name, text in p4.register_actions()[register].items():
        compared = re.findall(r"([^(&|]+?) (<|>|<=|>=) ([^)&|]+)", text)
        assert all(" - " in left and right == "0" for left, _, right in compared), name
        assert compared, name


def test_a_register_action_has_one_conditional_flag(p4: P4Text) -> None:
    """The assembler takes one "0 or 1" result per action; every further result must be a value."""
    for actions in p4.register_actions().values():
        for name, text in actions.items():
            results = re.findall(r"out [\w<>]+ (\w+)", text)
            flags = {flag for flag in re.findall(r"\{[^{}]*?\b(\w+) = 1;", text) if flag in results}
            assert len(flags) <= 1, name


def test_the_widest_result_of_a_register_action_comes_first(p4: P4Text) -> None:
    """The compiler cuts every result to the width of the first (``closed`` lost all but one bit that way)."""
    for actions in p4.register_actions().values():
        for name, text in actions.items():
            widths = [int(width) for width in re.findall(r"out \w+<(\d+)> \w+", text)]
            assert widths, name
            assert widths[0] == max(widths), name


def test_bridge_fields_are_whole_bytes(p4: P4Text) -> None:
    """Fields that different sources write must not share a byte."""
    assert {field.width % 8 for field in p4.headers[0].fields} == {0}


def test_opcodes_in_the_parser_are_those_of_the_data_plane(p4: P4Text) -> None:
    """RDMA WRITEs are data; the ones WITH IMMEDIATE that end a message end the step."""
    selected = braces(p4.text, p4.text.index("select(hdr.bth.opcode)"))
    states = {int(code): state for code, state in re.findall(r"(\d+): (\w+);", selected)}
    assert set(states) == set(DATA_OPCODES)
    assert {code for code, state in states.items() if "last" in state} == set(LAST_OPCODES)
    first_or_only = {6, 10, 11}
    assert {code for code, state in states.items() if "reth" in state} == first_or_only


def test_alignment_of_steps_psns_and_times_is_that_of_the_data_plane(p4: P4Text) -> None:
    """Shifts in the text and constants in Python say the same."""
    assert f"(hdr.udp.sport ++ 16w0) << ({STEP_SHIFT} - 16)" in p4.text
    assert f"ig_md.raw + ((1 << {STEP_SHIFT}) | 1)" in p4.text
    assert f"(hdr.bth.psn ++ {PSN_SHIFT}w0)" in p4.text
    low_bit = TIME_UNIT_NS.bit_length() - 1
    assert f"ig_prsr_md.global_tstamp[{low_bit + 31}:{low_bit}]" in p4.text


def test_tables_of_constants_cover_what_a_packet_can_be() -> None:
    """Every reachable relation of a packet to step_min has an entry; lag and ahead exclude each other."""
    entries: Mapping[tuple[int | None, ...], str] = {
        entry.key: entry.action for entry in PROGRAM.table("psn_rec_update").const_entries
    }
    reachable = {
        (last, lag, ahead, expired)
        for last in (0, 1)
        for lag in (0, 1)
        for ahead in (0, 1)
        for expired in (0, 1)
        if not (lag and (ahead or last))
    }
    assert set(entries) == reachable
