# SPDX-License-Identifier: Apache-2.0
"""Numbers the P4 program, its control plane and the twin share.

The widths and sizes are those of the program that fits Tofino 2. Steps and PSNs are kept left-aligned in
32-bit words, so that a 32-bit subtraction wraps where the tag and the PSN wrap (RFC 1982 serial arithmetic).
"""

from __future__ import annotations

__all__ = [
    "AHEAD",
    "DATA_OPCODES",
    "EXPIRED",
    "LAG",
    "LAST",
    "LAST_OPCODES",
    "LOG_FRACTION",
    "MARK",
    "N_CLASS",
    "N_FLOW",
    "N_JOB",
    "N_STATE",
    "PSN_BITS",
    "PSN_SHIFT",
    "STEP_BITS",
    "STEP_SHIFT",
    "TAU_FRACTION",
    "TIME_UNIT_NS",
    "TRACKED",
]

STEP_BITS = 10
"""Low bits of the UDP source port that carry the step."""
STEP_SHIFT = 32 - STEP_BITS
"""A step register holds ``step << STEP_SHIFT | 1``."""
PSN_BITS = 24
"""Width of a packet sequence number in the BTH (IB spec vol. 1, 9.2)."""
PSN_SHIFT = 32 - PSN_BITS
"""A PSN register holds ``psn << PSN_SHIFT``."""
TIME_UNIT_NS = 256
"""The switch's clock is ``global_tstamp[39:8]``: 32 bits in units of 256 ns, wraps after 18.3 min."""

N_STATE = 1024
"""Entries of each state register: one per job, or per job and egress port."""
N_JOB = 1024
"""Entries of the parameter table and of the job counters."""
N_FLOW = 16384
"""Slots of the register of first PSNs; a slot index is 14 bits of CRC16."""
N_CLASS = 2048
"""Entries of the classification table."""

LOG_FRACTION = 256
"""Logarithms are fixed-point numbers in 1/256 octave."""
TAU_FRACTION = 256
"""The tolerance tau of eq. 3 is a multiple of 1/256."""

DATA_OPCODES = frozenset({6, 7, 8, 9, 10, 11})
"""BTH opcodes that carry ring data: RC RDMA WRITE first, middle, last, last with immediate, only, only with
immediate (IB spec vol. 1, table 38)."""
LAST_OPCODES = frozenset({9, 11})
"""The data opcodes that end a step: a write's last or only packet with immediate."""

# Bits of the verdict on one packet.
TRACKED = 1
"""The packet belongs to an enabled job and updated its state."""
AHEAD = 2
"""Its step is ahead of step_min as it was before this packet: it counts as outpacing."""
MARK = 4
"""Candidate for a congestion mark; the gate, if on, is decided at dequeue."""
LAG = 8
"""It lowered step_min; never set for the last packet of a step."""
EXPIRED = 16
"""It opened a new window."""
LAST = 32
"""It ends its flow's step."""
