# SPDX-License-Identifier: Apache-2.0
"""Requests that are refused whatever they ask for: by size and by method."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from host_agent.app import MAX_BODY_BYTES

CHUNK = b" " * 65536


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/v1/jobs"), ("POST", "/api/v1/jobs/1/events")])
async def test_a_body_of_unknown_length_is_counted_as_it_comes(bench: Any, method: str, path: str) -> None:
    """Chunked encoding announces no length: 413, and no more than the bound is ever taken."""
    await bench.register("a")
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while taken < 4 * MAX_BODY_BYTES:
            taken += len(CHUNK)
            yield CHUNK

    answer = await bench.client.request(method, path, content=endless(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert taken <= MAX_BODY_BYTES + len(CHUNK)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"size": "999999999999G"}, "GiB of memory"),
        ({"size": "9" * 5000 + "G"}, "no size"),
        ({"payload_scale": 10**15}, "leaves no element"),
        ({"datatype": "complex"}, "complex"),
        ({"redop": "xor"}, "xor"),
        ({"iterations": 100_000, "warmup": 10_000, "datatype": "float8"}, "float8"),
    ],
)
async def test_a_benchmark_that_cannot_run_reaches_no_switch(bench: Any, spec: dict[str, Any], words: str) -> None:
    """422 with the reason, by ring-bench's own rules and this machine's memory."""
    answer = await bench.client.post("/api/v1/jobs", json={"name": "j", "bench": spec})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_input")
    assert words in answer.json()["detail"]
    assert all(switch.calls == [] for switch in bench.switches.values())
    assert len(bench.hub.jobs) == 0


@pytest.mark.parametrize(
    "body", [b'{"name":"\xff"}', b"[" * 100_000, b'{"name":' + b"1" * 5000 + b"}", b"{", b"", b"7"]
)
async def test_a_body_that_is_no_job_is_bad_input(bench: Any, body: bytes) -> None:
    """Whatever the framework thinks of it: 422, as documented."""
    answer = await bench.client.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_input")
    assert answer.json()["detail"].startswith("body")


@pytest.mark.parametrize("with_page", [False, True])
async def test_a_known_path_with_another_method_is_405(make_bench: Callable[..., Any], with_page: bool) -> None:
    """With what it takes instead, also where something like the page takes all the rest."""
    bench = make_bench()
    if with_page:
        bench.client._transport.app.mount("/", PlainTextResponse("a page"))
    for method, path, allowed in (
        ("PUT", "/api/v1/jobs", "GET, POST"),
        ("POST", "/api/v1/jobs/1", "DELETE, GET"),
        ("GET", "/api/v1/jobs/1/symphony", "PATCH"),
        ("POST", "/healthz", "GET"),
        ("DELETE", "/metrics", "GET"),
    ):
        answer = await bench.client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed"), path
        assert answer.headers["Allow"] == allowed
    answer = await bench.client.request("PUT", "/api/v1/nothing")
    assert answer.status_code == (200 if with_page else 404)
    await bench.client.aclose()
    await bench.hub.close()
