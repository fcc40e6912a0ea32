# SPDX-License-Identifier: Apache-2.0
"""Symphony as a Tofino 2 computes it: 32-bit integers, one access per register and packet; JIT-compiled.

``process_packet`` is the ingress of ``symphony.p4`` from flow_base to the mark, operation by operation. The
twin's switches and replay call it from their own ``@njit`` loops. Numba widens int32 arithmetic to 64 bits,
so each sum and difference that must wrap goes through ``_int32``; all values are carried as int64.

Numba's cache notices changes of a function's own file only. A compiled loop that is cached (``cache=True``)
keeps a copy of these functions, and these keep copies of the constants they import: after editing any module
of this package remove the caches (``__pycache__/*.nb[ci]``). Tests compile their loops without a cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.dataplane.constants import (
    AHEAD,
    EXPIRED,
    LAG,
    LAST,
    MARK,
    N_FLOW,
    N_STATE,
    PSN_SHIFT,
    STEP_SHIFT,
    TRACKED,
)
from switch_agent.dataplane.jit import inlined
from switch_agent.dataplane.lookup import BUCKETS_PER_OCTAVE, TernaryEntry, dense_array, lookup_tables
from switch_agent.dataplane.params import PARAM_FIELDS

__all__ = [
    "AHEAD",
    "EXPIRED",
    "LAG",
    "LAST",
    "MARK",
    "TRACKED",
    "Lookups",
    "Registers",
    "install_lookup",
    "mark_threshold",
    "new_lookups",
    "new_registers",
    "process_packet",
]

_LG_K, _LG_FLOOR, _D_OP, _D_OTH, _N_SAMPLE, _NEG_WINDOW, _WARMUP, _AMAX = (
    list(PARAM_FIELDS).index(name)
    for name in ("lg_k", "lg_floor", "d_op", "d_oth", "n_sample", "neg_window", "warmup", "amax")
)
_STEP_ONE = 1 << STEP_SHIFT
# A float64 has its exponent, then its mantissa below the sign bit: the upper bits number the dense buckets.
_BUCKET_SHIFT = 52 - (BUCKETS_PER_OCTAVE.bit_length() - 1)
_BUCKET_BIAS = 1023 * BUCKETS_PER_OCTAVE - 1


class Registers(NamedTuple):
    """State of the data plane; a row is one pipe of one switch. Shapes [n_rows, n_state], [n_rows, n_flow].

    Words are those of the P4 registers: steps ``step << 22 | 1``, PSNs ``psn << 8``, times in 256 ns units.
    """

    steps_mn: npt.NDArray[np.int32]
    steps_mx: npt.NDArray[np.int32]
    psn_rec: npt.NDArray[np.uint32]
    window_start: npt.NDArray[np.int32]
    score: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]  # type: ignore[assignment]  # hides tuple.count, on purpose
    alpha: npt.NDArray[np.uint16]
    flow_sig: npt.NDArray[np.int32]
    flow_base: npt.NDArray[np.int32]


class Lookups(NamedTuple):
    """Dense look-up arrays, a row per switch (see ``lookup.dense_array``)."""

    log2_psn: npt.NDArray[np.int16]
    log2_psn_rec: npt.NDArray[np.int16]
    log2_alpha: npt.NDArray[np.int16]
    exp2: npt.NDArray[np.uint32]


def new_registers(n_rows: int, n_state: int = N_STATE, n_flow: int = N_FLOW) -> Registers:
    """Return registers with the program's initial values: alpha 1, all else 0."""
    state, flow = (n_rows, n_state), (n_rows, n_flow)
    return Registers(
        steps_mn=np.zeros(state, np.int32),
        steps_mx=np.zeros(state, np.int32),
        psn_rec=np.zeros(state, np.uint32),
        window_start=np.zeros(state, np.int32),
        score=np.zeros(state, np.int32),
        count=np.zeros(state, np.int32),
        alpha=np.ones(state, np.uint16),
        flow_sig=np.zeros(flow, np.int32),
        flow_base=np.zeros(flow, np.int32),
    )


def new_lookups(n_switches: int) -> Lookups:
    """Return look-ups for ``n_switches`` switches, filled with the generated entries."""
    rows = (dense_array(table.name, table.entries, table.default) for table in lookup_tables().values())
    return Lookups(*(np.tile(row, (n_switches, 1)) for row in rows))


def install_lookup(lookups: Lookups, row: int, name: str, entries: Iterable[TernaryEntry], default: int) -> None:
    """Make switch ``row`` use ``entries`` as its table ``name``; the arrays change in place.

    Raises:
        LookupTableError: no such table, or entries that do not fit it.
    """
    dense = dense_array(name, entries, default)
    getattr(lookups, name)[row] = dense


@inlined
def _int32(value: int) -> int:
    """Truncate an integer of any type to 32 bits and sign-extend it."""
    return ((int(np.int64(value)) & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@inlined
def _psn_bucket(word: int) -> int:
    """Return the dense index of a left-aligned PSN word (0 <= word < 2^32)."""
    bits = np.float64(word >> PSN_SHIFT).view(np.int64)
    return max(0, int((bits >> _BUCKET_SHIFT) - _BUCKET_BIAS))


@inlined
def mark_threshold(lut: Lookups, lut_row: int, params: npt.NDArray[np.int64], rel: int, rec: int, alpha: int) -> int:
    """Return 2^32 times the marking probability (eq. 1 and 4): a packet is marked if rnd < threshold.

    Args:
        lut: look-ups.
        lut_row: the switch's row in them.
        params: int64[10], ``ParamEntry.values()``.
        rel: relative PSN << 8.
        rec: psn_rec << 8.
        alpha: alpha, 1 .. 65535.
    """
    lg_ratio = np.int64(lut.log2_psn[lut_row, _psn_bucket(rel)]) + lut.log2_psn_rec[lut_row, _psn_bucket(rec)]
    lg_ratio = max(((lg_ratio & 0xFFFF) ^ 0x8000) - 0x8000, params[_LG_FLOOR])  # an int<16> field
    lg = params[_LG_K] + lut.log2_alpha[lut_row, alpha & 0xFFFF] + lg_ratio
    return int(np.int64(lut.exp2[lut_row, lg & 0xFFFF]))


@inlined
def process_packet(
    regs: Registers,
    row: int,
    lut: Lookups,
    lut_row: int,
    state: int,
    params: npt.NDArray[np.int64],
    sport: int,
    psn: int,
    is_last: bool,
    sig: int,
    slot: int,
    now: int,
    rnd: int,
) -> int:
    """Take one data packet of an enabled job through the state of ``row`` and return its verdict bits.

    A packet whose state or slot index lies outside the registers passes untouched: verdict 0.

    Args:
        regs: registers, changed in place.
        row: pipe of a switch.
        lut: look-ups.
        lut_row: the switch's row in them.
        state: index of the state block (with the port's index already added for scope "port").
        params: int64[10], ``ParamEntry.values()``.
        sport: UDP source port with the step in its low 10 bits.
        psn: 24-bit packet sequence number.
        is_last: the packet ends its flow's step.
        sig: flow signature, 32 bits (``hashes.flow_signature``).
        slot: index of the flow's first PSN (``hashes.flow_slot``).
        now: time in units of 256 ns, truncated to 32 bits.
        rnd: 32-bit random number, unsigned.
    """
    if not (0 <= state < regs.alpha.shape[1] and 0 <= slot < regs.flow_base.shape[1]):
        return 0
    verdict = TRACKED
    step = _int32(int(np.int64(sport)) << STEP_SHIFT) | 1
    now = _int32(now)

    # Relative PSN: a new flow or step, or an older PSN, starts anew.
    psn_word = _int32(int(np.int64(psn)) << PSN_SHIFT)
    sig = _int32(sig)
    base = int(regs.flow_base[row, slot])
    if regs.flow_sig[row, slot] != sig or _int32(psn_word - base) < 0:
        regs.flow_sig[row, slot] = sig
        regs.flow_base[row, slot] = psn_word
        base = psn_word
    rel = (psn_word - base) & 0xFFFFFFFF

    # Window.
    expired = _int32(now + params[_NEG_WINDOW] - int(regs.window_start[row, state])) >= 0
    if expired:
        verdict |= EXPIRED
        regs.window_start[row, state] = now

    # step_min and step_max; the relation is taken against the old step_min.
    distance = _int32(step - int(regs.steps_mn[row, state]))
    ahead = distance > 0
    lag = False
    if is_last:
        verdict |= LAST
        regs.steps_mn[row, state] = _int32(step + _STEP_ONE)
    elif distance < 0:
        lag = True
        verdict |= LAG
        regs.steps_mn[row, state] = step
    if _int32(step - int(regs.steps_mx[row, state])) > 0:
        regs.steps_mx[row, state] = step

    # psn_rec; only a packet ahead inside a window reads it.
    rec = int(regs.psn_rec[row, state])
    warm = False
    if is_last:
        regs.psn_rec[row, state] = 0
    elif ahead:
        if expired:
            regs.psn_rec[row, state] = 0
        else:
            warm = rec > params[_WARMUP]
    elif lag or expired or rel > rec:
        regs.psn_rec[row, state] = rel

    # Score and alpha; the packet that closes a window counts in the next one.
    delta = params[_D_OTH]
    if ahead:
        verdict |= AHEAD
        delta = params[_D_OP]
    alpha = int(regs.alpha[row, state])
    if expired:
        if regs.count[row, state] > params[_N_SAMPLE]:
            if regs.score[row, state] >= 0:
                if alpha < params[_AMAX]:
                    alpha += 1
            elif alpha > 1:
                alpha -= 1
            regs.alpha[row, state] = alpha
        regs.score[row, state] = _int32(delta)
        regs.count[row, state] = 1
    else:
        regs.score[row, state] = _int32(int(regs.score[row, state]) + delta)
        regs.count[row, state] = _int32(int(regs.count[row, state]) + 1)

    if warm and rnd < mark_threshold(lut, lut_row, params, rel, rec, alpha):
        verdict |= MARK
    return verdict
