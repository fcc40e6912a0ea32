# SPDX-License-Identifier: Apache-2.0
"""The loop that feeds completions to the ranks of this process, and the one place that checks their status."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ring_bench.errors import CompletionError, FabricGoneError, NoProgressError, StalledError
from ring_bench.rank import Rank, Record
from ring_bench.rendezvous import Rendezvous
from ring_bench.setup import World
from ring_bench.verbs.api import SUCCESS, Completion, Provider
from ring_bench.work_id import ring_of, step_of
from ring_bench.workload import Do

__all__ = ["gather", "run_ranks"]

_LINGER_NS = 1_000_000


def run_ranks(
    world: World,
    provider: Provider,
    rendezvous: Rendezvous,
    *,
    progress: Callable[[], None] | None = None,
    at_end: Callable[[], None] | None = None,
) -> None:
    """Run all ranks of this process to their end, then stay until those of all processes are finished.

    Args:
        world: The connected ranks.
        provider: Where completions come from; closed on return, so that no other process waits for this one.
        rendezvous: The other processes.
        progress: Called after every turn.
        at_end: Called when all ranks of the world are finished, while the provider is still open.

    Raises:
        CompletionError: A completion with an error; names rank, step, QP, status and likely causes.
        ProtocolError: A completion out of turn.
        StalledError, NoProgressError: Nothing happens any more; names what the ranks wait for.
        PeerFailedError: Another process failed.
        ProviderError: The fabric failed.
    """
    running = dict(world.ranks)
    computes = any(do is Do.COMPUTE for do, _ in world.plan.actions)
    by_cq = world.by_cq
    rendezvous.begin()
    for rank in world.ranks.values():
        rank.start()
        if rank.finished:
            del running[rank.number]
    try:
        while running:
            completions = provider.wait(_time_left(running, provider) if computes else None)
            for completion in completions:
                if completion.status != SUCCESS:
                    raise _failure(completions, by_cq)
                rank = by_cq[completion.cq]
                rank.handle(completion)
                if rank.finished:
                    running.pop(rank.number, None)
            if computes:
                _tick(running, provider.clock_ns())
            rendezvous.check()
            if progress is not None:
                progress()
        rendezvous.finish()
        while not rendezvous.all_finished:  # others may still need this process's QPs to answer
            rendezvous.check()
            for completion in provider.wait(_LINGER_NS):
                if completion.status != SUCCESS:
                    raise _failure([completion], by_cq)
    except StalledError as error:
        raise StalledError(f"{error}. {_diagnosis(running)}") from error
    except NoProgressError as error:
        raise NoProgressError(f"{error}. {_diagnosis(running)}") from error
    except FabricGoneError:
        rendezvous.check()  # the wait was broken off because another rank failed
        raise
    if at_end is not None:
        at_end()
    provider.close()


def gather(world: World, rendezvous: Rendezvous) -> dict[int, Record]:
    """Bring the records of all ranks together; every process gets all of them.

    Raises:
        PeerFailedError: A rank failed meanwhile.
    """
    everything = rendezvous.exchange(
        {number: rank.record.packed() for number, rank in world.ranks.items()}
        if len(world.ranks) < world.plan.config.world
        else dict.fromkeys(world.ranks)
    )
    return {
        number: world.ranks[number].record if number in world.ranks else Record.unpacked(packed)
        for number, packed in everything.items()
    }


def _time_left(running: Mapping[int, Rank], provider: Provider) -> int | None:
    """Give the ns until the first computation ends; None: nobody computes."""
    deadlines = [rank.deadline_ns for rank in running.values() if rank.deadline_ns is not None]
    return max(0, min(deadlines) - provider.clock_ns()) if deadlines else None


def _tick(running: dict[int, Rank], now_ns: int) -> None:
    """Tell the ranks what time it is, in their order."""
    for rank in list(running.values()):
        rank.tick(now_ns)
        if rank.finished:
            del running[rank.number]


def _failure(completions: list[Completion], by_cq: Mapping[int, Rank]) -> CompletionError:
    """Pin the first real failure of a batch to a rank and step; flushed requests only follow from it."""
    bad = [completion for completion in completions if completion.status != SUCCESS]
    first = next((completion for completion in bad if completion.status != "WR_FLUSH_ERR"), bad[0])
    rank = by_cq[first.cq]
    step = step_of(first.wr_id)
    what = "the credit flow" if step is None else f"step {step}"
    return CompletionError(
        f"rank {rank.number} ({rank.host}), ring {ring_of(first.wr_id)}: {what} failed on "
        f"QP {first.qp_num:#x} with {first.failure}",
        rank=rank.number,
        host=rank.host,
        step=step,
        status=first.status,
    )


def _diagnosis(running: Mapping[int, Rank]) -> str:
    shown = [rank.waiting_for() for rank in list(running.values())[:4]]
    more = len(running) - len(shown)
    return "; ".join(shown) + (f"; and {more} more ranks" if more > 0 else "")
