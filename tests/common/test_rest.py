# SPDX-License-Identifier: Apache-2.0
"""Which hosts are ours, and which bodies are JSON; the form of refusals is tested at each service."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from symphony_common.rest import JsonRoute, KnownHosts, is_loopback


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


class Body(BaseModel):
    """Takes anything."""

    value: Any


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A service that gives back what it is sent."""
    app = FastAPI()
    app.router.route_class = JsonRoute

    @app.post("/")
    async def echo(body: Body) -> dict[str, Any]:
        return {"value": body.value}

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asked:
        yield asked


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"value":"\xff"}', "no text"),
        (b'{"value":"\\ud800"}', "no text"),
        (b'{"\\uDFFF":1}', "no text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"value":' + b"1" * 5000 + b"}", "4300 digits"),
    ],
)
async def test_a_body_that_is_no_json_is_422_with_the_reason(
    client: httpx.AsyncClient, body: bytes, words: str
) -> None:
    """Not the framework's 400, and not a 500 when it is to be sent back."""
    answer = await client.post("/", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


@given(st.recursive(st.none() | st.booleans() | st.text() | st.integers(-(2**63), 2**63), st.lists))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_is_json_passes_as_it_is(client: httpx.AsyncClient, value: Any) -> None:
    """Escaped or not, pairs of surrogates included."""
    for ascii_only in (True, False):
        content = json.dumps({"value": value}, ensure_ascii=ascii_only).encode()
        answer = await client.post("/", content=content, headers={"content-type": "application/json"})
        assert answer.json() == {"value": value}
