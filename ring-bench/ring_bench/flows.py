# SPDX-License-Identifier: Apache-2.0
"""``ring-bench flows``: two tagged flows through one port, the paper's hardware experiment (section 5, Fig. 9).

Two hosts each send one flow of the same size to a third: A carries step k, B step k+1. B starts at a fixed time;
A starts after a delay that is varied, so that the two share the receiver's port for a shorter or longer time. How
long each flow takes, and how long they run at once, shows what the switch does to the flow that is ahead.

Rank 0 sends A, rank 1 sends B, rank 2 receives: all in one process (the twin, soft-RoCE in one machine), or one
process per host. A flow is a chain of RDMA writes into the same buffer; its last write carries the step as
immediate. Times are the sender's: start is its first post, end the acknowledgement of its last write. Processes
start together to within a round trip of the rendezvous. Each delay uses fresh QP state and the next two steps.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ring_bench.errors import (
    CompletionError,
    FabricGoneError,
    ProtocolError,
    RingBenchError,
    UsageError,
)
from ring_bench.hosts import parse_hosts
from ring_bench.hub import Hub
from ring_bench.launch import Placement, place, secret
from ring_bench.output import check_writable, say, write_result_file
from ring_bench.plan import ACK_TIMEOUT, MIN_RNR_TIMER, RETRY_COUNT, RNR_RETRY
from ring_bench.rendezvous import Joining, LocalRendezvous, Rendezvous, TcpRendezvous
from ring_bench.tag import TagLayout, flow_label_of_sport
from ring_bench.units import format_size, parse_size
from ring_bench.verbs import PROVIDERS, ProviderOptions, open_provider
from ring_bench.verbs.api import SUCCESS, Completion, Opcode, Provider, QpAttributes, QpState, connect

__all__ = ["DelayResult", "FlowResult", "FlowsResult", "Plan", "main", "run_flows"]

_FLOWS: tuple[Literal["A"], Literal["B"]] = ("A", "B")
_RECEIVER = 2
_WORLD = 3
_DEPTH = 16
"""Writes of a flow under way."""
_DEFAULT_SOCKET = "/tmp/fabric-twin/verbs.sock"  # noqa: S108 (where fabric-twin listens by default)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FlowResult(_Model):
    """One flow in one run."""

    flow: Literal["A", "B"]
    host: str
    step: int
    udp_sport: int
    start_ns: int = Field(description="first post, from the common start of the run")
    end_ns: int = Field(description="acknowledgement of the last write")
    duration_ns: int
    goodput_gbps: float = Field(description="10^9 bits of payload per second")


class DelayResult(_Model):
    """Both flows with one delay of A."""

    delay_ns: int
    flows: list[FlowResult]
    concurrent_ns: int = Field(description="how long both flows were under way")


class FlowsResult(_Model):
    """The whole file."""

    schema_version: Literal[1] = 1
    provider: str
    clock: Literal["twin", "monotonic"]
    preset: str | None
    tagging_mechanism: str
    size_bytes: int
    segment_bytes: int
    mtu: int
    traffic_class: int
    job_tag: int
    step_bits: int
    hosts: list[str]
    fabric: dict[str, JsonValue]
    runs: list[DelayResult]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all ranks agree on.

    Raises:
        UsageError: An option out of range.
    """

    size: int = 1 << 30
    """Bytes of each flow."""
    segment: int = 1 << 20
    """Bytes of each write."""
    delays_ns: tuple[int, ...] = (250_000_000, 500_000_000, 750_000_000, 1_000_000_000)
    """Start of flow A, one run each."""
    start_b_ns: int = 1_000_000_000
    first_step: int = 0
    job_tag: int = 0
    step_bits: int = 10
    traffic_class: int = 106

    def __post_init__(self) -> None:
        if self.size < 1 or self.segment < 1:
            raise UsageError("--size and --segment are at least 1 byte")
        if not self.delays_ns or min(*self.delays_ns, self.start_b_ns) < 0:
            raise UsageError("--delays and --start-b are milliseconds from 0 up")
        if not 0 <= self.traffic_class <= 255:
            raise UsageError(f"the traffic class has 8 bits: 0 to 255, not {self.traffic_class}")
        try:
            for run in range(len(self.delays_ns)):
                self.sport(run, 1)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def step(self, run: int, flow: int) -> int:
        """Give the step of a flow (0: A, 1: B) in a run."""
        return self.first_step + 2 * run + flow

    def sport(self, run: int, flow: int) -> int:
        """Give its UDP source port."""
        return TagLayout(self.step_bits).encode(self.job_tag, self.step(run, flow))

    def agreement(self) -> dict[str, Any]:
        """Give the options as plain data, for the handshake between ranks."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"delays_ns": list(self.delays_ns)}


@dataclass
class _Flow:
    """A flow at its sender."""

    name: str
    step: int
    start_ns: int
    writes: int
    posted: int = 0
    completed: int = 0
    begin_ns: int = -1
    end_ns: int = -1


@dataclass
class _End:
    """A rank: its device, memory and QPs; a sender has one QP, the receiver one per flow."""

    rank: int
    attributes: Any
    region: Any
    cq: Any
    qps: list[Any]
    flow: _Flow | None = None
    arrived: set[int] = field(default_factory=set)


def run_flows(
    plan: Plan,
    provider: Provider,
    rendezvous: Rendezvous,
    *,
    local_ranks: Sequence[int],
    hosts: Sequence[str | int],
) -> FlowsResult:
    """Run the experiment; every process gets the whole result.

    Args:
        plan: The options.
        provider: The fabric.
        rendezvous: The other processes.
        local_ranks: Ranks of this process.
        hosts: Host of rank 0 (sends A), 1 (sends B) and 2 (receives).

    Raises:
        CompletionError: A write failed.
        ProtocolError: The receiver got what it does not expect.
        ProviderError, PeerFailedError: The fabric or another rank failed.
    """
    ends = {rank: _open(plan, provider, rank, hosts[rank]) for rank in local_ranks}
    known = rendezvous.exchange({rank: _introduction(end, hosts[rank]) for rank, end in ends.items()})
    rendezvous.begin()
    mtu = min(int(peer["mtu"]) for peer in known.values())
    segment = min(plan.segment, plan.size, *(int(peer["max_msg_sz"]) for peer in known.values()))
    runs: list[DelayResult] = []
    for number, delay_ns in enumerate(plan.delays_ns):
        for end in ends.values():
            _connect(plan, end, known, number, mtu, segment)
        provider.flush()
        rendezvous.exchange(dict.fromkeys(local_ranks))  # everybody is ready
        _drive(plan, provider, ends, known, segment)
        times = rendezvous.exchange({rank: _times(end) for rank, end in ends.items()})
        runs.append(_summary(plan, number, delay_ns, [str(known[rank]["host"]) for rank in range(2)], times))
    return FlowsResult(
        provider=provider.name,
        clock=provider.clock,
        preset=provider.fabric.get("preset"),
        tagging_mechanism="flow label at RTR",
        size_bytes=plan.size,
        segment_bytes=segment,
        mtu=mtu,
        traffic_class=plan.traffic_class,
        job_tag=plan.job_tag,
        step_bits=plan.step_bits,
        hosts=[str(known[rank]["host"]) for rank in range(_WORLD)],
        fabric=dict(provider.fabric.get("description", {})),
        runs=runs,
    )


def _open(plan: Plan, provider: Provider, rank: int, host: str | int) -> _End:
    device = provider.open_device(host)
    memory = min(plan.segment, plan.size, device.attributes.max_msg_sz)
    region = device.reg_mr(64 if provider.scales_payload else memory)
    pairs = 2 if rank == _RECEIVER else 1
    cq = device.create_cq(pairs * (_DEPTH + 1))
    qps = [device.create_qp(cq, _DEPTH, 1) for _ in range(pairs)]
    return _End(rank, device.attributes, region, cq, qps)


def _introduction(end: _End, host: str | int) -> dict[str, Any]:
    return {
        "host": host if isinstance(host, str) else f"h{host}",
        "gid": end.attributes.gid,
        "mtu": end.attributes.active_mtu,
        "max_msg_sz": end.attributes.max_msg_sz,
        "address": end.region.address,
        "rkey": end.region.rkey,
        "qps": [qp.qp_num for qp in end.qps],
    }


def _connect(plan: Plan, end: _End, known: Mapping[int, Any], run: int, mtu: int, segment: int) -> None:
    """Take the QPs of a rank through RESET to RTS, tagged for the run."""
    writes = -(-plan.size // segment)
    end.flow, end.arrived = None, set()
    for flow, name in enumerate(_FLOWS):
        if end.rank not in (flow, _RECEIVER):
            continue
        peer = known[_RECEIVER if end.rank == flow else flow]
        qp = end.qps[flow if end.rank == _RECEIVER else 0]
        attributes = QpAttributes(
            dest_gid=peer["gid"],
            dest_qp_num=peer["qps"][0 if end.rank == _RECEIVER else flow],
            rq_psn=run << 16,
            sq_psn=run << 16,
            flow_label=flow_label_of_sport(plan.sport(run, flow)),
            traffic_class=plan.traffic_class,
            path_mtu=mtu,
            timeout=ACK_TIMEOUT,
            retry_cnt=RETRY_COUNT,
            rnr_retry=RNR_RETRY,
            min_rnr_timer=MIN_RNR_TIMER,
        )
        if run:
            qp.modify(QpState.RESET)
        connect(qp, attributes, (flow,) if end.rank == _RECEIVER else ())
        if end.rank == flow:
            start_ns = plan.start_b_ns if flow else plan.delays_ns[run]
            end.flow = _Flow(name, plan.step(run, flow), start_ns, writes)


def _drive(plan: Plan, provider: Provider, ends: Mapping[int, _End], known: Mapping[int, Any], segment: int) -> None:
    """Send and receive until the flows of this process are through."""
    begin_ns = provider.clock_ns()
    by_cq = {end.cq.handle: end for end in ends.values()}
    while True:
        now_ns = provider.clock_ns() - begin_ns
        waits: list[int] = []
        for end in ends.values():
            if end.flow is not None and end.flow.start_ns > now_ns:
                waits.append(end.flow.start_ns - now_ns)
            elif end.flow is not None:
                _post(plan, provider, end, end.flow, known[_RECEIVER], segment, now_ns)
        if all(_finished(end) for end in ends.values()):
            return
        for completion in provider.wait(min(waits, default=None)):
            _take(plan, by_cq[completion.cq], completion, begin_ns)


def _post(
    plan: Plan, provider: Provider, end: _End, flow: _Flow, receiver: Mapping[str, Any], segment: int, now_ns: int
) -> None:
    if flow.begin_ns < 0:
        flow.begin_ns = now_ns
    while flow.posted < flow.writes and flow.posted - flow.completed < _DEPTH:
        last = flow.posted == flow.writes - 1
        wire = plan.size - flow.posted * segment if last else segment
        end.qps[0].post_send(
            flow.posted,
            Opcode.RDMA_WRITE_WITH_IMM if last else Opcode.RDMA_WRITE,
            end.region,
            0,
            min(wire, end.region.buffer.size),
            remote_address=receiver["address"],
            rkey=receiver["rkey"],
            imm=flow.step if last else None,
            wire_length=wire if provider.scales_payload else None,
        )
        flow.posted += 1


def _take(plan: Plan, end: _End, completion: Completion, begin_ns: int) -> None:
    name = end.flow.name if end.flow is not None else _FLOWS[completion.wr_id % 2]
    step = end.flow.step if end.flow is not None else None
    if completion.status != SUCCESS:
        raise CompletionError(
            f"flow {name} failed at rank {end.rank} ({end.attributes.address}) on QP {completion.qp_num:#x} with "
            f"{completion.failure}",
            rank=end.rank,
            host=end.attributes.address,
            step=step,
            status=completion.status,
        )
    if end.flow is None:
        end.arrived.add(completion.wr_id)
        if completion.imm is None or (completion.imm - plan.first_step) % 2 != completion.wr_id:
            raise ProtocolError(f"the receiver got immediate {completion.imm} on the QP of flow {name}", rank=end.rank)
        return
    end.flow.completed += 1
    if end.flow.completed == end.flow.writes:
        end.flow.end_ns = completion.t_ns - begin_ns


def _finished(end: _End) -> bool:
    return len(end.arrived) == len(_FLOWS) if end.flow is None else end.flow.end_ns >= 0


def _times(end: _End) -> list[int] | None:
    return None if end.flow is None else [end.flow.begin_ns, end.flow.end_ns]


def _summary(plan: Plan, run: int, delay_ns: int, hosts: Sequence[str], times: Mapping[int, Any]) -> DelayResult:
    flows = [
        FlowResult(
            flow=_FLOWS[flow],
            host=hosts[flow],
            step=plan.step(run, flow),
            udp_sport=plan.sport(run, flow),
            start_ns=times[flow][0],
            end_ns=times[flow][1],
            duration_ns=times[flow][1] - times[flow][0],
            goodput_gbps=plan.size * 8 / max(1, times[flow][1] - times[flow][0]),
        )
        for flow in range(len(_FLOWS))
    ]
    first, second = flows
    concurrent = min(first.end_ns, second.end_ns) - max(first.start_ns, second.start_ns)
    return DelayResult(delay_ns=delay_ns, flows=flows, concurrent_ns=max(0, concurrent))


def _table(result: FlowsResult) -> str:
    lines = [
        f"# ring-bench flows on provider {result.provider}: A (step k) {result.hosts[0]} and B (step k+1) "
        f"{result.hosts[1]} -> {result.hosts[2]}, {format_size(result.size_bytes)} each, path MTU {result.mtu}",
        "#  A starts  B starts    A takes    B takes  both under way   (ms)",
    ]
    for run in result.runs:
        a, b = run.flows
        figures = (a.start_ns, b.start_ns, a.duration_ns, b.duration_ns, run.concurrent_ns)
        lines.append("  {:9.1f} {:9.1f} {:10.1f} {:10.1f} {:15.1f}".format(*(ns / 1e6 for ns in figures)))
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Run the subcommand; leaves with 0, 1 (failed) or 2 (usage)."""
    given = _parser().parse_args(arguments)
    gc.freeze()  # as ring-bench does
    try:
        result = _execute(given)
        if result is not None:
            say(_table(result))
            if given.output_file is not None:
                write_result_file(given.output_file, result.model_dump_json(indent=2) + "\n")
    except RingBenchError as error:
        if given.debug:
            traceback.print_exc()
        print(f"ring-bench flows: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _execute(given: argparse.Namespace) -> FlowsResult | None:
    """Run the ranks of this process; gives the result where rank 0 is."""
    plan = Plan(
        size=given.size,
        segment=given.segment,
        delays_ns=tuple(given.delays),
        start_b_ns=given.start_b,
        first_step=given.step,
        job_tag=given.job_tag,
        step_bits=given.step_bits,
        traffic_class=given.traffic_class,
    )
    placement = place(_WORLD, given.rank, given.master, os.environ)
    if given.output_file is not None and 0 in placement.ranks:
        check_writable(given.output_file)
    hosts = parse_hosts(given.hosts) if given.hosts else (0, 1, 2)
    if len(hosts) != _WORLD:
        raise UsageError(f"--hosts names the senders of A and B and the receiver, three hosts, not {len(hosts)}")
    provider: Provider | None = None

    def interrupt() -> None:
        if provider is not None:
            provider.interrupt()

    hub, rendezvous = _meet(plan, placement, given.provider, interrupt)
    try:
        options = ProviderOptions(
            socket=given.verbs,
            job="flows",
            rank=min(placement.ranks),
            world=_WORLD,
            local_ranks=len(placement.ranks),
            seed=given.seed,
            patience_s=given.timeout or None,
        )
        provider = open_provider(given.provider, options)
        if provider.clock == "twin" and len(placement.ranks) < _WORLD:
            # Virtual time passes only while all wait, so no rank may leave for the rendezvous before the others.
            raise UsageError("on the twin all three ranks are in one process: leave --rank and --master out")
        result = run_flows(plan, provider, rendezvous, local_ranks=placement.ranks, hosts=hosts)
    except RingBenchError as error:
        if isinstance(error, FabricGoneError):
            rendezvous.check()  # the wait was broken off because another rank failed
        rendezvous.report(error.describe())
        raise
    else:
        return result if 0 in placement.ranks else None
    finally:
        if provider is not None:
            provider.close()
        rendezvous.close()
        if hub is not None:
            hub.close()


def _meet(plan: Plan, placement: Placement, provider: str, interrupt: Any) -> tuple[Hub | None, Rendezvous]:
    if placement.master is None:
        return None, LocalRendezvous()
    token = secret("RING_BENCH_TOKEN")
    hub = Hub(placement.master, _WORLD, token=token) if 0 in placement.ranks else None
    agreement = plan.agreement() | {"provider": provider}
    joining = Joining(placement.ranks, platform.node(), os.getpid(), agreement, token)
    return hub, TcpRendezvous(placement.master, joining, on_failure=interrupt)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _milliseconds(text: str) -> int:
    try:
        return round(float(text) * 1e6)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"milliseconds, not {text!r}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ring-bench flows",
        description="Two tagged flows through one port: A (step k) and B (step k+1), A delayed (the paper's Fig. 9).",
        epilog="Rank 0 sends A, rank 1 sends B, rank 2 receives: in one process, or one process per host with "
        "--rank and --master, or by mpirun -np 3.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--size", type=_size, default=1 << 30, help="bytes of each flow (default 1G)")
    add("--segment", type=_size, default=1 << 20, metavar="SIZE", help="bytes of each RDMA write (default 1M)")
    add(
        "--delays",
        type=lambda text: [_milliseconds(part) for part in text.split(",")],
        default=[250_000_000, 500_000_000, 750_000_000, 1_000_000_000],
        metavar="MS,MS,..",
        help="when A starts, a run for each (default 250,500,750,1000)",
    )
    add("--start-b", type=_milliseconds, default=1_000_000_000, metavar="MS", help="when B starts (default 1000)")
    add("--step", type=int, default=0, metavar="K", help="step of A in the first run (default 0)")
    add("--job-tag", type=int, default=0, metavar="J", help="job tag in the source port (default 0)")
    add("--step-bits", type=int, default=10, metavar="B", help="bits of the step (default 10)")
    add("--traffic-class", type=int, default=106, metavar="TC", help="DSCP << 2 | ECN (default 106)")
    add("--hosts", metavar="A,B,R", help="hosts of the senders and the receiver (default 0, 1, 2)")
    add("--rank", type=int, metavar="R", help="run this one rank here (needs --master)")
    add("--master", metavar="HOST:PORT", help="where rank 0 is met")
    add("--provider", choices=tuple(PROVIDERS), default="twin", help="way to the fabric (default twin)")
    add("--verbs", default=_DEFAULT_SOCKET, metavar="SOCKET", help=f"the twin's (default {_DEFAULT_SOCKET})")
    add("--seed", type=int, default=1, metavar="N", help="of the twin (default 1)")
    add("-J", "--output_file", type=Path, metavar="FILE", help="write the result as JSON")
    add("-T", "--timeout", type=float, default=120.0, metavar="S", help="longest wait; 0: for ever (default 120)")
    add("--debug", action="store_true", help="show tracebacks")
    return parser
