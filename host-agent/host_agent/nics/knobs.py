# SPDX-License-Identifier: Apache-2.0
"""The values of a NIC that can be set: each can be read, written and, by its name, found again for a restore."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.errors import NicError, NotPermittedError
from host_agent.nics.models import NicWish
from host_agent.nics.netlink import Netlink
from host_agent.nics.rdma_links import add_rxe, delete_rxe, rxe_of
from ring_bench.doctor import Machine
from ring_bench.doctor.tagging import firmware_port

__all__ = ["Knob", "Unsupported", "Workbench", "wanted"]

PRIORITIES: Final = range(8)


class Unsupported(Exception):  # noqa: N818 (a state of the machine, turned into an obstacle of the plan)
    """This machine has no such value; the text says what it would need."""


@dataclass(frozen=True)
class Knob:
    """A value of a NIC."""

    read: Callable[[], Any]
    """Give it now; None: there is none. Raises Unsupported."""
    write: Callable[[Any], None]
    """Set it to something that `read` could give. Raises HostAgentError."""
    note: str = ""
    """What else a change affects."""


@dataclass(frozen=True)
class Workbench:
    """What knobs work with."""

    machine: Machine
    netlink: Netlink

    def knob(self, netdev: str, what: str, detail: str) -> Knob:
        """Give the knob of a name. Raises Unsupported for a name that no version of this program gave."""
        maker = _MAKERS.get(what)
        if maker is None:
            raise Unsupported(f"{netdev}: no value {what!r} is known")
        return maker(self, netdev, detail)


def wanted(wish: NicWish) -> Iterator[tuple[str, str, Any]]:
    """Give (what, detail, value) of everything that a wish asks for, in the order in which to set it.

    MTU before addresses (GIDs are made anew with it), on before neighbours (they vanish with the carrier), and the
    soft-RoCE device last.
    """
    if wish.mtu is not None:
        yield "mtu", "", wish.mtu
    for address in wish.addresses:
        yield "address", address, True
    if wish.up:
        yield "up", "", True
    for neighbour in wish.neighbours:
        yield "neighbour", neighbour.address, {"mac": neighbour.mac.lower(), "state": "permanent"}
    for what in ("trust", "traffic_class", "cnp_dscp", "cnp_priority"):
        if (value := getattr(wish, what)) is not None:
            yield what, "", value
    if wish.ecn_np is not None:
        yield "ecn_np", "", wish.ecn_np
    if wish.ecn_rp is not None:
        for priority in PRIORITIES:
            yield "ecn_rp", str(priority), priority in wish.ecn_rp
    if wish.rxe is not None:
        yield "rxe", "", wish.rxe


# -- netlink


def _up(bench: Workbench, netdev: str, _: str) -> Knob:
    return Knob(lambda: bench.netlink.link(netdev).up, lambda value: bench.netlink.set_up(netdev, value))


def _mtu(bench: Workbench, netdev: str, _: str) -> Knob:
    note = "the port's GIDs are made anew: queue pairs in use may break"
    return Knob(lambda: bench.netlink.link(netdev).mtu, lambda value: bench.netlink.set_mtu(netdev, value), note)


def _address(bench: Workbench, netdev: str, address: str) -> Knob:
    def read() -> bool:
        bench.netlink.link(netdev)
        return address in bench.netlink.addresses().get(netdev, [])

    return Knob(read, lambda value: bench.netlink.set_address(netdev, address, value))


def _neighbour(bench: Workbench, netdev: str, address: str) -> Knob:
    def read() -> dict[str, str] | None:
        entry = bench.netlink.neighbour(netdev, address)
        # What the kernel has learned by itself it learns again: only permanent entries are somebody's will.
        return {"mac": entry.mac or "", "state": "permanent"} if entry and entry.state == "permanent" else None

    def write(value: dict[str, str] | None) -> None:
        bench.netlink.set_neighbour(netdev, address, value["mac"] if value else None)

    return Knob(read, write)


# -- sysfs


def _trust(bench: Workbench, netdev: str, _: str) -> Knob:
    path = bench.machine.netdev(netdev) / "qos" / "trust"
    hint = (
        f"{path} does not exist: it comes with MLNX_OFED; with the kernel's own driver use "
        f"`dcb app add dev {netdev} dscp-prio DSCP:PRIORITY`, which turns trust to dscp"
    )

    def read() -> str:
        return _content(bench, netdev, path, hint).split()[-1].lower()

    return Knob(read, lambda value: _put(path, value))


def _traffic_class(bench: Workbench, netdev: str, _: str) -> Knob:
    def path() -> Path:
        for port in bench.machine.ports:
            if port.netdev == netdev:
                return bench.machine.infiniband / port.device / "tc" / str(port.number) / "traffic_class"
        bench.netlink.link(netdev)
        raise Unsupported(f"{netdev} has no RDMA device, so no traffic class")

    def read() -> int | None:
        text = _content(bench, netdev, path(), f"{path()} does not exist: it comes with MLNX_OFED; set it per program")
        forced = re.search(r"Global tclass=(\d+)", text) or re.fullmatch(r"(\d+)", text)
        return int(forced[1]) if forced else None

    note = "holds for all queue pairs of the port, whatever their programs ask for"
    return Knob(read, lambda value: _put(path(), "-1" if value is None else str(value)), note)


def _ecn_np(bench: Workbench, netdev: str, _: str) -> Knob:
    folder = bench.machine.netdev(netdev) / "ecn" / "roce_np" / "enable"

    def read() -> bool:
        return any(
            _content(bench, netdev, folder / str(p), _ecn_hint(bench, netdev, folder)) == "1" for p in PRIORITIES
        )

    # The eight files are views of one switch.
    return Knob(
        read, lambda value: _put(folder / "0", str(int(value))), "one switch: affects all priorities of the port"
    )


def _ecn_rp(bench: Workbench, netdev: str, priority: str) -> Knob:
    path = bench.machine.netdev(netdev) / "ecn" / "roce_rp" / "enable" / priority
    return Knob(
        lambda: _content(bench, netdev, path, _ecn_hint(bench, netdev, path.parent)) == "1",
        lambda value: _put(path, str(int(value))),
    )


def _cnp(file: str) -> Callable[[Workbench, str, str], Knob]:
    def make(bench: Workbench, netdev: str, _: str) -> Knob:
        path = bench.machine.netdev(netdev) / "ecn" / "roce_np" / file
        return Knob(
            lambda: int(_content(bench, netdev, path, _ecn_hint(bench, netdev, path.parent))),
            lambda value: _put(path, str(value)),
        )

    return make


# -- rdma


def _rxe(bench: Workbench, netdev: str, _: str) -> Knob:
    def read() -> str | None:
        bench.netlink.link(netdev)
        return rxe_of(bench.machine, netdev)

    def write(name: str | None) -> None:
        present = read()
        if present is not None:
            delete_rxe(bench.machine, present)
        if name is not None:
            add_rxe(bench.machine, name, netdev)

    return Knob(read, write)


_MAKERS: Final[dict[str, Callable[[Workbench, str, str], Knob]]] = {
    "up": _up,
    "mtu": _mtu,
    "address": _address,
    "neighbour": _neighbour,
    "trust": _trust,
    "traffic_class": _traffic_class,
    "ecn_np": _ecn_np,
    "ecn_rp": _ecn_rp,
    "cnp_dscp": _cnp("cnp_dscp"),
    "cnp_priority": _cnp("cnp_802p_prio"),
    "rxe": _rxe,
}


def _ecn_hint(bench: Workbench, netdev: str, folder: Path) -> str:
    ports = [firmware_port(bench.machine, port) for port in bench.machine.ports if port.netdev == netdev]
    return (
        f"{folder} does not exist: it comes with MLNX_OFED (or the driver's DCQCN is set by mlxconfig "
        f"ROCE_CC_PRIO_MASK_P{ports[0] if ports else 'N'} for the next boot)"
    )


def _content(bench: Workbench, netdev: str, path: Path, hint: str) -> str:
    bench.netlink.link(netdev)  # a device that is missing is another thing than a driver without the file
    text = bench.machine.read(path)
    if text is None or not path.exists():
        raise Unsupported(hint)
    return text


def _put(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="ascii")
    except PermissionError as error:
        raise NotPermittedError(
            f"{path} may not be written ({error.strerror}): run `host-agent nics` as root; a service needs "
            "ProtectKernelTunables=no as well"
        ) from error
    except OSError as error:
        raise NicError(f"writing {text} to {path}: {error.strerror or error}") from error
