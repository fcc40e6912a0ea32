# SPDX-License-Identifier: Apache-2.0
"""Options are checked against each other; the plan lays out memory and messages."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_bench.config import Config
from ring_bench.errors import UsageError
from ring_bench.plan import Plan, Send


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world": 0}, "world must be at least 1"),
        ({"minbytes": 0}, "minbytes"),
        ({"maxbytes": 1}, "smaller than -b"),
        ({"stepbytes": 4, "stepfactor": 2}, "not both"),
        ({"stepfactor": 1}, "-f must be at least 2"),
        ({"stepbytes": 0}, "-i must be at least 1"),
        ({"maxbytes": 1 << 45}, "more than 10000 sizes"),
        ({"iters": 0}, "iters"),
        ({"check": 2}, "-c is 0"),
        ({"datatype": "complex"}, "unknown datatype 'complex'; known"),
        ({"op": "avg"}, "unknown operation 'avg'; known: sum"),
        ({"release": "count"}, "add -c 0"),
        ({"release": "never"}, "release is one of"),
        ({"tagging": "none"}, "tagging is one of"),
        ({"job_tag": 16}, "job_tag must be 0 to 15"),
        ({"step_bits": 15}, "step_bits must be 2 to 14"),
        ({"step_bits": 2, "slots": 4}, "at most 2 with 2 step bits"),
        ({"tagging": "static", "slots": 4}, "--slots 4 must be 2\\^step_bits"),
        ({"traffic_class": 256}, "8 bits"),
        ({"split": "MOD 3"}, "unequal"),
        ({"split": "3"}, "MOD n"),
        ({"rings": 5000}, "at most 4096 rings"),
        ({"seed": -1}, "seed"),
        ({"world": 300, "datatype": "half"}, "exact for up to 292 ranks"),
        ({"iters": 1 << 31}, "do not fit the 32-bit immediate"),
        ({"payload_scale": 1 << 26}, "leaves no element"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_the_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Config(**{"world": 4, **options})


def test_sweeps_add_or_multiply() -> None:
    assert Config(world=2, minbytes=4, maxbytes=64, stepfactor=4).counts == [1, 4, 16]
    assert Config(world=2, minbytes=4, maxbytes=14, stepbytes=4).counts == [1, 2, 3]


def test_steps_count_on_through_warm_up_sizes_and_cycles() -> None:
    config = Config(world=4, minbytes=4, maxbytes=8, stepfactor=2, iters=3, warmup_iters=1, run_cycles=2)
    plan = Plan(config, mtu=1024, max_message=1 << 30)
    assert plan.steps_total == config.steps_total == 2 * 2 * 4 * 6
    assert [i.timed for i in plan.operations[:4]] == [False, True, True, True]


@given(
    st.integers(1, 5000),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(40, 600),
    st.integers(1, 4),
)
def test_buffers_do_not_overlap_and_segments_cover_each_chunk(
    size: int, ranks: int, rings: int, slots: int, segment: int, scale: int
) -> None:
    config = Config(
        world=ranks,
        rings=rings,
        slots=slots,
        minbytes=size + 4 * scale,
        maxbytes=size + 4 * scale,
        segment=segment,
        payload_scale=scale,
    )
    plan = Plan(config, mtu=256, max_message=1 << 30)
    count = max(schedule.count for schedule in plan.schedules)
    spans = [(plan.layout.pattern, plan.pattern_length * 4)]
    spans += [(offset, count * 4) for offset in plan.layout.receive]
    if plan.axes:
        steps = [step.receive for q in range(rings) for step in plan.steps_of(0, q, 0)]
        largest = max(receive.length for receive in steps if receive) * 4
        spans += [(plan.scratch_offset(q, 0, slot), largest) for q in range(rings) for slot in range(slots)]
    spans.sort()
    for (begin, length), (following, _) in pairwise(spans):
        assert begin + length <= following
    assert spans[-1][0] + spans[-1][1] <= plan.layout.total
    for ring in range(rings):
        for position in range(ranks):
            behind = [step.receive for step in plan.steps_of(0, ring, (position + 1) % ranks)]
            for step, receive in zip(plan.steps_of(0, ring, position), behind, strict=True):
                send = step.send
                assert send is not None
                assert receive is not None
                assert send.offset == receive.offset * 4
                assert sum(part.length for part in send.segments) == receive.length * 4
                assert send.packets == receive.packets
                assert len(send.segments) <= plan.max_segments
                assert all(part.wire_length == part.length * scale <= segment for part in send.segments)


def first_send(plan: Plan) -> Send:
    send = plan.steps_of(0, 0, 0)[0].send
    assert send is not None
    return send


def test_a_segment_is_never_longer_than_the_devices_allow() -> None:
    plan = Plan(Config(world=2, minbytes=1 << 32, maxbytes=1 << 32), mtu=4096, max_message=1 << 20)
    assert plan.max_segments == 1 << 11
    assert {part.length for part in first_send(plan).segments} == {1 << 20}


def test_four_bytes_over_a_gigabyte_are_two_writes() -> None:
    config = Config(world=2, minbytes=(2 << 30) + 8, maxbytes=(2 << 30) + 8)
    segments = first_send(Plan(config, mtu=4096, max_message=1 << 31)).segments
    assert [part.length for part in segments] == [1 << 30, 4]


def test_a_segment_without_room_for_an_element_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 8 bytes"):
        Plan(Config(world=2, datatype="double", segment=7), mtu=256, max_message=1 << 30)
