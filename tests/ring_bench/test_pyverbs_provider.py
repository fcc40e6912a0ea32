# SPDX-License-Identifier: Apache-2.0
"""The pyverbs provider on a stand-in for the library: accounting, waits, completions, order of teardown, texts.

The stand-in takes calls and grants as the real one does and moves no data: the tests put completions into its queues.
"""

from __future__ import annotations

import errno
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ring_bench.errors import FabricError, FabricGoneError, NoProgressError, ProviderUnavailableError
from ring_bench.verbs import pyverbs_, pyverbs_library
from ring_bench.verbs.api import Opcode, QpAttributes, QpState, connect
from ring_bench.verbs.pyverbs_ import PyverbsProvider

GID = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
PEER = QpAttributes(
    dest_gid="0000:0000:0000:0000:0000:ffff:0a4d:0002",
    dest_qp_num=0x22,
    rq_psn=5,
    sq_psn=6,
    flow_label=0x4001,
    traffic_class=106,
    path_mtu=4096,
    timeout=14,
    retry_cnt=7,
    rnr_retry=6,
    min_rnr_timer=12,
)
STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
MASKS = (  # as in infiniband/verbs.h
    *("STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY", "AV", "PATH_MTU"),
    *("TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN"),
    *("MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP", "DEST_QPN"),
)
STATUSES = ("SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR")
ENUMS: dict[str, int] = {
    **{f"IBV_QPS_{name}": number for number, name in enumerate(STATES)},
    **{f"IBV_QP_{name}": 1 << number for number, name in enumerate(MASKS)},
    **{f"IBV_WC_{name}": number for number, name in enumerate(STATUSES)},
    "IBV_WC_REM_ACCESS_ERR": 10,
    "IBV_WC_RETRY_EXC_ERR": 12,
    "IBV_WC_SEND": 0,
    "IBV_WC_RDMA_WRITE": 1,
    "IBV_WC_RECV": 128,
    "IBV_WC_RECV_RDMA_WITH_IMM": 129,
    "IBV_WR_RDMA_WRITE": 0,
    "IBV_WR_RDMA_WRITE_WITH_IMM": 1,
    "IBV_WR_SEND": 2,
    "IBV_WR_SEND_WITH_IMM": 3,
    "IBV_WC_GRH": 1,
    "IBV_WC_WITH_IMM": 2,
    "IBV_SEND_SIGNALED": 2,
    "IBV_QPT_RC": 2,
    "IBV_PORT_ACTIVE": 4,
    "IBV_ACCESS_LOCAL_WRITE": 1,
    "IBV_ACCESS_REMOTE_WRITE": 2,
    "IBV_GID_TYPE_IB": 0,
    "IBV_GID_TYPE_ROCE_V1": 1,
    "IBV_GID_TYPE_ROCE_V2": 2,
}


class PyverbsError(Exception):
    """Root of the library's errors."""


class PyverbsRDMAError(PyverbsError):
    """One with an errno."""

    def __init__(self, text: str, error_code: int) -> None:
        super().__init__(text)
        self.error_code = error_code


class PyverbsUserError(PyverbsError):
    """One of how it was called; has no errno."""


@dataclass
class Adapter:
    """What the stand-in does and has been asked to do."""

    gids: list[str] = field(default_factory=lambda: ["fe80:0000:0000:0000:0077:00ff:fe00:0001", GID])
    version_1: set[int] = field(default_factory=set)
    """Indexes whose GID is of RoCE v1."""
    port_up: bool = True
    max_msg_sz: int = 1 << 20
    cqe_granted: int = 0
    """0: what is asked for."""
    send_granted: int = 1 << 10
    fails: dict[str, int] = field(default_factory=dict)
    """Errno by call."""
    modified: list[tuple[Any, int]] = field(default_factory=list)
    posted: list[Any] = field(default_factory=list)
    completions: list[Any] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    qps: int = 0x10
    unfreed: int = 0
    """Pieces and copies of them that nobody closed: garbage collection frees none."""

    def check(self, call: str) -> None:
        """Fail if that is wished for."""
        if call in self.fails:
            raise PyverbsRDMAError(f"Failed to {call}", self.fails[call])


def library(adapter: Adapter) -> dict[str, dict[str, Any]]:
    """Make the stand-in: the contents of its modules."""

    class Memory:
        """What malloc gave to a piece or a request: pyverbs frees it in close and nowhere else."""

        def __init__(self) -> None:
            adapter.unfreed += 1

        def close(self) -> None:
            adapter.unfreed -= 1

    class SGE(Memory):
        def __init__(self, addr: int, length: int, lkey: int) -> None:
            super().__init__()
            self.addr, self.length, self.lkey = addr, length, lkey

    class Request(Memory):
        """A work request has a copy of its pieces, as they were."""

        num_sge = 0

        def __init__(self, wr_id: int = 0, num_sge: int = 0, sg: list[SGE] | None = None) -> None:
            if num_sge < 1 or not sg:
                raise PyverbsUserError("A WR needs at least one SGE")
            super().__init__()
            self.wr_id, self.num_sge = wr_id, num_sge
            self.pieces = [(piece.addr, piece.length, piece.lkey) for piece in sg]

    class RecvWR(Request):
        pass

    class SendWR(Request):
        def __init__(self, *, opcode: int, imm_data: int, send_flags: int, **values: Any) -> None:
            super().__init__(**values)
            self.opcode, self.imm_data, self.send_flags = opcode, imm_data, send_flags

        def set_wr_rdma(self, rkey: int, address: int) -> None:
            self.remote = rkey, address

    class QPInitAttr:
        """``cap`` gives a copy."""

        def __init__(self, *, cap: Any, **values: Any) -> None:
            self.granted = vars(cap)
            vars(self).update(values)

        @property
        def cap(self) -> Any:
            return SimpleNamespace(**self.granted)

    class Closing:
        kind = ""

        def close(self) -> None:
            adapter.closed.append(self.kind)
            adapter.check(f"close {self.kind}")

    class Context(Closing):
        kind = "device"

        def __init__(self, name: str) -> None:
            adapter.check("open")

        def query_device(self) -> Any:
            return SimpleNamespace(phys_port_cnt=1, max_qp_wr=1024, max_cqe=1 << 15)

        def query_port(self, port: int) -> Any:
            adapter.check("query port")
            state = ENUMS["IBV_PORT_ACTIVE"] if adapter.port_up else 1
            return SimpleNamespace(active_mtu=5, max_msg_sz=adapter.max_msg_sz, gid_tbl_len=8, state=state)

        def query_gid_ex(self, port: int, index: int) -> Any:
            if index >= len(adapter.gids):
                raise PyverbsRDMAError("Failed to query gid table", errno.ENODATA)
            kind = ENUMS["IBV_GID_TYPE_ROCE_V1" if index in adapter.version_1 else "IBV_GID_TYPE_ROCE_V2"]
            gid = adapter.gids[index]
            return SimpleNamespace(port_num=port, gid_index=index, gid_type=kind, ndev_ifindex=1, gid_str=lambda: gid)

        def query_gid_table(self, entries: int) -> list[Any]:
            adapter.check("query gid table")
            return [self.query_gid_ex(1, index) for index in range(len(adapter.gids))]

    class PD(Closing):
        kind = "domain"

        def __init__(self, context: Context) -> None:
            pass

    class MR(Closing):
        kind = "region"
        lkey, rkey = 7, 8

        def __init__(self, pd: PD, length: int, access: int, address: int) -> None:
            adapter.check("register")

    class CQ(Closing):
        kind = "cq"

        def __init__(self, context: Context, entries: int) -> None:
            self.cqe = adapter.cqe_granted or entries

        def poll(self, count: int) -> tuple[int, list[Any]]:
            adapter.check("poll")
            batch, adapter.completions = adapter.completions[:count], adapter.completions[count:]
            return len(batch), batch

    class QP(Closing):
        kind = "qp"

        def __init__(self, pd: PD, attr: Any) -> None:
            adapter.check("create")
            adapter.qps += 1
            self.qp_num = adapter.qps
            attr.granted["max_send_wr"] = min(attr.cap.max_send_wr, adapter.send_granted)

        def modify(self, attr: Any, mask: int) -> None:
            adapter.check("modify")
            adapter.modified.append((attr, mask))

        def post_send(self, request: Any) -> None:
            adapter.check("post")
            adapter.posted.append(SimpleNamespace(**vars(request)))

        def post_recv(self, request: Any) -> None:
            adapter.check("post")
            adapter.posted.append(SimpleNamespace(**vars(request)))

    plain = SimpleNamespace
    return {
        "": {"__file__": "stand-in"},
        ".addr": {"GID": str, "AHAttr": plain, "GlobalRoute": plain},
        ".cq": {"CQ": CQ},
        ".device": {"Context": Context, "get_device_list": lambda: [plain(name=b"rxe0")]},
        ".enums": ENUMS,
        ".mr": {"MR": MR},
        ".pd": {"PD": PD},
        ".pyverbs_error": {"PyverbsError": PyverbsError},
        ".qp": {"QP": QP, "QPAttr": plain, "QPCap": plain, "QPInitAttr": QPInitAttr},
        ".wr": {"SGE": SGE, "RecvWR": RecvWR, "SendWR": SendWR},
    }


def install(adapter: Adapter, monkeypatch: pytest.MonkeyPatch, driver: str = "rxe") -> None:
    """Put the stand-in where pyverbs would be, on a machine with rxe0 on the loopback interface."""
    for name, contents in library(adapter).items():
        module = ModuleType(f"pyverbs{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if name:
            setattr(sys.modules["pyverbs"], name[1:], module)
    monkeypatch.setattr(pyverbs_library, "device_names", lambda: ["rxe0"])
    monkeypatch.setattr(pyverbs_, "driver_of", lambda _: driver)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo")])


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    """A machine with soft-RoCE."""
    made = Adapter()
    install(made, monkeypatch)
    return made


@pytest.fixture
def provider(adapter: Adapter) -> Iterator[PyverbsProvider]:
    """The provider there, with little patience."""
    opened = PyverbsProvider(patience_s=0.05)
    yield opened
    adapter.fails.clear()
    opened.close()


def pair(provider: PyverbsProvider, sends: int = 2, receives: int = 1) -> tuple[Any, Any]:
    """A connected QP and a region of 64 KiB."""
    context = provider.open_device("rxe0")
    qp = context.create_qp(context.create_cq(16), sends, receives)
    connect(qp, PEER)
    return qp, context.reg_mr(1 << 16)


def write(qp: Any, region: Any, wr_id: int = 1, *, signaled: bool = True) -> None:
    """Post a write."""
    qp.post_send(wr_id, Opcode.RDMA_WRITE, region, 0, 64, remote_address=4096, rkey=9, signaled=signaled)


def completion(qp: Any, status: str = "SUCCESS", opcode: str = "RDMA_WRITE", **values: Any) -> Any:
    """An entry of a completion queue, as the library gives it."""
    known = {"wr_id": 1, "wc_flags": 0, "imm_data": 0, "byte_len": 64, "vendor_err": 0x81, **values}
    return SimpleNamespace(
        status=ENUMS[f"IBV_WC_{status}"], opcode=ENUMS[f"IBV_WC_{opcode}"], qp_num=qp.qp_num, **known
    )


def names_in(mask: int) -> set[str]:
    """The attributes of a mask."""
    return {name for number, name in enumerate(MASKS) if mask >> number & 1}


# -- accounting


def test_a_signaled_send_takes_the_unsignaled_ones_before_it_along(provider: PyverbsProvider, adapter: Adapter) -> None:
    """All of them leave the send queue with its completion, and none before."""
    qp, region = pair(provider, sends=4)
    for signaled in (False, True, False, True):
        write(qp, region, signaled=signaled)
    with pytest.raises(FabricError, match=r"send queue of QP 0x11 of rxe0 is full \(4\)"):
        write(qp, region)
    assert len(adapter.posted) == 4, "the device was not asked"
    adapter.completions = [completion(qp)]
    provider.wait(None)
    write(qp, region)
    write(qp, region)
    with pytest.raises(FabricError, match="is full") as caught:
        write(qp, region)
    assert caught.value.code == "ENOMEM"


def test_a_receive_is_free_again_when_it_completes(provider: PyverbsProvider, adapter: Adapter) -> None:
    """And a send's completion frees none."""
    qp, region = pair(provider)
    qp.post_recv(3)
    write(qp, region)
    adapter.completions = [completion(qp)]
    provider.wait(None)
    with pytest.raises(FabricError, match=r"receive queue of QP 0x11 of rxe0 is full \(1\)"):
        qp.post_recv(4)
    adapter.completions = [completion(qp, opcode="RECV_RDMA_WITH_IMM", wr_id=3)]
    provider.wait(None)
    qp.post_recv(4)


def test_a_failed_completion_frees_nothing(provider: PyverbsProvider, adapter: Adapter) -> None:
    """Its opcode is not defined, so nobody knows which queue it came from; the QP is in error anyway."""
    qp, _ = pair(provider)
    qp.post_recv(3)
    adapter.completions = [completion(qp, "RETRY_EXC_ERR", opcode="RECV")]
    (failed,) = provider.wait(None)
    assert failed.status == "RETRY_EXC_ERR"
    assert failed.failure.startswith("RETRY_EXC_ERR (vendor_err 0x81): the peer does not answer")
    with pytest.raises(FabricError, match="receive queue"):
        qp.post_recv(4)


def test_a_refused_post_takes_no_place(provider: PyverbsProvider, adapter: Adapter) -> None:
    """It is not in the queue."""
    qp, region = pair(provider, sends=1)
    adapter.fails["post"] = errno.ENOMEM
    with pytest.raises(FabricError, match="post_send on QP 0x11 of rxe0: Cannot allocate memory"):
        write(qp, region)
    del adapter.fails["post"]
    write(qp, region)


def test_a_reset_empties_both_queues(provider: PyverbsProvider) -> None:
    """Whatever was posted is gone, without completions."""
    qp, region = pair(provider, sends=1)
    for _ in range(2):
        qp.post_recv(1)
        write(qp, region)
        qp.modify(QpState.RESET)
        connect(qp, PEER)


def test_a_completion_queue_is_shared_out_by_what_the_device_granted(
    provider: PyverbsProvider, adapter: Adapter
) -> None:
    """Not by what was asked for: devices round up, and QPs may use that."""
    adapter.cqe_granted = 7
    context = provider.open_device("rxe0")
    cq = context.create_cq(4)
    context.create_qp(cq, 3, 2)
    with pytest.raises(FabricError, match="has 2 entries left, a QP of 2 sends and 1 receives could overrun") as caught:
        context.create_qp(cq, 2, 1)
    assert caught.value.code == "ENOSPC"
    context.create_qp(cq, 1, 1)


def test_less_than_asked_for_is_refused_with_both_numbers(provider: PyverbsProvider, adapter: Adapter) -> None:
    """A run never goes on with a shallower queue than it counts on."""
    adapter.send_granted = 3
    context = provider.open_device("rxe0")
    with pytest.raises(FabricError, match="rxe0 granted 3 sends and 1 receives of 4 and 1"):
        context.create_qp(context.create_cq(16), 4, 1)


def test_a_message_longer_than_the_port_takes_is_not_posted(provider: PyverbsProvider, adapter: Adapter) -> None:
    """`Plan` cuts by this limit; who bypasses it is told the option."""
    qp, region = pair(provider)
    assert provider.open_device("rxe0").attributes.max_msg_sz == 1 << 20
    with pytest.raises(FabricError, match="smaller --segment") as caught:
        qp.post_send(1, Opcode.RDMA_WRITE, region, 0, (1 << 20) + 1)
    assert caught.value.code == "EMSGSIZE"
    assert adapter.posted == []


# -- what is handed to the library


def test_a_post_is_handed_over_field_by_field(provider: PyverbsProvider, adapter: Adapter) -> None:
    """The immediate in network order; an empty message has no scatter-gather entry."""
    qp, region = pair(provider)
    qp.post_send(
        5, Opcode.RDMA_WRITE_WITH_IMM, region, 100, 64, remote_address=4096, rkey=9, imm=0x01020304, signaled=False
    )
    qp.post_send(6, Opcode.SEND_WITH_IMM, region, 0, 0, imm=1)
    long, empty = adapter.posted
    assert (long.wr_id, long.opcode, long.send_flags) == (5, ENUMS["IBV_WR_RDMA_WRITE_WITH_IMM"], 0)
    assert (long.num_sge, long.pieces, long.remote) == (1, [(region.address + 100, 64, 7)], (9, 4096))
    assert long.imm_data == socket.htonl(0x01020304)
    assert (empty.num_sge, empty.send_flags) == (0, ENUMS["IBV_SEND_SIGNALED"])
    assert not hasattr(empty, "remote")


def test_posting_leaves_no_memory_behind(provider: PyverbsProvider, adapter: Adapter) -> None:
    """Nothing but close frees what pyverbs allocates for a request, not even its end; nor if a post is refused."""
    qp, region = pair(provider, sends=8, receives=4)
    before = adapter.unfreed
    for _ in range(4):
        write(qp, region)
        qp.post_recv(1)
    adapter.fails["post"] = errno.EINVAL
    with pytest.raises(FabricError, match="post_send on QP 0x11 of rxe0: Invalid argument"):
        write(qp, region)
    assert adapter.unfreed == before


def test_connecting_sets_path_and_values_at_their_transitions(provider: PyverbsProvider, adapter: Adapter) -> None:
    """Traffic class, flow label and the GID's index in the address vector; soft-RoCE's time-out is raised."""
    pair(provider)
    (init, at_init), (rtr, at_rtr), (rts, at_rts) = adapter.modified
    assert init.qp_access_flags == ENUMS["IBV_ACCESS_LOCAL_WRITE"] | ENUMS["IBV_ACCESS_REMOTE_WRITE"]
    assert names_in(at_init) == {"STATE", "PKEY_INDEX", "PORT", "ACCESS_FLAGS"}
    route = rtr.ah_attr.gr
    assert (route.dgid, route.flow_label, route.sgid_index, route.traffic_class) == (PEER.dest_gid, 0x4001, 1, 106)
    assert (rtr.ah_attr.is_global, rtr.path_mtu, rtr.dest_qp_num, rtr.rq_psn, rtr.min_rnr_timer) == (1, 5, 0x22, 5, 12)
    assert "AV" in names_in(at_rtr)
    assert (rts.sq_psn, rts.timeout, rts.retry_cnt, rts.rnr_retry) == (6, 18, 7, 6)
    assert "TIMEOUT" in names_in(at_rts)


def test_a_new_port_on_soft_roce_goes_through_sqd(provider: PyverbsProvider, adapter: Adapter) -> None:
    """RTS -> SQD, then the path with the new flow label, then RTS again."""
    qp, _ = pair(provider)
    adapter.modified.clear()
    qp.modify_udp_sport(0xC005)
    assert [(STATES[attr.qp_state], names_in(mask)) for attr, mask in adapter.modified] == [
        ("SQD", {"STATE"}),
        ("SQD", {"AV"}),
        ("RTS", {"STATE"}),
    ]
    label = adapter.modified[1][0].ah_attr.gr.flow_label
    assert ((label & 0x3FFF) ^ (label >> 14)) | 0xC000 == 0xC005
    assert provider.retag_mechanism == "flow label in SQD (RTS -> SQD -> RTS)"


def test_mlx5_has_its_own_mechanism_and_time_out(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result names driver and mechanism; a ConnectX answers in time."""
    install(adapter, monkeypatch, driver="mlx5_core")
    provider = PyverbsProvider()
    pair(provider)
    assert provider.retag_mechanism == "mlx5dv_modify_qp_udp_sport in RTS"
    assert adapter.modified[-1][0].timeout == PEER.timeout
    assert provider.fabric["description"]["devices"][0]["driver"] == "mlx5_core"
    provider.close()


def test_a_scalable_function_of_a_connectx_is_one_too(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver is named mlx5_core.sf; SQD, which mlx5 cannot enter, is not tried on it."""
    install(adapter, monkeypatch, driver="mlx5_core.sf")
    provider = PyverbsProvider()
    qp, _ = pair(provider)
    assert provider.retag_mechanism == "mlx5dv_modify_qp_udp_sport in RTS"
    adapter.modified.clear()
    with pytest.raises(FabricError, match="no mlx5 part"):
        qp.modify_udp_sport(0xC005)
    assert adapter.modified == []
    provider.close()


def test_a_connectx_holds_a_quarter_of_the_sends_it_names(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts blocks of 64 bytes, and its library takes four for a send of an RC QP."""
    install(adapter, monkeypatch, driver="mlx5_core")
    provider = PyverbsProvider()
    assert provider.open_device("rxe0").attributes.max_qp_wr == 256
    provider.close()


def test_a_queue_deeper_than_the_device_allows_names_the_options(provider: PyverbsProvider, adapter: Adapter) -> None:
    """EINVAL is all that the library says."""
    context = provider.open_device("rxe0")
    adapter.fails["create"] = errno.EINVAL
    with pytest.raises(FabricError, match=r"a QP of 9 sends and 1 receives.*EINVAL.*a larger --segment"):
        context.create_qp(context.create_cq(16), 9, 1)


def test_a_refused_modify_leaves_the_state_as_it_was(provider: PyverbsProvider, adapter: Adapter) -> None:
    """So the next message names the right one."""
    context = provider.open_device("rxe0")
    qp = context.create_qp(context.create_cq(4), 1, 1)
    qp.modify(QpState.INIT)
    adapter.fails["modify"] = errno.ETIMEDOUT
    with pytest.raises(FabricError, match=r"QP 0x11 of rxe0 from INIT to RTR: .*ETIMEDOUT.*no MAC address"):
        qp.modify(QpState.RTR, PEER)
    del adapter.fails["modify"]
    with pytest.raises(FabricError, match="cannot go from INIT to RTS"):
        qp.modify(QpState.RTS, PEER)


# -- GIDs


def test_a_gid_that_moved_is_found_at_its_new_index(provider: PyverbsProvider, adapter: Adapter) -> None:
    """A link flap makes the table anew."""
    qp, _ = pair(provider)
    adapter.gids.insert(0, "fd00:0000:0000:0000:0000:0000:0000:0001")
    qp.modify(QpState.RESET)
    connect(qp, PEER)
    assert adapter.modified[-2][0].ah_attr.gr.sgid_index == 2


def test_a_gid_of_roce_v1_at_the_old_index_is_not_taken(provider: PyverbsProvider, adapter: Adapter) -> None:
    """mlx5 lists each address for both versions, next to each other; v1 packets have no source port."""
    qp, _ = pair(provider)
    adapter.gids.append(GID)
    adapter.version_1 = {1}
    qp.modify(QpState.RESET)
    connect(qp, PEER)
    assert adapter.modified[-2][0].ah_attr.gr.sgid_index == 2


def test_a_device_gone_at_a_reconnection_is_an_error_of_ours(provider: PyverbsProvider, adapter: Adapter) -> None:
    """With what was done and the errno."""
    qp, _ = pair(provider)
    adapter.gids.clear()
    adapter.fails["query gid table"] = errno.EIO
    qp.modify(QpState.RESET)
    with pytest.raises(FabricError, match="reading the GIDs of rxe0: Input/output error"):
        connect(qp, PEER)


def test_a_gid_that_is_gone_ends_the_run_with_its_address(provider: PyverbsProvider, adapter: Adapter) -> None:
    """No other one takes its place."""
    qp, _ = pair(provider)
    adapter.gids.pop()
    qp.modify(QpState.RESET)
    with pytest.raises(FabricError, match=r"rxe0 lost its address 10\.77\.0\.1") as caught:
        connect(qp, PEER)
    assert caught.value.code == "ENODEV"


# -- opening


def test_a_device_without_user_space_driver_is_told_apart(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel knows it, the library does not."""
    monkeypatch.setattr(pyverbs_library, "device_names", lambda: ["rxe0", "mlx5_0"])
    provider = PyverbsProvider()
    with pytest.raises(ProviderUnavailableError, match="mlx5_0 is known to the kernel but not to libibverbs"):
        provider.open_device("mlx5_0")
    provider.close()


def test_a_device_that_may_not_be_opened_says_what_it_takes(provider: PyverbsProvider, adapter: Adapter) -> None:
    """Permissions, containers, systemd."""
    adapter.fails["open"] = errno.EACCES
    with pytest.raises(ProviderUnavailableError, match=r"rxe0 cannot be opened .*PrivateDevices=no"):
        provider.open_device("rxe0")


def test_a_device_that_does_not_answer_says_so(provider: PyverbsProvider, adapter: Adapter) -> None:
    """And does not keep others from being used: it is among the problems, not the end."""
    adapter.fails["query port"] = errno.EIO
    with pytest.raises(ProviderUnavailableError, match=r"rxe0 does not answer .*dmesg"):
        provider.open_device("10.77.0.1")


def test_memory_that_may_not_be_locked_names_the_limits(
    provider: PyverbsProvider, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an unlimited process, ENOMEM means something else."""
    context = provider.open_device("rxe0")
    adapter.fails["register"] = errno.ENOMEM
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 2 << 20))
    with pytest.raises(FabricError, match=r"region of 4\.0 MiB.*may lock 1\.0 MiB \(hard limit 2\.0 MiB\)"):
        context.reg_mr(4 << 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with pytest.raises(FabricError) as caught:
        context.reg_mr(4 << 20)
    assert "may lock" not in str(caught.value)


def test_enums_are_found_under_their_new_name_too(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """rdma-core 54 renamed the module."""
    newer = sys.modules["pyverbs.enums"]
    monkeypatch.delattr(sys.modules["pyverbs"], "enums")
    monkeypatch.setitem(sys.modules, "pyverbs.enums", None)
    monkeypatch.setitem(sys.modules, "pyverbs.libibverbs_enums", newer)
    monkeypatch.setattr(sys.modules["pyverbs"], "libibverbs_enums", newer, raising=False)
    provider = PyverbsProvider()
    pair(provider)
    provider.close()


def test_constants_are_found_in_their_enumerations_too(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyverbs compiled by Cython 3.1 or later has them nowhere else."""
    module = ModuleType("pyverbs.libibverbs_enums")
    for prefix in ("IBV_QPS_", "IBV_QP_", "IBV_WC_", "IBV_WR_", ""):
        members = {name: value for name, value in ENUMS.items() if name.startswith(prefix)}
        setattr(module, f"ibv_{prefix.lower()}", IntFlag(f"ibv_{prefix.lower()}", members))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules["pyverbs"], "libibverbs_enums", module, raising=False)
    provider = PyverbsProvider()
    qp, region = pair(provider)
    write(qp, region)
    adapter.completions = [completion(qp)]
    assert [(each.status, each.opcode) for each in provider.wait(None)] == [("SUCCESS", "RDMA_WRITE")]
    provider.close()


# -- waits and completions


def test_completions_are_named_and_the_immediate_is_in_host_order(provider: PyverbsProvider, adapter: Adapter) -> None:
    """Of failed ones only wr_id and status count: the rest is not defined."""
    qp, _ = pair(provider, receives=1)
    qp.post_recv(3)
    adapter.completions = [
        completion(qp, opcode="RECV_RDMA_WITH_IMM", wr_id=3, wc_flags=2, imm_data=socket.htonl(0x01020304)),
        completion(qp, "REM_ACCESS_ERR", opcode="RECV", wr_id=4, wc_flags=2),
        completion(qp, "WR_FLUSH_ERR", wr_id=5),
    ]
    adapter.completions.append(SimpleNamespace(**{**vars(completion(qp, wr_id=6)), "status": 99}))
    received, *failed = provider.wait(None)
    assert (received.wr_id, received.status, received.opcode) == (3, "SUCCESS", "RECV_RDMA_WITH_IMM")
    assert (received.imm, received.qp_num, received.byte_len) == (0x01020304, qp.qp_num, 64)
    assert [(each.wr_id, each.status, each.imm) for each in failed] == [
        (4, "REM_ACCESS_ERR", None),
        (5, "WR_FLUSH_ERR", None),
        (6, "STATUS_99", None),
    ]


def test_the_completion_of_a_send_has_no_immediate(provider: PyverbsProvider, adapter: Adapter) -> None:
    """mlx5 flags it for writes and sends with immediate too, and leaves the field undefined."""
    qp, region = pair(provider)
    write(qp, region)
    adapter.completions = [completion(qp, wc_flags=ENUMS["IBV_WC_WITH_IMM"], imm_data=0xDEADBEEF)]
    assert [each.imm for each in provider.wait(None)] == [None]


def test_a_wait_ends_at_its_time_out_with_nothing(provider: PyverbsProvider) -> None:
    """0 polls once; a completion that is there comes all the same."""
    pair(provider)
    assert provider.wait(0) == []
    assert provider.wait(5_000_000) == []


def test_a_completion_that_is_there_comes_before_the_time_out_and_the_patience(
    provider: PyverbsProvider, adapter: Adapter
) -> None:
    """Even when no time is given."""
    qp, region = pair(provider)
    write(qp, region)
    adapter.completions = [completion(qp)]
    assert len(provider.wait(0)) == 1


def test_patience_has_an_end_that_says_what_to_look_at(provider: PyverbsProvider) -> None:
    """A wait without time-out does not last for ever."""
    pair(provider)
    with pytest.raises(NoProgressError, match=r"no completion for 0\.05 s.*4791.*--timeout 0"):
        provider.wait(None)


def test_another_thread_can_break_off_a_wait(adapter: Adapter) -> None:
    """As the rendezvous does when another rank has died; later waits end at once."""
    provider = PyverbsProvider(patience_s=30.0)
    pair(provider)
    breaker = threading.Timer(0.02, provider.interrupt)
    breaker.start()
    with pytest.raises(FabricGoneError, match="broken off"):
        provider.wait(None)
    breaker.join()
    with pytest.raises(FabricGoneError):
        provider.wait(0)
    provider.close()


def test_patience_that_ends_on_a_port_that_is_down_says_that(provider: PyverbsProvider, adapter: Adapter) -> None:
    """Instead of what else it might be."""
    pair(provider)
    adapter.port_up = False
    with pytest.raises(NoProgressError, match=r"for 0\.05 s: port 1 of rxe0 is down \("):
        provider.wait(None)


def test_a_wait_ends_when_the_device_is_gone(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset or removal nothing completes, not even with an error; patience need not end first."""
    monkeypatch.setattr(pyverbs_, "_LOOK_NS", 1_000_000)
    provider = PyverbsProvider()
    pair(provider)
    assert provider.wait(5_000_000) == []
    adapter.fails["query port"] = errno.EIO
    with pytest.raises(FabricError, match="rxe0 does not answer any more, it was reset or removed") as caught:
        provider.wait(None)
    assert caught.value.code == "EIO"
    provider.close()


def test_a_queue_that_cannot_be_polled_is_an_error(provider: PyverbsProvider, adapter: Adapter) -> None:
    """Not an endless wait. What the library gives then is a negative number of its own, no errno."""
    pair(provider)
    adapter.fails["poll"] = 2
    with pytest.raises(FabricError, match="completion queue 0 has an unreadable entry: Failed to poll") as caught:
        provider.wait(None)
    assert caught.value.code == "EIO"


# -- the end


def test_objects_go_in_the_reverse_order_of_their_making(adapter: Adapter) -> None:
    """QPs before the queues they complete into, the device last; twice does no harm, and errors stop nothing."""
    provider = PyverbsProvider()
    context = provider.open_device("rxe0")
    context.reg_mr(16)
    cq = context.create_cq(16)
    for _ in range(2):
        context.create_qp(cq, 1, 1)
    adapter.closed.clear()  # the device was opened and closed once to choose a GID
    adapter.fails["close qp"] = errno.EBUSY
    provider.close()
    assert adapter.closed == ["qp", "qp", "cq", "region", "domain", "device"]
    provider.close()
    assert len(adapter.closed) == 6
