# SPDX-License-Identifier: Apache-2.0
"""Changing the source port on mlx5, with a stand-in for its library: the three ways it can fail are told apart."""

from __future__ import annotations

import errno
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ring_bench.errors import FabricError
from ring_bench.verbs.api import QpState
from ring_bench.verbs.pyverbs_ import _QueuePair


class PyverbsRDMAError(Exception):
    def __init__(self, text: str, error_code: int) -> None:
        super().__init__(text)
        self.error_code = error_code


class Mlx5QP:
    """Notes the ports; raises where an errno is set."""

    ports: list[tuple[Any, int]]
    fails_with: int | None

    @classmethod
    def modify_udp_sport(cls, qp: Any, port: int) -> None:
        if cls.fails_with is not None:
            raise PyverbsRDMAError("Failed to modify UDP source port", cls.fails_with)
        cls.ports.append((qp, port))


@pytest.fixture
def mlx5dv(monkeypatch: pytest.MonkeyPatch) -> type[Mlx5QP]:
    """Stands in for pyverbs.providers.mlx5.mlx5dv."""
    Mlx5QP.ports, Mlx5QP.fails_with = [], None
    for name in ("pyverbs", "pyverbs.providers", "pyverbs.providers.mlx5", "pyverbs.providers.mlx5.mlx5dv"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["pyverbs.providers.mlx5.mlx5dv"], "Mlx5QP", Mlx5QP, raising=False)
    return Mlx5QP


def queue_pair(state: QpState) -> _QueuePair:
    """A QP of a ConnectX."""
    nothing = SimpleNamespace
    lib = SimpleNamespace(PyverbsError=PyverbsRDMAError, SGE=lambda *_: nothing(), RecvWR=nothing)
    context: Any = SimpleNamespace(lib=lib, driver="mlx5_core", attributes=SimpleNamespace(name="mlx5_0"))
    pair = _QueuePair(context, SimpleNamespace(qp_num=0x123), (4, 4))
    pair._state = state
    return pair


def test_in_rts_the_port_goes_to_the_library(mlx5dv: type[Mlx5QP]) -> None:
    """As it is: the library adds nothing to it."""
    pair = queue_pair(QpState.RTS)
    pair.modify_udp_sport(0xC123)
    assert mlx5dv.ports == [(pair._qp, 0xC123)]


@pytest.mark.parametrize("state", [QpState.RESET, QpState.INIT, QpState.RTR, QpState.SQD])
def test_before_rts_the_library_is_not_even_asked(mlx5dv: type[Mlx5QP], state: QpState) -> None:
    """It would give the errno that missing firmware support gives."""
    with pytest.raises(FabricError, match=f"is in {state}: a source port can be changed in RTS only"):
        queue_pair(state).modify_udp_sport(0xC123)
    assert mlx5dv.ports == []


def test_in_rts_not_supported_means_the_firmware(mlx5dv: type[Mlx5QP]) -> None:
    """The driver and the state are known to be right."""
    mlx5dv.fails_with = errno.EOPNOTSUPP
    with pytest.raises(FabricError, match="firmware cannot") as caught:
        queue_pair(QpState.RTS).modify_udp_sport(0xC123)
    assert "DEVX" in str(caught.value), "the library asks the firmware by DEVX, which a VF may not have"
    assert caught.value.code == errno.errorcode[errno.EOPNOTSUPP]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EINVAL, "the QP has left RTS after an error"),
        (errno.EREMOTEIO, "the QP has left RTS after an error"),  # kernels that pass on the firmware's status
        (errno.EIO, "reset or removed"),
    ],
)
def test_other_refusals_are_not_put_down_to_missing_support(mlx5dv: type[Mlx5QP], number: int, words: str) -> None:
    """The library knows only the state last asked for; firmware knows the real one."""
    mlx5dv.fails_with = number
    with pytest.raises(FabricError, match=words) as caught:
        queue_pair(QpState.RTS).modify_udp_sport(0xC123)
    assert "rts2rts_qp_udp_sport" not in str(caught.value)
    assert caught.value.code == errno.errorcode[number]


def test_a_pyverbs_without_its_mlx5_part_is_named(mlx5dv: type[Mlx5QP], monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution may split it off."""
    monkeypatch.setitem(sys.modules, "pyverbs.providers.mlx5.mlx5dv", None)
    with pytest.raises(FabricError, match="no mlx5 part"):
        queue_pair(QpState.RTS).modify_udp_sport(0xC123)
