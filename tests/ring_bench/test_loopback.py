# SPDX-License-Identifier: Apache-2.0
"""The loopback fabric enforces what verbs promise, so that tests on it mean something."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ring_bench.errors import FabricError, FabricGoneError, StalledError
from ring_bench.verbs.api import Opcode, QpAttributes, QpState, connect
from ring_bench.verbs.loopback import LoopbackProvider


class Pair:
    """Two connected queue pairs of two hosts with 64 bytes each."""

    def __init__(self, **changes: Any) -> None:
        self.fabric = LoopbackProvider(seed=1, trace=True)
        self.contexts = [self.fabric.open_device(host) for host in range(2)]
        self.queues = [context.create_cq(8) for context in self.contexts]
        self.regions = [context.reg_mr(64) for context in self.contexts]
        self.qps = [c.create_qp(q, 2, 2) for c, q in zip(self.contexts, self.queues, strict=True)]
        for me, peer in ((0, 1), (1, 0)):
            attributes = QpAttributes(
                dest_gid=self.contexts[peer].attributes.gid,
                dest_qp_num=self.qps[peer].qp_num,
                rq_psn=5,
                sq_psn=5,
                flow_label=9,
                traffic_class=0,
                path_mtu=16,
                timeout=14,
                retry_cnt=7,
                rnr_retry=7,
                min_rnr_timer=12,
            )
            connect(self.qps[me], dataclasses.replace(attributes, **changes), (100,) if me else ())

    def write(self, **changes: Any) -> None:
        arguments: dict[str, Any] = {
            "wr_id": 1,
            "opcode": Opcode.RDMA_WRITE_WITH_IMM,
            "region": self.regions[0],
            "offset": 0,
            "length": 40,
            "remote_address": self.regions[1].address + 8,
            "rkey": self.regions[1].rkey,
            "imm": 77,
        }
        self.qps[0].post_send(**{**arguments, **changes})

    def statuses(self) -> list[tuple[int, str]]:
        done = []
        while True:
            try:
                done += [(wc.wr_id, wc.status) for wc in self.fabric.wait(None)]
            except StalledError:
                return done


def test_a_write_with_immediate_moves_data_and_completes_at_both_ends() -> None:
    pair = Pair()
    pair.regions[0].buffer[:40] = 3
    pair.write()
    received = pair.fabric.wait(None)
    assert [(wc.wr_id, wc.opcode, wc.imm, wc.byte_len) for wc in received] == [(100, "RECV_RDMA_WITH_IMM", 77, 40)]
    assert received[0].cq == pair.queues[1].handle
    assert pair.regions[1].buffer[8:48].tolist() == [3] * 40
    assert pair.statuses() == [(1, "SUCCESS")]
    (message,) = pair.fabric.messages
    assert (message.sport, message.psn, message.packets) == (0xC009, 5, 3)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"rkey": 99}, "REM_ACCESS_ERR"),
        ({"remote_address": 0}, "REM_ACCESS_ERR"),
        ({"remote_address": (2 << 40) + 30}, "REM_ACCESS_ERR"),
    ],
)
def test_a_write_to_a_wrong_place_fails(changes: dict[str, Any], status: str) -> None:
    pair = Pair()
    pair.write(**changes)
    assert pair.statuses() == [(1, status)]


def test_a_message_without_receive_is_a_receiver_not_ready_error() -> None:
    pair = Pair()
    pair.write(wr_id=1)
    pair.write(wr_id=2)
    assert pair.statuses() == [(100, "SUCCESS"), (1, "SUCCESS"), (2, "RNR_RETRY_EXC_ERR")]


def test_psns_that_do_not_match_fail() -> None:
    pair = Pair(rq_psn=6)
    pair.write()
    assert pair.statuses() == [(1, "RETRY_EXC_ERR")]


def test_data_are_read_when_the_message_arrives() -> None:
    pair = Pair()
    pair.write()
    pair.regions[0].buffer[:40] = 9
    pair.statuses()
    assert pair.regions[1].buffer[8] == 9


def test_queue_depths_and_states_are_enforced() -> None:
    pair = Pair()
    pair.write()
    with pytest.raises(FabricError, match="drained"):
        pair.qps[0].modify_udp_sport(0xC001)
    pair.write()
    with pytest.raises(FabricError, match="full"):
        pair.write()
    pair.qps[1].post_recv(101)
    with pytest.raises(FabricError, match="full"):
        pair.qps[1].post_recv(102)
    with pytest.raises(FabricError, match="cannot go from RTS to RTR"):
        pair.qps[0].modify(QpState.RTR)
    with pytest.raises(FabricError, match="outside the local memory region"):
        Pair().write(length=65)


def test_a_reset_forgets_what_was_under_way() -> None:
    pair = Pair()
    pair.write()
    pair.qps[0].modify(QpState.RESET)
    assert pair.statuses() == []


def test_a_completion_queue_that_overruns_is_an_error() -> None:
    pair = Pair()
    small = pair.contexts[0].create_cq(1)
    pair.queues[1].entries = 0
    assert small.handle == 2
    pair.write()
    with pytest.raises(FabricError, match="overran"):
        pair.fabric.wait(None)


def test_an_interrupted_fabric_is_gone() -> None:
    fabric = LoopbackProvider()
    fabric.interrupt()
    with pytest.raises(FabricGoneError):
        fabric.wait(0)


def test_waiting_without_anything_under_way_takes_the_time_given() -> None:
    fabric = LoopbackProvider()
    assert fabric.wait(70) == []
    assert fabric.clock_ns() == 70
