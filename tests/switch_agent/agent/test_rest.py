# SPDX-License-Identifier: Apache-2.0
"""Tokens, error bodies, metrics and the stream, over ASGI and over a real server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend
from switch_agent.agent import Agent, build_app
from switch_agent.agent.inputs import read_token, split_address
from switch_agent.agent.metrics import MAX_JOBS
from switch_agent.agent.rest import MAX_BODY_BYTES
from switch_agent.agent.server import _Server, listen
from switch_agent.bfrt import SessionState
from switch_agent.errors import ConfigError

from .conftest import Bench, eventually, job_spec, options


async def test_changes_need_the_token_and_reads_do_not(bench: Bench) -> None:
    """401 with a code for a missing or wrong token; the right one works; the token is in no answer."""
    app = build_app(bench.agent, token="s3cret")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            for method, path in (
                ("PUT", "/api/v1/jobs/1"),
                ("PATCH", "/api/v1/jobs/1"),
                ("DELETE", "/api/v1/jobs/1"),
                ("POST", "/api/v1/reconcile"),
            ):
                answer = await http.request(method, path, headers=headers, json=job_spec())
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert "s3cret" not in answer.text
        right = {"Authorization": "Bearer s3cret"}
        assert (await http.put("/api/v1/jobs/1", headers=right, json=job_spec())).status_code == 200
        for path in ("/healthz", "/metrics", "/api/v1/jobs", "/api/v1/switch", "/api/v1/registers"):
            assert (await http.get(path)).status_code == 200


async def test_every_error_has_status_code_and_detail(bench: Bench) -> None:
    """Unknown paths, wrong methods and broken JSON answer in the same form as our own errors."""
    answers = [
        await bench.http.get("/api/v1/nothing"),
        await bench.http.post("/api/v1/jobs/1"),
        await bench.http.put("/api/v1/jobs/1", content=b"{"),
        await bench.http.get("/api/v1/jobs/x"),
        await bench.http.get("/api/v1/samples?job=1&limit=0"),
    ]
    assert [answer.status_code for answer in answers] == [404, 405, 422, 422, 422]
    for answer in answers:
        assert set(answer.json()) >= {"status", "code", "detail"}
        assert answer.json()["status"] == answer.status_code


@pytest.mark.parametrize("host", ["evil.com", "evil.com:9401", "127.0.0.1.evil.com", "10.0.0.9:9401", "tor0.lab", ""])
async def test_a_request_for_another_host_is_refused(bench: Bench, host: str) -> None:
    """Such as that of a web page whose name resolves to 127.0.0.1 (DNS rebinding); nothing changes."""
    await bench.put(1)
    for method, path in (("GET", "/api/v1/jobs"), ("DELETE", "/api/v1/jobs/1"), ("GET", "/metrics")):
        answer = await bench.http.request(method, path, headers={"host": host})
        assert (answer.status_code, answer.json()["code"]) == (400, "unknown_host")
        assert "--allow-host" in answer.json()["detail"]
    assert (await bench.http.get("/api/v1/jobs/1")).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1:9401", "localhost", "LOCALHOST.:1", "127.0.0.2", "[::1]:9401", "[::1]"])
async def test_loopback_names_are_answered(bench: Bench, host: str) -> None:
    """With port or without."""
    assert (await bench.http.get("/api/v1/jobs", headers={"host": host})).status_code == 200


async def test_a_body_that_is_too_large_is_413(bench: Bench) -> None:
    """By its announced length, and in chunks without one as soon as it has grown too large."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 10 * MAX_BODY_BYTES:
            sent += 1 << 16
            yield b" " * (1 << 16)

    for body in (b" " * (MAX_BODY_BYTES + 1), endless()):
        answer = await bench.http.put("/api/v1/jobs/1", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert f"{MAX_BODY_BYTES} bytes" in answer.json()["detail"]
    assert sent <= MAX_BODY_BYTES + (1 << 17), "no more was read than needed"


async def test_the_largest_job_fits_into_the_body(bench: Bench) -> None:
    """As many IPv6 flows as a job may have, written at full length; whether the switch has room is another matter."""
    flows = [{"src": f"2001:0db8:0000:0000:0000:0000:0001:{i:04x}", "dst": None} for i in range(2048)]
    answer = await bench.http.put("/api/v1/jobs/1", json=job_spec(flows=flows))
    assert answer.status_code in (200, 409), answer.text


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"flows": [{"src": "10.0.0.x"}]}, "flows.0.src", "no IPv4 or IPv6 address"),
        ({"flows": [{"src": "10.0.0.1", "dst": 7}]}, "flows.0.dst", "no IPv4 or IPv6 address"),
        ({"first_step": 99999999999}, "first_step", "less than 4294967296"),
    ],
)
async def test_bad_input_is_found_by_its_field(
    bench: Bench, change: dict[str, object], field: str, problem: str
) -> None:
    """One problem, in the words of the documentation."""
    answer = await bench.http.put("/api/v1/jobs/1", json=job_spec(**change))
    assert answer.status_code == 422
    (found,) = answer.json()["problems"]
    assert found["field"] == field
    assert problem in found["problem"]
    assert answer.json()["detail"] == f"{field}: {found['problem']}"


@pytest.mark.parametrize(
    "body", [b'{"name":"\xff"}', b"[" * 100_000, b'{"name":' + b"1" * 5000 + b"}", b"{", b"", b"7"]
)
async def test_a_body_that_is_no_job_is_an_invalid_request(bench: Bench, body: bytes) -> None:
    """Whatever the framework thinks of it; with its problems, as every other one."""
    answer = await bench.http.put("/api/v1/jobs/1", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["problems"]


async def test_the_last_step_of_32_bits_is_a_first_step(bench: Bench) -> None:
    """Steps are counted in 32 bits; the switch gets the low ten."""
    assert (await bench.put(1, first_step=(1 << 32) - 1))["first_step"] == (1 << 32) - 1


async def test_metrics_have_the_names_of_the_design(bench: Bench) -> None:
    """The exposition parses; jobs have all their series, with bounded labels; gone jobs have none."""
    await bench.put(1, symphony={"enabled": True, "variant": "refined"})
    bench.set_register("steps", 0, 0, mn=7 << 22 | 1, mx=9 << 22 | 1)
    bench.set_register("window_start", 0, 0, f1=3)
    bench.memory.counters["job_all"][0, 1, 0] = 1 << 40
    await bench.sample()

    async def scrape() -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        answer = await bench.http.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return samples

    found = await scrape()
    who = (("job", "ring"), ("switch", "tor0"))
    assert found["symphony_step_overlap"] == {(who[0], ("source", "switch"), who[1]): 3}
    assert found["symphony_step_min"] == {who: 7}
    assert found["symphony_step_max"] == {who: 9}
    assert found["symphony_alpha"] == {who: 1}
    assert found["symphony_psn_recorded"] == {who: 0}
    assert found["symphony_job_enabled"] == {who: 1}
    assert found["symphony_packets_total"][(who[0], ("kind", "all"), who[1])] == 1 << 40
    assert len(found["symphony_packets_total"]) == len(found["symphony_ecn_marked_packets_total"]) == 2
    (info,) = found["symphony_job_info"]
    assert dict(info) == {
        "job": "ring",
        "switch": "tor0",
        "job_id": "1",
        "job_tag": "3",
        "variant": "refined",
        "scope": "job",
    }
    assert found["symphony_reconcile_drift"] == {(who[1],): 0}
    await bench.http.delete("/api/v1/jobs/1")
    found = await scrape()
    assert "symphony_job_info" not in found
    assert "symphony_step_overlap" not in found
    assert MAX_JOBS >= 1024


@asynccontextmanager
async def real_server(agent: Agent) -> AsyncIterator[str]:
    """The agent behind a real uvicorn on a free port."""
    import uvicorn

    with listen("127.0.0.1:0", None) as listener:
        config = uvicorn.Config(build_app(agent), log_level="warning", timeout_graceful_shutdown=2)
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await eventually(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            agent.stopping.set()
            server.should_exit = True
            await task


async def test_stream_sends_samples_and_ends_with_the_agent(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None
) -> None:
    """Server-sent events over a socket: one per job and tick; an open stream does not hold up the end."""
    server, memory = switch
    agent = Agent(options(server, tmp_path, sample_interval=0.02))
    received: list[dict[str, object]] = []
    ended = asyncio.Event()

    async def read(url: str) -> None:
        async with httpx.AsyncClient() as http, http.stream("GET", f"{url}/api/v1/stream?job=2") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                received.extend([json.loads(value)] if name == "data" else [])
        ended.set()

    async with real_server(agent) as url, httpx.AsyncClient(base_url=url) as http:
        await agent.session.wait_for(SessionState.READY, timeout=20)
        for job_id in (1, 2):
            spec = job_spec(name=f"j{job_id}", job_tag=job_id)
            assert (await http.put(f"/api/v1/jobs/{job_id}", json=spec)).status_code == 200
        assert (await http.get("/api/v1/stream?job=7")).status_code == 404
        reading = asyncio.create_task(read(url))
        await eventually(lambda: len(received) >= 3)
        memory.counters["job_all"][0, 2, 0] = 77
        await eventually(lambda: received[-1]["packets"] == {"all": 77, "outpacing": 0})
    await asyncio.wait_for(ended.wait(), 10)
    await reading
    assert {sample["job_id"] for sample in received} == {2}
    numbers = [sample["seq"] for sample in received]
    assert numbers == sorted(set(numbers))  # type: ignore[type-var]


@pytest.mark.parametrize("text", ["", "9401", "localhost", "127.0.0.1:x", "127.0.0.1:70000", ":9401"])
def test_addresses_are_checked(text: str) -> None:
    """Anything but host:port is refused with an example."""
    with pytest.raises(ConfigError, match=r"write host:port"):
        split_address(text)


def test_ipv6_addresses_are_understood() -> None:
    """Brackets go."""
    assert split_address("[::1]:9401") == ("::1", 9401)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0", "[::]:0", "example.org:0"])
def test_open_addresses_need_a_token(address: str) -> None:
    """Nothing but loopback without a token."""
    with pytest.raises(ConfigError, match="without a token"):
        listen(address, None)


def test_occupied_port_is_one_clear_error() -> None:
    """The address and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listen(f"127.0.0.1:{port}", None)


def test_token_comes_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file wins; an empty or missing file is an error, not an open door."""
    monkeypatch.setenv("SWITCH_AGENT_TOKEN", "from-the-environment")
    assert read_token(None) == "from-the-environment"
    path = tmp_path / "token"
    path.write_text(" from-the-secret-file\n")
    assert read_token(path) == "from-the-secret-file"
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no token"):
        read_token(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_token(tmp_path / "none")
    monkeypatch.delenv("SWITCH_AGENT_TOKEN")
    assert read_token(None) is None
