# SPDX-License-Identifier: Apache-2.0
"""Two flows on the loopback fabric: what is sent, in which order, and how the command answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ring_bench.errors import ProtocolError, UsageError
from ring_bench.flows import Plan, main, run_flows
from ring_bench.rendezvous import LocalRendezvous
from ring_bench.tag import TagLayout
from ring_bench.verbs.api import Completion, Opcode
from ring_bench.verbs.loopback import LoopbackProvider

PLAN = Plan(size=10_000, segment=4096, delays_ns=(0, 500_000), start_b_ns=300_000, first_step=7, job_tag=3)


def run(plan: Plan, provider: LoopbackProvider):  # type: ignore[no-untyped-def]
    return run_flows(plan, provider, LocalRendezvous(), local_ranks=(0, 1, 2), hosts=(0, 1, 2))


def test_each_flow_is_a_chain_of_writes_tagged_with_its_step() -> None:
    """Segments cover the size, only the last has an immediate, and both flows of every run have steps of their own."""
    provider = LoopbackProvider(seed=1, trace=True)
    run(PLAN, provider)
    layout = TagLayout()
    for step in range(7, 11):
        messages = [message for message in provider.messages if layout.decode(message.sport) == (3, step)]
        assert [message.opcode for message in messages] == [Opcode.RDMA_WRITE] * 2 + [Opcode.RDMA_WRITE_WITH_IMM]
        assert [message.imm for message in messages] == [None, None, step]
        assert [message.packets for message in messages] == [1, 1, 1]
    assert len(provider.messages) == 4 * 3


def test_flows_start_when_they_are_told_to() -> None:
    """A at its delay, B at its fixed time; the overlap follows from the times."""
    result = run(PLAN, LoopbackProvider(seed=1))
    assert [run.delay_ns for run in result.runs] == [0, 500_000]
    for run_result in result.runs:
        a, b = run_result.flows
        assert a.start_ns == pytest.approx(run_result.delay_ns, abs=20_000)
        assert b.start_ns == pytest.approx(300_000, abs=20_000)
        overlap = min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns)
        assert run_result.concurrent_ns == max(0, overlap)
        assert a.duration_ns == a.end_ns - a.start_ns > 0
    assert (result.preset, result.mtu, result.segment_bytes) == (None, 4096, 4096)


def test_a_size_of_one_byte_is_one_write() -> None:
    """No empty segment."""
    provider = LoopbackProvider(seed=1, trace=True)
    run(Plan(size=1, delays_ns=(0,), start_b_ns=0), provider)
    assert [message.opcode for message in provider.messages] == [Opcode.RDMA_WRITE_WITH_IMM] * 2


def test_a_wrong_immediate_is_a_protocol_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver does not take A for B."""
    provider = LoopbackProvider(seed=1)
    wait = provider.wait

    def swapped(timeout_ns: int | None) -> list[Completion]:
        return [each if each.imm is None else each._replace(imm=each.imm + 1) for each in wait(timeout_ns)]

    monkeypatch.setattr(provider, "wait", swapped)
    with pytest.raises(ProtocolError, match="receiver got immediate"):
        run(PLAN, provider)


@pytest.mark.parametrize(
    "wrong",
    [{"size": 0}, {"segment": 0}, {"delays_ns": ()}, {"start_b_ns": -1}, {"job_tag": 16}, {"traffic_class": 256}],
)
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    """Before anything is opened."""
    with pytest.raises(UsageError):
        Plan(**wrong)  # type: ignore[arg-type]


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row per delay; the file has the same figures."""
    path = tmp_path / "flows.json"
    main(["--provider", "loopback", "--size", "64K", "--delays", "0,1.5", "--start-b", "1", "-J", str(path)])
    rows = capsys.readouterr().out.splitlines()[2:]
    result = json.loads(path.read_text())
    assert [run["delay_ns"] for run in result["runs"]] == [0, 1_500_000]
    assert len(rows) == 2
    assert [flow["udp_sport"] for flow in result["runs"][1]["flows"]] == [0xC002, 0xC003]


def test_a_wrong_use_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback."""
    with pytest.raises(SystemExit) as caught:
        main(["--provider", "loopback", "--hosts", "a,b"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("ring-bench flows: --hosts names")


def test_a_file_that_cannot_be_written_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The table is still printed."""
    with pytest.raises(SystemExit) as caught:
        main(["--provider", "loopback", "--size", "4K", "--delays", "0", "-J", "/dev/full"])
    assert caught.value.code == 1
    captured = capsys.readouterr()
    assert "A takes" in captured.out
    assert "could not be written" in captured.err
