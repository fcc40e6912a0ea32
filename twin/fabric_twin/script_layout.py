# SPDX-License-Identifier: Apache-2.0
"""Scripted ranks on a fabric: their queue pairs, their schedules as arrays, and the calls into the compiled script.

Queue pairs are created and connected in the order in which ring-bench and the verbs service do it, for QP numbers,
delay lines and paths follow from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fabric_twin.engine import kernel, script
from fabric_twin.engine.script import NO_TIME, PATH_COLUMNS, Rank, S, Script
from fabric_twin.engine.state import I64, NEVER, Qp
from fabric_twin.errors import ConfigError
from fabric_twin.fabric import RETRY_EXC, Fabric
from fabric_twin.script_tables import Tables
from fabric_twin.topology import Host, Topology
from fabric_twin.verbs import FIRST_QPN, MAX_MSG_SZ, MAX_QP_WR, RNR_TIMER_US, default_sport
from fabric_twin.workload import Job
from ring_bench.errors import UsageError
from ring_bench.plan import ACK_TIMEOUT, MIN_RNR_TIMER, RETRY_COUNT, RNR_RETRY, Plan, first_psn
from ring_bench.schedule import Schedule
from ring_bench.workload import Do, Jitter

__all__ = ["Edge", "PlacedJob", "ScriptedRanks", "hosts_of", "links_of", "plan_of"]

_TAGGING = {"per-step": script.PER_STEP, "retag": script.RETAG, "static": script.STATIC}
_RELEASE = {"in-order": script.IN_ORDER, "independent": script.INDEPENDENT, "count": script.COUNT}
SLICE_EVENTS = 2_000_000
"""Events at a time, some 0.3 s: how long Ctrl-C waits."""


def plan_of(job: Job, mtu: int) -> Plan:
    """The job's steps on a fabric with this path MTU.

    Raises:
        ConfigError: a ring of one rank, or a step in more segments than a send queue holds.
    """
    config = job.config
    if config.mtu is not None and config.mtu > mtu:
        raise ConfigError(f"job {job.name!r} wants mtu {config.mtu}; this fabric has {mtu}")
    try:
        plan = Plan(config, mtu=config.mtu or mtu, max_message=MAX_MSG_SZ)
    except UsageError as error:
        raise ConfigError(f"job {job.name!r}: {error}") from None
    if not plan.axes:
        raise ConfigError(
            f"job {job.name!r} has rings of one rank, which send nothing; give it two ranks or more a group"
        )
    if plan.max_segments > MAX_QP_WR:
        raise ConfigError(
            f"job {job.name!r} cuts a step into {plan.max_segments} segments; {MAX_QP_WR} fit a send queue"
        )
    return plan


def hosts_of(job: Job, topology: Topology) -> list[Host]:
    """The host of each rank.

    Raises:
        UnknownNameError: the fabric has no such host.
    """
    names: Iterable[str | int] = range(job.config.world) if job.hosts is None else job.hosts
    return [topology.host(name) for name in names]


@dataclass
class _Pairs:
    """The QP rows of a rank along one axis of a ring."""

    send: list[int]
    credit: int
    recv: list[int]
    grant: int


@dataclass
class PlacedJob:
    """A job whose ranks are on the fabric."""

    job: Job
    plan: Plan
    hosts: list[Host]
    """Of each world rank."""
    pairs: list[list[list[_Pairs]]]
    """By world rank, ring and axis."""
    record: int
    """Offset of its record in `Script.job`."""
    ranks: int
    """Offset of its first rank's record; ranks come by group and position."""
    trace: int
    """First row in `Script.posted`."""
    complete: int
    marks: int
    failure: str | None = None
    over: bool = False

    @property
    def order(self) -> list[int]:
        """World ranks in the order of their records."""
        return [rank for group in self.plan.config.groups for rank in group]

    def by_rank(self, column: I64) -> I64:
        """Times of its steps from `Script.posted` or `delivered`, [ring, world rank, step]."""
        shape = (len(self.hosts), self.plan.config.rings, self.plan.steps_total)
        rows = column[self.trace : self.trace + int(np.prod(shape))].reshape(shape)
        times = np.empty((shape[1], shape[0], shape[2]), dtype=np.int64)
        times[:, self.order] = np.moveaxis(rows, 1, 0)
        return times

    def events(self, column: I64, first: int, each: int) -> I64:
        """[world rank, event] of `Script.complete` or `mark`."""
        times = np.empty((len(self.hosts), each), dtype=np.int64)
        times[self.order] = column[first : first + times.size].reshape(times.shape)
        return times


class ScriptedRanks:
    """The ranks of some jobs on one fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.jobs: list[PlacedJob] = []
        self._numbers: dict[int, tuple[Host, int]] = {}
        """QP row -> host, QP number."""
        self._taken: dict[int, set[int]] = {}
        self._lowest: dict[int, int] = {}
        self._routes: list[tuple[int, Host, Host, int, int]] = []
        """Where in `Script.path`, source, destination, first source port, how many."""
        empty: dict[str, Any] = {name: np.zeros(0, dtype=np.int64) for name in Script._fields}
        empty |= {name: np.zeros(0, dtype=np.int32) for name in ("steps", "queues", "left")}
        empty["taken"] = np.zeros(0, dtype=np.uint8)
        empty["sc"] = np.zeros(S.COLUMNS, dtype=np.int64)
        self.script = Script._make(empty[name] for name in Script._fields)
        self.script.sc[S.JOB_OVER] = -1
        self.script.sc[S.DEADLINE] = NO_TIME

    # ---------------------------------------------------------------------------------------- set-up

    def place(self, job: Job) -> PlacedJob:
        """Create and connect all queue pairs of a job.

        Raises:
            ConfigError, FabricError: the fabric cannot hold it.
        """
        fabric, k = self.fabric, self.script
        plan = plan_of(job, fabric.preset.mtu)
        config = plan.config
        hosts = hosts_of(job, fabric.topology)
        pairs = [[[self._create(host, config.slots) for _ in plan.axes] for _ in range(config.rings)] for host in hosts]
        placed = PlacedJob(
            job, plan, hosts, pairs, len(k.job), len(k.rank), len(k.posted), len(k.complete), len(k.mark)
        )
        known = len(self._routes)
        self._append(placed)
        self._connect_all(placed)
        self.refresh_paths(known)
        self.jobs.append(placed)
        return placed

    def _create(self, host: Host, slots: int) -> _Pairs:
        return _Pairs(
            send=[self._create_qp(host) for _ in range(slots)],
            credit=self._create_qp(host),
            recv=[self._create_qp(host) for _ in range(slots)],
            grant=self._create_qp(host),
        )

    def _create_qp(self, host: Host) -> int:
        taken = self._taken.setdefault(host.index, set())
        number = self._lowest.get(host.index, FIRST_QPN)
        while number in taken:
            number += 1
        self._lowest[host.index] = number + 1
        taken.add(number)
        q = self.fabric.create_qp(host, number)
        self._numbers[q] = host, number
        return q

    def _connect_all(self, placed: PlacedJob) -> None:
        plan, hosts, pairs = placed.plan, placed.hosts, placed.pairs
        config, k = plan.config, self.script
        link = int(k.end[k.rank[placed.ranks + Rank.END] + script.End.LINK])

        def connect(q: int, peer: int, dest: int, psn: int, sport: int | None) -> None:
            if sport is None:
                sport = default_sport(self._numbers[q][1], self._numbers[peer][1])
            self.fabric.connect(
                q, hosts[dest], peer, mtu=plan.mtu, sport=sport, psn=psn, ect=config.traffic_class & 3 in (1, 2),
                timeout=ACK_TIMEOUT, retry_cnt=RETRY_COUNT, rnr_retry=RNR_RETRY,
                rnr_timer_ps=RNR_TIMER_US[MIN_RNR_TIMER] * 1_000_000,
            )  # fmt: skip

        for number, before, behind, ring, place, axis in links_of(plan):
            own, previous, following = (
                pairs[number][ring][place],
                pairs[before][ring][place],
                pairs[behind][ring][place],
            )
            rows = int(k.link[link + script.Link.SLOT])
            for slot in range(config.slots):
                row = k.slot[rows + slot * script.Slot.COLUMNS :]
                sends, receives = (int(row[column]) for column in (script.Slot.FIRST, script.Slot.EXPECTS))
                psn = first_psn(number, ring, axis, slot)
                sport = config.layout.encode(config.job_tag, slot if sends < 0 else sends)
                connect(own.send[slot], following.recv[slot], behind, psn, sport)
                self.fabric.receives(own.recv[slot], int(receives >= 0))
                sport = config.layout.encode(config.job_tag, slot if receives < 0 else receives)
                connect(own.recv[slot], previous.send[slot], before, 0, sport)
            self.fabric.receives(own.credit, config.slots)
            connect(own.credit, following.grant, behind, 0, None)
            connect(own.grant, previous.credit, before, 0, None)
            link += script.Link.COLUMNS

    def _append(self, placed: PlacedJob) -> None:
        """Add the job to the script's arrays."""
        plan, hosts, k = placed.plan, placed.hosts, self.script
        config = plan.config
        rings, axes, slots, total = config.rings, len(plan.axes), config.slots, plan.steps_total
        n_ranks, n_ends = config.world, config.world * rings
        n_links = n_ends * axes
        operations = len(plan.operations)
        shapes = len(plan.schedules)
        tables = Tables(plan, len(k.step) // script.Step.COLUMNS, len(k.steps))
        independent = config.release == "independent"
        longest = max(operation.steps for operation in plan.operations)
        ready = 2 * longest + 2 if independent else 0
        held = slots * axes + 1

        rank = np.zeros((n_ranks, Rank.COLUMNS), dtype=np.int64)
        left = np.zeros((n_ranks, 2 * operations + shapes), dtype=np.int32)
        marks = 1 + sum(do is Do.MARK for do, _ in plan.actions)
        planned = [value for do, value in plan.actions if do is Do.COMPUTE]
        jitter = Jitter.parse(config.compute_jitter)
        of_shape = np.array([operation.shape for operation in plan.operations])
        order = placed.order
        position = {number: place for group in config.groups for place, number in enumerate(group)}
        for index, number in enumerate(order):
            sends, receives = tables.counts(position[number])
            left[index, 0 : 2 * operations : 2] = receives[of_shape]
            left[index, 1 : 2 * operations : 2] = sends[of_shape]
            left[index, 2 * operations :] = receives
        rank[:, Rank.JOB] = placed.record
        rank[:, Rank.CURRENT] = -1
        rank[:, Rank.UNACKED] = left[:, 1 : 2 * operations : 2].sum(axis=1)
        rank[:, Rank.END] = len(k.end) + np.arange(n_ranks) * rings * script.End.COLUMNS
        rank[:, Rank.ENDS] = rings
        rank[:, Rank.LEFT] = len(k.left) + np.arange(n_ranks) * left.shape[1]
        rank[:, Rank.RECEIVES] = rank[:, Rank.LEFT] + 2 * operations
        rank[:, Rank.DONE] = placed.complete + np.arange(n_ranks) * operations
        rank[:, Rank.MARKS] = placed.marks + np.arange(n_ranks) * marks
        rank[:, Rank.DEADLINE] = NO_TIME
        rank[:, Rank.DURATION] = len(k.duration) + np.arange(n_ranks) * len(planned)

        e = script.End
        end = np.zeros((n_ranks, rings, e.COLUMNS), dtype=np.int64)
        number_of_end = np.arange(n_ends).reshape(n_ranks, rings)
        queue = held + ready + 2 * slots * axes
        queues = len(k.queues) + number_of_end * queue
        end[..., e.RANK] = (placed.ranks + np.arange(n_ranks) * Rank.COLUMNS)[:, None]
        end[..., e.TRACE] = placed.trace + number_of_end * total
        end[..., e.TAKEN] = len(k.taken) + number_of_end * total
        end[..., e.LINK] = len(k.link) + number_of_end * axes * script.Link.COLUMNS
        end[..., e.HELD], end[..., e.READY] = queues, queues + held
        end[..., e.READY_CAP] = max(ready, 1)

        n = script.Link
        link = np.zeros((n_ranks, rings, axes, n.COLUMNS), dtype=np.int64)
        number_of_link = np.arange(n_links).reshape(n_ranks, rings, axes)
        link[..., n.END] = len(k.end) + number_of_end[..., None] * e.COLUMNS
        link[..., n.SLOT] = len(k.slot) + number_of_link * slots * script.Slot.COLUMNS
        link[..., n.GRANTS] = (queues + held + ready)[..., None] + np.arange(axes) * 2 * slots
        link[..., n.HELD] = link[..., n.GRANTS] + slots

        t = script.Slot
        slot = np.zeros((n_ranks, rings, axes, slots, t.COLUMNS), dtype=np.int64)
        slot[..., t.IDLE] = 1
        tags = min(total, config.layout.modulus)
        paths: dict[tuple[int, int], int] = {}

        def path(src: Host, dst: Host) -> int:
            at = paths.get((src.index, dst.index))
            if at is None:
                at = paths[src.index, dst.index] = len(k.path) + PATH_COLUMNS * tags * len(paths)
                self._routes.append((at, src, dst, config.layout.encode(config.job_tag, 0), tags))
            return at

        owner = np.zeros(len(self.fabric.view.qp) // Qp.COLUMNS, dtype=np.int64)
        owner[: len(k.owner)] = k.owner
        index_of = {number: index for index, number in enumerate(order)}
        for rank_number, before, behind, ring, place, axis in links_of(plan):
            index = index_of[rank_number]
            own, peer = placed.pairs[rank_number][ring][place], placed.pairs[behind][ring][place]
            row = link[index, ring, place]
            at = len(k.link) + int(number_of_link[index, ring, place]) * n.COLUMNS
            row[n.CREDIT_QP], row[n.GRANT_QP] = own.credit, own.grant
            row[n.PATH_OUT], row[n.PATH_BACK] = (
                path(hosts[rank_number], hosts[behind]),
                path(hosts[rank_number], hosts[before]),
            )
            row[n.ADDRESS], row[n.NEXT_ADDRESS] = int(hosts[rank_number].address), int(hosts[behind].address)
            row[n.NEXT_LINK] = len(k.link) + int(number_of_link[index_of[behind], ring, place]) * n.COLUMNS
            out, into = (tables.course(position[rank_number], axis, sends=sends) for sends in (True, False))
            row[n.FOLLOWING] = into.following
            rows = slot[index, ring, place]
            rows[:, t.SEND_QP], rows[:, t.RECV_QP] = own.send, own.recv
            rows[:, t.FIRST] = rows[:, t.GRANTED] = out.first
            rows[:, t.EXPECTS] = into.first
            rows[:, t.PSN] = [first_psn(rank_number, ring, axis, i) for i in range(slots)]
            rows[:, t.QPN] = [self._numbers[q][1] for q in peer.recv]
            for kind, qps in (
                (script.SEND, own.send),
                (script.RECV, own.recv),
                (script.CREDIT, [own.credit]),
                (script.GRANT, [own.grant]),
            ):
                for i, q in enumerate(qps):
                    owner[q // Qp.COLUMNS] = script.owner_code(at, kind, i)
        for index, number in enumerate(order):
            out, into = (tables.course(position[number], None, sends=way) for way in (True, False))
            end[index, :, e.SENDS], end[index, :, e.N_SENDS] = out.steps, len(out.order)
            end[index, :, e.RECEIVES], end[index, :, e.N_RECEIVES] = into.steps, len(into.order)
            if config.release == "count":
                end[index, :, e.WAITED_FOR] = tables.waited_for(position[number])
            for ring in range(rings):
                end[index, ring, e.STEP] = tables.steps_of(ring, position[number])

        j = script.Job
        job = np.zeros(j.COLUMNS, dtype=np.int64)
        job[j.OPERATIONS], job[j.OPERATION] = operations, len(k.operation)
        job[j.OPERATION_OF] = tables.operation_of
        job[j.TOTAL], job[j.SLOTS] = total, slots
        job[j.RELEASE], job[j.TAGGING] = _RELEASE[config.release], _TAGGING[config.tagging]
        job[j.SPORT], job[j.TAG_MASK] = config.layout.encode(config.job_tag, 0), config.layout.modulus - 1
        job[j.SEGMENT] = tables.segment
        job[j.ACTIONS], job[j.ACTION] = len(plan.actions), len(k.action)
        job[j.RANKS_LEFT] = n_ranks
        times = [jitter.times(planned, seed=config.jitter_seed, rank=number) for number in order] if planned else []
        added: dict[str, npt.NDArray[Any]] = {
            "job": job,
            "operation": np.array([(o.shape, o.first_step) for o in plan.operations], dtype=np.int64),
            "action": np.array([(int(do), value) for do, value in plan.actions], dtype=np.int64),
            "rank": rank,
            "end": end,
            "link": link,
            "slot": slot,
            "step": tables.rows(),
            "steps": tables.lists(),
            "queues": np.zeros(n_ends * queue, dtype=np.int32),
            "left": left,
            "path": np.full(len(paths) * tags * PATH_COLUMNS, -1, dtype=np.int64),
            "taken": np.zeros(n_ends * total, dtype=np.uint8),
            "posted": np.full(n_ends * total, -1, dtype=np.int64),
            "delivered": np.full(n_ends * total, -1, dtype=np.int64),
            "complete": np.full(n_ranks * operations, -1, dtype=np.int64),
            "mark": np.full(n_ranks * marks, -1, dtype=np.int64),
            "duration": np.array(times, dtype=np.int64),
        }
        joined = {name: np.concatenate([getattr(k, name), rows.reshape(-1)]) for name, rows in added.items()}
        frames = np.zeros(max(len(k.stack), script.FRAME * (4 * (operations + rings) + 64)), dtype=np.int64)
        self.script = k._replace(owner=owner, stack=frames, **joined)
        posts = 2 * rings * axes * (slots * (plan.max_segments + 2) + 4) + 16
        self.script.sc[S.POSTS] = max(int(k.sc[S.POSTS]), posts)

    def refresh_paths(self, first: int = 0) -> None:
        """Work out the paths of all tags, for the pairs of neighbours from `first` on.

        Needed again when routing or classification has changed.
        """
        delays = set()
        path = self.script.path
        for at, src, dst, sport, tags in self._routes[first:]:
            for tag in range(tags):
                row = at + PATH_COLUMNS * tag
                path[row : row + 3] = self.fabric.route(src, dst, sport + tag)
                delays.add(int(path[row + 1]))
        self.fabric.reserve_ctl_lines(len(delays - self.fabric.ack_delays))

    def note_sports(self) -> None:
        """Tell the fabric which source ports the script has given to queue pairs, before it works out paths anew."""
        for q in self._numbers:
            self.fabric.note_sport(q)

    def remove(self, placed: PlacedJob) -> None:
        """The job's ranks leave: their queue pairs are destroyed."""
        for pair in (pair for rings in placed.pairs for axes in rings for pair in axes):
            for q in (*pair.send, pair.credit, *pair.recv, pair.grant):
                host, number = self._numbers.pop(q)
                self._taken[host.index].discard(number)
                self._lowest[host.index] = min(self._lowest[host.index], number)
                self.script.owner[q // Qp.COLUMNS] = 0
                self.fabric.destroy_qp(q)
        placed.pairs = []

    # ---------------------------------------------------------------------------------------- running

    def begin(self, placed: PlacedJob) -> None:
        """All ranks of a job start now, in the order of ring-bench."""
        for i in range(len(placed.hosts)):
            self._enter()
            script.start_rank(self.fabric.view, self.script, placed.ranks + i * Rank.COLUMNS)
            self._leave()

    def run(self, until_ps: int | None) -> int:
        """Let time pass to `until_ps`, or until a job is over or another's report is there; returns as `script.run`."""
        limit = int(NEVER) if until_ps is None else until_ps
        fabric, sc = self.fabric, self.script.sc
        while True:
            self._enter()
            began = time.thread_time()
            reason = int(script.run(fabric.view, fabric.planes, self.script, limit, SLICE_EVENTS))
            fabric.cpu_s += time.thread_time() - began
            self._leave()
            if reason in (kernel.GROW, kernel.SLICE):
                continue
            if reason in (kernel.REACHED, kernel.STOPPED) and sc[S.DEADLINE] <= fabric.now_ns:
                self._tick()
                if sc[S.JOB_OVER] >= 0:
                    return script.JOB_OVER
                continue
            return reason

    def _tick(self) -> None:
        done = False
        while not done:
            self._enter()
            done = bool(script.tick(self.fabric.view, self.script))
            self._leave()

    def take_over(self) -> PlacedJob:
        """The job that has ended; `failure` says if it failed."""
        record = int(self.script.sc[S.JOB_OVER])
        self.script.sc[S.JOB_OVER] = -1
        placed = next(job for job in self.jobs if job.record == record)
        placed.over = True
        kind = int(self.script.job[record + script.Job.FAILED_KIND])
        if kind:
            host, number = self._numbers[int(self.script.job[record + script.Job.FAILED_QP])]
            status = "RETRY_EXC_ERR" if kind == RETRY_EXC else "RNR_RETRY_EXC_ERR"
            placed.failure = f"QP {number:#x} of {host.name} failed with {status}"
        return placed

    def _enter(self) -> None:
        fabric, sc = self.fabric, self.script.sc
        fabric.reserve(int(sc[S.POSTS]))
        sc[S.FREE_MSG], sc[S.FREE_MSGS] = fabric.free_messages
        sc[S.ACK_LINE], sc[S.ACK_LINES] = fabric.ctl_lines

    def _leave(self) -> None:
        fabric, sc = self.fabric, self.script.sc
        fabric.free_messages = int(sc[S.FREE_MSG]), int(sc[S.FREE_MSGS])
        fabric.ctl_lines = int(sc[S.ACK_LINE]), int(sc[S.ACK_LINES])


class Edge(NamedTuple):
    """A rank's place along an axis of a ring."""

    rank: int
    before: int
    behind: int
    ring: int
    place: int
    """Of the axis among those in use."""
    axis: int


def links_of(plan: Plan) -> Iterator[Edge]:
    """All edges, in the order in which ring-bench connects them."""
    config = plan.config
    grid = Schedule(0, config.grid)
    for group in config.groups:
        for position, number in enumerate(group):
            for ring in range(config.rings):
                for place, axis in enumerate(plan.axes):
                    before, behind = grid.prev_rank(position, axis), grid.next_rank(position, axis)
                    yield Edge(number, group[before], group[behind], ring, place, axis)
