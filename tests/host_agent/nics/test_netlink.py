# SPDX-License-Identifier: Apache-2.0
"""Netlink on the real kernel, in a namespace: values, repeated changes, errors, and no leaks."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError

from host_agent.errors import ConflictError, HostAgentError, NicError, NotPermittedError, UnknownNicError
from host_agent.nics.netlink import Neighbour, Netlink

MAC = "02:00:00:00:00:99"


def test_links_and_addresses_are_as_ip_made_them(netlink: Netlink) -> None:
    """Switched on is told from having a carrier."""
    links = netlink.links()
    assert set(links) == {"lo", "v0", "v1"}
    assert (links["v0"].mtu, links["v0"].up, links["v0"].kind) == (1500, False, "veth")
    assert links["v1"].up
    assert netlink.addresses()["v0"] == ["10.1.0.1/24"]


def test_every_change_can_be_made_twice(namespace: Any, netlink: Netlink) -> None:
    """What is there already, or gone already, is no error."""
    for _ in range(2):
        netlink.set_mtu("v0", 4200)
        netlink.set_address("v0", "10.1.0.2/24", present=True)
        netlink.set_address("v0", "fd00::1/64", present=True)
        netlink.set_up("v0", up=True)
        netlink.set_neighbour("v0", "10.1.0.9", MAC)
    assert netlink.link("v0").mtu == 4200
    assert {"10.1.0.1/24", "10.1.0.2/24", "fd00::1/64"} <= set(netlink.addresses()["v0"])
    assert netlink.neighbour("v0", "10.1.0.9") == Neighbour(MAC, "permanent")
    assert "tentative" not in namespace.run("addr", "show", "to", "fd00::1")
    for _ in range(2):
        netlink.set_address("v0", "10.1.0.2/24", present=False)
        netlink.set_address("v0", "fd00::1/64", present=False)
        netlink.set_neighbour("v0", "10.1.0.9", None)
    assert netlink.neighbour("v0", "10.1.0.9") is None
    assert "10.1.0.2/24" not in netlink.addresses()["v0"]


def test_a_device_that_is_not_there_is_answered_with_those_that_are(netlink: Netlink) -> None:
    """404 for REST."""
    with pytest.raises(UnknownNicError, match="no network device 'eth9' here; there are lo, v") as caught:
        netlink.set_mtu("eth9", 1500)
    assert caught.value.status == 404


def test_a_value_that_the_driver_refuses_is_explained(netlink: Netlink) -> None:
    """The device, the value and the errno."""
    with pytest.raises(NicError, match="v0: setting MTU 100000: Invalid argument; the driver does not take this value"):
        netlink.set_mtu("v0", 100_000)


class Fussy:
    """A socket that fails as told, then works."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked = 0

    def get_links(self) -> list[Any]:
        """Fail, or give nothing."""
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return []

    def close(self) -> None:
        """Nothing to do."""


def fussy(*failures: Exception) -> tuple[Netlink, Fussy]:
    """Netlink over such a socket."""
    netlink, socket = Netlink(), Fussy(*failures)
    netlink._socket = socket
    return netlink, socket


@pytest.mark.parametrize("failure", [NetlinkDumpInterrupted(), OSError(errno.ENOBUFS, "No buffer space available")])
def test_an_interrupted_dump_is_taken_again(failure: Exception) -> None:
    """The kernel asks for that; it is no error."""
    netlink, socket = fussy(failure, failure)
    assert netlink.links() == {}
    assert socket.asked == 3
    netlink.close()


def test_a_dump_that_is_interrupted_for_ever_ends() -> None:
    """After four attempts."""
    netlink, socket = fussy(*[OSError(errno.ENOBUFS, "full")] * 9)
    with pytest.raises(NicError, match="No buffer space"):
        netlink.links()
    assert socket.asked == 4
    netlink.close()


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.EPERM, NotPermittedError, "CAP_NET_ADMIN"),
        (errno.ENODEV, UnknownNicError, "gone"),
        (errno.EEXIST, ConflictError, "something else is there"),
        (errno.EOPNOTSUPP, NicError, "Operation not supported"),
    ],
)
def test_errors_of_the_kernel_become_ours(number: int, kind: type[HostAgentError], text: str) -> None:
    """403, 404, 409, 502."""
    netlink, _ = fussy(NetlinkError(number))
    with pytest.raises(kind, match=text):
        netlink.links()
    netlink.close()


def test_one_thread_and_one_socket_serve_any_number_of_calls(netlink: Netlink) -> None:
    """Neither descriptors nor threads grow."""
    netlink.links()
    gc.collect()  # what other tests left
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(300):
        netlink.addresses()
    assert len(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() == threads
    netlink.close()
    assert len(os.listdir("/proc/self/fd")) < files


async def test_it_works_beside_a_running_event_loop(netlink: Netlink) -> None:
    """pyroute2 0.9 would refuse in the loop's own thread."""
    assert "v0" in await asyncio.to_thread(netlink.links)
    assert "v0" in netlink.links()
