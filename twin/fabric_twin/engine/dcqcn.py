# SPDX-License-Identifier: Apache-2.0
"""DCQCN's reaction point, evaluated lazily.

Two state machines, chosen by `Cc.MACHINE`:

`MLX`
    The one of the HPCC ns-3 code, modelled on ConnectX firmware: alpha decays every microsecond, a cut is
    taken at most every `DECREASE_PS`, a single timer drives the increase.
`SPEC`
    The DCQCN paper (Zhu et al., SIGCOMM 2015, section 3): a CNP cuts at once, timer and byte counter drive
    fast recovery, additive and hyper increase.

No timer is an event. Each QP remembers when its next tick is due; `advance` runs the due ticks, in time
order, whenever somebody looks at the rate (a packet leaves, a CNP arrives). A QP that nobody looks at
costs nothing.

Times are picoseconds, rates are bits per second.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from fabric_twin.engine.jit import inner

__all__ = ["Cc", "CcQp", "advance", "on_bytes_sent", "on_cnp", "reset"]

Floats = npt.NDArray[np.float64]
MLX = 0
SPEC = 1
NEVER = 1 << 62


class Cc(IntEnum):
    """Columns of the parameter vector (float64), one vector for the whole fabric."""

    MACHINE = 0
    G = 1  # gain of the alpha filter
    ALPHA_PS = 2  # alpha timer
    DECREASE_PS = 3  # MLX: shortest time between cuts
    INCREASE_PS = 4  # increase timer T
    F = 5  # fast recovery stages
    AI_BPS = 6
    HAI_BPS = 7
    MIN_BPS = 8
    CLAMP_TARGET = 9  # 1: the target follows the rate at every cut
    BYTE_COUNTER = 10  # SPEC: bytes per increase event, 0 = timer only
    CNP_INTERVAL_PS = 11  # notification point: shortest time between CNPs of a QP, 0 = one a marked packet
    COLUMNS = 12


class CcQp(IntEnum):
    """Columns of the per-QP state (float64)."""

    RATE = 0
    TARGET = 1
    ALPHA = 2
    LINE = 3  # line rate, the ceiling
    STARTED = 4  # a first CNP has come
    ALPHA_AT = 5  # time of the last alpha tick
    ALPHA_CNP = 6  # a CNP since then
    CUT_PENDING = 7
    CUT_AT = 8  # time of the pending cut
    CUT_BASE = 9  # phase of the cut timer
    NEXT_INCREASE = 10
    TIMER_STAGE = 11
    BYTE_STAGE = 12
    BYTES = 13
    WEIGHT = 14  # more than 1: it gives way less and recovers faster (`fabric_twin.algorithms`, prc)
    CAPPED = 15  # its ceiling is below the link's rate
    COLUMNS = 16


_RATE, _TARGET, _ALPHA, _LINE, _STARTED = CcQp.RATE, CcQp.TARGET, CcQp.ALPHA, CcQp.LINE, CcQp.STARTED
_ALPHA_AT, _ALPHA_CNP, _CUT_PENDING, _CUT_AT = CcQp.ALPHA_AT, CcQp.ALPHA_CNP, CcQp.CUT_PENDING, CcQp.CUT_AT
_CUT_BASE, _NEXT_INC, _T_STAGE = CcQp.CUT_BASE, CcQp.NEXT_INCREASE, CcQp.TIMER_STAGE
_B_STAGE, _BYTES, _WEIGHT = CcQp.BYTE_STAGE, CcQp.BYTES, CcQp.WEIGHT
_MACHINE, _G, _ALPHA_PS, _DECREASE_PS, _INCREASE_PS = (
    Cc.MACHINE, Cc.G, Cc.ALPHA_PS, Cc.DECREASE_PS, Cc.INCREASE_PS,
)  # fmt: skip
_F, _AI, _HAI, _MIN, _CLAMP, _BYTE_COUNTER = (
    Cc.F,
    Cc.AI_BPS,
    Cc.HAI_BPS,
    Cc.MIN_BPS,
    Cc.CLAMP_TARGET,
    Cc.BYTE_COUNTER,
)


@inner
def reset(qp: Floats, o: int, line_bps: float) -> None:
    """A new flow: line rate, no history (RoCE NICs have no slow start)."""
    for i in range(CcQp.COLUMNS):
        qp[o + i] = 0.0
    qp[o + _RATE] = line_bps
    qp[o + _TARGET] = line_bps
    qp[o + _LINE] = line_bps
    qp[o + _ALPHA] = 1.0
    qp[o + _WEIGHT] = 1.0
    qp[o + _NEXT_INC] = NEVER


@inner
def _alpha_to(cc: Floats, qp: Floats, o: int, t: float) -> None:
    ticks = np.floor((t - qp[o + _ALPHA_AT]) / cc[_ALPHA_PS])
    if ticks < 1.0:
        return
    g = cc[_G]
    alpha = qp[o + _ALPHA] * (1.0 - g)
    if qp[o + _ALPHA_CNP] != 0.0:
        alpha += g
        qp[o + _ALPHA_CNP] = 0.0
    if ticks > 1.0:
        alpha *= (1.0 - g) ** (ticks - 1.0)
    qp[o + _ALPHA] = alpha
    qp[o + _ALPHA_AT] += ticks * cc[_ALPHA_PS]


@inner
def _increase(cc: Floats, qp: Floats, o: int) -> None:
    """One increase event: fast recovery, additive or hyper increase, then half the way to the target."""
    f = cc[_F]
    if cc[_MACHINE] == MLX:
        hyper = qp[o + _T_STAGE] > f
        additive = qp[o + _T_STAGE] == f
    else:
        high = max(qp[o + _T_STAGE], qp[o + _B_STAGE])
        low = min(qp[o + _T_STAGE], qp[o + _B_STAGE])
        hyper = low > f
        additive = high > f and not hyper
    if hyper:
        qp[o + _TARGET] = min(qp[o + _LINE], qp[o + _TARGET] + cc[_HAI] * qp[o + _WEIGHT])
    elif additive:
        qp[o + _TARGET] = min(qp[o + _LINE], qp[o + _TARGET] + cc[_AI] * qp[o + _WEIGHT])
    qp[o + _RATE] = (qp[o + _RATE] + qp[o + _TARGET]) / 2.0


@inner
def _kept(qp: Floats, o: int) -> float:
    """The share of the rate that a cut leaves: 1 - alpha / 2 / weight, but half at least."""
    share: float = max(0.5, 1.0 - qp[o + _ALPHA] / 2.0 / qp[o + _WEIGHT])
    return share


@inner
def advance(cc: Floats, qp: Floats, o: int, t: float) -> None:
    """Run every tick of this QP that is due at time `t`."""
    if qp[o + _STARTED] == 0.0:
        return
    while True:
        cut_at = qp[o + _CUT_AT] if qp[o + _CUT_PENDING] != 0.0 else float(NEVER)
        inc_at = qp[o + _NEXT_INC]
        if min(cut_at, inc_at) > t:
            return
        if cut_at < inc_at:  # at the same time the increase comes first: its timer was started earlier
            _alpha_to(cc, qp, o, cut_at)
            if cc[_CLAMP] != 0.0 or qp[o + _T_STAGE] != 0.0:
                qp[o + _TARGET] = qp[o + _RATE]
            qp[o + _RATE] = max(cc[_MIN], qp[o + _RATE] * _kept(qp, o))
            qp[o + _T_STAGE] = 0.0
            qp[o + _CUT_PENDING] = 0.0
            qp[o + _NEXT_INC] = cut_at + cc[_INCREASE_PS]
        else:
            if cc[_MACHINE] == MLX:
                _increase(cc, qp, o)
                qp[o + _T_STAGE] += 1.0
            else:
                qp[o + _T_STAGE] += 1.0
                _increase(cc, qp, o)
            qp[o + _NEXT_INC] = inc_at + cc[_INCREASE_PS]


@inner
def on_bytes_sent(cc: Floats, qp: Floats, o: int, sent: float) -> None:
    """The byte counter of the SPEC machine."""
    if qp[o + _STARTED] == 0.0 or cc[_BYTE_COUNTER] == 0.0:
        return
    qp[o + _BYTES] += sent
    if qp[o + _BYTES] >= cc[_BYTE_COUNTER]:
        qp[o + _BYTES] -= cc[_BYTE_COUNTER]
        qp[o + _B_STAGE] += 1.0
        _increase(cc, qp, o)


@inner
def on_cnp(cc: Floats, qp: Floats, o: int, t: float) -> None:
    """A CNP reaches the reaction point at time `t`."""
    advance(cc, qp, o, t)
    first = qp[o + _STARTED] == 0.0
    if first:
        qp[o + _STARTED] = 1.0
        qp[o + _ALPHA] = 1.0
        qp[o + _ALPHA_AT] = t
    if cc[_MACHINE] == MLX:
        if first:
            qp[o + _CUT_BASE] = t + 1000.0  # the cut timer runs 1 ns behind the alpha timer
            qp[o + _CUT_PENDING] = 1.0
            qp[o + _CUT_AT] = qp[o + _CUT_BASE] + cc[_DECREASE_PS]
            return
        _alpha_to(cc, qp, o, t)
        qp[o + _ALPHA_CNP] = 1.0
        if qp[o + _CUT_PENDING] == 0.0:
            periods = np.floor((t - qp[o + _CUT_BASE]) / cc[_DECREASE_PS]) + 1.0
            qp[o + _CUT_AT] = qp[o + _CUT_BASE] + periods * cc[_DECREASE_PS]
            qp[o + _CUT_PENDING] = 1.0
        return
    # SPEC: alpha decays for every timer period without a CNP, then moves towards 1
    _alpha_to(cc, qp, o, t)
    qp[o + _TARGET] = qp[o + _RATE]
    qp[o + _RATE] = max(cc[_MIN], qp[o + _RATE] * _kept(qp, o))
    qp[o + _ALPHA] = (1.0 - cc[_G]) * qp[o + _ALPHA] + cc[_G]
    qp[o + _ALPHA_AT] = t
    qp[o + _T_STAGE] = 0.0
    qp[o + _B_STAGE] = 0.0
    qp[o + _BYTES] = 0.0
    qp[o + _NEXT_INC] = t + cc[_INCREASE_PS]
