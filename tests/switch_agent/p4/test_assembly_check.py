# SPDX-License-Identifier: Apache-2.0
"""What compilers get wrong in silence is found in their assembly."""

from __future__ import annotations

from pathlib import Path

import pytest

from switch_agent.dataplane.assembly_check import comparisons, main, matched, problems, result_widths


def test_a_good_assembly_has_no_problem(assembly: str) -> None:
    """Wrapping comparisons, all selects, whole results."""
    assert list(problems(assembly)) == []
    assert ("Ingress.psn_rec", "grt.u cmp0, phv_lo, -lo") in comparisons(assembly)
    assert matched(assembly, "egress") == {0x8100, 0x0800, 0x86DD}
    assert result_widths(assembly)["Ingress.score"] == {32, 1}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("lss.uus cmp1, phv_lo", "lss.s cmp1, phv_lo", "Ingress.steps: 'lss.s cmp1, phv_lo, -lo' does not wrap"),
        ("geq.uus", "geq.u", "Ingress.window_start: 'geq.u cmp0"),
        ("lss.uus cmp1, phv_hi", "lss.uu cmp1, phv_hi", "Ingress.flow_base: 'lss.uu"),
        ("$salu.Ingress.window_start:", "$salu.Ingress.other:", "Ingress.window_start: no comparison at all"),
        ("      0x12b7:", "      *:", "parser ingress does not match on 0x12b7"),
        ("      0x0b:", "      0x0c:", "parser ingress does not match on 0xb:"),
        ("0x0800", "*", "parser egress does not match on 0x800:"),
        ("W14(0..31)", "W14(0..0)", "Ingress.score: its results have [1] bits, none has 32"),
        ("W1(0..15)", "W1(0..7)", "Ingress.alpha: its results have [8] bits"),
    ],
)
def test_each_fault_is_named(old: str, new: str, told: str, assembly: str) -> None:
    """Register and instruction, parser and value, or the width."""
    assert old in assembly
    assert any(told in line for line in problems(assembly.replace(old, new)))


def test_a_parser_without_any_select_lacks_every_value(assembly: str) -> None:
    """As the compilers of 2026-02 to 2026-09 wrote it: bare stars."""
    text = "".join("      *:\n" if line.startswith("      0x") else f"{line}\n" for line in assembly.splitlines())
    found = [line for line in problems(text) if line.startswith("parser")]
    assert [line.partition(" does")[0] for line in found] == ["parser ingress", "parser egress"]
    assert "0x8100, 0x800, 0x86dd, 0x12b7, 0x6," in found[0]


def test_the_command_shows_what_it_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str], assembly: str) -> None:
    """0 and the comparisons; 1 with the problems; 2 for a file that is not there."""
    file = tmp_path / "symphony.bfa"
    file.write_text(assembly)
    assert main([str(file)]) == 0
    assert "Ingress.window_start: geq.uus cmp0, phv_lo, -lo" in capsys.readouterr().out
    file.write_text(assembly.replace("uus", "s"))
    assert main([str(file)]) == 1
    assert "does not wrap" in capsys.readouterr().err
    assert main([str(tmp_path / "none.bfa")]) == 2
    assert "where did the compiler write its .bfa?" in capsys.readouterr().err
