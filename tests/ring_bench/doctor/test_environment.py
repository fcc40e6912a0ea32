# SPDX-License-Identifier: Apache-2.0

"""Interpreter, pyverbs, rdma-core, limits: each fault that people meet is found, with its cause and its cure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ring_bench.doctor import Machine, Severity
from ring_bench.doctor.library import describe, private_abi
from ring_bench.doctor.machine import Output, run_command

from .conftest import LIBRARY, LIMITS, FakeHost

MISSING = {"location": None, "compiled": False, "abi_wanted": [], "error": "no module named pyverbs"}


def test_a_healthy_host_has_neither_errors_nor_warnings_nor_unknowns(host: FakeHost) -> None:
    report = host.report(peers=("10.0.0.1", "10.0.0.2"))
    assert [finding for finding in report.findings if finding.severity is not Severity.OK] == []
    assert report.exit_status(strict=True) == 0
    assert {"pyverbs", "gid", "mtu", "route", "pfc", "ecn-rp", "fec", "numa"} <= {f.id for f in report.findings}


def test_pyverbs_of_another_interpreter_is_named(host: FakeHost) -> None:
    host.library(**MISSING)
    host.answer("/usr/bin/python3 -c", "/usr/lib/python3/dist-packages/pyverbs/__init__.py\n")
    finding = host.one("pyverbs", Severity.ERROR)
    assert "/opt/venv/bin/python (Python 3.11.2) has no pyverbs" in finding.evidence
    assert "/usr/bin/python3 has /usr/lib/python3/dist-packages/pyverbs" in finding.evidence
    assert "--system-site-packages" in finding.fix
    assert "apt-get" not in finding.fix


def test_pyverbs_that_no_interpreter_has_is_to_be_installed(host: FakeHost) -> None:
    host.library(**MISSING)
    host.answer("/usr/bin/python3 -c", "", status=1)
    assert "apt-get install python3-pyverbs" in host.one("pyverbs", Severity.ERROR).fix


def test_a_source_tree_that_shadows_pyverbs_is_named(host: FakeHost) -> None:
    host.library(location="/home/me/rdma-core/pyverbs", compiled=False, abi_wanted=[], error="No module pyverbs.device")
    finding = host.one("pyverbs", Severity.ERROR)
    assert "/home/me/rdma-core/pyverbs, a source tree" in finding.evidence
    assert "PYTHONPATH" in finding.fix


def test_a_pyverbs_that_crashes_is_a_finding(host: FakeHost) -> None:
    host.answer(LIBRARY, "", status=-11, errors="Fatal Python error: Segmentation fault")
    finding = host.one("pyverbs", Severity.ERROR)
    assert "broke off (Fatal Python error: Segmentation fault)" in finding.evidence


def test_another_private_interface_than_the_installed_one_is_found(host: FakeHost) -> None:
    host.library(abi_wanted=[59])
    finding = host.one("abi", Severity.ERROR)
    assert "wants IBVERBS_PRIVATE_59" in finding.evidence
    assert "has 34" in finding.evidence
    assert "pip uninstall pyverbs" in finding.fix


def test_a_machine_without_libibverbs_is_told_which_package(host: FakeHost) -> None:
    host.answer("ldconfig -p", "\tlibc.so.6 (libc6) => /lib/libc.so.6\n")
    assert "libibverbs1" in host.one("abi", Severity.ERROR).fix


def test_versions_are_read_from_the_shared_library(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"..IBVERBS_1.1..IBVERBS_PRIVATE_59..")
    assert private_abi(tmp_path / "a.so") == [59]
    assert private_abi(tmp_path / "missing.so") == []


def test_the_probe_of_pyverbs_describes_this_interpreter() -> None:
    found = describe()
    assert found["python"].startswith("3.")
    assert (found["error"] is None) == bool(found["compiled"])


def test_a_small_memory_limit_names_the_service_and_the_directive(host: FakeHost) -> None:
    host.write("proc/self/limits", LIMITS.format(65536, 8388608))
    finding = host.one("memlock", Severity.ERROR, memory=512 << 20)
    assert "service host-agent.service may lock 64K (hard limit 8M), 512M are needed" in finding.evidence
    assert "LimitMEMLOCK=infinity" in finding.fix
    assert "ulimit memlock=-1" in finding.fix


def test_a_soft_limit_below_a_sufficient_hard_one_is_fine(host: FakeHost) -> None:
    host.write("proc/self/limits", LIMITS.format(65536, 1 << 30))
    host.one("memlock", Severity.OK)


def test_a_limit_that_only_a_capability_lifts_is_a_warning(host: FakeHost) -> None:
    host.write("proc/self/limits", LIMITS.format(65536, 65536))
    host.write("proc/self/status", "CapEff:\t0000000000004000\n")
    assert "only CAP_IPC_LOCK lifts the limit" in host.one("memlock", Severity.WARNING).evidence


def test_a_container_is_told_apart_from_a_service(host: FakeHost) -> None:
    host.write("proc/self/cgroup", "0::/system.slice/docker-0a1b.scope")
    host.write("proc/self/limits", LIMITS.format(65536, 65536))
    assert host.one("memlock", Severity.ERROR).evidence.startswith("this container may lock 64K")


def test_missing_capabilities_say_what_they_prevent(host: FakeHost) -> None:
    host.write("proc/self/status", "CapEff:\t0000000000000000\n")
    finding = host.one("capabilities", Severity.OK)
    assert "none of those that matter" in finding.evidence
    assert "not prepare NICs" in finding.evidence


def test_a_check_that_breaks_off_does_not_silence_the_others(host: FakeHost) -> None:
    host.library(devices={"mlx5_0": {"error": None, "ports": {"1": {"active_mtu": "many"}}}})
    report = host.report()
    (broken,) = [f for f in report.findings if f.id == "mtu"]
    assert (broken.severity, "broke off: ValueError" in broken.evidence) == (Severity.UNKNOWN, True)
    assert any(f.id == "pfc" for f in report.findings)


def test_commands_that_are_missing_fail_or_hang_are_told_apart() -> None:
    assert run_command(["no-such-program-here"]) == (None, "", "")
    assert run_command(["false"]).status == 1
    late = run_command(["sleep", "5"], 0.05)
    assert (late.status, "did not answer within 0.05 s" in late.last_words) == (124, True)


def test_the_libibverbs_that_is_loaded_counts_not_the_installed_one(host: FakeHost, tmp_path: Path) -> None:
    bundled = tmp_path / "bundled.so"
    bundled.write_bytes(b"IBVERBS_PRIVATE_59")
    host.library(abi_wanted=[59], libibverbs=str(bundled))
    assert "bundled.so has it" in host.one("abi", Severity.OK).evidence


def test_a_source_tree_in_the_current_folder_is_seen_where_this_process_would_import_it(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], _: float) -> Output:
        commands.append(command)
        return Output(0, "{}")

    machine = Machine(run=run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3"])
    machine.ask("a.module")
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/usr/lib/python3"])
    machine.ask("a.module")
    assert ["-P" in command for command in commands] == [True, False]


def test_a_capability_of_a_user_namespace_lifts_no_limit(host: FakeHost) -> None:
    host.write("proc/self/limits", LIMITS.format(65536, 65536))
    host.write("proc/self/status", "CapEff:\t000001ffffffffff\n")
    host.write("proc/self/uid_map", "         0       1000          1")
    host.one("memlock", Severity.ERROR)
    assert "in a user namespace only" in host.one("capabilities", Severity.OK).evidence


def test_a_library_that_cannot_be_read_is_not_called_of_another_version(host: FakeHost) -> None:
    (host.root / "libibverbs.so.1").unlink()
    assert "not known" in host.one("abi", Severity.UNKNOWN).evidence


def test_capabilities_that_the_kernel_does_not_tell_are_unknown_not_none(host: FakeHost) -> None:
    host.write("proc/self/status", "Name:\tpython\n")
    host.one("capabilities", Severity.UNKNOWN)
