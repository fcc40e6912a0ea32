# SPDX-License-Identifier: Apache-2.0
"""pyverbs itself: importing it, its devices and GIDs, what its refusals mean, what goes with which state change.

pyverbs links rdma-core's private interface, which changes with every release, so it must come with the installed
rdma-core: from the distribution (Debian: python3-pyverbs). It is imported when a provider is opened, not before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from enum import EnumType
from types import SimpleNamespace
from typing import Any

from ring_bench.errors import FabricError, ProviderUnavailableError
from ring_bench.rdma_sysfs import Gid, device_names
from ring_bench.verbs.api import TRANSITION_ATTRIBUTES, Opcode, QpAttributes, QpState

__all__ = [
    "MASKS",
    "explain_limits",
    "explain_modify",
    "explain_sport",
    "gid_table",
    "is_mlx5",
    "load_mlx5",
    "load_pyverbs",
    "raise_memlock",
    "read_devices",
    "refusals",
]

MASKS: dict[tuple[QpState, QpState], tuple[str, ...]] = {
    (QpState.RESET, QpState.INIT): ("PKEY_INDEX", "PORT", "ACCESS_FLAGS"),
    (QpState.INIT, QpState.RTR): (*("AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER"),),
    (QpState.RTR, QpState.RTS): ("TIMEOUT", "RETRY_CNT", "RNR_RETRY", "SQ_PSN", "MAX_QP_RD_ATOMIC"),
    (QpState.RTS, QpState.SQD): (),
    (QpState.SQD, QpState.SQD): ("AV",),
    (QpState.SQD, QpState.RTS): (),
}
"""Attributes (``ibv_qp_attr_mask``) of each transition of an RC QP, besides STATE. Any state may go to RESET or ERR.
A device refuses an attribute at any other transition (IB spec 11.2.5.2)."""

_NO_ERRNO = -1
"""``error_code`` of pyverbs' errors that have none."""

_MODIFY_CAUSES = {
    (QpState.RTR, errno.ETIMEDOUT): "the kernel found no MAC address of the peer: is there a route and a neighbour "
    "entry from this address (ip route get PEER from ADDRESS; ping -I)?",
    (
        QpState.RTR,
        errno.ENETUNREACH,
    ): "there is no route to the peer from this address (ip route get PEER from ADDRESS)",
    (QpState.RTR, errno.EHOSTUNREACH): "the peer's address does not answer: is its host up and in this network?",
    (QpState.RTR, errno.ENODEV): "the network device of this GID is gone or in another network namespace",
    (
        QpState.RTR,
        errno.EINVAL,
    ): "the device refuses the address, the path MTU or a PSN: compare MTU and GIDs of the two ends",
    (
        QpState.SQD,
        errno.EINVAL,
    ): "the device cannot drain a send queue and change its flow label: use --tagging per-step or static",
}

_SPORT_CAUSES = {
    # Driver and state are known to be right, so of the library's own reasons one is left: the capability is not there.
    errno.EOPNOTSUPP: "the firmware cannot (rts2rts_qp_udp_sport), or kernel and function (a VF) give user space no "
    "DEVX: update the firmware, or use --tagging per-step or static",
    errno.EINVAL: "the firmware refuses the command: the QP has left RTS after an error",
    errno.EREMOTEIO: "the firmware refuses the command: the QP has left RTS after an error",
    errno.EIO: "the device was reset or removed",
}


def load_pyverbs() -> Any:
    """Import pyverbs and give what the provider uses of it.

    Raises:
        ProviderUnavailableError: It is missing or does not fit the installed rdma-core.
    """
    try:
        import pyverbs
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.cq import CQ
        from pyverbs.device import Context, get_device_list
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.pyverbs_error import PyverbsError
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
        from pyverbs.wr import SGE, RecvWR, SendWR

        try:
            from pyverbs import libibverbs_enums as declared  # rdma-core 54 and later
        except ImportError:
            from pyverbs import enums as declared
    except ModuleNotFoundError as error:
        raise ProviderUnavailableError(
            f"the pyverbs provider needs the Python package pyverbs, which {sys.executable} does not have whole "
            f"({error}): install Debian's python3-pyverbs and use the distribution's Python, in a venv made with "
            "--system-site-packages"
        ) from error
    except ImportError as error:
        raise ProviderUnavailableError(
            f"pyverbs does not fit this machine's rdma-core ({error}): install python3-pyverbs and "
            "libibverbs1 of the same distribution, and no pyverbs from PyPI beside them"
        ) from error
    enums = _constants(declared)
    statuses = {
        getattr(enums, name): name.removeprefix("IBV_WC_")
        for name in vars(enums)
        if name == "IBV_WC_SUCCESS" or (name.startswith("IBV_WC_") and name.endswith("_ERR"))
    }
    opcodes = ("SEND", "RDMA_WRITE", "RECV", "RECV_RDMA_WITH_IMM")
    return SimpleNamespace(
        enums=enums,
        statuses=statuses,
        opcodes={getattr(enums, f"IBV_WC_{name}"): name for name in opcodes},
        posted={opcode: getattr(enums, f"IBV_WR_{opcode}") for opcode in Opcode},
        file=pyverbs.__file__,
        AHAttr=AHAttr,
        CQ=CQ,
        Context=Context,
        GID=GID,
        GlobalRoute=GlobalRoute,
        MR=MR,
        PD=PD,
        PyverbsError=PyverbsError,
        QP=QP,
        QPAttr=QPAttr,
        QPCap=QPCap,
        QPInitAttr=QPInitAttr,
        RecvWR=RecvWR,
        SGE=SGE,
        SendWR=SendWR,
        get_device_list=get_device_list,
    )


def _constants(module: Any) -> SimpleNamespace:
    """Give all constants of pyverbs by name, as plain numbers: what Cython 3.1 and later compiles has them in their
    enumerations only, what earlier ones compile in the module too.
    """
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if isinstance(value, EnumType):
            found.update(value.__members__)
        elif name.startswith("IBV_"):
            found[name] = value
    return SimpleNamespace(**{name: int(value) for name, value in found.items()})


def is_mlx5(driver: str) -> bool:
    """Say whether a kernel driver is that of ConnectX: "mlx5_core", and "mlx5_core.sf" for a scalable function."""
    return driver.partition(".")[0] == "mlx5_core"


def load_mlx5() -> Any:
    """Import what pyverbs has for mlx5 only and give its ``Mlx5QP``.

    Raises:
        FabricError: This pyverbs was built without it.
    """
    try:
        from pyverbs.providers.mlx5.mlx5dv import Mlx5QP
    except ImportError as error:
        raise FabricError(
            "EOPNOTSUPP",
            f"this pyverbs has no mlx5 part ({error}): install the distribution's python3-pyverbs and "
            "ibverbs-providers, or use --tagging per-step or static",
        ) from error
    return Mlx5QP


def explain_sport(number: int) -> str:
    """Say what mlx5's refusal of a new source port means, for a QP of it that was taken to RTS."""
    return f": {_SPORT_CAUSES[number]}" if number in _SPORT_CAUSES else ""


def raise_memlock() -> None:
    """Raise the soft limit of locked memory to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def explain_limits(number: int) -> str:
    """Say which limit it can be when a device refuses to make a queue or a memory region."""
    if number == errno.EINVAL:
        return ": more than the device has; smaller sizes, a larger --segment, fewer --rings or --slots"
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if number != errno.ENOMEM or soft == resource.RLIM_INFINITY:
        return ""
    return (
        f": this process may lock {soft / 2**20:.1f} MiB (hard limit {hard / 2**20:.1f} MiB); raise it: systemd "
        "LimitMEMLOCK=infinity, limits.conf memlock and a new login, docker --ulimit memlock=-1"
    )


def explain_modify(state: QpState, number: int, attributes: QpAttributes | None) -> str:
    """Say what a device's refusal of a state change means; for the ends of error messages.

    Args:
        state: The state asked for.
        number: The errno.
        attributes: What was to be set.
    """
    names = TRANSITION_ATTRIBUTES[state] if attributes is not None else ()
    values = ", ".join(f"{name} {getattr(attributes, name)}" for name in names)
    cause = _MODIFY_CAUSES.get((state, number), "")
    return (f" ({values})" if values else "") + (f": {cause}" if cause else "")


@contextlib.contextmanager
def refusals(lib: Any, what: str, explain: Callable[[int], str] | None = None) -> Iterator[None]:
    """Turn pyverbs' errors into ours.

    Args:
        lib: What `load_pyverbs` gave.
        what: What is done, for the message.
        explain: Gives the end of the message for an errno.

    Raises:
        FabricError: Instead of pyverbs' error, with the errno's name as code.
    """
    try:
        yield
    except lib.PyverbsError as error:
        given = getattr(error, "error_code", None) or 0
        number = 0 if given == _NO_ERRNO else abs(given)
        code = errno.errorcode.get(number, "EIO")
        reason = os.strerror(number) if number in errno.errorcode else str(error)
        told = explain(number) if explain is not None else ""
        raise FabricError(code, f"{what}: {reason} [{code}]{told}") from error


def read_devices(lib: Any) -> tuple[dict[str, list[Gid]], dict[str, str]]:
    """Open every device for a moment and read its GIDs.

    Returns:
        GID tables by device name, and why there is none of the other devices.
    """
    try:
        known = [entry.name.decode() for entry in lib.get_device_list()]
    except lib.PyverbsError:  # raised where there is no device at all
        known = []
    tables: dict[str, list[Gid]] = {}
    problems: dict[str, str] = {}
    for name in device_names():
        if name not in known:
            problems[name] = (
                "is known to the kernel but not to libibverbs: install its user-space driver (Debian: "
                "ibverbs-providers), and in a container map /dev/infiniband"
            )
            continue
        try:
            context = lib.Context(name=name)
        except lib.PyverbsError as error:
            problems[name] = (
                f"cannot be opened ({error}): this process needs read and write permission on its "
                "/dev/infiniband/uverbs* (container: --device /dev/infiniband; systemd: PrivateDevices=no)"
            )
            continue
        try:
            tables[name] = gid_table(lib, context, name)
        except lib.PyverbsError as error:
            problems[name] = f"does not answer ({error}): it may need a reset, see dmesg"
        finally:
            with contextlib.suppress(lib.PyverbsError):
                context.close()
    return tables, problems


def gid_table(lib: Any, context: Any, device: str) -> list[Gid]:
    """Read the GID tables of all ports of an open device; empty slots are not in them."""
    enums = lib.enums
    kinds = {
        enums.IBV_GID_TYPE_IB: "InfiniBand",
        enums.IBV_GID_TYPE_ROCE_V1: "IB/RoCE v1",
        enums.IBV_GID_TYPE_ROCE_V2: "RoCE v2",
    }
    ports = range(1, context.query_device().phys_port_cnt + 1)
    state = {port: context.query_port(port) for port in ports}
    entries = context.query_gid_table(sum(attributes.gid_tbl_len for attributes in state.values()))
    netdevs = dict(socket.if_nameindex())
    return [
        Gid(
            device=device,
            port=entry.port_num,
            index=entry.gid_index,
            gid=entry.gid_str(),
            kind=kinds.get(entry.gid_type, f"{entry.gid_type}"),
            netdev=netdevs.get(entry.ndev_ifindex, f"number {entry.ndev_ifindex}") if entry.ndev_ifindex else "",
            active=state[entry.port_num].state == enums.IBV_PORT_ACTIVE,
        )
        for entry in entries
    ]
