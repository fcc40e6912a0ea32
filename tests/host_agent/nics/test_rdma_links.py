# SPDX-License-Identifier: Apache-2.0
"""Soft-RoCE by the program rdma: never while somebody holds the device, never without a limit, clear words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from host_agent.errors import ConflictError, NicError, NotPermittedError
from host_agent.nics.rdma_links import add_rxe, delete_rxe, holders, rxe_of
from ring_bench.doctor.machine import Output


@pytest.fixture
def rxe(files: Any) -> Any:
    """A machine with rxe0 on v0, whose node is uverbs0."""
    files.rdma_device("rxe0", "v0", soft=True)
    files.write("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0")
    (files.root / "sys/module/rdma_rxe").mkdir(parents=True)
    return files


def hold(files: Any, process: int, node: str) -> None:
    """Let a process have a node open."""
    folder = files.root / "proc" / str(process) / "fd"
    folder.mkdir(parents=True)
    (folder / "7").symlink_to(Path("/dev/infiniband") / node)
    files.write(f"proc/{process}/comm", "ib_write_bw")


def test_the_device_on_a_network_device_is_found(rxe: Any) -> None:
    """By what the kernel says."""
    assert rxe_of(rxe.machine(), "v0") == "rxe0"
    assert rxe_of(rxe.machine(), "v1") is None


def test_a_device_in_use_is_not_removed(rxe: Any) -> None:
    """The kernel would hang until its holder lets go; who that is, is said."""
    hold(rxe, 4711, "uverbs0")
    hold(rxe, 4712, "uverbs1")
    assert holders(rxe.machine(), "rxe0") == ["4711 (ib_write_bw)"]
    with pytest.raises(ConflictError, match=r"4711 \(ib_write_bw\): removing it now would hang"):
        delete_rxe(rxe.machine(), "rxe0")
    assert rxe.commands == []


def test_a_free_device_is_removed(rxe: Any) -> None:
    """By name."""
    rxe.outputs["rdma"] = Output(0, "")
    delete_rxe(rxe.machine(), "rxe0")
    assert rxe.commands == ["rdma link delete rxe0"]


@pytest.mark.parametrize(
    ("output", "kind", "text"),
    [
        (Output(None, ""), NicError, "apt-get install iproute2"),
        (Output(1, "", "error: Operation not permitted\n"), NotPermittedError, "CAP_NET_ADMIN"),
        (Output(1, "", "error: Operation not supported\n"), NicError, "modprobe rdma_rxe"),
        (Output(124, "", "rdma did not answer within 10 s"), NicError, "did not answer within 10 s"),
    ],
)
def test_each_failure_of_the_program_is_told_apart(rxe: Any, output: Output, kind: type[Exception], text: str) -> None:
    """Missing, forbidden, module missing, stuck."""
    rxe.outputs["rdma"] = output
    with pytest.raises(kind, match=text):
        add_rxe(rxe.machine(), "rxe1", "v1")
