# SPDX-License-Identifier: Apache-2.0
"""A topology as the engine's arrays."""

from __future__ import annotations

import numpy as np

from fabric_twin.engine.dcqcn import CcQp
from fabric_twin.engine.state import (
    ACTIVE_MAX,
    GAP_BYTES,
    HELD,
    MAX_DISTANCES,
    MTU_HEADER_BYTES,
    NEVER,
    SCALED_WINDOW,
    SELECTIVE,
    WINDOW,
    Ctl,
    Event,
    Hop,
    Msg,
    Packet,
    Planes,
    Port,
    Process,
    Qp,
    Sc,
    Sw,
    View,
    new_pool,
)
from fabric_twin.presets import DCQCN_SETS, Settings
from fabric_twin.topology import NUM_PIPES, PORTS_PER_PIPE, Topology
from switch_agent.dataplane.constants import N_JOB
from switch_agent.dataplane.pipeline import new_lookups, new_registers

__all__ = ["QP_ROWS", "RTO_LINES", "grow_lines", "new_state", "seed_random", "set_margin"]

RTO_LINES = 8
"""Different ACK timeouts that may be in use."""
QP_ROWS = 64
"""QPs there is room for at first; the arrays grow."""


def new_state(preset: Settings, topology: Topology, seed: int) -> tuple[View, Planes]:
    """All arrays of a fabric at time 0, with nothing on its way."""
    n_ports = len(topology.ports)
    n_switches = len(topology.switches)
    n_rows = len(topology.symphony_switches)
    delays = dict.fromkeys(round(info.delay_us * 1e6) for info in topology.ports)
    n_lines = len(delays) + RTO_LINES + MAX_DISTANCES  # pause frames, timeouts, acknowledgements by distance
    sc = np.zeros(Sc.COLUMNS, dtype=np.int64)
    pk = new_pool(16384, Packet.COLUMNS)
    ctl = new_pool(16384, Ctl.COLUMNS)
    sc[Sc.FREE_PACKETS] = len(pk) // Packet.COLUMNS
    sc[Sc.FREE_CTLS] = len(ctl) // Ctl.COLUMNS
    sc[Sc.N_PORTS], sc[Sc.CTL_BASE] = n_ports, n_ports
    sc[Sc.N_PAUSE_LINES] = len(delays)
    selective = preset.retransmission == "selective"
    sc[Sc.OPTIONS] = SELECTIVE if selective else 0
    sc[Sc.OPTIONS] |= {"off": 0, "bdp": WINDOW, "scaled": WINDOW | SCALED_WINDOW}[preset.window]
    sc[Sc.PFC_ON] = int(preset.pfc)
    sc[Sc.PFC_SHIFT] = 3
    sc[Sc.PFC_RESUME_OFFSET] = 3072
    port = np.zeros((n_ports, Port.COLUMNS), dtype=np.int64)
    for info in topology.ports:
        row = port[info.index]
        row[Port.PS_PER_BYTE] = round(8000 / info.gbps)
        row[Port.DELAY_PS] = round(info.delay_us * 1e6)
        row[Port.NODE] = info.node * Sw.COLUMNS if info.node >= 0 else -1
        row[Port.PEER] = info.peer * Sw.COLUMNS if info.peer >= 0 else -1
        row[Port.HOST] = info.host
        row[[Port.Q_HEAD, Port.Q_TAIL, Port.FLIGHT_HEAD, Port.FLIGHT_TAIL]] = -1
        row[Port.INDEX] = info.slot
        row[Port.KMIN], row[Port.KMAX] = preset.kmin, preset.kmax
        row[Port.PMAX] = round(preset.pmax * 2**32)
        pipeline = topology.switches[info.peer].pipeline if info.peer >= 0 else -1
        pipe = topology.ports[info.reverse].device_port // PORTS_PER_PIPE
        row[Port.ROW] = -1 if pipeline < 0 else pipeline * NUM_PIPES + pipe
    frame_ps = (preset.mtu + MTU_HEADER_BYTES + GAP_BYTES) * int(np.median(port[:, Port.PS_PER_BYTE]))
    sc[Sc.BUCKET_SHIFT] = (frame_ps // n_ports).bit_length()  # an event or less in a bucket, all ports being busy
    sw = np.zeros((n_switches, Sw.COLUMNS), dtype=np.int64)
    sw[:, Sw.BUFFER] = preset.buffer_bytes
    sw[:, Sw.PIPELINE] = [s.pipeline for s in topology.switches]
    line = np.full((n_lines, 4), -1, dtype=np.int64)
    line[: len(delays), 0] = list(delays)
    view = View(
        sc=sc,
        key=np.full(n_ports + n_lines, NEVER, dtype=np.int64),
        bucket=np.full(64 << n_ports.bit_length(), -1, dtype=np.int32),
        after=np.full(n_ports + n_lines, -1, dtype=np.int32),
        before=np.full(n_ports + n_lines, -1, dtype=np.int32),
        port=port.reshape(-1),
        sw=sw.reshape(-1),
        pk=pk,
        ctl=ctl,
        line=line.reshape(-1),
        qp=np.zeros(QP_ROWS * Qp.COLUMNS, dtype=np.int64),
        route=np.zeros(1024 * Hop.COLUMNS, dtype=np.int64),
        ccq=np.zeros(QP_ROWS * CcQp.COLUMNS, dtype=np.float64),
        cc=DCQCN_SETS[preset.dcqcn].vector(),
        msg=new_pool(1024, Msg.COLUMNS),
        process=np.zeros(Process.COLUMNS, dtype=np.int64),
        held=np.zeros(QP_ROWS * HELD if selective else 1, dtype=np.uint8),
        active=np.zeros(len(topology.hosts) * ACTIVE_MAX, dtype=np.int32),
        out=np.zeros(8192 * Event.COLUMNS, dtype=np.int64),
        enabled=np.zeros(n_rows * N_JOB, dtype=np.uint8),
        counts=np.zeros(n_rows * NUM_PIPES * N_JOB * 8, dtype=np.int64),
    )
    planes = Planes(
        regs=new_registers(n_rows * NUM_PIPES),
        lut=new_lookups(n_rows),
        params=np.zeros((n_rows, N_JOB, 10), dtype=np.int64),
    )
    seed_random(view, seed)
    set_margin(view)
    return view, planes


def grow_lines(view: View) -> View:
    """Twice as many delay lines."""
    n = len(view.line) // 4
    more = np.full(n, -1, dtype=np.int32)
    return view._replace(
        line=np.concatenate([view.line, np.full(4 * n, -1, dtype=np.int64)]),
        key=np.concatenate([view.key, np.full(n, NEVER, dtype=np.int64)]),
        after=np.concatenate([view.after, more]),
        before=np.concatenate([view.before, more]),
    )


def seed_random(view: View, seed: int) -> None:
    """Start the generators of the coins.

    Symphony has its own, so that runs with and without it see the same coins of RED and of lossy links (common random
    numbers), and a job that is tracked but not marked changes nothing.
    """
    words = np.random.SeedSequence(seed).generate_state(2, np.uint64) | np.uint64(1)
    view.sc[[Sc.RNG_FABRIC, Sc.RNG_SYMPHONY]] = words.astype(np.int64)


def set_margin(view: View) -> None:
    """Free records kept for one event: a NIC that catches up sends at most what fits on its wire."""
    smallest = (MTU_HEADER_BYTES + GAP_BYTES) * view.port[Port.PS_PER_BYTE :: Port.COLUMNS]
    view.sc[Sc.MARGIN] = 256 + int((view.port[Port.DELAY_PS :: Port.COLUMNS] // smallest).max())
