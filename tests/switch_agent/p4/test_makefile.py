# SPDX-License-Identifier: Apache-2.0
"""The Makefile of the P4 program, run with a compiler that only records how it is called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from switch_agent.dataplane.schema import bfrt_json

P4 = Path(__file__).parents[3] / "switch-agent" / "p4"

COMPILER = """#!/bin/sh
echo "$0 $*" >> {log}
[ "$1" = --target-help ] && {{ echo "{targets}"; exit; }}
mkdir -p {build}/pipe && cp {schema} {build}/symphony.bf-rt.json && cp {assembly} {build}/pipe/symphony.bfa
"""


@pytest.fixture
def build(tmp_path: Path, assembly: str) -> Path:
    """An empty build folder beside what the stand-in compiler will "produce"."""
    (tmp_path / "schema.json").write_text(json.dumps(bfrt_json()))
    (tmp_path / "out.bfa").write_text(assembly)
    return tmp_path / "build"


def _compiler(build: Path, targets: str = "") -> Path:
    home = build.parent
    script = home / "compiler"
    parts = {"schema": home / "schema.json", "assembly": home / "out.bfa", "log": home / "log"}
    script.write_text(COMPILER.format(build=build, targets=targets, **parts))
    script.chmod(0o755)
    return script


def _make(build: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(P4), f"BUILD={build}", f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_without_a_compiler_it_says_what_to_install(build: Path) -> None:
    """No file is produced, and the message names the compilers and the variable that finds them."""
    result = _make(build, "BF_P4C=", "P4C=")
    assert result.returncode != 0
    assert "neither bf-p4c nor p4c" in result.stderr
    assert "SDE_INSTALL" in result.stderr


def test_a_p4c_without_the_tofino_back_end_is_refused(build: Path) -> None:
    """A p4c from elsewhere would fail with a message that helps nobody."""
    compiler = _compiler(build, targets="('bmv2', 'v1model')")
    result = _make(build, "BF_P4C=", f"P4C={compiler}")
    assert result.returncode != 0
    assert "has no Tofino 2 back end" in result.stderr
    assert not (build / "symphony.bf-rt.json").exists()


def test_it_compiles_for_tofino2_with_the_sizes_given(build: Path) -> None:
    """Target, architecture, schema file and macros reach bf-p4c; unchanged sizes do not compile again."""
    compiler = _compiler(build)
    for _ in range(2):
        assert _make(build, f"BF_P4C={compiler}", "N_STATE=16384").returncode == 0
    (call,) = (build.parent / "log").read_text().splitlines()
    assert call == (
        f"{compiler} --std p4-16 --target tofino2 --arch t2na -g -DN_STATE=16384 "
        f"--bf-rt-schema {build}/symphony.bf-rt.json -o {build} symphony.p4"
    )


def test_other_sizes_compile_again(build: Path) -> None:
    """A build folder never holds a program of other sizes than those asked for."""
    compiler = _compiler(build)
    for size in ("N_STATE=1024", "N_STATE=2048"):
        assert _make(build, f"BF_P4C={compiler}", size).returncode == 0
    assert len((build.parent / "log").read_text().splitlines()) == 2


def test_a_p4c_with_the_back_end_is_used(build: Path) -> None:
    """Open p4c takes back end and architecture by its own options."""
    compiler = _compiler(build, targets="('tofino2', 't2na')")
    assert _make(build, "BF_P4C=", f"P4C={compiler}").returncode == 0
    *_, call = (build.parent / "log").read_text().splitlines()
    assert call.startswith(f"{compiler} -b tofino2 -a t2na --std p4-16 -g ")


def test_check_shows_the_comparisons_and_accepts_the_schema(build: Path) -> None:
    """The schema is compared with the description, the assembly's comparisons are shown."""
    result = _make(build, f"BF_P4C={_compiler(build)}", "check")
    assert result.returncode == 0, result.stderr
    assert "as described in program.py" in result.stdout
    assert "Ingress.steps: lss.uus" in result.stdout


def test_check_fails_when_a_comparison_does_not_wrap(build: Path, assembly: str) -> None:
    """A compiler that turned the step comparison into one that does not wrap is caught."""
    (build.parent / "out.bfa").write_text(assembly.replace("lss.uus", "lss.s"))
    result = _make(build, f"BF_P4C={_compiler(build)}", "check")
    assert result.returncode != 0
    assert "does not wrap" in result.stderr


def test_check_fails_when_the_compiler_wrote_another_schema(build: Path) -> None:
    """A program that agent and twin would not recognise is caught before it is loaded."""
    document = bfrt_json()
    document["tables"][0]["name"] = "pipe.Ingress.ecmp"
    (build.parent / "schema.json").write_text(json.dumps(document))
    result = _make(build, f"BF_P4C={_compiler(build)}", "check")
    assert result.returncode != 0
    assert "tables/pipe.Ingress.ecmp_config: missing" in result.stdout
