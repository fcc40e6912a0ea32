# SPDX-License-Identifier: Apache-2.0
"""Which hosts are ours; how requests are refused is tested at each service."""

from __future__ import annotations

import socket

import pytest

from symphony_common.rest import KnownHosts, is_loopback


@pytest.mark.parametrize(
    ("listen", "known", "unknown"),
    [
        ("127.0.0.1", "localhost 127.0.0.1 ::1 tor0.lab", "192.0.2.7 box7 evil.com"),
        ("192.0.2.7", "localhost 127.0.0.1 ::1 tor0.lab 192.0.2.7 box7", "192.0.2.8 2001:db8::1 evil.com"),
        ("0.0.0.0", "localhost 127.0.0.1 ::1 tor0.lab 192.0.2.7 2001:db8::1 box7", "evil.com box7.evil.com"),  # noqa: S104
    ],
)
def test_a_service_is_known_by_where_it_listens_and_by_configured_names(
    monkeypatch: pytest.MonkeyPatch, listen: str, known: str, unknown: str
) -> None:
    """One that listens everywhere by any address; names of others are never taken."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Box7")
    hosts = KnownHosts(listen, ["Tor0.lab"])
    assert [host for host in known.split() if host not in hosts] == []
    assert [host for host in unknown.split() if host in hosts] == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_names_and_addresses(host: str) -> None:
    """Only this machine can reach them."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost.evil.com", ""])  # noqa: S104
def test_what_others_can_reach_or_name_is_not_loopback(host: str) -> None:
    """Names other than localhost are never looked up."""
    assert not is_loopback(host)
