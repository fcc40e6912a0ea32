# SPDX-License-Identifier: Apache-2.0
"""Numbers, hosts and addresses from outside: what is none is refused, whatever Python's own readers make of it."""

from __future__ import annotations

import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony_common.addresses import checked_host, checked_url, split_address, whole


@pytest.mark.parametrize("text", ["", "²", "٣", "-1", "+1", "1_0", " 1", "1\n", "0x1", "9" * 5000])
def test_what_is_no_plain_number_is_none(text: str) -> None:
    assert whole(text) is None


@given(st.integers(0, 10**18 - 1))
def test_a_plain_number_is_read(number: int) -> None:
    assert whole(str(number)) == number


@pytest.mark.parametrize(
    "text", ["n1..lab", ".n1", "", "..", "a" * 64 + ".lab", "a." * 127 + "b", "²", "a b", "a\0b", "n1/2"]
)
def test_what_can_be_no_host_name_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no host name: "):
        checked_host(text)


@pytest.mark.parametrize(
    "text", ["n1", "n1.lab", "n1.lab.", "10.0.0.1", "fe80::1%eth0", "mlx5_0", "eth0.100", "a" * 63]
)
def test_hosts_devices_and_addresses_pass(text: str) -> None:
    assert checked_host(text) == text


@given(st.text(max_size=80))
def test_what_passes_ends_no_look_up_with_anything_but_an_os_error(text: str) -> None:
    """AI_NUMERICHOST: the text goes the same way through Python, and no name server is asked."""
    try:
        host = checked_host(text)
    except ValueError:
        return
    with contextlib.suppress(OSError):
        socket.getaddrinfo(host, 1, flags=socket.AI_NUMERICHOST)


def test_addresses_are_split() -> None:
    assert split_address("n1:7000") == ("n1", 7000)
    assert split_address("[::1]:7000") == ("::1", 7000)
    assert split_address("n1", 29517) == ("n1", 29517)
    assert split_address("[::1]", 29517) == ("::1", 29517)


@pytest.mark.parametrize(
    "text", ["n1", "n1:", ":1", "n1:²", "n1:65536", "n1:-1", "n1..lab:1", "::1:7000", "[]:1", "[::1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no HOST:PORT|no host name"):
        split_address(text)


@pytest.mark.parametrize(
    "text", ["ftp://x", "http://", "http://n1..lab/", "http://h:²/", "http://[::1", "http://h:70000", "h:1"]
)
def test_what_is_no_web_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no http:// or|no HOST:PORT|no host name|Invalid IPv6"):
        checked_url(text)


@pytest.mark.parametrize("text", ["http://h", "https://h:1/a", "http://[::1]:9400/", "http://user@h:1"])
def test_web_addresses_pass(text: str) -> None:
    assert checked_url(text) == text
