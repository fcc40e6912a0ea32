# SPDX-License-Identifier: Apache-2.0
"""The two captures of real soft-RoCE rings in tests/data: counts by hand, and packet by packet against tshark.

They were taken with 128 bytes of each packet kept; their source ports are 0xC100 + rank and carry no steps.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from programs import find
from replay_wire import START_NS, decoded

from switch_agent.replay.replayer import ReplayOptions, replay

DATA = Path(__file__).parents[2] / "data"
RING, LOSS = str(DATA / "rxe-ring.pcap"), str(DATA / "rxe-ring-loss.pcap")


def test_a_ring_without_losses() -> None:
    """4 ranks, 14 messages each: 48 of 64 packets, 8 single packets (latency laps), one ACK for each message."""
    report = replay(RING, ReplayOptions())
    file = {"path": RING, "format": "pcap", "compression": None, "link_types": ["Ethernet"], "records": 3136}
    assert report.capture.model_dump() == {
        "files": [{**file, "incomplete": None}],
        "records": 3136,
        "roce": 3136,
        "forms": {},
        "other": {},
        "closed": {},
        "junk": {},
        "first_unix_ns": 1_795_997_847_155_761_911,
        "duration_s": 0.772511103,
        "stamped_earlier": 0,
    }
    assert report.roce.model_dump() == {
        "opcodes": {
            "RC_WRITE_FIRST": 48,
            "RC_WRITE_MIDDLE": 48 * 62,
            "RC_WRITE_LAST_IMM": 48,
            "RC_WRITE_ONLY_IMM": 8,
            "RC_ACK": 56,
        },
        "ecn": {"not_ect": 0, "ect1": 0, "ect0": 3136, "ce": 0},
        "replies": {"ack": 56, "rnr_nak": 0, "nak": 0},
        "sequence": {"gaps": 0, "missing": 0, "steps_back": 0, "restarts": 0},
        "data_packets": 48 * 64 + 8,
        "untagged": 0,
        "portless": 0,
    }
    (job,) = report.jobs
    assert (job.name, job.packets, job.step_ends) == ("tag0", 3080, 56)


def test_a_ring_with_a_loss() -> None:
    """One NAK: the sender goes back by ten packets; a LAST packet and nine before it are sent twice."""
    report = replay(LOSS, ReplayOptions())
    assert report.capture.records == report.capture.roce == 1579
    assert report.roce.opcodes == {
        "RC_WRITE_FIRST": 24,
        "RC_WRITE_MIDDLE": 24 * 62 + 9,
        "RC_WRITE_LAST_IMM": 25,
        "RC_WRITE_ONLY_IMM": 4,
        "RC_ACK": 29,
    }
    assert report.roce.replies == {"ack": 28, "rnr_nak": 0, "nak": 1}
    assert report.roce.sequence.model_dump() == {"gaps": 0, "missing": 0, "steps_back": 1, "restarts": 0}


def test_each_rank_is_a_job_by_rule_or_by_a_narrow_tag() -> None:
    """Ports 0xC100 to 0xC103: with 2 bits of step they are one job of steps 0 to 3."""
    (job,) = replay(RING, ReplayOptions(step_bits=2)).jobs
    assert (job.name, job.job_tag, job.packets) == ("tag64", 64, 3080)
    assert {window.step_min for window in job.timeline} == {0, 1, 2, 3}


@pytest.mark.parametrize("path", [RING, LOSS])
def test_tshark_reads_the_same_packets(path: str) -> None:
    """Stamp, addresses, source port, opcode, QP, PSN, ECN, syndrome of each packet."""
    fields = ["frame.time_epoch", "ip.src", "ip.dst", "udp.srcport", "infiniband.bth.opcode", "infiniband.bth.destqp"]
    fields += ["infiniband.bth.psn", "ip.dsfield.ecn", "infiniband.aeth.syndrome"]
    command = [find("tshark"), "-r", path, "-T", "fields", *(part for field in fields for part in ("-e", field))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    seen = []
    for line in lines:
        time, src, dst, *numbers = line.split("\t")
        seconds, _, fraction = time.partition(".")
        seen.append(
            (int(seconds) * 10**9 + int(fraction) - START_NS, src, dst, *(int(text or "-1", 0) for text in numbers))
        )
    ours = [
        (row.at_ns, row.src, row.dst, row.sport, row.opcode, row.qpn, row.psn, row.ecn, row.syndrome)
        for row in decoded(path)
    ]
    assert ours == seen
