# SPDX-License-Identifier: Apache-2.0
"""What of the pyverbs provider can be said without a device; tests/system runs the rest on real soft-RoCE."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ring_bench.errors import FabricError, ProviderUnavailableError
from ring_bench.verbs import ProviderOptions, open_provider
from ring_bench.verbs.api import TRANSITION_ATTRIBUTES, QpAttributes, QpState
from ring_bench.verbs.pyverbs_library import MASKS, explain_modify, is_mlx5, load_pyverbs, refusals

ATTRIBUTES = QpAttributes(
    dest_gid="::1",
    dest_qp_num=17,
    rq_psn=1,
    sq_psn=2,
    flow_label=3,
    traffic_class=106,
    path_mtu=4096,
    timeout=17,
    retry_cnt=7,
    rnr_retry=6,
    min_rnr_timer=12,
)


class PyverbsRDMAError(Exception):
    def __init__(self, text: str, error_code: int) -> None:
        super().__init__(text)
        self.error_code = error_code


LIB = SimpleNamespace(PyverbsError=PyverbsRDMAError)


def test_attributes_go_with_the_transitions_of_the_ib_specification() -> None:
    assert set(MASKS[QpState.INIT, QpState.RTR]) == {
        *("AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER"),
    }
    assert set(MASKS[QpState.RTR, QpState.RTS]) == {"TIMEOUT", "RETRY_CNT", "RNR_RETRY", "SQ_PSN", "MAX_QP_RD_ATOMIC"}
    for attribute in ("TIMEOUT", "RETRY_CNT", "RNR_RETRY"):  # EINVAL anywhere else
        assert [pair for pair, names in MASKS.items() if attribute in names] == [(QpState.RTR, QpState.RTS)]
    assert (QpState.RTS, QpState.RTS) not in MASKS  # no address vector in RTS


def test_every_attribute_of_the_protocol_is_in_the_mask_of_its_transition() -> None:
    in_mask = {"dest_gid": "AV", "flow_label": "AV", "traffic_class": "AV", "dest_qp_num": "DEST_QPN"}
    for old, state in ((QpState.INIT, QpState.RTR), (QpState.RTR, QpState.RTS)):
        for name in TRANSITION_ATTRIBUTES[state]:
            assert in_mask.get(name, name.upper()) in MASKS[old, state]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ETIMEDOUT, "no MAC address of the peer"),
        (errno.ENODEV, "another network namespace"),
        (errno.ENETUNREACH, "no route"),
        (errno.EINVAL, "compare MTU"),
    ],
)
def test_a_refused_rtr_says_the_values_and_what_the_errno_means(number: int, words: str) -> None:
    def explain(number: int) -> str:
        return explain_modify(QpState.RTR, number, ATTRIBUTES)

    with pytest.raises(FabricError) as caught, refusals(LIB, "QP 0x11 of rxe0 from INIT to RTR", explain):
        raise PyverbsRDMAError("Failed to modify QP", number)
    text = str(caught.value)
    assert text.startswith("QP 0x11 of rxe0 from INIT to RTR: ")
    assert words in text
    assert "path_mtu 4096" in text
    assert caught.value.code == errno.errorcode[number]


def test_an_error_without_errno_keeps_its_own_words() -> None:
    with pytest.raises(FabricError, match="something odd") as caught, refusals(LIB, "here"):
        raise PyverbsRDMAError("something odd", -1000)
    assert caught.value.code == "EIO"


def test_pyverbs_own_number_for_no_errno_is_not_taken_for_eperm() -> None:
    with pytest.raises(FabricError, match="here: Failed to get devices list") as caught, refusals(LIB, "here"):
        raise PyverbsRDMAError("Failed to get devices list", -1)
    assert caught.value.code == "EIO"


def test_negative_errnos_count_too() -> None:  # ibv_query_gid_table gives them
    with pytest.raises(FabricError, match="here: Operation not supported") as caught, refusals(LIB, "here"):
        raise PyverbsRDMAError("Failed to query gid tables", -errno.EOPNOTSUPP)
    assert caught.value.code == errno.errorcode[errno.EOPNOTSUPP]


@pytest.mark.parametrize(
    ("driver", "is_one"), [("mlx5_core", True), ("mlx5_core.sf", True), ("rxe", False), ("mlx4_core", False)]
)
def test_functions_of_a_connectx_are_known_by_their_driver(driver: str, is_one: bool) -> None:
    assert is_mlx5(driver) is is_one


def test_without_pyverbs_the_provider_says_which_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    options = ProviderOptions(socket=None, job="x", rank=0, world=1, local_ranks=1, seed=1, patience_s=1.0)
    with pytest.raises(ProviderUnavailableError, match="python3-pyverbs"):
        open_provider("pyverbs", options)


def test_a_pyverbs_of_another_rdma_core_is_told_apart_from_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs" / "__init__.py").write_text("raise ImportError(\"version 'IBVERBS_PRIVATE_59' not found\")")
    monkeypatch.delitem(sys.modules, "pyverbs", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProviderUnavailableError, match=r"does not fit.*IBVERBS_PRIVATE_59"):
        load_pyverbs()


def test_nothing_imports_pyverbs_before_a_provider_is_opened() -> None:
    code = "import sys, ring_bench.cli, ring_bench.verbs.pyverbs_; sys.exit('pyverbs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
