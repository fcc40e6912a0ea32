# SPDX-License-Identifier: Apache-2.0
"""All collectives and training steps run on the loopback fabric with exact results, under random delivery."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ring_bench.config import Config, Tagging
from ring_bench.errors import UsageError
from ring_bench.schedule import Collective
from ring_bench.setup import World
from ring_bench.verbs.loopback import LoopbackProvider
from ring_bench.workload import Action, Call, Do, Trace

Run = Callable[..., World]
on_loopback = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def wrong(world: World) -> set[int]:
    """Give the numbers of wrong elements of all ranks and operations."""
    return {count for rank in world.ranks.values() for count in rank.record.wrong}


@st.composite
def grids(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda dims: math.prod(dims) <= 12)))


@st.composite
def common(draw: st.DrawFn) -> dict[str, object]:
    """Options that make no difference to the results."""
    tagging = draw(st.sampled_from(get_args(Tagging)))
    bits = draw(st.integers(2, 4)) if tagging == "static" else 10
    return {
        "rings": draw(st.integers(1, 3)),
        "datatype": draw(st.sampled_from(["float32", "int8", "uint64"])),
        "op": draw(st.sampled_from(["sum", "prod", "max"])),
        "tagging": tagging,
        "release": draw(st.sampled_from(["in-order", "independent"])),
        "slots": 1 << bits if tagging == "static" else draw(st.integers(1, 6)),
        "step_bits": bits,
        "segment": draw(st.integers(64, 4000)),
        "mtu": 256,
        "iters": draw(st.integers(1, 4)),
        "warmup_iters": draw(st.integers(0, 1)),
        "compute_jitter": draw(st.sampled_from(["none", "normal:0.5", "exponential:1"])),
        "jitter_seed": draw(st.integers(0, 9)),
    }


delays = st.sampled_from([(0, 0), (1, 50), (1000, 200_000)])


@on_loopback
@given(st.data(), common(), grids(), st.integers(0, 1 << 30), delays)
def test_every_collective_is_exact_in_every_mode_under_random_delivery(
    loopback_run: Run,
    data: st.DataObject,
    options: dict[str, object],
    dims: tuple[int, ...],
    seed: int,
    delay: tuple[int, int],
) -> None:
    collective = data.draw(st.sampled_from(Collective))
    if collective is not Collective.ALL_REDUCE:
        dims = (math.prod(dims),)
    size = data.draw(st.integers(1, 3000))
    config = Config(
        world=math.prod(dims),
        collective=collective,
        dims=dims,
        root=data.draw(st.integers(0, math.prod(dims) - 1)),
        minbytes=size,
        maxbytes=size + 600,
        stepbytes=500,
        compute_ns=data.draw(st.sampled_from([0, 30_000])),
        **options,  # type: ignore[arg-type]
    )
    provider = LoopbackProvider(seed=seed, min_delay_ns=delay[0], max_delay_ns=delay[1])
    assert wrong(loopback_run(config, provider)) == {0}


@st.composite
def traces(draw: st.DrawFn, dimensions: int) -> Trace:
    """Any training step."""
    calls, actions = [], []
    for number in range(draw(st.integers(0, 5))):
        along = tuple(draw(st.permutations(range(dimensions)))[: draw(st.integers(1, dimensions))])
        several = len(along) > 1
        collective = Collective.ALL_REDUCE if several else draw(st.sampled_from(Collective))
        calls.append(Call(f"c{number}", collective, draw(st.integers(8, 900)), along))
        actions += [Action(Do.COMPUTE, draw(st.integers(0, 50_000)))] * draw(st.integers(0, 2))
        actions.append(Action(Do.ISSUE, number))
        if draw(st.booleans()):
            actions.append(Action(Do.WAIT, draw(st.integers(0, number))))
    actions.append(Action(Do.COMPUTE, draw(st.integers(0, 50_000))))
    return Trace("any", tuple("abc"[:dimensions]), tuple(calls), tuple(actions))


@on_loopback
@given(st.data(), common(), grids(), st.integers(0, 1 << 30), delays)
def test_every_training_is_exact_in_every_mode_under_random_delivery(
    loopback_run: Run,
    data: st.DataObject,
    options: dict[str, object],
    dims: tuple[int, ...],
    seed: int,
    delay: tuple[int, int],
) -> None:
    trace = data.draw(traces(len(dims)))
    config = Config(world=math.prod(dims), dims=dims, trace=trace, **options)  # type: ignore[arg-type]
    provider = LoopbackProvider(seed=seed, min_delay_ns=delay[0], max_delay_ns=delay[1])
    world = loopback_run(config, provider)
    assert wrong(world) <= {0}
    assert sum(len(rank.record.wrong) for rank in world.ranks.values()) == (
        config.world * (config.iters + config.warmup_iters) * len(trace.calls)
    )


@on_loopback
@given(st.data(), st.integers(2, 5), st.integers(0, 1 << 30))
def test_a_collective_begins_once_it_is_issued_and_the_one_before_is_complete(
    loopback_run: Run, data: st.DataObject, ranks: int, seed: int
) -> None:
    trace = data.draw(traces(1).filter(lambda trace: trace.calls))
    config = Config(world=ranks, trace=trace, iters=3, warmup_iters=0, compute_jitter="lognormal:0.5")
    world = loopback_run(config, LoopbackProvider(seed=seed, min_delay_ns=1, max_delay_ns=50_000))
    for rank in world.ranks.values():
        record, plan = rank.record, world.plan
        for number, operation in enumerate(plan.operations):
            posts = [t for t in record.post_ns[0][operation.first_step :][: operation.steps] if t >= 0]
            earliest = max(record.issue_ns[number], record.complete_ns[number - 1] if number else 0)
            assert all(t >= earliest for t in posts)
            assert record.complete_ns[number] >= earliest
        computed = iter(record.computed_ns)
        now = record.mark_ns[0]
        for do, value in plan.actions:
            now += next(computed) if do is Do.COMPUTE else 0
            if do is Do.WAIT:
                now = max(now, record.complete_ns[value])
            elif do is Do.ISSUE:
                assert record.issue_ns[value] == now
            elif do is Do.MARK:
                assert record.mark_ns[value + 1] == now


def test_communication_that_is_not_waited_for_overlaps_with_computation(loopback_run: Run) -> None:
    calls = (Call("bucket", Collective.ALL_REDUCE, 4000),)
    hidden = Trace("t", ("data",), calls, (Action(Do.ISSUE, 0), Action(Do.COMPUTE, 1_000_000)))
    exposed = Trace("t", ("data",), calls, (Action(Do.COMPUTE, 1_000_000), Action(Do.ISSUE, 0)))
    times = []
    for trace in (hidden, exposed):
        world = loopback_run(Config(world=4, trace=trace, iters=1, warmup_iters=0))
        times.append(max(rank.record.mark_ns[1] - rank.record.mark_ns[0] for rank in world.ranks.values()))
    assert times[0] == 1_000_000
    assert times[1] > 1_000_000


def test_ranks_jitter_each_on_its_own_and_repeatably(loopback_run: Run) -> None:
    config = Config(world=3, minbytes=400, maxbytes=400, iters=3, compute_ns=10_000, compute_jitter="normal:0.3")
    first, again = (loopback_run(config) for _ in range(2))
    computed = [rank.record.computed_ns.tolist() for rank in first.ranks.values()]
    assert len({tuple(times) for times in computed}) == 3
    assert computed == [rank.record.computed_ns.tolist() for rank in again.ranks.values()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": (3, 2)}, "--dims 3x2 is a grid of 6 ranks, the world has 4"),
        ({"dims": (2, 2), "split": "MOD 2"}, "a group has 2"),
        ({"dims": (2, 2), "collective": "all_gather"}, "all_gather goes along one axis"),
        ({"collective": "all_to_all"}, "collective is one of all_reduce, all_gather"),
        ({"collective": "broadcast", "root": 4}, "root 4 is not one of 4 ranks"),
        ({"compute_jitter": "normal"}, "a jitter reads"),
        ({"compute_ns": -1}, "compute_ns must be at least 0"),
        ({"release": "count", "check": 0, "collective": "broadcast"}, "'count' is for an AllReduce"),
        ({"release": "count", "check": 0, "compute_ns": 1}, "'count' is for an AllReduce"),
        ({"trace": Trace("t", ("model", "data"), (), ())}, "say how many ranks each has"),
        (
            {"trace": Trace("t", ("data",), (Call("b", Collective.ALL_REDUCE, 3),), (Action(Do.ISSUE, 0),))},
            "b has 3 bytes, no float to move",
        ),
    ],
)
def test_shapes_that_make_no_sense_are_refused_with_the_reason(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Config(**{"world": 4, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ((Action(Do.ISSUE, 1),), "call 1 is issued where call 0 is next"),
        ((Action(Do.WAIT, 0), Action(Do.ISSUE, 0)), "waited for before"),
        ((), "0 of 1 calls"),
        ((Action(Do.ISSUE, 0), Action(Do.COMPUTE, -1)), "0 or more ns"),
    ],
)
def test_a_trace_whose_calls_do_not_follow_is_refused(actions: tuple[Action, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trace("t", ("data",), (Call("b", Collective.ALL_REDUCE, 8),), actions)
