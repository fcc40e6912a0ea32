# SPDX-License-Identifier: Apache-2.0
"""What replay reports: the reference's registers and marks, overlaps as constructed, jobs, ECN, loss counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_wire import (
    ACK,
    CNP,
    FIRST,
    LAST_IMM,
    MIDDLE,
    ONLY_IMM,
    START_NS,
    Record,
    Roce,
    pcap,
    pcapng,
    records,
    write,
)

from switch_agent.dataplane.constants import LAST_OPCODES, MARK, TIME_UNIT_NS
from switch_agent.dataplane.hashes import flow_slot
from switch_agent.dataplane.params import VARIANTS, SymphonyParams
from switch_agent.dataplane.reference import JobState, Packet, Verdict
from switch_agent.replay import capture, merge, pipeline
from switch_agent.replay.errors import CaptureError, EmptyCaptureError, OptionError
from switch_agent.replay.jobs import JobMap, parse_rule
from switch_agent.replay.loop import coin
from switch_agent.replay.replayer import ReplayOptions, replay
from switch_agent.replay.report import JobReport, ReplayReport

EAGER = SymphonyParams(k=0.05, window_us=20.0, n_warmup=2, n_sample=2)


def run(tmp_path: Path, packets: list[Roce], options: ReplayOptions | None = None) -> ReplayReport:
    """Replay packets from a file."""
    return replay(write(tmp_path, pcap(records(packets))), options or ReplayOptions())


def only_job(report: ReplayReport) -> JobReport:
    """Return the one job of a report."""
    (job,) = report.jobs
    return job


def ring(
    n: int = 6000, *, seed: int = 5, hosts: int = 6, length: int = 60, first_step: int = 1000, ecn: int = 2
) -> list[Roce]:
    """Return a ring of flows of unequal speed, with losses and go-back-N; steps and PSNs wrap."""
    rng = random.Random(seed)
    step, position = [first_step] * hosts, [0] * hosts
    base = [(1 << 24) - 50 + 7 * host for host in range(hosts)]
    packets: list[Roce] = []
    at_ns = 0
    while len(packets) < n:
        host = rng.choices(range(hosts), [2 + h for h in range(hosts)])[0]
        if step[host] - min(step) > 4:
            continue
        if rng.random() < 0.01:
            position[host] = max(0, position[host] - 9)
        at_ns += rng.choice([120, 400, 900])
        last = position[host] == length - 1
        packets.append(
            Roce(
                at_ns=at_ns,
                src=f"10.0.0.{host + 1}",
                dst=f"10.0.0.{(host + 1) % hosts + 1}",
                sport=0xC000 | 3 << 10 | step[host] % 1024,
                opcode=LAST_IMM if last else FIRST if position[host] == 0 else MIDDLE,
                qpn=0x11 + host,
                psn=(base[host] + position[host]) % (1 << 24),
                ecn=ecn,
            )
        )
        position[host] += 1
        if last:
            base[host] += length
            step[host], position[host] = step[host] + 1, 0
    return packets


# ------------------------------------------------------------------- against the reference


def reference(
    packets: list[Roce], params: SymphonyParams, seed: int, step_bits: int = 10
) -> tuple[JobState, list[Verdict]]:
    """Run packets of one job through the floating-point reference, with replay's coins."""
    origin = packets[0].at_ns
    job = JobState(params, packets[0].sport & (1 << step_bits) - 1)
    verdicts = []
    for i, packet in enumerate(packets):
        src, dst = (int.from_bytes(map(int, address.split("."))) for address in (packet.src, packet.dst))
        verdicts.append(
            job.process(
                Packet(
                    step=packet.sport & (1 << step_bits) - 1,
                    psn=packet.psn,
                    last=packet.opcode in LAST_OPCODES,
                    flow=(src, dst, packet.qpn),
                    slot=int(flow_slot(src, dst, packet.qpn)),
                    time=(packet.at_ns - origin) // TIME_UNIT_NS,
                    coin=coin(seed, i) / 2**32,
                )
            )
        )
    return job, verdicts


@pytest.mark.parametrize("name", [*VARIANTS, "eager"])
@pytest.mark.parametrize("seed", [1, 99])
def test_registers_and_counts_equal_the_reference(tmp_path: Path, name: str, seed: int) -> None:
    """State exactly; marks up to the coins that fall within 5 % of the probability."""
    params = {**VARIANTS, "eager": EAGER}[name]
    packets = ring()
    job, verdicts = reference(packets, params, seed)
    report = run(tmp_path, packets, ReplayOptions(params=params, seed=seed))
    got = only_job(report)
    assert (got.registers.step_min, got.registers.alpha) == (job.step_min, job.alpha)
    assert (got.registers.psn_rec, got.registers.count) == (job.psn_rec, job.cnt_total)
    assert round(got.registers.window_start_s * 1e9) == job.window_start * TIME_UNIT_NS
    assert got.outpacing == sum(verdict.ahead for verdict in verdicts)
    assert got.windows_closed == sum(verdict.expired for verdict in verdicts)
    assert got.step_ends == sum(verdict.last for verdict in verdicts)
    coins = [coin(seed, i) / 2**32 for i in range(len(packets))]
    low = sum(c < 0.95 * verdict.probability for c, verdict in zip(coins, verdicts, strict=True))
    high = sum(c < 1.05 * verdict.probability for c, verdict in zip(coins, verdicts, strict=True))
    assert low <= got.would_mark <= high
    if name == "eager":
        assert got.would_mark > 100


def test_marks_are_those_of_the_reference_packet_by_packet(tmp_path: Path) -> None:
    """The timeline of 1 us windows shows where each mark falls."""
    packets = [packet.but(at_ns=1000 * i) for i, packet in enumerate(ring(3000))]
    params = SymphonyParams(k=0.05, window_us=40.0, n_warmup=2, n_sample=2)
    _, verdicts = reference(packets, params, seed=4)
    got = only_job(run(tmp_path, packets, ReplayOptions(params=params, seed=4, window_ms=0.001)))
    assert len(got.timeline) == len(packets)
    certain = marks = 0
    for i, (window, verdict) in enumerate(zip(got.timeline, verdicts, strict=True)):
        assert window.outpacing == verdict.ahead
        if abs(coin(4, i) / 2**32 - verdict.probability) > 0.05 * verdict.probability:
            certain += 1
            marks += window.would_mark
            assert window.would_mark == (verdict.bits & MARK != 0)
    assert certain > 2900
    assert marks > 30


def test_fewer_step_bits_compare_like_ten(tmp_path: Path) -> None:
    """With 4 bits of step the ring wraps every 16 steps; outpacing, alpha and marks stay those of 10 bits."""
    wide = ring(first_step=0)
    narrow = [packet.but(sport=0xC000 | packet.sport & 0xF) for packet in wide]
    full = only_job(run(tmp_path, wide, ReplayOptions(params=EAGER)))
    report = run(tmp_path, narrow, ReplayOptions(params=EAGER, step_bits=4))
    few = only_job(report)
    same = ("packets", "outpacing", "windows_closed", "would_mark", "step_ends", "max_overlap")
    assert [getattr(few, name) for name in same] == [getattr(full, name) for name in same]
    assert few.registers.step_min == full.registers.step_min % 16
    assert [window.overlap for window in few.timeline] == [window.overlap for window in full.timeline]
    assert "step-bits 4" in " ".join(report.notes)


# ------------------------------------------------------------------------------- timeline


def test_a_constructed_overlap_of_two_steps(tmp_path: Path) -> None:
    """Host 1 is one step ahead from 10 ms to 30 ms, then host 2 has caught up."""

    def packet(ms: float, host: int, step: int, psn: int, opcode: int = MIDDLE) -> Roce:
        return Roce(round(ms * 1e6), f"10.0.0.{host}", "10.0.0.9", 0xC000 + step, opcode, 17, psn, 2)

    packets = [packet(1, 1, 7, 0), packet(2, 2, 7, 0)]
    packets += [packet(12 + i, 1, 8, 1 + i) for i in range(5)] + [packet(17, 2, 7, 1)]
    packets += [packet(22 + i, 1, 8, 10 + i) for i in range(5)]
    packets += [
        packet(28, 2, 7, 2, LAST_IMM),
        packet(31, 2, 8, 3),
        packet(32, 1, 8, 20),
        packet(61, 1, 8, 21, ONLY_IMM),
    ]
    job = only_job(run(tmp_path, packets, ReplayOptions(window_ms=10)))
    figures = [(window.start_s, window.overlap, window.step_min, window.step_max) for window in job.timeline]
    assert figures == [
        (0.0, 1, 7, 7),
        (0.01, 2, 7, 8),
        (0.02, 1, 8, 8),  # the LAST packet at 28 ms ends step 7
        (0.03, 1, 8, 8),
        (0.06, 0, 9, 8),  # all steps over: idle; nothing between 40 and 60 ms
    ]
    assert [window.packets for window in job.timeline] == [2, 6, 6, 2, 1]
    assert [window.outpacing for window in job.timeline] == [0, 5, 5, 0, 0]
    assert (job.max_overlap, job.first_s, job.last_s) == (2, 0.0, 0.06)


def test_step_max_comes_back_after_each_window(tmp_path: Path) -> None:
    """A packet 5 steps ahead raises the overlap of its own window only."""
    steps = [3, 8, 3, 3, 4, 3]
    packets = [Roce(at_ns=i * 1_000_000, sport=0xC000 + step, psn=i) for i, step in enumerate(steps)]
    job = only_job(run(tmp_path, packets, ReplayOptions(window_ms=2)))
    assert [window.overlap for window in job.timeline] == [6, 1, 2]


def test_earlier_stamps_are_taken_at_the_latest_time(tmp_path: Path) -> None:
    """The clock never goes back; such packets are counted and noted."""
    packets = [Roce(at_ns=at) for at in (50_000_000, 70_000_000, 10_000_000, 71_000_000)]
    report = run(tmp_path, packets, ReplayOptions(window_ms=10))
    assert report.capture.stamped_earlier == 1
    assert [(window.start_s, window.packets) for window in only_job(report).timeline] == [(0.0, 1), (0.02, 3)]
    assert any("reordercap" in note for note in report.notes)


def test_a_job_that_pauses_for_hours_still_closes_its_window(tmp_path: Path) -> None:
    """After 10 min the 32-bit clock alone would say that the window is not over; the agent refreshes it."""
    for pause_s in (10 * 60, 3600):
        packets = [Roce(at_ns=0), Roce(at_ns=pause_s * 10**9)]
        job = only_job(run(tmp_path, packets, ReplayOptions()))
        assert job.windows_closed == 1
        assert job.registers.window_start_s == pytest.approx(pause_s, abs=1e-6)


# ----------------------------------------------------------------------------- marks and ECN


def test_only_ect_packets_are_marked(tmp_path: Path) -> None:
    """The same ring with another ECN field: same state, same candidates, other marks."""
    by_ecn = {ecn: run(tmp_path, ring(ecn=ecn), ReplayOptions(params=EAGER)) for ecn in range(4)}
    jobs = {ecn: only_job(report) for ecn, report in by_ecn.items()}
    n = jobs[1].would_mark
    assert n > 0
    figures = [(job.would_mark, job.unmarkable.not_ect, job.unmarkable.already_ce) for job in jobs.values()]
    assert figures == [(0, n, 0), (n, 0, 0), (n, 0, 0), (0, 0, n)]
    assert len({str(job.registers) for job in jobs.values()}) == 1
    assert [report.roce.ecn for report in by_ecn.values()] == [
        {name: 6000 * (name == kind) for name in ("not_ect", "ect1", "ect0", "ce")}
        for kind in ("not_ect", "ect1", "ect0", "ce")
    ]
    assert any("mark nothing" in note for note in by_ecn[0].notes)


def test_the_seed_decides_the_coins(tmp_path: Path) -> None:
    """Same seed, same marks; another seed, others; the state does not depend on it."""
    reports = [run(tmp_path, ring(), ReplayOptions(params=EAGER, seed=seed)) for seed in (1, 1, 2)]
    assert reports[0] == reports[1]
    assert reports[0].jobs[0].registers == reports[2].jobs[0].registers
    assert [w.would_mark for w in reports[0].jobs[0].timeline] != [w.would_mark for w in reports[2].jobs[0].timeline]


def test_batches_and_pieces_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the file is cut up for reading, coins, windows and registers come out the same."""
    whole = run(tmp_path, ring(), ReplayOptions(params=EAGER))
    monkeypatch.setattr(capture, "BATCH", 64)
    monkeypatch.setattr(merge, "BATCH", 64)
    monkeypatch.setattr(pipeline, "BATCH", 64)
    monkeypatch.setattr(capture, "_BUFFER", 1000)
    assert run(tmp_path, ring(), ReplayOptions(params=EAGER)) == whole


def test_coins_are_uniform() -> None:
    """Mean and spread of 20,000 coins of 32 bits."""
    coins = [coin(7, i) / 2**32 for i in range(20_000)]
    assert all(0 <= c < 1 for c in coins)
    assert abs(sum(coins) / len(coins) - 0.5) < 0.01
    assert abs(sum(c < 0.01 for c in coins) / len(coins) - 0.01) < 0.003


def test_the_gate_is_noted(tmp_path: Path) -> None:
    """A capture does not show queues."""
    report = run(tmp_path, ring(100), ReplayOptions(params=VARIANTS["refined"], variant="refined"))
    assert any("gate" in note for note in report.notes)
    assert report.settings.entry["amax"] == 128
    assert report.settings.params["ratio_floor"] == 1.0


# ----------------------------------------------------------------------------------- jobs


def test_jobs_come_from_the_tag(tmp_path: Path) -> None:
    """Two tags, one port without a tag; a job's figures are those it has alone."""
    mine = ring(2000)
    other = [packet.but(sport=0xC000 | 9 << 10 | packet.sport & 0x3FF, src="10.9.0.1") for packet in ring(2000, seed=8)]
    plain = [Roce(at_ns=5, sport=0xBFFF)]
    mixed = sorted(mine + other + plain, key=lambda packet: packet.at_ns)
    report = run(tmp_path, mixed)
    assert [(job.name, job.job_tag, job.packets) for job in report.jobs] == [("tag3", 3, 2000), ("tag9", 9, 2000)]
    assert report.jobs[0].match == ["*,*,0xcc00/0xfc00"]
    assert report.roce.untagged == 1
    assert "0xc000" in " ".join(report.notes)
    alone = only_job(run(tmp_path, mine))
    assert report.jobs[0].outpacing == alone.outpacing
    assert report.jobs[0].registers.alpha == alone.registers.alpha


def test_rules_come_before_the_tag(tmp_path: Path) -> None:
    """Networks, single addresses, ports under a mask; the first match wins; one name may have several rules."""
    v6 = {"src": "2001:db8::1", "dst": "2001:db8:0:1::2"}
    packets = [
        Roce(0, sport=0xC401),
        Roce(1, src="10.0.1.7", sport=0xC402),
        Roce(2, src="10.0.2.7", sport=0x1234),
        Roce(3, src="10.0.2.8", sport=0x1234),
        Roce(4, **v6, sport=0xC403),  # type: ignore[arg-type]
        Roce(5, **{**v6, "dst": "2001:db8:0:2::2"}, sport=0xC404),  # type: ignore[arg-type]
        Roce(6, src="192.0.2.1", sport=0xD001),
    ]
    rules = [
        "a=10.0.1.0/24,*,*",
        "b=*,10.0.0.2,0x1234",
        "a=2001:db8::1,2001:db8:0:1::/64,0xc400/0xfc00",
        "b=10.0.0.0/8,*,0/0",
    ]
    report = run(tmp_path, packets, ReplayOptions(rules=tuple(map(parse_rule, rules))))
    assert [(job.name, job.packets) for job in report.jobs] == [("a", 2), ("b", 3), ("tag1", 1), ("tag4", 1)]
    assert report.jobs[0].match == ["10.0.1.0/24,*,0x0000/0x0000", "2001:db8::1/128,2001:db8:0:1::/64,0xc400/0xfc00"]
    assert report.jobs[0].job_tag is None
    assert report.settings.rules == [str(parse_rule(rule)) for rule in rules]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("10.0.0.1,*,*", "write NAME="),
        ("a=10.0.0.1,*", "write NAME="),
        ("a b=*,*,*", "name"),
        ("tag3=*,*,*", "derived from its tag"),
        ("a=10.0.0.256,*,*", "no address"),
        ("a=10.0.0.1,2001::1,*", "different IP versions"),
        ("a=*,*,0x10000", "source port"),
        ("a=*,*,0xc000/x", "mask"),
        ("a=*,*,0xc001/0xfc00", "outside its mask"),
    ],
)
def test_bad_rules_say_what_is_wrong(rule: str, words: str) -> None:
    """The message quotes the rule."""
    with pytest.raises(OptionError, match=words) as caught:
        parse_rule(rule)
    assert rule in str(caught.value)


def test_bad_options_say_their_range() -> None:
    """Seed, window, step bits, scope."""
    for options, words in (
        ({"seed": -1}, "--seed"),
        ({"window_ms": 0.0}, "--window-ms"),
        ({"window_ms": float("nan")}, "--window-ms"),
        ({"params": SymphonyParams(scope="port")}, "egress port"),
    ):
        with pytest.raises(OptionError, match=words):
            ReplayOptions(**options)
    for bits in (1, 15):
        with pytest.raises(OptionError, match="--step-bits"):
            JobMap(step_bits=bits)


def test_more_than_ten_step_bits_count_by_their_low_ten(tmp_path: Path) -> None:
    """As the switch program reads them: step 1023 is before 1024."""
    packets = [Roce(at_ns=i, sport=0xC000 + step, psn=i) for i, step in enumerate((1023, 1024, 1023))]
    job = only_job(run(tmp_path, packets, ReplayOptions(step_bits=14)))
    assert (job.registers.step_min, job.registers.step_max, job.max_overlap, job.outpacing) == (1023, 0, 2, 1)


# ------------------------------------------------------------------------------ what else is seen


def test_only_writes_are_tracked(tmp_path: Path) -> None:
    """ACKs, CNPs, SENDs and READs are counted and touch no job."""
    packets = [Roce(at_ns=i, opcode=code, psn=i) for i, code in enumerate((FIRST, ACK, CNP, 4, 12, 0x2A, LAST_IMM))]
    report = run(tmp_path, packets)
    assert only_job(report).packets == report.roce.data_packets == 2
    assert report.roce.opcodes == {
        "RC_SEND_ONLY": 1,
        "RC_WRITE_FIRST": 1,
        "RC_WRITE_LAST_IMM": 1,
        "RC_READ_REQUEST": 1,
        "RC_ACK": 1,
        "0x2a": 1,
        "CNP": 1,
    }


def test_replies_and_the_psn_sequence(tmp_path: Path) -> None:
    """Per flow: 3 packets missing in 2 gaps, a step back, a restart; PSNs wrap; ACK, RNR NAK, NAK."""
    psns = [(1 << 24) - 2, (1 << 24) - 1, 0, 2, 5, 4, 5, 6, 500_000, 500_001]
    packets = [Roce(at_ns=10 * i, psn=psn) for i, psn in enumerate(psns)]
    packets += [Roce(at_ns=200 + i, psn=9 - i, src=f"10.1.0.{i}") for i in range(5)]
    syndromes = (0x1F, 0x00, 0x2C, 0x60, 0x63, 0x64)
    packets += [Roce(at_ns=300 + i, opcode=ACK, syndrome=syndrome) for i, syndrome in enumerate(syndromes)]
    roce = run(tmp_path, packets).roce
    assert roce.sequence.model_dump() == {"gaps": 2, "missing": 3, "steps_back": 1, "restarts": 1}
    assert roce.replies == {"ack": 2, "rnr_nak": 1, "nak": 3}


def test_junk_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    """The jobs' figures are the same with junk between the packets; every record is accounted for."""
    clean = records(ring(500))
    dirty = []
    for i, row in enumerate(clean):
        dirty += [row, Record(row.at_ns, [b"", b"\xff" * 20, row.frame[:30], bytes(100)][i % 4])]
    reports = [
        replay(write(tmp_path, pcapng(rows)), ReplayOptions(params=VARIANTS["refined"])) for rows in (clean, dirty)
    ]
    assert reports[1].capture.junk == {"cut_short": 250}
    assert reports[1].capture.other == {"other_ethertype": 250}
    assert (reports[1].capture.records, reports[1].capture.roce) == (1000, 500)
    assert reports[0].jobs[0].registers == reports[1].jobs[0].registers


def test_times_are_those_of_the_capture(tmp_path: Path) -> None:
    """First stamp in ns of the Unix clock, everything else relative to it."""
    report = run(tmp_path, [Roce(at_ns=3_000), Roce(at_ns=1_000_003_000)])
    assert report.capture.first_unix_ns == START_NS + 3_000
    assert report.capture.duration_s == 1.0


def test_empty_captures_are_refused(tmp_path: Path) -> None:
    """A header alone, and a first record that is cut."""
    for file in (pcap([]), pcapng([])):
        with pytest.raises(EmptyCaptureError, match="without a packet: was anything captured"):
            replay(write(tmp_path, file), ReplayOptions())
    with pytest.raises(EmptyCaptureError, match="cut off"):
        replay(write(tmp_path, pcap(records([Roce()]))[:-1]), ReplayOptions())


RING_FILES = [pcap(records(ring(60, length=5))), pcapng(records(ring(60, length=5)))]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(RING_FILES),
    st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), max_size=12),
    st.integers(0, 6000),
    st.integers(2, 14),
)
def test_damaged_files_never_crash(
    tmp_path: Path, file: bytes, changes: list[tuple[int, int]], cut: int, step_bits: int
) -> None:
    """Any bytes changed, any length: a report that accounts for every record, or a CaptureError."""
    data = bytearray(file)
    for at, value in changes:
        data[at % len(data)] = value
    path = write(tmp_path, bytes(data[: len(data) - cut % len(data)]))
    try:
        report = replay(path, ReplayOptions(step_bits=step_bits))
    except CaptureError:
        return
    info = report.capture
    assert info.records == info.roce + sum((info.other | info.closed | info.junk).values())
    assert (
        sum(job.packets for job in report.jobs) + report.roce.untagged + report.roce.portless
        == report.roce.data_packets
    )
    assert all(sum(window.packets for window in job.timeline) == job.packets for job in report.jobs)
