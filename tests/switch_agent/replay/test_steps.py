# SPDX-License-Identifier: Apache-2.0
"""Steps without tags: found in captures whose tags are hidden, they are those of the tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from replay_wire import ACK, Record, Roce, decoded, pcap, records, write
from rings import LAST_IMM, MIDDLE, ONLY, ONLY_IMM, Ring

from switch_agent.replay import messages as messages_module
from switch_agent.replay.capture import Capture
from switch_agent.replay.errors import OptionError
from switch_agent.replay.merge import decoded as pieces_of
from switch_agent.replay.messages import MessageLog
from switch_agent.replay.replayer import ReplayOptions, replay
from switch_agent.replay.steps import Flow, Group, Inference, Messages, infer

DATA = Path(__file__).parents[2] / "data"
BIG, REST = 16 * 1024, 5000
Ints = npt.NDArray[np.int64]


def inferred(path: str, **options: Any) -> tuple[Inference, Ints]:
    """Return what is found in a capture, and the step of each record (-1: none)."""
    log = MessageLog()
    message_of = []
    with Capture(path) as capture:
        for piece in pieces_of(capture):
            log.feed(piece)
            message_of.append(log.message_of[: piece.n].copy())
    found, step_of = infer(log.flows(), log.messages(), window_ns=50_000, **options)
    rows = np.concatenate(message_of)
    return found, np.append(step_of, -1)[rows]


def agreement(step: Ints, true: Ints, *, from_the_start: bool) -> float:
    """Return the share of data packets whose step is right or one off; in mid-run the first step has any number."""
    carries = true >= 0
    distance = step[carries] - true[carries]
    if not from_the_start:
        distance -= int(np.median(distance))
    return float(np.mean((np.abs(distance) <= 1) & (step[carries] >= 0)))


def the_group(found: Inference) -> Group:
    """Return the only group."""
    (group,) = found.groups
    return group


RINGS = {
    "a message a step": Ring(),
    "a slow rank": Ring(ranks=8, iterations=3, slow=3),
    "several messages a step, the last with immediate": Ring(sizes=(BIG, BIG, BIG, REST)),
    "several messages a step without immediates": Ring(sizes=(BIG, BIG, BIG, REST), immediate="none"),
    "several messages a step, all with immediate": Ring(sizes=(BIG, BIG, BIG, REST), immediate="all"),
    "several equal messages a step": Ring(sizes=(BIG,) * 4, immediate="none"),
    "chunks of unequal length": Ring(uneven=True, immediate="all", iterations=3),
    "QPs that take turns": Ring(turns=2, iterations=3),
    "four QPs that take turns": Ring(turns=4, ranks=5, iterations=3),
    "channels side by side": Ring(channels=3),
    "retransmissions": Ring(resend=0.3, slow=1),
    "packets that the capture lacks": Ring(lost=0.02, iterations=4),
    "single packets": Ring(sizes=(8,), immediate="all", iterations=5),
    "single packets, some lacking": Ring(sizes=(8,), immediate="all", iterations=20, lost=0.02),
    "two ranks": Ring(ranks=2, iterations=5),
    "from the middle": Ring(begin=0.37, iterations=4),
    "from the middle of the only collective": Ring(begin=0.3, iterations=1, ranks=8, slow=2),
    "turns from the middle": Ring(turns=2, ranks=6, iterations=4, begin=0.31, slow=2),
    "from the middle, lacking, resent": Ring(begin=0.3, iterations=4, ranks=8, slow=2, lost=0.005, resend=0.1),
    "several messages a step from the middle": Ring(begin=0.4, iterations=4, sizes=(BIG, BIG, REST), immediate="none"),
}


@pytest.mark.parametrize("name", RINGS)
def test_hidden_tags_are_found_again_for_99_percent_of_the_packets_within_one_step(tmp_path: Path, name: str) -> None:
    """The ring, messages per step and the step of every packet; whole AllReduces with their number of steps."""
    ring = RINGS[name]
    path, true = ring.write(tmp_path)
    found, step = inferred(path)
    group = the_group(found)
    assert agreement(step, np.array(true), from_the_start=ring.begin == 0) >= 0.99
    assert (group.shape, len(group.members)) == ("ring", ring.ranks)
    assert group.messages_per_step == len(ring.sizes)
    assert 0.5 <= group.confidence <= 0.95
    assert len(group.lanes) == ring.ranks * ring.channels
    if ring.begin == 0 and ring.ranks > 2:
        assert [candidate.steps for candidate in group.candidates] == [2 * (ring.ranks - 1)] * ring.iterations
        assert all(candidate.kind.startswith("AllReduce") for candidate in group.candidates)


@pytest.mark.parametrize("name", [name for name, ring in RINGS.items() if ring.immediate == "last"])
def test_the_overlap_is_that_of_the_tagged_capture(tmp_path: Path, name: str) -> None:
    """Within one: the registers are looked at when a window ends, here at every start of a message."""
    path, _ = RINGS[name].write(tmp_path, tags=True)
    report = replay(path, ReplayOptions(window_ms=0.05, infer_steps=True))
    (job,) = report.jobs
    assert report.inferred
    overlap = the_group(report.inferred).max_overlap
    assert overlap is not None
    assert job.max_overlap <= overlap <= job.max_overlap + 1


def test_times_of_collectives_are_those_of_the_wire(tmp_path: Path) -> None:
    """From the first packet of the first step to the last of the last."""
    ring = Ring(iterations=3)
    path, _ = ring.write(tmp_path)
    packets = [(packet.at_ns, step) for packet, _, step in ring.packets() if step >= 0]
    group = the_group(inferred(path)[0])
    for i, candidate in enumerate(group.candidates):
        times = [at_ns for at_ns, step in packets if step // 6 == i]
        assert candidate.cct_ms == pytest.approx((max(times) - min(times)) / 1e6)


def test_a_slow_rank_is_a_laggard(tmp_path: Path) -> None:
    """It is the lowest most of the time; the ranks behind it wait for it."""
    path, _ = Ring(ranks=8, iterations=4, slow=5).write(tmp_path)
    group = the_group(inferred(path)[0])
    assert group.laggards[0] == "10.0.0.6 -> 10.0.0.7"
    shares = {lane.src: lane.last_share or 0.0 for lane in group.lanes}
    assert max(shares, key=lambda name: shares[name]) == "10.0.0.6"


def test_a_retransmission_is_no_new_message(tmp_path: Path) -> None:
    """Go-back-N over several messages, a last packet sent again, a first packet that comes only the second time."""
    one = [(MIDDLE - 1, 0), (MIDDLE, 1), (LAST_IMM, 2), (MIDDLE - 1, 3), (MIDDLE, 4), (LAST_IMM, 5)]
    again = [*one, *one[1:], (MIDDLE - 1, 6), *one[2:], (MIDDLE - 1, 6), (MIDDLE, 7), (LAST_IMM, 8), (LAST_IMM, 8)]
    late_first = [*one[1:3], *one, *one[2:]]
    for sequence, messages, resent in ((again, 3, 11), (late_first, 2, 7)):
        packets = [Roce(at_ns=100 * i, opcode=opcode, psn=psn) for i, (opcode, psn) in enumerate(sequence)]
        path = write(tmp_path, pcap(records(packets)))
        lane = the_group(inferred(path)[0]).lanes[0]
        assert (lane.messages, lane.retransmitted) == (messages, resent)


def test_given_numbers_are_taken(tmp_path: Path) -> None:
    """Four equal messages with immediate each: nothing tells that they are a step but the user."""
    path, true = Ring(sizes=(BIG,) * 4, immediate="all").write(tmp_path)
    found, step = inferred(path, messages_per_step=4)
    assert agreement(step, np.array(true), from_the_start=True) == 1.0
    assert the_group(found).reasons[0] == "4 messages per step were given"
    path, true = Ring(turns=2, iterations=3).write(tmp_path)
    found, step = inferred(path, turns=2)
    assert agreement(step, np.array(true), from_the_start=True) == 1.0
    assert [len(lane.qpns) for lane in the_group(found).lanes] == [2] * 4


# ------------------------------------------------------------------------- what cannot be told


def test_what_is_no_ring_has_progress_but_no_overlap_and_says_why(tmp_path: Path) -> None:
    """One host sends to two others."""
    packets = [
        Roce(at_ns=100 * i, dst=f"10.0.0.{2 + i % 2}", qpn=5 + i % 2, psn=i // 2, opcode=ONLY_IMM) for i in range(60)
    ]
    group = the_group(inferred(write(tmp_path, pcap(records(packets))))[0])
    assert (group.shape, group.max_overlap, group.timeline, group.candidates) == ("mesh", None, [], [])
    assert group.confidence == 0.0
    assert any("10.0.0.1 sends to 2 others" in reason for reason in group.reasons)
    assert [lane.steps for lane in group.lanes] == [30, 30]


def test_lanes_that_do_not_wait_for_each_other_are_no_ring_collective(tmp_path: Path) -> None:
    """Two hosts that send to each other as fast as they can (perftest -b), one twice as fast: no step is told."""
    packets = [Roce(at_ns=100 * i, opcode=ONLY, psn=i) for i in range(200)]
    packets += [Roce(at_ns=200 * i + 7, src="10.0.0.2", dst="10.0.0.1", opcode=ONLY, psn=i) for i in range(100)]
    group = the_group(inferred(write(tmp_path, pcap(records(sorted(packets, key=lambda p: p.at_ns)))))[0])
    assert group.max_overlap is None
    assert any("ahead of their input" in reason for reason in group.reasons)
    assert [lane.messages for lane in group.lanes] == [200, 100]


def test_a_pair_and_a_part_of_a_ring_are_called_so(tmp_path: Path) -> None:
    """One sender and receiver; the two links that one host of a ring sees."""
    whole = Ring(ranks=6, iterations=3)
    seen = [item for item in whole.packets() if "10.0.0.3" in (item[0].src, item[0].dst)]
    rows = [Record(packet.at_ns, packet.frame()) for packet, *_ in seen]
    group = the_group(inferred(write(tmp_path, pcap(rows)))[0])
    assert (group.shape, group.members) == ("chain", ["10.0.0.2", "10.0.0.3", "10.0.0.4"])
    assert group.max_overlap is not None
    alone = [row for row, (packet, *_) in zip(rows, seen, strict=True) if packet.src == "10.0.0.3"]
    group = the_group(inferred(write(tmp_path, pcap(alone)))[0])
    assert (group.shape, group.members) == ("pair", ["10.0.0.3", "10.0.0.4"])


def test_more_lost_than_seen_is_no_basis_for_steps(tmp_path: Path) -> None:
    """A capture that lacks nine of ten packets of single-packet messages."""
    ring = Ring(sizes=(8,), immediate="all", iterations=80, lost=0.9)
    group = the_group(inferred(ring.write(tmp_path)[0])[0])
    assert (group.max_overlap, group.confidence) == (None, 0.0)
    assert any("steps cannot be told" in reason for reason in group.reasons)


def test_two_rings_in_one_capture_are_two_groups(tmp_path: Path) -> None:
    """Each with its own steps."""
    rings = [Ring(), Ring(ranks=5, first_host=101, seed=2)]
    packets = sorted((item for ring in rings for item in ring.packets()), key=lambda item: item[0].at_ns)
    path = write(tmp_path, pcap([Record(packet.at_ns, packet.frame()) for packet, *_ in packets]))
    found, step = inferred(path)
    assert sorted(len(group.members) for group in found.groups) == [4, 5]
    assert agreement(step, np.array([true for *_, true in packets]), from_the_start=True) == 1.0


def test_nothing_to_find_is_said(tmp_path: Path) -> None:
    """Acknowledges only."""
    found, _ = inferred(write(tmp_path, pcap(records([Roce(opcode=ACK)]))))
    assert found.groups == []
    assert "no messages of a reliable connection" in found.notes[0]


def test_responses_to_rdma_reads_are_messages(tmp_path: Path) -> None:
    """As MPI moves large messages: the data come from the side that was asked."""
    packets = []
    for i in range(20):
        packets.append(Roce(at_ns=1000 * i, src="10.0.0.2", dst="10.0.0.1", qpn=9, opcode=0x0C, psn=4 * i))
        packets += [
            Roce(at_ns=1000 * i + 100 * k, qpn=7, psn=4 * i + k, opcode=opcode)
            for k, opcode in enumerate((0x0D, 0x0E, 0x0E, 0x0F))
        ]
    lane = the_group(inferred(write(tmp_path, pcap(records(packets))))[0]).lanes[0]
    assert (lane.src, lane.messages, lane.missing_messages, lane.retransmitted) == ("10.0.0.1", 20, 0, 0)


@pytest.mark.parametrize("options", [{"messages_per_step": 4}, {"qp_groups": 2}])
def test_hints_without_the_search_are_refused(options: dict[str, int]) -> None:
    """They would be of no effect."""
    with pytest.raises(OptionError, match="--infer-steps"):
        ReplayOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"messages_per_step": 0}, {"qp_groups": -1}])
def test_hints_out_of_range_are_refused(options: dict[str, int]) -> None:
    """At least one."""
    with pytest.raises(OptionError, match="give a number from 1"):
        ReplayOptions(infer_steps=True, **options)  # type: ignore[arg-type]


# -------------------------------------------------------------------------- bounds and fuzz


def test_more_qps_and_messages_than_there_is_room_for_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded; the report says so."""
    monkeypatch.setattr(messages_module, "MAX_MESSAGES", 1 << 12)
    packets = [Roce(at_ns=i, qpn=i, opcode=ONLY_IMM) for i in range(20_000)]
    report = replay(write(tmp_path, pcap(records(packets))), ReplayOptions(infer_steps=True))
    assert report.inferred
    assert any(f"{20_000 - (1 << 12)} packets were left out" in note for note in report.inferred.notes)


@pytest.mark.parametrize("seed", range(30))
def test_messages_of_any_kind_give_a_result(seed: int) -> None:
    """Random flows between a few hosts, random times, numbers and flags: figures within their ranges, no traceback."""
    rng = np.random.default_rng(seed)
    n, n_flows = int(rng.integers(1, 200)), int(rng.integers(1, 12))
    flows = [Flow(f"h{rng.integers(4)}", f"h{rng.integers(4)}", int(rng.integers(99)), 1, 0, 0) for _ in range(n_flows)]
    start = np.sort(rng.integers(0, 10_000, n))
    columns = (rng.integers(0, high, n) for high in (1 << 30, 100, 1 << 20, 1 << 20, 32))
    psn, packets, length, octets, flags = columns
    table = Messages(
        rng.integers(0, n_flows, n), start, start + rng.integers(0, 500, n), psn, packets, length - 1, octets, flags
    )
    found, step_of = infer(flows, table)
    assert len(step_of) == n
    for group in found.groups:
        assert 0 <= group.confidence <= 1
        assert group.reasons
        assert (group.max_overlap is None) == (group.timeline == [])
        assert all(lane.last_share is None or 0 <= lane.last_share <= 1 for lane in group.lanes)


def test_thousands_of_lanes_are_not_compared_with_each_other() -> None:
    """2000 QPs between two hosts: progress only, and that is said."""
    n = 2000
    flows = [Flow("a", "b", i, 4, 0, 0) for i in range(n)]
    times = np.arange(4 * n, dtype=np.int64)
    same = np.ones(4 * n, np.int64)
    flow = np.where(times // n % 2, n - 1 - times % n, times % n)
    table = Messages(flow, times, times + 1, times // n, same, 8 * same, 90 * same, 7 * same)
    group = the_group(infer(flows, table)[0])
    assert (len(group.lanes), group.max_overlap) == (n, None)
    assert any("2000 lanes are more than" in reason for reason in group.reasons)


# ----------------------------------------------------------------------------- soft-RoCE


def immediates(path: str) -> list[tuple[tuple[str, str], int]]:
    """Return (flow, immediate) of every message of a capture of ring-bench, repeats left out, in their order.

    Only the last packets carry it: behind the base header, and behind the RETH of a single packet.
    """
    seen: dict[tuple[str, str, int], int] = {}
    frames = Path(path).read_bytes()
    at = 24
    for row in decoded(path):
        captured = int.from_bytes(frames[at + 8 : at + 12], "little")
        frame = frames[at + 16 : at + 16 + captured]
        at += 16 + captured
        if row.opcode in (LAST_IMM, ONLY_IMM):
            where = 54 + (16 if row.opcode == ONLY_IMM else 0)
            seen.setdefault((row.src, row.dst, row.psn), int.from_bytes(frame[where : where + 4], "big"))
    return [((src, dst), immediate) for (src, dst, _), immediate in seen.items()]


@pytest.mark.parametrize(("name", "iterations"), [("rxe-ring.pcap", 2), ("rxe-ring-loss.pcap", 1)])
def test_steps_of_real_soft_roce_rings_are_those_of_their_immediates(name: str, iterations: int) -> None:
    """Each packet's step is that which its message carries: 6 steps an iteration, then laps of single messages."""
    path = str(DATA / name)
    found, step = inferred(path)
    group = the_group(found)
    assert group.members == ["10.77.0.1", "10.77.0.2", "10.77.0.3", "10.77.0.4"]
    assert [candidate.steps for candidate in group.candidates][:iterations] == [6] * iterations
    told: dict[tuple[str, str], list[int]] = {}
    for edge, immediate in immediates(path):
        lap = told.setdefault(edge, [])
        lap.append(len(lap) if immediate == 0xFFFF else 6 * (immediate >> 8) + (immediate & 0xFF))
    assert all(steps == list(range(len(steps))) for steps in told.values())
    position: dict[tuple[str, str], dict[int, int]] = {}
    rows = decoded(path)
    for row, inferred_step in zip(rows, step.tolist(), strict=True):
        if row.opcode in (LAST_IMM, ONLY_IMM):
            known = position.setdefault((row.src, row.dst), {})
            assert inferred_step == told[row.src, row.dst][known.setdefault(row.psn, len(known))]
    assert np.sum(step >= 0) == sum(row.opcode <= ONLY_IMM for row in rows)
