# SPDX-License-Identifier: Apache-2.0
"""One process's part in a run, from joining the others to the written result, whatever happens in between."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ring_bench import report
from ring_bench.config import Config
from ring_bench.errors import InterruptedRunError, OutputError, ResultWriteError, RingBenchError, RunError, UsageError
from ring_bench.events import EventSender
from ring_bench.hub import Hub
from ring_bench.launch import Placement, secret
from ring_bench.rank import Record
from ring_bench.rendezvous import Joining, LocalRendezvous, Rendezvous, TcpRendezvous
from ring_bench.results import (
    Failure,
    Parameters,
    RunResult,
    SizeResult,
    TrainingResult,
    Versions,
    write_result,
)
from ring_bench.run import gather, run_ranks
from ring_bench.setup import World, set_up
from ring_bench.summary import collective_times, row_of, rows_of, totals_of
from ring_bench.training import training_of
from ring_bench.units import algbw_gbps, busbw_factor
from ring_bench.verbs import ProviderOptions, open_provider
from ring_bench.verbs.api import Provider
from ring_bench.witness import Witness
from symphony_common.version import version

__all__ = ["Options", "Session"]

_EXIT_FAILED = 1
_EXIT_USAGE = 2


@dataclass(frozen=True)
class Options:
    """What a process is told besides the `Config` that all ranks share."""

    provider: str
    socket: str | None
    hosts: tuple[str | int, ...]
    """Of each world rank."""
    job: str
    timeout_s: float | None
    output: Path | None
    events_url: str | None
    debug: bool


@dataclass
class Session:
    """Run the ranks of this process and leave a table, a file and an exit status.

    Args:
        config: What all ranks agree on.
        placement: Which ranks are here.
        options: The rest.
        out: Takes lines for the terminal; only used where rank 0 is.
        err: Takes lines for stderr.
    """

    config: Config
    placement: Placement
    options: Options
    out: Callable[[str], None] = print
    err: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
    _provider: Provider | None = None
    _rendezvous: Rendezvous = field(default_factory=LocalRendezvous)
    _hub: Hub | None = None
    _sender: EventSender | None = None
    _world: World | None = None
    _failure: dict[str, Any] | None = None
    _witness: Witness | None = None
    _rows_shown: int = 0
    _head_shown: bool = False
    _collectives: dict[int, int] = field(default_factory=dict)
    """Iterations reported so far, by group."""

    def execute(self) -> int:
        """Run to the end, good or bad, and give the exit status."""
        started, clock = time.time(), time.monotonic()
        records: dict[int, Record] = {}
        complete, status = 0, 0
        try:
            with _signals_raise():
                try:
                    records = self._run()
                    complete = len(self._world.plan.operations) if self._world is not None else 0
                except RingBenchError as error:
                    status = self._failed(error)
                except Exception as error:
                    self._failed(RunError(f"internal error: {error!r}; --debug shows where"))
                    status = _EXIT_FAILED
                    if self.options.debug:
                        traceback.print_exc()
        except InterruptedRunError as error:  # between two handlers
            status = self._failed(error)
        if self._failure is not None and self._world is not None:
            ranks = self._world.ranks
            records = {number: rank.record for number, rank in ranks.items()}
            complete = min(rank.complete for rank in ranks.values())
            if self._failure.get("step") is None:  # a process that died says none
                missing = [rank.missing for rank in ranks.values() if rank.missing is not None]
                self._failure = {**self._failure, "step": min(missing, default=None)}
            if self._witness is not None:
                self._witness.finish()
        uncertainty_ns = self._witness.uncertainty_ns if self._witness is not None else 0
        rows: list[SizeResult] = []
        training: TrainingResult | None = None
        if self._world is not None:
            plan, trace = self._world.plan, self.config.trace
            if trace is None:
                rows = rows_of(plan, records, complete, uncertainty_ns)
            else:
                training = training_of(plan, trace, records, complete, uncertainty_ns)
        result = self._result(rows, training, sorted(records), started, time.monotonic() - clock)
        status = self._conclude(result) or status
        self._leave(result)
        return status

    @property
    def _leads(self) -> bool:
        return 0 in self.placement.ranks

    def _run(self) -> dict[int, Record]:
        config, options, placement = self.config, self.options, self.placement
        self._meet()
        self._provider = open_provider(
            options.provider,
            ProviderOptions(
                socket=options.socket,
                job=options.job,
                rank=min(placement.ranks),
                world=config.world,
                local_ranks=len(placement.ranks),
                seed=config.seed,
                patience_s=options.timeout_s,
            ),
        )
        witness = self._witness = Witness(self._provider, self._rendezvous, placement.ranks, config.traffic_class)
        shift_ns = witness.compare_clocks()
        if options.events_url is not None:
            self._sender = EventSender(
                options.events_url,
                run=self._run_name(),
                clock=self._provider.clock,
                host=platform.node(),
                group_of={rank: number for number, group in enumerate(config.groups) for rank in group},
                token=secret("SYMPHONY_EVENTS_TOKEN"),
                warn=lambda line: self.err(f"ring-bench: warning: {line}"),
                shift_ns=shift_ns,
            )
        world = self._world = set_up(
            config,
            self._provider,
            self._rendezvous,
            local_ranks=placement.ranks,
            hosts=options.hosts,
            observer=self._sender,
        )
        if self._leads:
            self.out(report.preamble(config, self._provider, world.hosts, world.plan.mtu, world.plan.segment))
        witness.start()
        run_ranks(world, self._provider, self._rendezvous, progress=self._progress, at_end=witness.finish)
        witness.gather()
        return witness.align(gather(world, self._rendezvous))

    def _meet(self) -> None:
        placement = self.placement
        if placement.master is None:
            return
        token = secret("RING_BENCH_TOKEN")
        if self._leads:
            self._hub = Hub(placement.master, placement.world, token=token)
        agreement = {**self.config.agreement(), "version": version(), "provider": self.options.provider}
        agreement["hosts"] = list(self.options.hosts)
        self._rendezvous = TcpRendezvous(
            placement.master,
            Joining(placement.ranks, platform.node(), os.getpid(), agreement, token),
            on_failure=self._interrupt,
        )

    def _run_name(self) -> str:
        """Give a name that all processes of this run share and no other run has: rank 0's."""
        own = f"{self.options.job}-{time.time_ns():x}-{os.getpid()}"
        return str(self._rendezvous.exchange(dict.fromkeys(self.placement.ranks, own))[0])

    def _interrupt(self) -> None:
        if self._provider is not None:
            self._provider.interrupt()

    def _progress(self) -> None:
        """Show rows as sizes end and tell of finished collectives, where all their ranks are here."""
        world, config = self._world, self.config
        if world is None:
            return
        if len(world.ranks) == config.world and config.trace is None:
            per_size = config.warmup_iters + config.iters
            while (end := (self._rows_shown + 1) * per_size) <= len(world.plan.operations) and all(
                rank.complete >= end for rank in world.ranks.values()
            ):
                records = {number: rank.record for number, rank in world.ranks.items()}
                cycle, size = divmod(self._rows_shown, len(world.plan.schedules))
                row = row_of(world.plan, records, cycle, size, end)
                if row is not None:
                    self._show(row)
        if self._sender is not None and world.plan.axes:
            self._tell_collectives(world, self._sender)

    def _tell_collectives(self, world: World, sender: EventSender) -> None:
        for number, group in enumerate(self.config.groups):
            if any(rank not in world.ranks for rank in group):
                continue
            told = self._collectives.get(number, 0)
            while told < len(world.plan.operations) and all(world.ranks[rank].complete > told for rank in group):
                records = {rank: world.ranks[rank].record for rank in group}
                begin, end = collective_times(world.plan, records, told)
                shape = world.plan.operations[told].shape
                schedule = world.plan.schedules[shape]
                algbw = algbw_gbps(world.plan.size_bytes(shape), end - begin)
                busbw = None if algbw is None else algbw * busbw_factor(schedule.collective, schedule.ranks)
                sender.collective((number, told, begin, end, busbw))
                told += 1
            self._collectives[number] = told

    def _show(self, row: SizeResult) -> None:
        if not self._head_shown:
            self._head_shown = True
            self.out(report.table_head())
        self._rows_shown += 1
        self.out(report.row(row))
        details = report.row_details(row)
        if details:
            self.out(details)

    def _failed(self, error: RingBenchError) -> int:
        """Tell the others, note the first failure of the run, say it on stderr; give the exit status."""
        if self.options.debug:
            traceback.print_exc()
        own = error.describe()
        self._failure = self._rendezvous.report(own)
        self.err(f"ring-bench: {error}")
        if not str(self._failure["message"]).endswith(own["message"]):
            self.err(f"ring-bench: the first failure of the run: {self._failure['message']}")
        if isinstance(error, InterruptedRunError):
            return 128 + error.signal_number
        return _EXIT_USAGE if isinstance(error, UsageError) else _EXIT_FAILED

    def _result(
        self,
        rows: list[SizeResult],
        training: TrainingResult | None,
        ranks: list[int],
        started: float,
        wall_s: float,
    ) -> RunResult:
        config, provider, world, failure = self.config, self._provider, self._world, self._failure
        mechanism = None
        if provider is not None:
            mechanism = provider.retag_mechanism if config.tagging == "retag" else "flow label at RTR"
        fabric = provider.fabric if provider is not None else {}
        return RunResult(
            complete=failure is None,
            failure=None if failure is None else Failure(**failure),
            job=self.options.job,
            provider=self.options.provider,
            clock=provider.clock if provider is not None else None,
            preset=fabric.get("preset"),
            tagging=config.tagging,
            tagging_mechanism=mechanism,
            qp_mode=config.qp_mode,
            release_rule=config.release,
            hosts=world.hosts if world is not None else [],
            ranks_covered=ranks,
            groups=config.groups,
            steps_total=config.steps_total,
            parameters=Parameters(
                world=config.world,
                collective=config.collective if config.trace is None else None,
                root=config.root,
                dims=list(config.grid),
                compute_ns=config.compute_ns,
                compute_jitter=config.compute_jitter,
                jitter_seed=config.jitter_seed,
                split=config.split,
                rings=config.rings,
                minbytes=config.minbytes,
                maxbytes=config.maxbytes,
                stepbytes=config.stepbytes,
                stepfactor=config.stepfactor,
                iters=config.iters,
                warmup_iters=config.warmup_iters,
                run_cycles=config.run_cycles,
                check=config.check,
                datatype=config.datatype,
                op=config.op,
                slots=config.slots,
                job_tag=config.job_tag,
                step_bits=config.step_bits,
                segment_bytes=world.plan.segment if world is not None else config.segment,
                mtu=world.plan.mtu if world is not None else config.mtu,
                traffic_class=config.traffic_class,
                payload_scale=config.payload_scale,
                seed=config.seed,
            ),
            versions=Versions(ring_bench=version(), python=platform.python_version(), numpy=np.__version__),
            fabric=dict(fabric.get("description", {})),
            started_unix_s=started,
            wall_s=wall_s,
            clocks=self._witness.clocks if self._witness is not None else [],
            counters=self._witness.counters if self._witness is not None else None,
            results=rows,
            training=training,
            totals=totals_of(rows, training),
        )

    def _conclude(self, result: RunResult) -> int:
        """Print what is left of the table and write the file; give an exit status if something is wrong."""
        status = 0
        if self._leads and self._world is not None:
            try:
                self._print_rest(result)
            except OutputError as error:
                self.err(f"ring-bench: {error}")
                status = _EXIT_FAILED
        if result.totals.wrong:
            self.err(f"ring-bench: {result.totals.wrong} elements are wrong")
            status = _EXIT_FAILED
        path = self.options.output
        if path is not None and not self._leads:
            # Only rank 0's file is the run's; where a run broke, each process leaves what it knows.
            own = path.with_name(f"{path.stem}.rank{min(self.placement.ranks)}{path.suffix}")
            path = own if not result.complete and (path.is_file() or not path.exists()) else None
        if path is not None:
            try:
                write_result(result, path)
            except ResultWriteError as error:
                self.err(f"ring-bench: {error}")
                status = _EXIT_FAILED
        return status

    def _print_rest(self, result: RunResult) -> None:
        for row in result.results[self._rows_shown :]:
            self._show(row)
        if result.training is not None:
            self.out(report.training(result.training))
        if not result.complete:
            self.out("# INCOMPLETE: " + (result.failure.message if result.failure else "stopped"))
        if result.counters is not None and (remarks := report.counters(result.counters)):
            self.out(remarks)
        self.out(report.footer(result.totals))

    def _leave(self, result: RunResult | None) -> None:
        if self._sender is not None:
            final = result.model_dump(mode="json") if result is not None and self._leads else None
            dropped = self._sender.close(final)
            if dropped:
                self.err(f"ring-bench: warning: {dropped} step events were dropped")
        if self._provider is not None:
            self._provider.close()
        self._rendezvous.close()
        if self._hub is not None:
            self._hub.close()


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into InterruptedRunError; a second one ends the process at once."""

    def handler(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        raise InterruptedRunError(number, signal.Signals(number).name)

    before = {each: signal.signal(each, handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, previous in before.items():
            if signal.getsignal(each) is handler:
                signal.signal(each, previous)
