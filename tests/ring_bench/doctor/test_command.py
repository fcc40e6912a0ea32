# SPDX-License-Identifier: Apache-2.0

"""The command: table, JSON, exit status; and the messages that --probe sends."""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import pytest
from rich.console import Console

from ring_bench.cli import main
from ring_bench.doctor import CHECKS, Severity
from ring_bench.doctor.cli import add_arguments, examine, show
from ring_bench.doctor.exchange import main as exchange
from ring_bench.errors import FabricError
from ring_bench.verbs.loopback import LoopbackProvider

from .conftest import EXCHANGE, LIMITS, FakeHost


def run(host: FakeHost, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return examine(parser.parse_args(arguments), host.machine())


def test_json_holds_every_finding_with_evidence_and_fix(host: FakeHost, capsys: pytest.CaptureFixture[str]) -> None:
    host.write("proc/self/limits", LIMITS.format(0, 0))
    assert run(host, "--json", "--peers", "10.0.0.1,10.0.0.2") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 1
    assert data["summary"] == {"ok": len(data["findings"]) - 1, "unknown": 0, "warning": 0, "error": 1}
    (bad,) = [finding for finding in data["findings"] if finding["severity"] == "error"]
    assert set(bad) == {"id", "severity", "subject", "evidence", "fix"}
    assert bad["id"] == "memlock"


@pytest.mark.parametrize(("strict", "status"), [((), 0), (("--strict",), 1)])
def test_warnings_fail_only_when_asked(host: FakeHost, strict: tuple[str, ...], status: int) -> None:
    host.fec["eth0"] = ["off"]
    assert run(host, *strict) == status


def test_the_table_shows_the_worst_first_and_the_good_in_one_line(host: FakeHost) -> None:
    host.fec["eth0"] = ["off"]
    host.write("proc/self/limits", LIMITS.format(0, 0))
    shown = io.StringIO()
    show(host.report(peers=("10.0.0.1", "10.0.0.2")), Console(file=shown, width=300))
    text = shown.getvalue()
    assert text.index("memlock") < text.index("fec") < text.index("ok: pyverbs")
    assert "-> raise it" in text
    assert "1 errors, 1 warnings, 0 unknown" in text
    show(host.report(peers=("10.0.0.1", "10.0.0.2")), Console(file=shown, width=300), verbose=True)
    assert "3: 10.0.0.1 usable" in shown.getvalue()


def test_text_with_brackets_is_shown_as_it_is(host: FakeHost) -> None:
    host.library(devices={"mlx5_0": {"error": "[Errno 13] denied [bold]", "ports": {}}})
    shown = io.StringIO()
    show(host.report("provider"), Console(file=shown, width=300))
    assert "[Errno 13] denied [bold]" in shown.getvalue()


def test_the_ids_are_distinct_and_unknown_ones_are_refused(host: FakeHost, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [name for check in CHECKS for name in check.ids]
    assert len(ids) == len(set(ids))
    with pytest.raises(SystemExit) as left:
        run(host, "--only", "gid,nonsense")
    assert left.value.code == 2
    assert "no check 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--traffic-class", "256"),
        ("--traffic-class", "-1"),
        ("--gid-index", "-1"),
        ("--interval", "nan"),
        ("--interval", "-1"),
        ("--switch-mtu", "0"),
    ],
)
def test_numbers_out_of_range_are_wrong_usage(
    host: FakeHost, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(host, *wrong)
    assert left.value.code == 2
    assert f"argument {wrong[0]}" in capsys.readouterr().err


def test_a_check_that_has_nothing_to_look_at_says_so(soft: FakeHost) -> None:
    assert "soft-RoCE" in soft.one("ecn-np", Severity.UNKNOWN).fix
    assert "--probe" in soft.one("exchange", Severity.UNKNOWN).fix


def test_without_a_device_its_checks_say_so(bare: FakeHost) -> None:
    assert "--only devices" in bare.one("ecn-np", Severity.UNKNOWN).fix


def test_ring_bench_doctor_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--only", "capabilities", "--json"])
    assert left.value.code == 0
    assert [f["id"] for f in json.loads(capsys.readouterr().out)["findings"]] == ["capabilities"]


def test_an_index_of_nccls_that_is_none_is_wrong_usage_its_default_is_not(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_IB_GID_INDEX", "three")
    with pytest.raises(SystemExit) as left:
        run(host, "--only", "gid-index")
    assert left.value.code == 2
    assert "not 'three' (without the option, $NCCL_IB_GID_INDEX counts)" in capsys.readouterr().err
    monkeypatch.setenv("NCCL_IB_GID_INDEX", "-1")
    assert run(host, "--only", "gid-index") == 0


def test_a_gid_index_given_to_nccl_is_looked_at(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_IB_GID_INDEX", "0")
    assert run(host, "--only", "gid-index") == 1
    assert "index 0 cannot be used" in capsys.readouterr().out


def probe_answer(**outcome: Any) -> dict[str, Any]:
    return {"small": None, "large": None, "retag": None, "bytes": 12295, "mechanism": "by magic", **outcome}


@pytest.mark.parametrize(
    ("outcome", "check", "severity", "evidence"),
    [
        ({}, "exchange", Severity.OK, "8 and 12295 bytes arrive"),
        ({}, "sport-probe", Severity.OK, "changed in RTS: by magic"),
        ({"small": "RETRY_EXC_ERR"}, "exchange", Severity.ERROR, "8-byte write does not arrive: RETRY_EXC_ERR"),
        ({"large": "RETRY_EXC_ERR"}, "exchange", Severity.ERROR, "12295 bytes in full packets do not"),
        ({"retag": "firmware cannot"}, "sport-probe", Severity.WARNING, "(by magic): firmware cannot"),
    ],
)
def test_the_probe_tells_blocked_mtu_and_tagging_apart(
    host: FakeHost, outcome: dict[str, Any], check: str, severity: Severity, evidence: str
) -> None:
    host.answer(EXCHANGE, {"10.0.0.1=10.0.0.1": probe_answer(**outcome)})
    assert evidence in host.one(check, severity, probe=True, devices=("mlx5_0",)).evidence


def test_the_probe_tries_the_edges_within_this_machine(host: FakeHost) -> None:
    peers = ("10.0.0.1", "10.0.1.1", "10.0.0.9")
    host.answer(EXCHANGE, {pair: probe_answer() for pair in ("10.0.0.1=10.0.1.1", "10.0.1.1=10.0.0.1")})
    findings = host.report("exchange", probe=True, peers=peers).findings
    assert [f.subject for f in findings if f.severity is Severity.OK] == [
        "10.0.0.1 -> 10.0.1.1",
        "10.0.1.1 -> 10.0.0.1",
    ]
    (away,) = [f for f in findings if f.severity is Severity.UNKNOWN]
    assert "10.0.1.1 -> 10.0.0.9" in away.evidence
    assert "10.0.0.1 -> 10.0.0.9" in away.evidence


def test_a_probe_that_dies_is_a_finding(host: FakeHost) -> None:
    host.answer(EXCHANGE, "", status=-11, errors="Segmentation fault")
    assert "Segmentation fault" in host.found("exchange", Severity.ERROR, probe=True)[0].evidence


def test_without_probe_nothing_is_sent(host: FakeHost) -> None:
    host.report()
    assert not [command for command in host.asked if command.startswith(EXCHANGE)]


def test_messages_really_pass_over_a_provider() -> None:
    answers = exchange(["h0=h1", "h1=h1"], LoopbackProvider(seed=1))
    for answer in answers.values():
        assert (answer["small"], answer["large"], answer["retag"]) == (None, None, None)
        assert answer["bytes"] > 3 * 256


def test_a_refusal_while_retagging_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise FabricError("EOPNOTSUPP", "its firmware cannot (rts2rts_qp_udp_sport)")

    monkeypatch.setattr("ring_bench.verbs.loopback._QueuePair.modify_udp_sport", refuse)
    answer = exchange(["h0=h1"], LoopbackProvider(seed=1))["h0=h1"]
    assert (answer["small"], answer["large"]) == (None, None)
    assert "rts2rts_qp_udp_sport" in answer["retag"]
    assert answer["code"] == "EOPNOTSUPP"


def test_without_pyverbs_each_pair_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyverbs", None)
    assert "python3-pyverbs" in exchange(["h0=h1"])["h0=h1"]["small"]
