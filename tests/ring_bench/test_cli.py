# SPDX-License-Identifier: Apache-2.0

"""The command line: its table, its errors, its exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ring_bench.cli import main
from ring_bench.ring_end import RingEnd


def run(capsys: pytest.CaptureFixture[str], arguments: str, *more: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([*arguments.split(), *more])
    printed = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, printed.out, printed.err


def test_the_table_has_the_columns_and_footer_that_scripts_read(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--provider loopback --world 4 -b 1K -e 4K -f 2 -n 3")
    assert status == 0
    assert err == ""
    rows = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
    assert [row[:5] for row in rows] == [[str(s), str(s // 4), "float", "sum", "-1"] for s in (1024, 2048, 4096)]
    assert all(len(row) == 9 and float(row[5]) > 0 and row[8] == "0" for row in rows)
    assert "# Out of bounds values : 0 OK" in out
    assert re.search(r"^# Avg bus bandwidth    : [0-9.]+$", out, re.MULTILINE)
    assert out.count("step overlap max") == 3
    assert out.count("p50") == out.count("p99") == 6


def test_switched_off_verification_shows(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--provider loopback --world 3 -b 1K -n 2 -c 0 --release count")
    assert status == 0
    assert "N/A" in out
    assert "# Out of bounds values : N/A (verification off)" in out
    assert "verification OFF" in out


def test_wrong_values_fail_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RingEnd, "_combine", lambda self, operation, scratch, receive: None)
    status, out, err = run(capsys, "--provider loopback --world 3 -b 1K -n 1 -w 0")
    assert status == 1
    assert re.search(r"# Out of bounds values : [1-9][0-9]* FAILED", out)
    assert "elements are wrong" in err


def test_one_rank_has_no_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--provider loopback --world 1 -b 1K -n 2")
    assert status == 0
    assert "n/a" in out
    assert "# Avg bus bandwidth    : N/A" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--world 4 -b x", "whole number with an optional K"),
        ("--world 4 -b 8 -e 4", "smaller than"),
        ("--world x", "--world"),
        ("--world 4 -b 0", "minbytes must be at least 1"),
        ("--world 4 --mtu 1", "smallest path MTU is 256"),
        ("--world 4 --events http://\udcff", "is no http:// or https:// address"),
        ("--world 100000 -b 1K -n 1 --provider loopback", "fewer ranks or iterations"),
        ("--world 4 -T -1", "seconds from 0 up"),
        ("--world 4 --release count", "add -c 0"),
        ("--world 4 --hosts h0,h1", "--hosts names 2 hosts, the world has 4"),
        ("--world 4 --hosts ²,1,2,3", "--hosts: '²' is no host name"),
        ("--world 2 --hosts node[01,03", "no list of hosts"),
        ("--world 3 --hosts node[01,03]", "--hosts names 2 hosts, the world has 3"),
        ("--world ²", "a whole number from 1 up"),
        ("--world 4 --events ftp://x", "http://"),
        ("--world 4 --events http://n1..lab/", "'n1..lab' is no host name"),
        ("--world 4 --rank 0 --master n1..lab:29517", "'n1..lab' is no host name"),
        ("--world 4 --job-tag 99", "job_tag"),
        ("--rank 1", "--rank needs --world"),
        ("", "how many ranks"),
        ("--world 4 --provider mlx5", "invalid choice"),
        ("--world 4 --mtu 9000 --provider loopback", "active MTU of rank 0"),
        ("--world 4 --tagging static --slots 8 --step-bits 2", "2^step_bits"),
        ("--world 64 -b 64G --provider loopback", "--payload-scale"),
    ],
)
def test_bad_options_end_with_status_2_and_one_reason(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    status, _, err = run(capsys, arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


def test_a_twin_that_is_not_there_is_an_error_and_leaves_a_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    status, _, err = run(capsys, f"--world 4 --verbs {tmp_path}/no.sock -J {path}")
    assert status == 1
    assert "fabric-twin run --verbs" in err
    data = json.loads(path.read_text())
    assert data["complete"] is False
    assert data["failure"]["kind"] == "provider_unavailable"


def test_pyverbs_asked_for_but_absent_names_the_package_and_the_interpreter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyverbs", None)
    status, _, err = run(capsys, "--world 2 --provider pyverbs -b 1K")
    assert status == 1
    assert "python3-pyverbs" in err
    assert sys.executable in err


@pytest.mark.parametrize(
    ("arguments", "slots", "bits", "mode"),
    [
        ("--tagging per-step", 4, 10, "per-step"),
        ("--tagging retag --slots 2 --step-bits 4", 2, 4, "persistent"),
        ("--tagging static", 4, 2, "persistent"),
        ("--tagging static --slots 16", 16, 4, "persistent"),
        ("--tagging static --step-bits 3", 8, 3, "persistent"),
    ],
)
def test_the_result_names_tagging_mechanism_and_qp_mode(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str, slots: int, bits: int, mode: str
) -> None:
    path = tmp_path / "r.json"
    assert run(capsys, f"--provider loopback --world 2 -b 1K -n 2 -J {path} {arguments}")[0] == 0
    data: dict[str, Any] = json.loads(path.read_text())
    assert (data["parameters"]["slots"], data["parameters"]["step_bits"]) == (slots, bits)
    assert data["qp_mode"] == mode
    assert ("udp_sport" in data["tagging_mechanism"]) == (data["tagging"] == "retag")
    assert data["release_rule"] == "in-order"
    assert data["provider"] == "loopback"


def test_payload_scale_and_traffic_class_are_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--provider loopback --world 2 -b 1000 -n 1 --payload-scale 16 --traffic-class 0")
    assert status == 0
    assert "payload scale 16" in out
    assert "no packet will be marked" in out
    (row,) = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert row[:2] == ["960", "240"]  # a whole number of sixteen elements


def test_cycles_repeat_the_sweep(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run(capsys, f"--provider loopback --world 2 -b 1K -e 2K -f 2 -n 2 -N 2 -J {path}")
    rows = json.loads(path.read_text())["results"]
    assert [(row["cycle"], row["size_bytes"]) for row in rows] == [(0, 1024), (0, 2048), (1, 1024), (1, 2048)]


def test_an_internal_error_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RingEnd, completion: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(RingEnd, "handle", broken)
    status, _, err = run(capsys, "--provider loopback --world 2 -b 1K -n 1")
    assert status == 1
    assert "internal error: ZeroDivisionError('oops')" in err
    assert "Traceback" not in err
    assert "Traceback" in run(capsys, "--provider loopback --world 2 -b 1K -n 1 --debug")[2]


@pytest.mark.parametrize(
    ("command", "title", "row"),
    [
        ("all_gather", "AllGather", r"^ +4096 +256 +float +none +-1 .* 0$"),
        ("reduce_scatter", "ReduceScatter", r"^ +4096 +256 +float +sum +-1 .* 0$"),
        ("broadcast -r 3", "Broadcast from root 3", r"^ +4096 +1024 +float +none +3 .* 0$"),
        ("all_reduce --dims 2x2", "AllReduce 2x2", r"^ +4096 +1024 +float +sum +-1 .* 0$"),
    ],
)
def test_each_collective_has_the_columns_of_its_nccl_test(
    capsys: pytest.CaptureFixture[str], command: str, title: str, row: str
) -> None:
    status, out, _ = run(capsys, f"{command} --provider loopback --world 4 -b 4K -n 2")
    assert status == 0
    assert out.startswith(f"# ring-bench {title} on provider loopback")
    assert re.search(row, out, re.MULTILINE)


def test_without_a_name_the_collective_is_an_allreduce(capsys: pytest.CaptureFixture[str]) -> None:
    named = run(capsys, "all_reduce --provider loopback --world 4 -b 4K -n 2")
    assert run(capsys, "--provider loopback --world 4 -b 4K -n 2") == named


def test_a_training_prints_its_calls_and_times_and_leaves_them_in_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = "train resnet50 --provider loopback --world 4 -n 2 --payload-scale 256 --compute-jitter normal:0.1"
    status, out, _ = run(capsys, arguments, "-J", str(tmp_path / "r.json"))
    assert status == 0
    assert "# ring-bench training resnet50 on provider loopback" in out
    assert re.search(r"gradients conv4_1c\.\.conv1 +all_reduce +4 .* 0$", out, re.MULTILINE)
    assert re.search(r"^# JCT us [0-9.]+ for 2 steps", out, re.MULTILINE)
    assert "# Out of bounds values : 0 OK" in out
    training = json.loads((tmp_path / "r.json").read_text())["training"]
    assert len(training["calls"]) == 5
    assert sum(training["step_ns"]) == pytest.approx(training["jct_us"] * 1000)
    assert training["exposed_us"] > 0
    assert training["wrong"] == 0
    assert training["dimensions"] == {"data": 4}


def test_a_training_is_hybrid_over_two_dimensions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = "train transformer --dims 2x2 --provider loopback --world 4 -n 1 -w 0 --payload-scale 512"
    status, _, _ = run(capsys, arguments, "-J", str(tmp_path / "r.json"))
    assert status == 0
    training = json.loads((tmp_path / "r.json").read_text())["training"]
    assert training["dimensions"] == {"model": 2, "data": 2}
    assert {tuple(call["along"]) for call in training["calls"]} == {("model",), ("data",)}
    assert training["wrong"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("all_reduce --dims 3x2 --world 4", "--dims 3x2 is a grid of 6 ranks, the world has 4"),
        ("all_reduce --dims 0x2 --world 4", "lengths from 1 up"),
        ("all_gather --dims 2x2 --world 4", "goes along one axis"),
        ("broadcast -r 4 --world 4", "root 4 is not one of 4"),
        ("train --world 4", "say which workload: vgg16"),
        ("train nothing.json --world 4", "nothing.json: No such file"),
        ("train transformer --world 4", "dimensions model and data: say how many ranks each has"),
        ("train vgg16 --bucket 0 --world 4", "at least 1 byte"),
        ("train vgg16 --compute-scale -1 --world 4", "a factor from 0 up"),
        ("train vgg16 --payload-scale 100000000 --world 4", "no float to move"),
        ("--compute-jitter wild --world 4", "a jitter reads"),
    ],
)
def test_shapes_and_workloads_that_cannot_be_end_with_2_and_the_reason(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    status, _, err = run(capsys, f"{arguments} --provider loopback")
    assert status == 2
    assert message in err
    assert "Traceback" not in err
