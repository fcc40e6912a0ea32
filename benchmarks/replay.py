# SPDX-License-Identifier: Apache-2.0
"""Speed of ``switch-agent replay``, and its endurance.

    python benchmarks/replay.py [--json] [--packets 2000000]    packets per CPU second on synthetic captures
    python benchmarks/replay.py --fuzz 1000000                  that many mutated packets, with array bounds checked

The capture: a ring of 32 hosts, 4 KB packets, flows of unequal speed, 74 bytes captured of each. The speed is that of
the whole ``replay()`` call, file reading and report included, compilation excluded; CPU time, best of three. The
fuzz runs in a child process in which numba checks the index of every array access.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from switch_agent.replay.errors import CaptureError
from switch_agent.replay.report import ReplayReport

if TYPE_CHECKING:
    from switch_agent.replay.pipeline import ReplayOptions

SNAP = 74
HOSTS = 32
STEP_PACKETS = 512
FILE_PACKETS = 1000
Bytes = npt.NDArray[np.uint8]


def put(rows: Bytes, at: int, values: npt.ArrayLike, size: int) -> None:
    """Write big-endian numbers of ``size`` bytes into column ``at`` of each row."""
    for i in range(size):
        rows[:, at + i] = np.asarray(values, np.int64) >> 8 * (size - 1 - i) & 0xFF


def ring_capture(path: Path, n: int, seed: int = 1, outer: bytes = b"") -> None:
    """Write a nanosecond pcap file with ``n`` packets of a ring AllReduce, each behind the headers ``outer``."""
    rng = np.random.default_rng(seed)
    speeds = np.linspace(1.0, 1.03, HOSTS)
    flow = rng.choice(HOSTS, n, p=speeds / speeds.sum())
    position = np.empty(n, np.int64)
    for f in range(HOSTS):
        mine = np.flatnonzero(flow == f)
        position[mine] = np.arange(len(mine))
    in_step = position % STEP_PACKETS
    opcode = np.where(in_step == 0, 6, np.where(in_step == STEP_PACKETS - 1, 9, 7))
    snap = len(outer) + SNAP
    rows = np.zeros((n, 16 + snap), np.uint8)
    ns = 1_700_000_000_000_000_000 + np.arange(n) * 400
    words = rows[:, :16].view("<u4")
    words[:, 0], words[:, 1], words[:, 2], words[:, 3] = ns // 10**9, ns % 10**9, snap, len(outer) + 4170
    rows[:, 16 : 16 + len(outer)] = np.frombuffer(outer, np.uint8)
    frame = rows[:, 16 + len(outer) :]
    put(frame, 12, 0x0800, 2)
    put(frame, 14, 0x4502, 2)  # ECT(0)
    put(frame, 16, 4156, 2)
    put(frame, 23, 17, 1)
    put(frame, 26, 0x0A000001 + flow, 4)
    put(frame, 30, 0x0A000001 + (flow + 1) % HOSTS, 4)
    put(frame, 34, 0xC000 | position // STEP_PACKETS % 1024, 2)
    put(frame, 36, 4791, 2)
    put(frame, 38, 4136, 2)
    put(frame, 42, opcode, 1)
    put(frame, 47, 17 + flow, 3)
    put(frame, 51, 0x1000 * flow + position & 0xFFFFFF, 3)
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snap, 1))
        rows.tofile(file)


def outer_ipv4(protocol: int, payload: bytes) -> bytes:
    """Return Ethernet, an IPv4 header and the start of its payload."""
    head = struct.pack(">BBHHHBBHII", 0x45, 0, 4220, 0, 0, 64, protocol, 0, 0xC0000201, 0xC0000202)
    return bytes(12) + b"\x08\x00" + head + payload


TUNNELS = {
    "plain": b"",
    "vxlan": outer_ipv4(17, struct.pack(">HHHH", 50000, 4789, 4190, 0) + bytes((8, 0, 0, 0, 0, 0, 1, 0))),
    "erspan_2": outer_ipv4(47, struct.pack(">HHIII", 0x1000, 0x88BE, 0, 0x10000000, 0)),
    "vxlan_in_erspan_2": outer_ipv4(47, struct.pack(">HHIII", 0x1000, 0x88BE, 0, 0x10000000, 0))
    + outer_ipv4(17, struct.pack(">HHHH", 50000, 4789, 4190, 0) + bytes((8, 0, 0, 0, 0, 0, 1, 0))),
}


def best_of_three(paths: list[str], n: int, options: ReplayOptions | None = None) -> tuple[float, float]:
    """Replay captures with ``n`` packets three times; return CPU and wall seconds of the best run."""
    from switch_agent.replay.replayer import ReplayOptions, replay

    runs = []
    for _ in range(3):
        cpu, wall = time.process_time(), time.perf_counter()
        report = replay(paths, options or ReplayOptions())
        runs.append((time.process_time() - cpu, time.perf_counter() - wall))
    check(report, n)
    return min(runs)


def speed(n: int) -> dict[str, float]:
    """Return packets per CPU second on captures of ``n`` packets, plain, in tunnels and merged."""
    from switch_agent.replay.replayer import ReplayOptions, replay

    figures: dict[str, float] = {"replay.packets": n}
    with tempfile.TemporaryDirectory() as folder:
        path, second = Path(folder) / "ring.pcap", Path(folder) / "second.pcap"
        ring_capture(path, 1000)
        ring_capture(second, 1000, seed=2)
        replay([str(path), str(second)], ReplayOptions(infer_steps=True))  # compiles
        for name, outer in TUNNELS.items():
            ring_capture(path, n, outer=outer)
            cpu, wall = best_of_three([str(path)], n)
            suffix = "" if name == "plain" else f".{name}"
            figures[f"replay.packets_per_cpu_s{suffix}"] = round(n / cpu)
            if name == "plain":
                infer = ReplayOptions(infer_steps=True)
                figures["replay.packets_per_cpu_s.infer_steps"] = round(n / best_of_three([str(path)], n, infer)[0])
                figures["replay.wall_s"] = round(wall, 3)
                halves(path, second)
                figures["replay.packets_per_cpu_s.merged"] = round(n / best_of_three([str(path), str(second)], n)[0])
    return figures


def halves(path: Path, second: Path) -> None:
    """Deal the packets of a plain capture out to two files, by whose they are."""
    data = np.fromfile(path, np.uint8)
    rows = data[24:].reshape(-1, 16 + SNAP)
    odd = (rows[:, 16 + 29] & 1).astype(bool)
    for target, mine in ((path, rows[~odd]), (second, rows[odd])):
        target.write_bytes(data[:24].tobytes() + mine.tobytes())


def check(report: ReplayReport, n: int) -> None:
    """Every packet must have gone through the pipeline, or the speed means nothing."""
    assert report.jobs[0].packets == n
    assert report.jobs[0].outpacing > 0
    assert report.jobs[0].would_mark > 0


# ------------------------------------------------------------------------------------ fuzz


def templates() -> list[tuple[int, bytes]]:
    """Return (link type, frame) of every form the decoder knows."""
    bth = bytes((7, 0, 0xFF, 0xFF, 0, 0, 0, 17, 0, 0, 1, 0)) + bytes(20)
    udp = struct.pack(">HHHH", 0xC401, 4791, 8 + len(bth), 0) + bth
    v4 = struct.pack(">BBHHHBBHII", 0x45, 2, 20 + len(udp), 0, 0x4000, 64, 17, 0, 0x0A000001, 0x0A000002) + udp
    v6 = struct.pack(">IHBB", 0x60200000, len(udp), 17, 64) + bytes(32) + udp
    ack = v4[:28] + b"\x11" + v4[29:]
    frames = []
    for ethertype, packet in ((0x0800, v4), (0x86DD, v6), (0x0800, ack)):
        kind = struct.pack(">H", ethertype)
        frames += [
            (1, bytes(12) + kind + packet),
            (1, bytes(12) + b"\x81\x00\x00\x05" + kind + packet),
            (1, bytes(12) + b"\x88\xa8\x00\x05\x81\x00\x00\x06" + kind + packet),
            (113, bytes(14) + kind + packet),
            (276, kind + bytes(18) + packet),
            (101, packet),
            (0, bytes(4) + packet),
            (197, bytes(8) + b"\x02" + bytes(9) + bytes(12) + kind + packet),
        ]
    inner = bytes(12) + b"\x08\x00" + v4
    geneve = struct.pack(">HHHH", 50000, 6081, 200, 0) + b"\x01\x00\x65\x58" + bytes(8)
    wrappers = [*TUNNELS.values(), outer_ipv4(47, b"\x00\x00\x65\x58"), outer_ipv4(17, geneve)]
    wrappers += [bytes(12) + b"\x88\x47\x00\x00\x11\x40" + bytes(4), outer_ipv4(47, b"\0\0\x22\xeb\x20" + bytes(11))]
    for first in wrappers:
        for second in wrappers:
            frames += [(1, first + second + inner), (1, first + second + first + second + inner)]
    extended = v6[:6] + b"\x00" + v6[7:40] + b"\x2c\0" + bytes(6) + b"\x11\0" + bytes(6) + udp
    grh = v6[:6] + b"\x1b" + v6[7:40] + bth
    pppoe = b"\x88\x64\x11\x00\x00\x01\x00\x50\x00\x21" + v4
    options = b"\x47" + v4[1:20] + bytes(8) + udp
    lrh = bytes((0, 2, 0, 9, 0, 10, 0, 7)) + bth
    frames += [(1, bytes(12) + b"\x86\xdd" + extended), (1, bytes(12) + b"\x89\x15" + grh), (1, bytes(12) + pppoe)]
    frames += [
        (101, options),
        (247, lrh),
        (247, b"\0\x03" + lrh[2:8] + grh),
        (197, bytes(8) + b"\x15" + bytes(7) + lrh),
    ]
    return frames


def mutate_frame(frame: bytes, rng: np.random.Generator) -> bytes:
    """Return a frame with bits flipped, a length overwritten or the end missing."""
    data = bytearray(frame)
    kind = rng.integers(4)
    if kind in (0, 3):
        for bit in rng.integers(0, 8 * len(data), rng.integers(1, 9)).tolist():
            data[bit // 8] ^= 1 << bit % 8
    if kind in (1, 3):
        at = int(rng.integers(0, len(data) - 1))
        data[at : at + 2] = int(rng.choice([0, 1, 7, 19, 0x4F00, 0x7FFF, 0xFFFF])).to_bytes(2, "big")
    if kind in (2, 3):
        del data[int(rng.integers(0, len(data))) :]
    return bytes(data)


def block(kind: int, body: bytes) -> bytes:
    """Return a little-endian pcapng block."""
    body += bytes(-len(body) % 4)
    return struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))


def mutated_frames(rng: np.random.Generator) -> list[tuple[int, bytes]]:
    """Return 1000 mutated frames with their link types."""
    frames = templates()
    chosen = (frames[i] for i in rng.integers(0, len(frames), FILE_PACKETS).tolist())
    return [(link, mutate_frame(frame, rng)) for link, frame in chosen]


def fuzz_file(frames: list[tuple[int, bytes]], rng: np.random.Generator, mutate_container: bool) -> bytes:
    """Return a capture of ``frames``; its own headers and lengths are mutated too if asked for."""
    if rng.integers(2):
        link = int(rng.choice([1, 113, 276, 101, 0, 147, 197, 247]))
        parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)]
        for i, (_, data) in enumerate(frames):
            parts.append(struct.pack("<IIII", 1000 + i, i, len(data), 4170) + data)
    else:
        links = sorted({link for link, _ in frames})
        parts = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
        for i, link in enumerate(links):
            parts.append(block(1, struct.pack("<HHI", link, 0, 0) + struct.pack("<HHI", 9, 1, (6, 9, 12, 0x94)[i % 4])))
        for i, (link, data) in enumerate(frames):
            head = struct.pack("<IIIII", links.index(link), i, 77 * i, len(data), 4170)
            parts.append(block(6, head + data))
    file = np.frombuffer(b"".join(parts), np.uint8).copy()
    if mutate_container:
        where = rng.integers(0, len(file), int(rng.integers(1, 40)))
        file[where] = rng.integers(0, 256, len(where))
        file = file[: int(rng.integers(len(file) // 2, len(file) + 1))]
    return file.tobytes()


def stays_inside(frames: list[tuple[int, bytes]]) -> None:
    """What lies behind a frame's last captured byte must not change what is decoded."""
    from switch_agent.replay.frames import decode, new_packets
    from switch_agent.replay.records import new_records

    results = []
    for filler in (b"\x00", b"\xff"):
        records, packets = new_records(len(frames)), new_packets(len(frames))
        data = bytearray()
        for i, (link, frame) in enumerate(frames):
            records.start[i], records.captured[i], records.link[i] = len(data), len(frame), link
            data += frame + filler * 64
        decode(np.frombuffer(bytes(data), np.uint8).copy(), records, len(frames), packets)
        good = packets.outcome == 0
        results.append([packets.outcome, *(column[good] for column in packets[1:])])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True)), "a frame was read past its end"


def fuzz(n: int, seed: int = 1) -> dict[str, int]:
    """Replay captures with ``n`` mutated packets in all; return what became of them."""
    from switch_agent.replay.replayer import ReplayOptions, replay

    rng = np.random.default_rng(seed)
    seen = {"packets": 0, "decoded": 0, "other": 0, "closed": 0, "junk": 0, "files": 0, "incomplete": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.pcap"
        while seen["packets"] < n:
            frames = mutated_frames(rng)
            stays_inside(frames)
            path.write_bytes(fuzz_file(frames, rng, mutate_container=seen["files"] % 4 == 0))
            seen["files"] += 1
            try:
                bits, infer_steps = int(rng.integers(2, 15)), bool(rng.integers(2))
                report = replay(str(path), ReplayOptions(step_bits=bits, window_ms=1.0, infer_steps=infer_steps))
            except CaptureError:
                seen["refused"] += 1
                continue
            capture = report.capture
            other, closed, junk = (sum(counts.values()) for counts in (capture.other, capture.closed, capture.junk))
            assert capture.records == capture.roce + other + closed + junk, "records got lost"
            seen["packets"] += capture.records
            seen["decoded"] += capture.roce
            seen["other"] += other
            seen["closed"] += closed
            seen["junk"] += junk
            seen["incomplete"] += capture.files[0].incomplete is not None
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--packets", type=int, default=2_000_000)
    parser.add_argument("--fuzz", type=int, metavar="N", help="mutated packets instead of speed")
    args = parser.parse_args()
    if args.fuzz and os.environ.get("NUMBA_BOUNDSCHECK") != "1":
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache}
            return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
    figures: dict[str, float] | dict[str, int] = fuzz(args.fuzz) if args.fuzz else speed(args.packets)
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28} {value:>12,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
