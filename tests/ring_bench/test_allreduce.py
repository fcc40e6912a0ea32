# SPDX-License-Identifier: Apache-2.0
"""AllReduce on the loopback fabric gives exact sums, in every mode, under every order of deliveries.

The fabric itself turns protocol errors into failures: a missing receive (credit) is an RNR error, a wrong PSN or
QP a retry error, a wrong address an access error, and data are copied as late as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ring_bench.config import Config, Tagging
from ring_bench.errors import CompletionError, ProtocolError, StalledError
from ring_bench.link import Link
from ring_bench.rank import Rank
from ring_bench.ring_end import RingEnd
from ring_bench.setup import World
from ring_bench.tag import TagLayout
from ring_bench.verbs.api import Opcode
from ring_bench.verbs.loopback import LoopbackProvider

Run = Callable[..., World]


def wrong(world: World) -> list[int]:
    """Give the wrong elements of every rank and iteration."""
    return [count for rank in world.ranks.values() for count in rank.record.wrong]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any run whose sums must be right."""
    tagging = draw(st.sampled_from(get_args(Tagging)))
    bits = draw(st.integers(2, 4)) if tagging == "static" else 10
    return Config(
        world=draw(st.integers(1, 9)),
        rings=draw(st.integers(1, 3)),
        minbytes=(size := draw(st.integers(1, 3000))),
        maxbytes=size + draw(st.integers(0, 900)),
        stepbytes=draw(st.integers(300, 900)),
        iters=draw(st.integers(1, 4)),
        warmup_iters=draw(st.integers(0, 2)),
        datatype=draw(st.sampled_from(["float32", "float64", "int32", "int8", "uint64", "half"])),
        op=draw(st.sampled_from(["sum", "prod", "min", "max"])),
        tagging=tagging,
        release=draw(st.sampled_from(["in-order", "independent"])),
        slots=1 << bits if tagging == "static" else draw(st.integers(1, 6)),
        step_bits=bits,
        segment=draw(st.integers(64, 4000)),
        mtu=draw(st.sampled_from([256, 1024, 4096])),
        seed=draw(st.integers(0, 1 << 20)),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs(), st.integers(0, 1 << 30), st.sampled_from([(0, 0), (1, 50), (1000, 200_000)]))
def test_sums_are_exact_in_every_mode_under_random_delivery(
    loopback_run: Run, config: Config, seed: int, delays: tuple[int, int]
) -> None:
    provider = LoopbackProvider(seed=seed, min_delay_ns=delays[0], max_delay_ns=delays[1])
    assert set(wrong(loopback_run(config, provider))) == {0}


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(10, 64), st.sampled_from(["float32", "float64", "int32"]), st.integers(1, 5000))
@example(64, "float32", 4 * 63 + 1)
def test_sums_are_exact_up_to_64_ranks_and_odd_sizes(loopback_run: Run, ranks: int, datatype: str, size: int) -> None:
    config = Config(world=ranks, datatype=datatype, minbytes=size, maxbytes=size, iters=2, warmup_iters=0, rings=2)
    assert set(wrong(loopback_run(config))) == {0}


def test_groups_reduce_on_their_own(loopback_run: Run) -> None:
    world = loopback_run(Config(world=12, split="MOD 3", minbytes=999, maxbytes=999, iters=3))
    assert set(wrong(world)) == {0}
    results = [world.ranks[rank].data(world.plan.receive_offset(3), 249) for rank in range(3)]
    assert not np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], world.ranks[3].data(world.plan.receive_offset(3), 249))


def test_counting_completions_runs_to_its_end_without_verification(loopback_run: Run) -> None:
    world = loopback_run(Config(world=5, release="count", check=0, minbytes=4000, maxbytes=4000, iters=10, rings=2))
    assert set(wrong(world)) == {-1}
    assert all(time >= 0 for rank in world.ranks.values() for row in rank.record.done_ns for time in row)


@pytest.mark.parametrize(
    ("tagging", "bits", "slots"), [("per-step", 10, 4), ("per-step", 4, 3), ("retag", 10, 4), ("static", 3, 8)]
)
def test_every_data_message_carries_the_tag_of_its_step(loopback_run: Run, tagging: Any, bits: int, slots: int) -> None:
    provider = LoopbackProvider(seed=3, trace=True)
    config = Config(
        world=4,
        tagging=tagging,
        step_bits=bits,
        slots=slots,
        job_tag=2,
        minbytes=8000,
        maxbytes=8000,
        segment=700,
        iters=9,
    )
    world = loopback_run(config, provider)
    layout = TagLayout(bits)
    by_qp: dict[int, list[int]] = {}
    for message in provider.messages:
        if message.opcode in (Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_WITH_IMM):
            by_qp.setdefault(message.qp_num, []).append(message.sport)
            if message.imm is not None:
                sports = set(by_qp.pop(message.qp_num))
                assert sports == {layout.encode(2, message.imm)}
    ended = Counter(message.imm for message in provider.messages if message.opcode is Opcode.RDMA_WRITE_WITH_IMM)
    assert ended == dict.fromkeys(range(world.plan.steps_total), 4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 6), st.integers(1, 1 << 30))
def test_in_order_release_posts_a_step_only_when_all_before_have_arrived(
    loopback_run: Run, ranks: int, seed: int
) -> None:
    provider = LoopbackProvider(seed=seed, min_delay_ns=1, max_delay_ns=100_000)
    world = loopback_run(Config(world=ranks, minbytes=400, maxbytes=400, iters=6, slots=3), provider)
    for rank in world.ranks.values():
        posts, dones = rank.record.post_ns[0], rank.record.done_ns[0]
        assert all(posts[step] >= max(dones[:step]) for step in range(1, len(posts)))


def test_independent_release_lets_steps_pass_each_other_within_an_iteration(loopback_run: Run) -> None:
    overtaken = 0
    for seed in range(10):
        provider = LoopbackProvider(seed=seed, min_delay_ns=1, max_delay_ns=100_000)
        config = Config(world=6, release="independent", minbytes=400, maxbytes=400, iters=4)
        world = loopback_run(config, provider)
        steps = world.plan.schedules[0].steps
        for rank in world.ranks.values():
            posts, dones = rank.record.post_ns[0], rank.record.done_ns[0]
            for step in range(1, len(posts)):
                before = dones[step - 1] if step % steps else max(dones[:step])
                assert posts[step] >= before
            overtaken += any(posts[step] < max(dones[:step]) for step in range(1, len(posts)))
    assert overtaken


def test_an_empty_allreduce_is_a_barrier(loopback_run: Run) -> None:
    provider = LoopbackProvider(trace=True)
    world = loopback_run(Config(world=3, minbytes=1, maxbytes=1, iters=2, warmup_iters=0), provider)
    writes = [m for m in provider.messages if m.opcode is Opcode.RDMA_WRITE_WITH_IMM]
    assert len(writes) == 3 * world.plan.steps_total
    assert {message.packets for message in writes} == {1}


def test_a_rank_alone_copies(loopback_run: Run) -> None:
    world = loopback_run(Config(world=1, minbytes=4000, maxbytes=4000, iters=3))
    assert wrong(world) == [0, 0, 0, 0]


def test_without_a_posted_receive_the_run_fails_and_names_rank_step_and_cause(
    loopback_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take away the receiver's part of the credit contract and see the fabric notice."""
    monkeypatch.setattr(Link, "_receive_ids", lambda self, step: ())
    with pytest.raises(CompletionError, match=r"rank \d \(h\d\).*step 0 .*RNR_RETRY_EXC_ERR") as caught:
        loopback_run(Config(world=3, minbytes=400, maxbytes=400))
    assert caught.value.describe()["status"] == "RNR_RETRY_EXC_ERR"
    assert caught.value.describe()["step"] == 0


def test_a_wrong_remote_key_is_an_access_error(loopback_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Link.__init__

    def spoiled(self: Link, *args: Any) -> None:
        original(self, *args)
        self.following.rkey = 77

    monkeypatch.setattr(Link, "__init__", spoiled)
    with pytest.raises(CompletionError, match="REM_ACCESS_ERR"):
        loopback_run(Config(world=2, minbytes=400, maxbytes=400))


def test_a_grant_that_never_comes_stalls_and_says_who_waits_for_what(
    loopback_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, "_post_grant", lambda self, step: None)
    with pytest.raises(StalledError, match=r"rank 0 \(h0\) waits for ring 0: step \d+ from rank 1"):
        loopback_run(Config(world=2, minbytes=400, maxbytes=400, slots=1))


def test_a_grant_out_of_turn_is_a_protocol_error(loopback_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Link._post_grant
    monkeypatch.setattr(Link, "_post_grant", lambda self, step: original(self, step + 1))
    with pytest.raises(ProtocolError, match="unexpected grant of step"):
        loopback_run(Config(world=2, minbytes=400, maxbytes=400))


def test_a_reduction_that_is_skipped_shows_as_wrong_values(loopback_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RingEnd, "_combine", lambda self, operation, scratch, receive: None)
    world = loopback_run(Config(world=3, minbytes=3000, maxbytes=3000, iters=2))
    assert all(count > 0 for count in wrong(world))


def test_stale_data_of_an_earlier_iteration_do_not_pass(loopback_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """From iteration 2 on, reuse the result of two iterations before: verification must notice."""
    original = Rank._verify

    def stale(self: Rank, iteration: int) -> None:
        if iteration >= 2:
            self._result(iteration)[:] = snapshots[self.number, iteration % 2]
        original(self, iteration)
        snapshots[self.number, iteration % 2] = self._result(iteration).copy()

    snapshots: dict[tuple[int, int], Any] = {}
    monkeypatch.setattr(Rank, "_verify", stale)
    world = loopback_run(Config(world=3, minbytes=3000, maxbytes=3000, iters=4, warmup_iters=0))
    for rank in world.ranks.values():
        assert rank.record.wrong[0] == rank.record.wrong[1] == 0
        assert rank.record.wrong[2] > 0
        assert rank.record.wrong[3] > 0
