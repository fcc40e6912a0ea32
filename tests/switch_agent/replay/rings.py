# SPDX-License-Identifier: Apache-2.0
"""Rings on the wire: packets of collectives in which each rank waits for its input, with the true step of each packet.

The simulation is of messages: a rank starts a step when the step before has come in and its link is free.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from replay_wire import ACK, Record, Roce, pcap, write

FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, SEND_ONLY_IMM = 6, 7, 8, 9, 10, 11, 5
MTU = 1024


@dataclass
class Ring:
    """What runs, and what of it is captured.

    ``sizes`` are the lengths of the messages of a step, ``immediate`` says which carry one: "last" of a step, "all",
    "none". ``turns`` is the number of QPs that take turns by step; ``channels`` rings run side by side on QPs of their
    own. ``slow`` is a rank whose link has half the rate. ``resend`` is the share of messages of which the end is sent
    twice, ``lost`` the share of packets that the capture lacks, ``begin`` the part of the time that it has missed.
    ``uneven`` makes one of the ring's chunks shorter.
    """

    ranks: int = 4
    iterations: int = 2
    sizes: tuple[int, ...] = (64 * MTU,)
    immediate: str = "last"
    turns: int = 1
    channels: int = 1
    slow: int | None = None
    resend: float = 0.0
    lost: float = 0.0
    begin: float = 0.0
    uneven: bool = False
    credits: bool = True
    pause_ns: int = 200_000
    snap: int = 74
    seed: int = 1
    first_host: int = 1

    def packets(self) -> list[tuple[Roce, int, int]]:
        """Return (packet, DMA length, step) in the order of time; the step of what carries none is -1."""
        rng = random.Random(self.seed)
        steps = 2 * (self.ranks - 1)
        found: list[tuple[Roce, int, int]] = []
        for channel in range(self.channels):
            psn = {(rank, q): rng.randrange(1 << 24) for rank in range(self.ranks) for q in range(self.turns)}
            free = [rng.randrange(20_000) for _ in range(self.ranks)]
            for iteration in range(self.iterations):
                arrived = [[0] * (steps + 1) for _ in range(self.ranks)]
                for step in range(steps):
                    for rank in range(self.ranks):
                        at = max(free[rank], arrived[(rank - 1) % self.ranks][step]) + rng.randrange(2000, 6000)
                        at = self._send(rng, found, channel, rank, iteration * steps + step, at, psn)
                        free[rank] = arrived[rank][step + 1] = at
                barrier = max(free) + self.pause_ns
                free = [barrier + rng.randrange(10_000) for _ in range(self.ranks)]
        found.sort(key=lambda item: item[0].at_ns)
        start = found[0][0].at_ns + self.begin * (found[-1][0].at_ns - found[0][0].at_ns)
        return [item for item in found if item[0].at_ns >= start and rng.random() >= self.lost]

    def _send(
        self,
        rng: random.Random,
        found: list[tuple[Roce, int, int]],
        channel: int,
        rank: int,
        step: int,
        at: int,
        psn: dict[tuple[int, int], int],
    ) -> int:
        q = step % self.turns
        rate = (200 if rank == self.slow else 100) + rng.randrange(20)
        src, dst = (f"10.0.0.{self.first_host + r % self.ranks}" for r in (rank, rank + 1))
        base = Roce(src=src, dst=dst, sport=0xC000 | step % 1024, qpn=0x100 + 64 * channel + 16 * rank + q)
        short = self.uneven and (rank - step) % self.ranks == self.ranks - 1
        for i, size in enumerate(self.sizes):
            length = size // 2 if short else size
            last_one = i == len(self.sizes) - 1
            imm = self.immediate == "all" or (self.immediate == "last" and last_one)
            n = max(1, -(-length // MTU))
            sent = []
            for k in range(n):
                opcode = MIDDLE if 0 < k < n - 1 else FIRST if k == 0 and n > 1 else LAST_IMM if imm else LAST
                if n == 1:
                    opcode = ONLY_IMM if imm else ONLY
                sent.append((opcode, (psn[rank, q] + k) % (1 << 24)))
            if rng.random() < self.resend:
                sent += sent[-min(7, n) :]
            psn[rank, q] += n
            for opcode, number in sent:
                at += rate
                found.append((base.but(at_ns=at, opcode=opcode, psn=number), length, step))
        back = base.but(src=dst, dst=src, qpn=base.qpn + 0x1000, at_ns=at + 700)
        found.append((back.but(opcode=ACK, psn=sent[-1][1]), 0, -1))
        if self.credits:
            found.append((back.but(opcode=SEND_ONLY_IMM, psn=step, at_ns=at + 900), 0, -1))
        return at

    def write(self, folder: Path, *, tags: bool = False) -> tuple[str, list[int]]:
        """Write a capture; return its path and the step of each record. Without tags the port is one number."""
        rows = []
        packets = self.packets()
        for packet, length, _ in packets:
            frame = packet.but(sport=packet.sport if tags else 51234).frame()
            if packet.opcode in (FIRST, ONLY, ONLY_IMM):
                reth = frame[:54] + bytes(12) + length.to_bytes(4, "big")
                frame = reth + frame[70:] if packet.opcode == FIRST else reth + bytes(8) + b"ICRC"
            if packet.opcode not in (ACK, SEND_ONLY_IMM):
                frame += bytes(min(length, MTU))
            rows.append(Record(packet.at_ns, frame, snap=self.snap))
        name = f"ring{self.first_host}-{self.seed}-{'tagged' if tags else 'hidden'}.pcap"
        return write(folder, pcap(rows), name), [step for *_, step in packets]
