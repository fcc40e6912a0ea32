# SPDX-License-Identifier: Apache-2.0
"""Links, addresses and neighbours by rtnetlink: one worker thread that owns one pyroute2 socket.

pyroute2 0.9's plain interface runs an event loop of its own, which must not meet ours, and a socket per request
leaks descriptors under load: hence the thread. A dump that the kernel says it interrupted is taken again. Everything
here is read-compare-write: what is already there is no error.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, NamedTuple, TypeVar

import pyroute2  # type: ignore[import-untyped]
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError  # type: ignore[import-untyped]

from host_agent.errors import ConflictError, NicError, NotPermittedError, UnknownNicError

__all__ = ["TESTED", "Link", "Neighbour", "Netlink"]

TESTED: Final = ">=0.7.12,<0.10"
"""Versions of pyroute2 that the tests have been run with."""
TIMEOUT_S: Final = 10.0
_ATTEMPTS: Final = 4
_IFF_UP: Final = 1
_NUD_PERMANENT: Final = 0x80
_IFA_F_NODAD: Final = 0x02
_STATES: Final = {1: "incomplete", 2: "reachable", 4: "stale", 8: "delay", 16: "probe", 32: "failed", 64: "noarp"}

_T = TypeVar("_T")


class Link(NamedTuple):
    """A network device."""

    number: int
    name: str
    up: bool
    """Switched on (not: has a carrier)."""
    mtu: int
    state: str
    """"UP", "DOWN" and so on, as the driver sees it."""
    mac: str | None
    kind: str | None
    """"veth", "bridge" and so on; None for hardware."""


class Neighbour(NamedTuple):
    """An entry of the neighbour table."""

    mac: str | None
    state: str
    """"permanent", "reachable" and so on."""


class Netlink:
    """The kernel's network configuration of one namespace.

    Args:
        enter: Called once in the worker thread before its socket is opened; a thread that has entered another
            network namespace works there.
    """

    def __init__(self, enter: Callable[[], None] | None = None) -> None:
        self._enter = enter
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="netlink")
        self._socket: Any = None

    def close(self) -> None:
        """Close the socket and end the thread. Safe to call twice."""
        with contextlib.suppress(RuntimeError):  # the thread has ended already
            self._worker.submit(self._close)
        self._worker.shutdown(wait=True)

    # -- reading

    def links(self) -> dict[str, Link]:
        """All network devices by name."""
        return self._call("listing links", lambda: {link.name: link for link in map(_link, self._dump("get_links"))})

    def link(self, name: str) -> Link:
        """One network device. Raises UnknownNicError."""
        links = self.links()
        if name not in links:
            raise UnknownNicError(f"there is no network device {name!r} here; there are {', '.join(links)}")
        return links[name]

    def addresses(self) -> dict[str, list[str]]:
        """IP addresses as ADDRESS/PREFIX, by network device."""

        def read() -> dict[str, list[str]]:
            names = {message["index"]: message.get_attr("IFLA_IFNAME") for message in self._dump("get_links")}
            found: dict[str, list[str]] = {name: [] for name in names.values()}
            for message in self._dump("get_addr"):
                text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
                if message["index"] in names:
                    found[names[message["index"]]].append(f"{text}/{message['prefixlen']}")
            return found

        return self._call("listing addresses", read)

    def neighbour(self, name: str, address: str) -> Neighbour | None:
        """The entry of an address on a network device; None without one."""
        number, wanted = self.link(name).number, ipaddress.ip_address(address)

        def read() -> Neighbour | None:
            for message in self._dump("get_neighbours"):
                target = message.get_attr("NDA_DST")
                if message["ifindex"] == number and target and ipaddress.ip_address(target) == wanted:
                    state = message["state"]
                    word = "permanent" if state & _NUD_PERMANENT else _STATES.get(state, "none")
                    return Neighbour(message.get_attr("NDA_LLADDR"), word)
            return None

        return self._call("listing neighbours", read)

    # -- writing

    def set_up(self, name: str, up: bool) -> None:
        """Switch a device on or off."""
        self._change(f"{name}: switching {'on' if up else 'off'}", name, "link", state="up" if up else "down")

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the MTU, bytes."""
        self._change(f"{name}: setting MTU {mtu}", name, "link", mtu=mtu)

    def set_address(self, name: str, address: str, present: bool) -> None:
        """Add or remove an address given as ADDRESS/PREFIX."""
        interface = ipaddress.ip_interface(address)
        options: dict[str, Any] = {"address": str(interface.ip), "prefixlen": interface.network.prefixlen}
        if interface.version == 6 and present:
            options["flags"] = _IFA_F_NODAD  # usable at once
        command = "add" if present else "del"
        harmless = errno.EEXIST if present else errno.EADDRNOTAVAIL
        self._change(f"{name}: address {address}, {command}", name, "addr", command, harmless=harmless, **options)

    def set_neighbour(self, name: str, address: str, mac: str | None) -> None:
        """Make a permanent entry, or with None remove what is there."""
        options: dict[str, Any] = {"dst": address}
        if mac is None:
            self._change(f"{name}: neighbour {address}, del", name, "neigh", "del", harmless=errno.ENOENT, **options)
        else:
            options |= {"lladdr": mac, "state": "permanent"}
            self._change(f"{name}: neighbour {address}, replace", name, "neigh", "replace", **options)

    # -- inside

    def _change(
        self, what: str, name: str, table: str, command: str = "set", *, harmless: int | None = None, **options: Any
    ) -> None:
        key = "ifindex" if table == "neigh" else "index"
        number = self.link(name).number

        def write() -> None:
            try:
                getattr(self._open(), table)(command, **{key: number}, **options)
            except NetlinkError as error:
                if error.code != harmless:
                    raise

        self._call(what, write)

    def _dump(self, question: str) -> list[Any]:
        for attempt in range(_ATTEMPTS):
            try:
                return list(getattr(self._open(), question)())
            except NetlinkDumpInterrupted:  # not an error: the kernel asks to dump again
                if attempt == _ATTEMPTS - 1:
                    raise
            except OSError as error:
                if error.errno != errno.ENOBUFS or attempt == _ATTEMPTS - 1:
                    raise
            time.sleep(random.uniform(0.001, 0.02))
        raise AssertionError("unreachable")

    def _open(self) -> Any:
        if self._socket is None:
            if self._enter is not None:
                self._enter()
            self._socket = pyroute2.IPRoute()
        return self._socket

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _call(self, what: str, work: Callable[[], _T]) -> _T:
        """Run something in the worker thread. Raises what errno means for a user."""
        future: Future[_T] = self._worker.submit(work)
        try:
            return future.result(TIMEOUT_S)
        except FutureTimeoutError:
            raise NicError(f"{what}: the kernel did not answer within {TIMEOUT_S:g} s; is a driver stuck?") from None
        except NetlinkError as error:
            raise _meaning(what, error.code) from error
        except OSError as error:
            raise _meaning(what, error.errno or 0) from error


def _link(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    return Link(
        number=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        up=bool(message["flags"] & _IFF_UP),
        mtu=message.get_attr("IFLA_MTU"),
        state=message.get_attr("IFLA_OPERSTATE") or "UNKNOWN",
        mac=message.get_attr("IFLA_ADDRESS"),
        kind=info.get_attr("IFLA_INFO_KIND") if info else None,
    )


def _meaning(what: str, number: int) -> NicError | NotPermittedError | UnknownNicError | ConflictError:
    reason = os.strerror(abs(number))
    if abs(number) in (errno.EPERM, errno.EACCES):
        return NotPermittedError(
            f"{what}: not permitted ({reason}); it needs CAP_NET_ADMIN: run `host-agent nics` as root, or give the "
            "service AmbientCapabilities=CAP_NET_ADMIN"
        )
    if abs(number) == errno.ENODEV:
        return UnknownNicError(f"{what}: the device is gone ({reason})")
    if abs(number) in (errno.EEXIST, errno.EBUSY):
        return ConflictError(f"{what}: something else is there already ({reason})")
    hint = "; the driver does not take this value" if abs(number) in (errno.EINVAL, errno.ERANGE) else ""
    return NicError(f"{what}: {reason}{hint}")
