# SPDX-License-Identifier: Apache-2.0
"""A running fabric: the engine's arrays with names, and the operations on them.

`Fabric` knows packets, messages and queue pairs, not verbs objects (that is `fabric_twin.verbs`) and not
BF-Runtime (that is `fabric_twin.switch`). All of it runs on one thread; between two calls of `run` the state is
consistent and may be changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fabric_twin.engine import dcqcn, kernel
from fabric_twin.engine.dcqcn import CcQp
from fabric_twin.engine.state import (
    ACTIVE_MAX,
    CC_SHIFT,
    E_ACKED,
    E_DELIVERED,
    E_RETRY_EXC,
    E_RNR_RETRY_EXC,
    M_DATA,
    M_IMM,
    M_SIGNALED,
    M_WRITE_IMM,
    MAX_HOPS,
    MTU_HEADER_BYTES,
    NEVER,
    PORT_SHIFT,
    Ctl,
    Event,
    Msg,
    Packet,
    Planes,
    Port,
    Qp,
    Sc,
    Sw,
    View,
    grow_pool,
    new_pool,
)
from fabric_twin.errors import FabricError
from fabric_twin.presets import DCQCN_SETS, Preset
from fabric_twin.topology import Host, leaf_spine
from switch_agent.dataplane.constants import N_JOB
from switch_agent.dataplane.hashes import flow_signature, flow_slot
from switch_agent.dataplane.pipeline import new_lookups, new_registers

__all__ = ["ACKED", "DELIVERED", "RETRY_EXC", "RNR_RETRY_EXC", "Fabric", "FabricEvent", "Stats"]

DELIVERED = E_DELIVERED
ACKED = E_ACKED
RETRY_EXC = E_RETRY_EXC
RNR_RETRY_EXC = E_RNR_RETRY_EXC

PS_PER_NS = 1000
CLOCK_ALIGN_PS = (1 << 30) * PS_PER_NS
"""A seeded run starts at a multiple of this, so that nothing depends on what ran before."""
NUM_PIPES = 4
RTO_LINES = 8
ACK_BYTES = MTU_HEADER_BYTES + 4
Classify = Callable[[int, int, int], "tuple[int, int] | None"]


class FabricEvent(NamedTuple):
    """Something a host learns: a message arrived, was acknowledged, or its QP failed."""

    time_ps: int
    kind: int
    qp: int
    message: int


@dataclass(frozen=True)
class Stats:
    """Work done so far; `cpu_s` is processor time spent inside the engine."""

    data_packets: int
    events: int
    cpu_s: float
    drops: int
    cnps: int


class Fabric:
    """Hosts, links and switches of a preset in virtual time.

    Args:
        preset: the fabric to build.
        seed: of RED's and Symphony's coins and of the ECMP hash.
    """

    def __init__(self, preset: Preset, seed: int = 1) -> None:
        self.preset = preset
        self.topology = leaf_spine(preset, seed)
        self.seed = seed
        self.num_pipes = NUM_PIPES
        self.cpu_s = 0.0
        self._qps: dict[int, _QpInfo] = {}
        self._free_qps: list[int] = []
        self._classify: list[Classify | None] = [None] * preset.tors
        self._ctl_lines: dict[int, int] = {}
        self._rto_lines: dict[int, int] = {}
        self._host_totals: dict[int, Any] = {}
        self.view, self.planes = self._new_state(seed)

    # ---------------------------------------------------------------------------------------- construction

    def _new_state(self, seed: int) -> tuple[View, Planes]:
        preset, topology = self.preset, self.topology
        n_ports = len(topology.ports)
        n_switches = len(topology.switches)
        n_lines = 1 + RTO_LINES + MAX_HOPS  # pause frames, timeouts, acknowledgements by distance
        size = 1 << (n_ports + n_lines - 1).bit_length()
        sc = np.zeros(Sc.COLUMNS, dtype=np.int64)
        key = np.full(size, NEVER, dtype=np.int64)
        win = np.zeros(2 * size, dtype=np.int32)
        win[size:] = np.arange(size)
        for i in range(size - 1, 0, -1):
            win[i] = win[2 * i]
        pk = new_pool(16384, Packet.COLUMNS)
        ctl = new_pool(16384, Ctl.COLUMNS)
        sc[Sc.FREE_PACKETS] = len(pk) // Packet.COLUMNS
        sc[Sc.FREE_CTLS] = len(ctl) // Ctl.COLUMNS
        sc[Sc.N_PORTS], sc[Sc.CTL_BASE], sc[Sc.TREE_SIZE] = n_ports, n_ports, size
        sc[Sc.PFC_LINE] = 0
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
            tor = info.peer if 0 <= info.peer < preset.tors else -1
            row[Port.ROW] = -1 if tor < 0 else tor * NUM_PIPES + (0 if info.node < 0 else 1)
        sw = np.zeros((n_switches, Sw.COLUMNS), dtype=np.int64)
        sw[:, Sw.BUFFER] = preset.buffer_bytes
        sw[:, Sw.PIPELINE] = [s.index if s.tier == 0 else -1 for s in topology.switches]
        line = np.full((n_lines, 4), -1, dtype=np.int64)
        capacity = 64
        view = View(
            sc=sc,
            key=key,
            win=win,
            port=port.reshape(-1),
            sw=sw.reshape(-1),
            pk=pk,
            ctl=ctl,
            line=line.reshape(-1),
            qp=np.zeros(capacity * Qp.COLUMNS, dtype=np.int64),
            ccq=np.zeros(capacity * CcQp.COLUMNS, dtype=np.float64),
            cc=DCQCN_SETS[preset.dcqcn].vector(),
            msg=new_pool(1024, Msg.COLUMNS),
            active=np.zeros(preset.n_hosts * ACTIVE_MAX, dtype=np.int32),
            out=np.zeros(8192 * Event.COLUMNS, dtype=np.int64),
            enabled=np.zeros(preset.tors * N_JOB, dtype=np.uint8),
            counts=np.zeros(preset.tors * NUM_PIPES * N_JOB * 8, dtype=np.int64),
        )
        planes = Planes(
            regs=new_registers(preset.tors * NUM_PIPES),
            lut=new_lookups(preset.tors),
            params=np.zeros((preset.tors, N_JOB, 10), dtype=np.int64),
        )
        self._free_msg = 0
        self._free_qps = [i * Qp.COLUMNS for i in range(capacity - 1, -1, -1)]
        self._seed_random(view, seed)
        return view, planes

    @staticmethod
    def _seed_random(view: View, seed: int) -> None:
        word = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] | np.uint64(1)
        view.sc[Sc.RNG] = word.astype(np.int64)

    # ---------------------------------------------------------------------------------------- time

    @property
    def now_ps(self) -> int:
        """Virtual time in picoseconds."""
        return int(self.view.sc[Sc.NOW])

    @property
    def now_ns(self) -> int:
        """Virtual time in nanoseconds."""
        return self.now_ps // PS_PER_NS

    @property
    def next_event_ps(self) -> int | None:
        """Time of the next event, or None when nothing will happen by itself."""
        t = int(self.view.key[self.view.win[1]])
        return None if t >= NEVER else t

    def run(self, until_ps: int | None = None, max_events: int = 50_000) -> int:
        """Let virtual time pass: to `until_ps`, to the next completion, or for `max_events` events.

        Returns one of `kernel.REACHED`, `STOPPED`, `SLICE`, `IDLE`. Take the events afterwards.
        """
        limit = int(NEVER) if until_ps is None else until_ps
        began = time.thread_time()
        while True:
            reason = int(kernel.run(self.view, self.planes, limit, max_events))
            if reason != kernel.GROW:
                break
            self._grow_pools()
            if self.view.sc[Sc.N_OUT] > len(self.view.out) // (2 * Event.COLUMNS):
                reason = kernel.STOPPED
                break
        self.cpu_s += time.thread_time() - began
        return reason

    def _grow_pools(self) -> None:
        s = self.view
        if s.sc[Sc.FREE_PACKETS] < kernel.MARGIN:
            pool, head = grow_pool(s.pk, Packet.COLUMNS, int(s.sc[Sc.FREE_PACKET]))
            s.sc[Sc.FREE_PACKETS] += len(s.pk) // Packet.COLUMNS
            s.sc[Sc.FREE_PACKET] = head
            self.view = s = s._replace(pk=pool)
        if s.sc[Sc.FREE_CTLS] < kernel.MARGIN:
            pool, head = grow_pool(s.ctl, Ctl.COLUMNS, int(s.sc[Sc.FREE_CTL]))
            s.sc[Sc.FREE_CTLS] += len(s.ctl) // Ctl.COLUMNS
            s.sc[Sc.FREE_CTL] = head
            self.view = s._replace(ctl=pool)

    def take_events(self) -> list[FabricEvent]:
        """What hosts have learnt since the last call, in order of time."""
        n = int(self.view.sc[Sc.N_OUT])
        if n == 0:
            return []
        self.view.sc[Sc.N_OUT] = 0
        return [FabricEvent(*row) for row in self.view.out[: n * Event.COLUMNS].reshape(n, Event.COLUMNS).tolist()]

    def quiesce(self, seed: int) -> None:
        """With no traffic left, start afresh: the clock moves on to the next round number, all dice are re-thrown.

        A run after this depends on `seed` alone, not on what ran before.
        """
        while self.run(max_events=1_000_000) != kernel.IDLE:
            self.take_events()
        self.take_events()
        s = self.view
        s.sc[Sc.NOW] = (self.now_ps // CLOCK_ALIGN_PS + 1) * CLOCK_ALIGN_PS
        s.port[Port.RR :: Port.COLUMNS] = 0
        self.seed = seed
        self._seed_random(s, seed)
        self.topology.reseed(seed)
        for q in self._qps:
            self._route(q)

    # ---------------------------------------------------------------------------------------- queue pairs

    def create_qp(self, host: Host, qp_num: int) -> int:
        """A new queue pair on `host`; returns its row."""
        if not self._free_qps:
            self._grow_qps()
        q = self._free_qps.pop()
        row = self._qp(q)
        generation = row[Qp.GENERATION]
        row[:] = 0
        row[Qp.GENERATION] = (generation + 1) & 0xFFFF
        row[Qp.SRC] = host.index
        row[Qp.NIC] = host.nic << PORT_SHIFT
        row[[Qp.PEER, Qp.UNA_MSG, Qp.SEND_MSG, Qp.TAIL_MSG, Qp.RX_MSG]] = -1
        row[Qp.CNP_AT] = -NEVER
        self._qps[q] = _QpInfo(host, qp_num)
        return q

    def _qp(self, q: int) -> Any:
        return self.view.qp[q : q + Qp.COLUMNS]

    def _grow_qps(self) -> None:
        s = self.view
        n = len(s.qp)
        self.view = s._replace(qp=np.concatenate([s.qp, 0 * s.qp]), ccq=np.concatenate([s.ccq, 0 * s.ccq]))
        self._free_qps = list(range(2 * n - Qp.COLUMNS, n - 1, -Qp.COLUMNS))

    def connect(
        self,
        q: int,
        dest: Host,
        peer: int | None,
        *,
        mtu: int,
        sport: int,
        psn: int,
        ect: bool,
        timeout: int,
        retry_cnt: int,
        rnr_retry: int,
        rnr_timer_ps: int,
    ) -> None:
        """Make `q` ready to receive and send, at line rate and with nothing on its way.

        Args:
            q: row of the queue pair.
            dest: host of the other end.
            peer: row of the other end; None: there is no such QP, packets will find nobody.
            mtu: payload bytes per packet.
            sport: UDP source port of its packets.
            psn: first PSN on the wire.
            ect: packets are ECN capable.
            timeout: exponent of the local ACK timeout, 4.096 us * 2^timeout (IB spec 9.7.6.1.3); 0 = never.
            retry_cnt: timeouts before the QP fails.
            rnr_retry: RNR NAKs before it fails; 7 = no limit.
            rnr_timer_ps: pause after an RNR NAK.
        """
        s = self.view
        row = self._qp(q)
        info = self._qps[q]
        row[Qp.PEER] = -1 if peer is None else peer
        row[Qp.MTU] = mtu
        row[Qp.PSN_OFFSET] = psn
        row[Qp.ECT] = int(ect)
        row[Qp.RETRY_CNT], row[Qp.RNR_RETRY], row[Qp.RNR_PS] = retry_cnt, rnr_retry, rnr_timer_ps
        row[Qp.RTO_LINE] = self._rto_line(timeout)
        row[Qp.STATE] = 1
        line_bps = 8e12 / s.port[(info.host.nic << PORT_SHIFT) + Port.PS_PER_BYTE]
        dcqcn.reset(s.ccq, q >> CC_SHIFT, float(line_bps))
        info.dest = dest
        info.sport = sport
        self._route(q)

    def set_sport(self, q: int, sport: int) -> None:
        """Packets sent from now on carry this source port, and may take another path."""
        self._qps[q].sport = sport
        self._route(q)

    def reset_qp(self, q: int) -> None:
        """Back to RESET: unsent messages vanish, packets on their way will be ignored. Frees its messages."""
        s = self.view
        kernel.stop_sending(s, q)
        row = self._qp(q)
        m = int(row[Qp.UNA_MSG])
        while m >= 0:
            after = int(s.msg[m + Msg.NEXT])
            self.free_message(m)
            m = after
        keep = row[[Qp.SRC, Qp.NIC, Qp.TX_PACKETS, Qp.RETRANSMITTED]].copy()
        counters = row[Qp.RX_PACKETS : Qp.RNR_NAKS + 1].copy()
        generation = (int(row[Qp.GENERATION]) + 1) & 0xFFFF
        row[:] = 0
        row[[Qp.SRC, Qp.NIC, Qp.TX_PACKETS, Qp.RETRANSMITTED]] = keep
        row[Qp.RX_PACKETS : Qp.RNR_NAKS + 1] = counters
        row[[Qp.PEER, Qp.UNA_MSG, Qp.SEND_MSG, Qp.TAIL_MSG, Qp.RX_MSG]] = -1
        row[Qp.CNP_AT] = -NEVER
        row[Qp.GENERATION] = generation

    def destroy_qp(self, q: int) -> None:
        """Forget the queue pair; its counters go to its host."""
        self.reset_qp(q)
        for other in self._qps:
            if self.view.qp[other + Qp.PEER] == q:
                self.view.qp[other + Qp.PEER] = -1
        info = self._qps.pop(q)
        totals = self._host_totals.setdefault(info.host.index, np.zeros(Qp.COLUMNS, dtype=np.int64))
        totals += self._qp(q)
        self._free_qps.append(q)

    def receives(self, q: int, change: int) -> None:
        """Post (or take back) `change` receives."""
        self.view.qp[q + Qp.RQ] += change

    def is_drained(self, q: int) -> bool:
        """No message waits for its acknowledgement."""
        return int(self.view.qp[q + Qp.UNA_MSG]) < 0

    def _rto_line(self, timeout: int) -> int:
        line = self._rto_lines.get(timeout)
        if line is None:
            if len(self._rto_lines) == RTO_LINES:
                known = ", ".join(str(t) for t in sorted(self._rto_lines))
                raise FabricError(f"the twin keeps {RTO_LINES} different ACK timeouts ({known}); use one of them")
            line = 4 * (1 + len(self._rto_lines))
            self._rto_lines[timeout] = line
            never = 1 << 60
            self.view.line[line] = round(4.096e6 * 2**timeout) if timeout else never
        return line

    def _ctl_line(self, delay_ps: int) -> int:
        line = self._ctl_lines.get(delay_ps)
        if line is None:
            line = 4 * (1 + RTO_LINES + len(self._ctl_lines))
            self._ctl_lines[delay_ps] = line
            self.view.line[line] = delay_ps
        return line

    def _route(self, q: int) -> None:
        """Path, delay of acknowledgements, hashes and classification for the QP's present 5-tuple."""
        info = self._qps[q]
        if info.dest is None:
            return
        s = self.view
        row = self._qp(q)
        path = self.topology.path(info.host, info.dest, info.sport)
        ports = [p << PORT_SHIFT for p in path]
        row[Qp.PATH : Qp.PATH + MAX_HOPS] = -1
        row[Qp.PATH : Qp.PATH + len(path)] = ports
        row[Qp.HOPS] = len(path)
        row[Qp.SPORT] = info.sport
        back = sum(int(s.port[p + Port.DELAY_PS] + ACK_BYTES * s.port[p + Port.PS_PER_BYTE]) for p in ports)
        row[Qp.CTL_LINE] = self._ctl_line(back)
        src, dst = int(info.host.address), int(info.dest.address)
        peer = self._qps.get(int(row[Qp.PEER]))
        qpn = peer.qp_num if peer else 0
        row[Qp.SIG] = flow_signature(src, dst, qpn, info.sport)
        row[Qp.SLOT] = flow_slot(src, dst, qpn)
        self._classify_qp(q)

    def _classify_qp(self, q: int) -> None:
        info = self._qps[q]
        if info.dest is None:
            return
        row = self._qp(q)
        row[Qp.JOB : Qp.JOB + MAX_HOPS] = -1
        for hop in range(row[Qp.HOPS]):
            node = self.topology.ports[row[Qp.PATH + hop] >> PORT_SHIFT].peer
            if not 0 <= node < len(self._classify):
                continue
            classify = self._classify[node]
            found = classify(int(info.host.address), int(info.dest.address), info.sport) if classify else None
            if found is not None:
                row[Qp.JOB + hop], row[Qp.BLOCK + hop] = found

    # ---------------------------------------------------------------------------------------- messages

    def post(self, q: int, length: int, *, write: bool, imm: bool, signaled: bool) -> int:
        """Send a message of `length` bytes on the wire; returns its number."""
        s = self.view
        m = self._free_msg
        after = int(s.msg[m + Msg.NEXT])
        if after < 0:
            n = len(s.msg)
            pool, head = grow_pool(s.msg, Msg.COLUMNS, -1)
            self.view = s = s._replace(msg=pool)
            after = head
            assert head == n
        self._free_msg = after
        flags = (M_DATA if write else 0) | (M_IMM if imm else 0) | (M_SIGNALED if signaled else 0)
        s.msg[m + Msg.BYTES] = length
        s.msg[m + Msg.FLAGS] = flags | (M_WRITE_IMM if write and imm else 0)
        kernel.post(s, q, m)
        return m

    def free_message(self, m: int) -> None:
        """The message is over; its number may be used again."""
        self.view.msg[m + Msg.NEXT] = self._free_msg
        self._free_msg = m

    # ---------------------------------------------------------------------------------------- switches

    def set_classifier(self, tor: int, classify: Classify | None) -> None:
        """How ToR `tor` maps (source, destination, source port) to (Job_ID, state block), or to None."""
        self._classify[tor] = classify
        for q in self._qps:
            self._classify_qp(q)

    def set_hash_sport_mask(self, switch: int, mask: int) -> None:
        """Which bits of the UDP source port the ECMP hash of this switch sees."""
        self.topology.switches[switch].hash_sport_mask = mask
        for q in self._qps:
            self._route(q)

    def set_params(self, tor: int, job: int, values: tuple[int, ...] | None) -> None:
        """Parameters of a job on a ToR (`ParamEntry.values()`), or None: plain forwarding."""
        self.view.enabled[tor * N_JOB + job] = values is not None
        if values is not None:
            self.planes.params[tor, job] = values

    # ---------------------------------------------------------------------------------------- links, counters

    def set_link(self, name: str, *, gbps: float | None = None, drop: float | None = None) -> None:
        """Change a directed link while packets fly: its rate, or the probability that it loses a packet.

        Raises:
            FabricError: no such link, or a value out of range.
        """
        port = self.topology.port(name)
        if gbps is not None:
            if not 0.01 <= gbps <= 800:
                raise FabricError(f"link {name}: rate {gbps} Gb/s is out of range 0.01 to 800")
            port.gbps = gbps
            self._port(port.index)[Port.PS_PER_BYTE] = round(8000 / gbps)
        if drop is not None:
            if not 0 <= drop <= 1:
                raise FabricError(f"link {name}: drop probability {drop} is out of range 0 to 1")
            self._port(port.index)[Port.DROP_PROB] = round(drop * 2**32)

    def _port(self, index: int) -> Any:
        return self.view.port[index << PORT_SHIFT : (index + 1) << PORT_SHIFT]

    def link_counters(self, index: int) -> dict[str, int | float]:
        """Counters of a directed link."""
        row = self._port(index)
        return {
            "tx_bytes": int(row[Port.TX_BYTES]),
            "tx_packets": int(row[Port.TX_PACKETS]),
            "ecn_marked_by_queue": int(row[Port.MARKED]),
            "dropped": int(row[Port.DROPPED]),
            "queue_bytes": int(row[Port.Q_BYTES]),
            "queue_bytes_max": int(row[Port.MAX_Q_BYTES]),
            "pause_frames_received": int(row[Port.PAUSES]),
            "paused_s": float(row[Port.PAUSED_PS]) / 1e12,
        }

    def host_counters(self, host: Host) -> dict[str, int]:
        """NIC counters of a host, under the names of mlx5's hw_counters."""
        total = self._host_totals.get(host.index, np.zeros(Qp.COLUMNS, dtype=np.int64)).copy()
        for q, info in self._qps.items():
            if info.host.index == host.index:
                total += self._qp(q)
        return {
            "tx_packets": int(total[Qp.TX_PACKETS]),
            "rx_packets": int(total[Qp.RX_PACKETS]),
            "np_ecn_marked_roce_packets": int(total[Qp.RX_MARKED]),
            "np_cnp_sent": int(total[Qp.CNPS_SENT]),
            "rp_cnp_handled": int(total[Qp.CNPS_HANDLED]),
            "out_of_sequence": int(total[Qp.OUT_OF_SEQUENCE]),
            "local_ack_timeout_err": int(total[Qp.TIMEOUTS]),
            "rnr_nak_retry_err": int(total[Qp.RNR_NAKS]),
            "retransmitted_packets": int(total[Qp.RETRANSMITTED]),
        }

    def stats(self) -> Stats:
        """Work done so far."""
        sc = self.view.sc
        return Stats(
            data_packets=int(sc[Sc.DATA_PACKETS]),
            events=int(sc[Sc.EVENTS]),
            cpu_s=self.cpu_s,
            drops=int(sc[Sc.DROPS]),
            cnps=int(sc[Sc.CNPS]),
        )


@dataclass
class _QpInfo:
    host: Host
    qp_num: int
    dest: Host | None = None
    sport: int = 0xC000
