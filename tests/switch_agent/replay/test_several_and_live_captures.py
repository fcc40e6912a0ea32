# SPDX-License-Identifier: Apache-2.0
"""Several captures merged by time, captures that are still written, timelines that would not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from replay_wire import Record, Roce, pcap, pcapng, records, write
from test_replayer import ring

from switch_agent.replay import capture, merge, pipeline
from switch_agent.replay import timeline as timeline_module
from switch_agent.replay.errors import OptionError
from switch_agent.replay.loop import SAMPLE_FIELDS
from switch_agent.replay.merge import MAX_CAPTURES
from switch_agent.replay.pipeline import Progress
from switch_agent.replay.replayer import ReplayOptions, replay
from switch_agent.replay.report import ReplayReport
from switch_agent.replay.timeline import Timeline

PACKETS = ring(3000)


def same_figures(one: ReplayReport, other: ReplayReport) -> None:
    """Everything but the names of the files and what the records outside RoCE are."""
    assert one.jobs == other.jobs
    assert one.roce == other.roce
    assert (one.capture.roce, one.capture.duration_s) == (other.capture.roce, other.capture.duration_s)


@pytest.fixture
def whole(tmp_path: Path) -> ReplayReport:
    """The packets replayed from one file."""
    return replay(write(tmp_path, pcap(records(PACKETS)), "whole.pcap"), ReplayOptions())


def test_packets_dealt_out_to_several_taps_give_the_figures_of_one(
    tmp_path: Path, whole: ReplayReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the forms of the files and the size of the pieces; coins go by the place in the merged order."""
    rows = records(PACKETS)
    for n_taps, batch in ((2, 1 << 14), (3, 100), (5, 7)):
        monkeypatch.setattr(capture, "BATCH", batch)
        monkeypatch.setattr(merge, "BATCH", batch)
        monkeypatch.setattr(pipeline, "BATCH", batch)
        taps: list[list[Record]] = [[] for _ in range(n_taps)]
        for packet, row in zip(PACKETS, rows, strict=True):
            taps[packet.qpn % n_taps].append(row)
        paths = [
            write(tmp_path, pcapng(part) if i % 2 else pcap(part), f"tap{batch}-{i}") for i, part in enumerate(taps)
        ]
        merged = replay(paths, ReplayOptions())
        same_figures(merged, whole)
        assert [file.records for file in merged.capture.files] == [len(part) for part in taps]


def test_a_packet_that_passed_two_taps_is_counted_once(tmp_path: Path, whole: ReplayReport) -> None:
    """The second tap has every packet too, 100 ns later, and packets that the first has not."""
    later = [packet.but(at_ns=packet.at_ns + 100) for packet in PACKETS]
    paths = [write(tmp_path, pcap(records(PACKETS[::2])), "a"), write(tmp_path, pcap(records(later)), "b")]
    merged = replay(paths, ReplayOptions())
    assert merged.capture.roce == len(PACKETS)
    assert merged.capture.other == {"duplicate": len(PACKETS[::2])}
    assert merged.roce.opcodes == whole.roce.opcodes


def test_a_retransmission_is_no_duplicate(tmp_path: Path) -> None:
    """The same packet twice at each of two taps is two packets."""
    first = [Roce(at_ns=0), Roce(at_ns=500_000)]
    second = [packet.but(at_ns=packet.at_ns + 1000) for packet in first]
    paths = [write(tmp_path, pcap(records(first)), "a"), write(tmp_path, pcap(records(second)), "b")]
    report = replay(paths, ReplayOptions())
    assert (report.capture.roce, report.capture.other) == (2, {"duplicate": 2})
    assert report.roce.sequence.steps_back == 1


def test_a_tap_without_roce_or_without_records_does_not_hold_up_the_others(tmp_path: Path, whole: ReplayReport) -> None:
    """An empty capture and one of junk."""
    junk = pcap([Record(10**15, bytes(10))] * 5)
    paths = [write(tmp_path, pcap(records(PACKETS)), "a"), write(tmp_path, pcap([]), "b"), write(tmp_path, junk, "c")]
    merged = replay(paths, ReplayOptions())
    assert merged.roce == whole.roce
    assert [job.packets for job in merged.jobs] == [job.packets for job in whole.jobs]
    assert merged.capture.junk == {"cut_short": 5}


@pytest.mark.parametrize("paths", [["a", "a"], [str(i) for i in range(MAX_CAPTURES + 1)]])
def test_captures_that_cannot_be_merged_are_refused(paths: list[str]) -> None:
    """One twice, too many."""
    with pytest.raises(OptionError):
        replay(paths, ReplayOptions())


def test_only_one_capture_can_be_followed() -> None:
    """Nothing tells which of several goes on."""
    with pytest.raises(OptionError, match="--follow takes one"):
        replay(["a", "b"], ReplayOptions(), lambda _: True)


# ------------------------------------------------------------------------------------ live


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A named pipe."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    path.unlink()


def test_a_pipe_is_reported_on_while_it_is_written(fifo: Path, whole: ReplayReport) -> None:
    """The writer waits with the second half until the first one has been seen."""
    data = pcap(records(PACKETS))
    half = 24 + 1500 * (len(data) - 24) // 3000 + 7
    seen_half = threading.Event()

    def write_slowly() -> None:
        with fifo.open("wb", buffering=0) as pipe:
            pipe.write(data[:half])
            assert seen_half.wait(60)
            pipe.write(data[half:])

    def watch(progress: Progress) -> bool:
        if progress.records >= 1200:
            seen_half.set()
        return True

    writer = threading.Thread(target=write_slowly)
    writer.start()
    report = replay(str(fifo), ReplayOptions(), watch)
    writer.join()
    same_figures(report, whole)
    assert report.partial == []


def test_a_growing_file_is_followed_until_the_watcher_has_enough(tmp_path: Path, whole: ReplayReport) -> None:
    """As tcpdump writes it: the end of the file is not the end of the capture."""
    data = pcap(records(PACKETS))
    path = tmp_path / "growing.pcap"
    path.write_bytes(data[:50_001])
    steps = iter((data[50_001:90_000], data[90_000:]))

    def watch(progress: Progress) -> bool:
        for part in steps:
            with path.open("ab") as file:
                file.write(part)
            return True
        return progress.records < len(PACKETS)

    same_figures(replay(str(path), ReplayOptions(), watch), whole)


def test_an_interrupt_ends_the_capture_and_not_the_report(tmp_path: Path) -> None:
    """``switch-agent replay FILE --follow``: a line about what is there, on SIGINT the tables, exit code 0."""
    path = write(tmp_path, pcap(records(PACKETS[:500])))
    command = [sys.executable, "-m", "switch_agent.cli", "replay", path, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        while "500 records, RoCE 500; tag3: 500 packets" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "500: RoCE 500" in out


# -------------------------------------------------------------------------------- timeline


def test_a_timeline_that_would_not_fit_has_longer_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts stay, the largest overlap stays, the report says so; memory does not grow with the capture."""
    options = ReplayOptions(window_ms=0.01)
    path = write(tmp_path, pcap(records(PACKETS)))
    fine = replay(path, options)
    monkeypatch.setattr(timeline_module, "MAX_WINDOWS", 20)
    monkeypatch.setattr(capture, "BATCH", 50)
    monkeypatch.setattr(merge, "BATCH", 50)
    coarse = replay(path, options)
    (fine_job,), (job,) = fine.jobs, coarse.jobs
    assert len(fine_job.timeline) > 100
    assert 5 <= len(job.timeline) <= 20
    assert (job.packets, job.would_mark) == (fine_job.packets, fine_job.would_mark)
    assert sum(window.packets for window in job.timeline) == job.packets
    assert job.max_overlap == fine_job.max_overlap
    assert coarse.settings.window_ms in [0.01 * 2**i for i in range(3, 20)]
    assert any("times as long as asked for" in note for note in coarse.notes)


def test_windows_of_several_jobs_are_folded_apart() -> None:
    """Two jobs in the same windows keep their own sums."""
    timeline = Timeline()
    rows = np.zeros((4, len(SAMPLE_FIELDS)), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = (1, 0, 1, 0), (4, 4, 5, 5), (1, 10, 2, 20)
    timeline.add(rows)
    assert timeline.rows()[:, :3].tolist() == [[0, 4, 10], [0, 5, 20], [1, 4, 1], [1, 5, 2]]
    timeline.shift = 1
    assert timeline.rows()[:, :3].tolist() == [[0, 4, 30], [1, 4, 3]]
