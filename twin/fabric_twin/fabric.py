# SPDX-License-Identifier: Apache-2.0
"""A running fabric: the engine's arrays with names, and the operations on them.

`Fabric` knows packets, messages and queue pairs, not verbs objects (that is `fabric_twin.verbs`) and not
BF-Runtime (that is `fabric_twin.switch`). All of it runs on one thread; between two calls of `run` the state is
consistent and may be changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fabric_twin.engine import dcqcn, kernel, progress
from fabric_twin.engine.state import (
    ACTIVE_MAX,
    CC_SHIFT,
    COUNTERS,
    E_ACKED,
    E_DELIVERED,
    E_RETRY_EXC,
    E_RNR_RETRY_EXC,
    M_DATA,
    M_IMM,
    M_SIGNALED,
    M_WRITE_IMM,
    MTU_HEADER_BYTES,
    NEVER,
    PORT_SHIFT,
    RANKED,
    UNCONNECTED,
    Ctl,
    Event,
    Msg,
    Packet,
    Port,
    Qp,
    Sc,
    grow_pool,
)
from fabric_twin.errors import FabricError
from fabric_twin.layout import QP_ROWS, RTO_LINES, grow_lines, new_state, seed_random, set_margin
from fabric_twin.presets import Preset, Settings
from fabric_twin.topology import NUM_PIPES, Host, Switch, Topology
from switch_agent.dataplane.constants import N_JOB
from switch_agent.dataplane.hashes import flow_signature, flow_slot

__all__ = ["ACKED", "DELIVERED", "RETRY_EXC", "RNR_RETRY_EXC", "Fabric", "FabricEvent", "Stats", "warm_up"]

DELIVERED = E_DELIVERED
ACKED = E_ACKED
RETRY_EXC = E_RETRY_EXC
RNR_RETRY_EXC = E_RNR_RETRY_EXC

PS_PER_NS = 1000
CLOCK_ALIGN_PS = (1 << 30) * PS_PER_NS
"""A seeded run starts at a multiple of this, so that nothing depends on what ran before."""
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
    """Hosts, links and switches of a preset or of a fabric file in virtual time.

    Args:
        preset: the fabric to build.
        seed: of RED's and Symphony's coins and of the ECMP hash.

    Raises:
        ConfigError: it cannot be built.
    """

    def __init__(self, preset: Settings, seed: int = 1) -> None:
        self.preset = preset
        self.topology = Topology(preset, seed)
        self.seed = seed
        self.num_pipes = NUM_PIPES
        self.cpu_s = 0.0
        self._qps: dict[int, _QpInfo] = {}
        self._host_qps = [0] * len(self.topology.hosts)
        self._classify: list[Classify | None] = [None] * len(self.topology.switches)
        self._ctl_lines: dict[int, int] = {}
        self._rto_lines: dict[int, int] = {}
        self._host_totals: dict[int, Any] = {}
        self._routes: dict[tuple[int, ...], int] = {}
        self._routes_end = 0
        self._ack_ps = [
            round(back.delay_us * 1e6) + ACK_BYTES * round(8000 / back.gbps)
            for back in (self.topology.ports[info.reverse] for info in self.topology.ports)
        ]
        """What the way back over a link adds to the delay of an acknowledgement."""
        self.view, self.planes = new_state(preset, self.topology, seed)
        self.free_messages = 0, len(self.view.msg) // Msg.COLUMNS
        """Head and length of the list of free messages."""
        self._free_qps = [i * Qp.COLUMNS for i in range(QP_ROWS - 1, -1, -1)]
        kernel.run(self.view, self.planes, 0, 0)  # compiles or loads the loop: no part of anybody's run

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
        t = int(self.view.key.min())
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

    def _grow_pools(self, posts: int = 0) -> None:
        """Make sure that the next event finds as many free packets and delay line entries as it may need."""
        s = self.view
        needed = int(s.sc[Sc.MARGIN]) + posts
        while s.sc[Sc.FREE_PACKETS] < needed:
            pool, head = grow_pool(s.pk, Packet.COLUMNS, int(s.sc[Sc.FREE_PACKET]))
            s.sc[Sc.FREE_PACKETS] += len(s.pk) // Packet.COLUMNS
            s.sc[Sc.FREE_PACKET] = head
            self.view = s = s._replace(pk=pool)
        while s.sc[Sc.FREE_CTLS] < needed:
            pool, head = grow_pool(s.ctl, Ctl.COLUMNS, int(s.sc[Sc.FREE_CTL]))
            s.sc[Sc.FREE_CTLS] += len(s.ctl) // Ctl.COLUMNS
            s.sc[Sc.FREE_CTL] = head
            self.view = s = s._replace(ctl=pool)

    def take_events(self) -> list[FabricEvent]:
        """What hosts have learnt since the last call, in order of time."""
        n = int(self.view.sc[Sc.N_OUT])
        if n == 0:
            return []
        self.view.sc[Sc.N_OUT] = 0
        return [FabricEvent(*row) for row in self.view.out[: n * Event.COLUMNS].reshape(n, Event.COLUMNS).tolist()]

    def quiesce(self, seed: int) -> None:
        """With no traffic left, start afresh: the clock moves on to the next round number, all dice are re-thrown.

        A run after this depends on `seed` alone, not on what ran before; what the control plane has written into
        the switches, and the rates of links, stay.
        """
        while self.run(max_events=1_000_000) != kernel.IDLE:
            self.take_events()
        self.take_events()
        s = self.view
        s.sc[Sc.NOW] = (self.now_ps // CLOCK_ALIGN_PS + 1) * CLOCK_ALIGN_PS
        s.port[Port.RR :: Port.COLUMNS] = 0
        self.seed = seed
        seed_random(s, seed)
        self.topology.reseed(seed)
        for remembered in (self._routes, self._ctl_lines, self._rto_lines):
            remembered.clear()
        self._routes_end = 0
        for q, info in self._qps.items():
            self._route(q)
            self._qp(q)[Qp.RTO_LINE] = self._rto_line(info.timeout)

    # ---------------------------------------------------------------------------------------- queue pairs

    def create_qp(self, host: Host, qp_num: int) -> int:
        """A new queue pair on `host`; returns its row.

        Raises:
            FabricError: the NIC has no more.
        """
        if self._host_qps[host.index] == ACTIVE_MAX:
            raise FabricError(f"{host.name} has {ACTIVE_MAX} queue pairs, which is all its NIC can hold")
        if not self._free_qps:
            self._grow_qps()
        q = self._free_qps.pop()
        row = self._qp(q)
        generation = row[Qp.GENERATION]
        row[:] = UNCONNECTED
        row[Qp.GENERATION] = (generation + 1) & 0xFFFF
        row[Qp.NIC] = host.nic << PORT_SHIFT
        self._qps[q] = _QpInfo(host, qp_num)
        self._host_qps[host.index] += 1
        return q

    def _qp(self, q: int) -> Any:
        return self.view.qp[q : q + Qp.COLUMNS]

    def _grow_qps(self) -> None:
        s = self.view
        n = len(s.qp)
        self.view = s._replace(
            qp=np.concatenate([s.qp, 0 * s.qp]),
            ccq=np.concatenate([s.ccq, 0 * s.ccq]),
            held=np.concatenate([s.held, 0 * s.held]),
        )
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
            retry_cnt: timeouts that are answered by sending again; the next one fails the QP.
            rnr_retry: RNR NAKs before it fails; 7 = no limit.
            rnr_timer_ps: pause that `q` asks for when it has no receive posted.

        Raises:
            FabricError: `dest` is the QP's own host, or the fabric has no timer for one more `timeout`.
        """
        info = self._qps[q]
        self.topology.path(info.host, dest, sport)  # raises before anything has changed
        rto_line = self._rto_line(timeout)
        s = self.view
        row = self._qp(q)
        row[Qp.PEER] = -1 if peer is None else peer
        row[Qp.MTU] = mtu
        row[Qp.PSN_OFFSET] = psn
        row[Qp.ECT] = int(ect)
        row[Qp.RETRY_CNT], row[Qp.RNR_RETRY], row[Qp.RNR_PS] = retry_cnt, rnr_retry, rnr_timer_ps
        row[Qp.RTO_LINE] = rto_line
        row[Qp.RTO_ARMED] = timeout == 0
        row[Qp.STATE] = 1
        line_bps = 8e12 / s.port[(info.host.nic << PORT_SHIFT) + Port.PS_PER_BYTE]
        dcqcn.reset(s.ccq, q >> CC_SHIFT, float(line_bps))
        progress.limit(s, q)
        info.dest = dest
        info.sport = sport
        info.timeout = timeout
        self._route(q)

    def set_sport(self, q: int, sport: int) -> None:
        """Packets sent from now on carry this source port, and may take another path."""
        self._qps[q].sport = sport
        self._route(q)

    def note_sport(self, q: int) -> None:
        """The engine has given `q` another source port by itself: remember it."""
        info, sport = self._qps[q], int(self.view.qp[q + Qp.SPORT])
        if info.dest is not None and info.sport != sport:
            info.sport = sport
            info.path = self.topology.path(info.host, info.dest, sport)

    def reset_qp(self, q: int) -> None:
        """Back to RESET: unsent messages vanish, packets on their way will be ignored. Frees its messages."""
        self._grow_pools()
        s = self.view
        kernel.stop_sending(s, q)
        row = self._qp(q)
        m = int(row[Qp.UNA_MSG])
        while m >= 0:
            after = int(s.msg[m + Msg.NEXT])
            self.free_message(m)
            m = after
        kept = [Qp.NIC, Qp.PROCESS, *COUNTERS]
        values = row[kept].copy()
        generation = (int(row[Qp.GENERATION]) + 1) & 0xFFFF
        row[:] = UNCONNECTED
        row[kept] = values
        row[Qp.GENERATION] = generation
        self._qps[q].dest = None

    def destroy_qp(self, q: int) -> None:
        """Forget the queue pair; its counters go to its host."""
        self.reset_qp(q)
        peers = self.view.qp[Qp.PEER :: Qp.COLUMNS]
        peers[peers == q] = -1
        info = self._qps.pop(q)
        self._host_qps[info.host.index] -= 1
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
        if timeout == 0:
            return 0
        line = self._rto_lines.get(timeout)
        if line is None:
            if len(self._rto_lines) == RTO_LINES:
                known = ", ".join(str(t) for t in sorted(self._rto_lines))
                raise FabricError(f"the twin keeps {RTO_LINES} different ACK timeouts ({known}); use one of them")
            line = 4 * (int(self.view.sc[Sc.N_PAUSE_LINES]) + len(self._rto_lines))
            self._rto_lines[timeout] = line
            self.view.line[line] = round(4.096e6 * 2**timeout)
        return line

    def _ctl_line(self, delay_ps: int) -> int:
        line = self._ctl_lines.get(delay_ps)
        if line is None:
            self.reserve_ctl_lines(1)
            line = sum(self.ctl_lines)
            self._ctl_lines[delay_ps] = line
            self.view.line[line] = delay_ps
        return line

    @property
    def ctl_lines(self) -> tuple[int, int]:
        """The first delay line of acknowledgements, and the extent of those in use (one for each delay)."""
        return 4 * (int(self.view.sc[Sc.N_PAUSE_LINES]) + RTO_LINES), 4 * len(self._ctl_lines)

    @ctl_lines.setter
    def ctl_lines(self, first_and_extent: tuple[int, int]) -> None:
        for line in range(sum(self.ctl_lines), sum(first_and_extent), 4):
            self._ctl_lines[int(self.view.line[line])] = line

    @property
    def ack_delays(self) -> set[int]:
        """Delays of acknowledgements that have their line, ps."""
        return set(self._ctl_lines)

    def reserve_ctl_lines(self, more: int) -> None:
        """Make room for acknowledgements of so many more delays."""
        while sum(self.ctl_lines) + 4 * more > len(self.view.line):
            self.view = grow_lines(self.view)

    def _route(self, q: int) -> None:
        """Path, delay of acknowledgements, hashes and classification for the QP's present 5-tuple.

        Packets on their way keep the route they have.
        """
        info = self._qps[q]
        if info.dest is None:
            return
        self._catch_up(q)
        row = self._qp(q)
        info.path = self.topology.path(info.host, info.dest, info.sport)
        row[Qp.SPORT] = info.sport
        row[Qp.WINDOW] = self._bdp(info.path)
        row[Qp.CTL_LINE] = self._ctl_line(sum(self._ack_ps[p] for p in info.path))
        src, dst = int(info.host.address), int(info.dest.address)
        peer = self._qps.get(int(row[Qp.PEER]))
        qpn = peer.qp_num if peer else 0
        row[Qp.SIG] = flow_signature(src, dst, qpn, info.sport)
        row[Qp.SLOT] = flow_slot(src, dst, qpn)
        self._classify_qp(q)

    def _catch_up(self, q: int) -> None:
        """What the QP has sent until now goes the way it had."""
        if self.view.qp[q + Qp.IS_ACTIVE]:
            self._grow_pools()
            kernel.catch_up(self.view, int(self.view.qp[q + Qp.NIC]))

    def _classify_qp(self, q: int) -> None:
        info = self._qps[q]
        if info.dest is None:
            return
        self._catch_up(q)
        self.view.qp[q + Qp.ROUTE] = self._intern_route(info.path, info.host, info.dest, info.sport)

    def route(self, src: Host, dst: Host, sport: int) -> tuple[int, int, int]:
        """What a 5-tuple means as things are now: route, delay of acknowledgements (ps), window (bytes)."""
        path = self.topology.path(src, dst, sport)
        return self._intern_route(path, src, dst, sport), sum(self._ack_ps[p] for p in path), self._bdp(path)

    def _bdp(self, path: list[int]) -> int:
        """Bytes of a path's base RTT at its lowest rate, as HPCC's ns-3 code has it: the RTT is twice the propagation
        delay, and a full payload's serialisation at each hop.
        """
        ports = [self.topology.ports[p] for p in path]
        bits_per_us = [info.gbps * 1000 for info in ports]
        rtt_us = sum(2 * info.delay_us for info in ports) + sum(self.preset.mtu * 8 / rate for rate in bits_per_us)
        return int(rtt_us * min(bits_per_us) / 8)

    def _intern_route(self, path: list[int], src: Host, dst: Host, sport: int) -> int:
        """Where the route lives; many QPs share one, and there are not many different ones."""
        flat: list[int] = []
        for port in path:
            node = self.topology.ports[port].peer
            classify = self._classify[node] if node >= 0 else None
            found = classify(int(src.address), int(dst.address), sport) if classify else None
            flat += [port << PORT_SHIFT, *(found or (-1, 0)), 0]
        words = tuple(flat)
        start = self._routes.get(words)
        if start is None:
            start = self._routes_end
            self._routes_end += len(words)
            while self._routes_end > len(self.view.route):
                self.view = self.view._replace(route=np.concatenate([self.view.route, 0 * self.view.route]))
            self.view.route[start : self._routes_end] = words
            self._routes[words] = start
        return start

    # ---------------------------------------------------------------------------------------- messages

    def post(self, q: int, length: int, *, write: bool, imm: bool, signaled: bool) -> int:
        """Send a message of `length` bytes on the wire; returns its number."""
        self.reserve(1)
        s = self.view
        m, free = self.free_messages
        self.free_messages = int(s.msg[m + Msg.NEXT]), free - 1
        flags = (M_DATA if write else 0) | (M_IMM if imm else 0) | (M_SIGNALED if signaled else 0)
        s.msg[m + Msg.BYTES] = length
        s.msg[m + Msg.FLAGS] = flags | (M_WRITE_IMM if write and imm else 0)
        kernel.post(s, q, m)
        return m

    def free_message(self, m: int) -> None:
        """The message is over; its number may be used again."""
        head, free = self.free_messages
        self.view.msg[m + Msg.NEXT] = head
        self.free_messages = m, free + 1

    def reserve(self, posts: int) -> None:
        """Make room for so many posts without a call of this between them."""
        self._grow_pools(posts)
        head, free = self.free_messages
        while free < posts:
            free += len(self.view.msg) // Msg.COLUMNS
            pool, head = grow_pool(self.view.msg, Msg.COLUMNS, head)
            self.view = self.view._replace(msg=pool)
        self.free_messages = head, free

    # ---------------------------------------------------------------------------------------- switches

    def _symphony(self, switch: int) -> Switch:
        found = self.topology.switches[switch]
        if found.pipeline < 0:
            raise FabricError(f"{found.name} does not run Symphony; the fabric's symphony_tiers say which switches do")
        return found

    def set_classifier(self, switch: int, classify: Classify | None) -> None:
        """How a switch maps (source, destination, source port) to (Job_ID, state block), or to None.

        Raises:
            FabricError: it does not run Symphony.
        """
        self._classify[self._symphony(switch).index] = classify
        for q, info in self._qps.items():
            if any(self.topology.ports[port].peer == switch for port in info.path):
                self._classify_qp(q)

    def set_hash_sport_mask(self, switch: int, mask: int) -> None:
        """Which bits of the UDP source port the ECMP hash of this switch sees."""
        self.topology.switches[switch].hash_sport_mask = mask
        for q in self._qps:
            self._route(q)

    def set_params(self, switch: int, job: int, values: tuple[int, ...] | None, *, ranked: bool = False) -> None:
        """Parameters of a job on a switch (`ParamEntry.values()`), or None: plain forwarding.

        With `ranked`, packets of its lagging step also overtake its other packets in the switch's queues.

        Raises:
            FabricError: the switch has no Symphony.
        """
        row = self._symphony(switch).pipeline
        self.view.enabled[row * N_JOB + job] = 0 if values is None else RANKED if ranked else 1
        if values is not None:
            self.planes.params[row, job] = values

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
            self._grow_pools()
            kernel.catch_up(self.view, port.index << PORT_SHIFT)
            port.gbps = gbps
            self._port(port.index)[Port.PS_PER_BYTE] = round(8000 / gbps)
            set_margin(self.view)
            kernel.catch_up(self.view, port.index << PORT_SHIFT)
        if drop is not None:
            if not 0 <= drop <= 1:
                raise FabricError(f"link {name}: drop probability {drop} is out of range 0 to 1")
            self._port(port.index)[Port.DROP_PROB] = round(drop * 2**32)

    def drop_of(self, name: str) -> float:
        """The probability that a directed link loses a packet."""
        return float(self._port(self.topology.port(name).index)[Port.DROP_PROB]) / 2**32

    def avoid(self, links: Iterable[str]) -> None:
        """Route around these directed links from now on; packets on their way keep their path."""
        avoided = frozenset(self.topology.port(name).index for name in links)
        if avoided != self.topology.avoided:
            self.topology.avoid(avoided)
            for q in self._qps:
                self._route(q)

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
                kernel.look(self.view, q)
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
    timeout: int = 0
    path: list[int] = field(default_factory=list)


def warm_up() -> None:
    """Compile the engine, or load what an earlier process compiled, by sending one packet."""
    fabric = Fabric(Preset("warm-up", tors=1, hosts_per_tor=2, spines=0))
    src, dst = fabric.topology.hosts
    sender, receiver = fabric.create_qp(src, 1), fabric.create_qp(dst, 1)
    for q, host, peer in ((sender, dst, receiver), (receiver, src, sender)):
        fabric.connect(
            q, host, peer, mtu=1024, sport=0xC000, psn=0, ect=True, timeout=14, retry_cnt=7, rnr_retry=7, rnr_timer_ps=1
        )
    fabric.post(sender, 1, write=True, imm=False, signaled=False)
    fabric.run()
    fabric.reset_qp(sender)
