# SPDX-License-Identifier: Apache-2.0
"""The twin's REST API: clock, links, counters, and refusals that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fabric_twin.daemon import Twin, TwinConfig
from fabric_twin.engine import kernel
from fabric_twin.events import SwitchRestart
from fabric_twin.presets import PRESETS
from fabric_twin.rest import make_app


@pytest.fixture
def twin(tmp_path: Path) -> Twin:
    """A twin that is not running: the API works on its fabric."""
    return Twin(TwinConfig(PRESETS["small"], seed=1, verbs=tmp_path / "verbs.sock", bfrt_port=0, http_port=0))


@pytest_asyncio.fixture
async def api(twin: Twin) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its API."""
    transport = httpx.ASGITransport(app=make_app(twin))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def transfer(twin: Twin, length: int = 100_000) -> None:
    """A message from h0 to h5, to its end."""
    fabric = twin.fabric
    hosts = fabric.topology.hosts
    a, b = fabric.create_qp(hosts[0], 1), fabric.create_qp(hosts[5], 1)
    settings: dict[str, Any] = {
        "mtu": 4096,
        "psn": 0,
        "ect": True,
        "timeout": 4,
        "retry_cnt": 7,
        "rnr_retry": 7,
        "rnr_timer_ps": 10**6,
    }
    fabric.connect(b, hosts[0], a, sport=0xC000, **settings)
    fabric.connect(a, hosts[5], b, sport=0xC000, **settings)
    fabric.receives(b, 1)
    fabric.post(a, length, write=True, imm=True, signaled=True)
    while fabric.run() != kernel.IDLE:
        fabric.take_events()


async def test_the_topology_lists_hosts_switches_and_links(api: httpx.AsyncClient) -> None:
    """Eight hosts, two ToRs and two spines; a link is directed."""
    answer = (await api.get("/api/v1/topology")).json()
    assert answer["preset"] == "small"
    assert (answer["description"]["hosts"], answer["description"]["spines"]) == (8, 2)
    assert answer["hosts"][5] == {
        "name": "h5", "address": "10.0.1.2", "switch": "tor1", "machine": "h5", "rail": 0,
    }  # fmt: skip
    assert [s["name"] for s in answer["switches"]] == ["tor0", "tor1", "spine0", "spine1"]
    assert [s["bfrt"] is None for s in answer["switches"]] == [False, False, True, True]
    assert {"name": "tor0->spine1", "gbps": 10.0, "delay_us": 1.0} in answer["links"]
    assert len(answer["links"]) == 2 * 8 + 2 * 4


async def test_the_clock_is_read_paced_and_held(api: httpx.AsyncClient, twin: Twin) -> None:
    """Fields that are left out stay as they are; null takes a limit away."""
    idle: dict[str, Any] = {"now_ns": 0, "pace": None, "hold_at_ns": None, "held": False, "attached": []}
    assert (await api.get("/api/v1/clock")).json() == idle
    paced = (await api.patch("/api/v1/clock", json={"pace": 0.5, "hold_at_ns": 1000})).json()
    assert (paced["pace"], paced["hold_at_ns"], paced["held"]) == (0.5, 1000, False)
    twin.fabric.run(until_ps=1_000_000)
    held = (await api.patch("/api/v1/clock", json={"pace": None})).json()
    assert (held["pace"], held["hold_at_ns"], held["held"], held["now_ns"]) == (None, 1000, True, 1000)
    free = (await api.patch("/api/v1/clock", json={"hold_at_ns": None})).json()
    assert (free["hold_at_ns"], free["held"]) == (None, False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("clock", {"pace": 0}),
        ("clock", {"pace": -1}),
        ("clock", {"pace": 1e300}),
        ("clock", {"pace": "fast"}),
        ("clock", {"hold_at_ns": -1}),
        ("clock", {"hold_at_ns": 10**30}),
        ("clock", {"hold_after_ns": 1.5}),
        ("clock", {"speed": 3}),
        ("clock", []),
        ("links/tor0->spine1", {"gbps": 0}),
        ("links/tor0->spine1", {"gbps": 801}),
        ("links/tor0->spine1", {"gbps": 0.001}),
        ("links/tor0->spine1", {"drop": 1.1}),
        ("links/tor0->spine1", {"delay": 3}),
    ],
)
async def test_a_bad_patch_is_422_and_changes_nothing(api: httpx.AsyncClient, twin: Twin, path: str, body: Any) -> None:
    """Out of range, of the wrong type, or an unknown field."""
    answer = await api.patch(f"/api/v1/{path}", json=body)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid"
    assert next(iter(body), "body") in answer.json()["detail"] or "link tor0->spine1" in answer.json()["detail"]
    assert (twin.service.clock.pace, twin.service.clock.hold_at_ps) == (None, None)
    assert twin.fabric.topology.port("tor0->spine1").gbps == 10.0


@pytest.mark.parametrize("body", ['{"pace": NaN}', '{"pace": Infinity}', '{"drop": NaN}', "{"])
async def test_what_is_no_json_number_is_422(api: httpx.AsyncClient, body: str) -> None:
    """Python writes NaN and Infinity; they are no numbers here."""
    path = "links/tor0->spine1" if "drop" in body else "clock"
    headers = {"content-type": "application/json"}
    assert (await api.patch(f"/api/v1/{path}", content=body, headers=headers)).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("GET", "hosts/h8/counters", "no host 'h8'; this fabric has h0 to h7"),
        ("GET", "links/tor0->h7", "no link 'tor0->h7'; names look like h0->tor0"),
        ("PATCH", "links/uplink", "no link 'uplink'"),
        ("POST", "switches/spine0/restart", "no switch 'spine0' with Symphony; there are tor0 to tor1"),
    ],
)
async def test_an_unknown_name_is_404_and_says_what_names_there_are(
    api: httpx.AsyncClient, method: str, path: str, says: str
) -> None:
    """Whatever the method."""
    body: dict[str, Any] | None = None if method == "GET" else {}
    answer = await api.request(method, f"/api/v1/{path}", json=body)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"
    assert says in answer.json()["detail"]


async def test_counters_tell_what_nics_and_links_have_done(api: httpx.AsyncClient, twin: Twin) -> None:
    """25 packets from h0 to h5."""
    transfer(twin)
    sent, got = [(await api.get(f"/api/v1/hosts/h{i}/counters")).json() for i in (0, 5)]
    assert (sent["tx_packets"], got["rx_packets"], got["out_of_sequence"]) == (25, 25, 0)
    link = (await api.get("/api/v1/links/tor1->h5")).json()
    assert (link["tx_packets"], link["tx_bytes"], link["dropped"]) == (25, 100_000 + 25 * 82, 0)
    stats = (await api.get("/api/v1/stats")).json()
    assert stats["data_packets"] == 25
    assert stats["events"] >= 100
    assert stats["cpu_s"] >= 0


async def test_a_link_that_loses_packets_shows_in_the_counters(api: httpx.AsyncClient, twin: Twin) -> None:
    """Loss is per directed link and can be mended."""
    patched = await api.patch("/api/v1/links/tor1->h5", json={"drop": 0.3})
    assert patched.status_code == 200
    transfer(twin, 200_000)
    dropped = (await api.get("/api/v1/links/tor1->h5")).json()["dropped"]
    assert dropped == (await api.get("/api/v1/stats")).json()["drops"] > 0
    assert (await api.get("/api/v1/hosts/h0/counters")).json()["retransmitted_packets"] > 0
    await api.patch("/api/v1/links/tor1->h5", json={"drop": 0})
    transfer(twin)
    assert (await api.get("/api/v1/links/tor1->h5")).json()["dropped"] == dropped


async def test_a_slower_link_slows_its_traffic(api: httpx.AsyncClient, twin: Twin) -> None:
    """Ten times less, ten times as long."""
    began = twin.fabric.now_ps
    transfer(twin)
    fast = twin.fabric.now_ps - began
    await api.patch("/api/v1/links/h0->tor0", json={"gbps": 1})
    began = twin.fabric.now_ps
    transfer(twin)
    assert twin.fabric.now_ps - began > 5 * fast
    links = (await api.get("/api/v1/topology")).json()["links"]
    assert [link["gbps"] for link in links if link["name"] == "h0->tor0"] == [1.0]


async def test_events_are_made_listed_and_ended(api: httpx.AsyncClient, twin: Twin) -> None:
    """Now, later, and not any more; what occurred is told once to those who ask for what is new."""
    down = await api.post("/api/v1/events", json={"kind": "link-down", "link": "tor0<->spine1", "reroute_ms": 0})
    later = await api.post("/api/v1/events", json={"kind": "link-rate", "link": "h0->tor0", "gbps": 2, "at_ms": 4})
    assert (down.status_code, down.json()) == (201, {"id": 1, "now_ns": 0})
    told = (await api.get("/api/v1/events")).json()
    assert told["active"] == [{"id": 1, "kind": "link-down", "link": "tor0<->spine1", "reroute_ms": 0.0}]
    assert told["coming"] == [{"id": 2, "t_ns": None}]  # of the next run: none is under way
    assert [(o["t_ns"], o["phase"], o["what"]) for o in told["log"]] == [(0, "begin", "tor0<->spine1 down")]
    assert twin.fabric.drop_of("spine1->tor0") == 1
    assert (await api.delete(f"/api/v1/events/{later.json()['id']}")).status_code == 200
    assert (await api.delete("/api/v1/events/1")).status_code == 200
    assert twin.fabric.drop_of("spine1->tor0") == 0
    since = told["log"][-1]["sequence"]
    told = (await api.get("/api/v1/events", params={"since": since})).json()
    assert (told["active"], told["coming"]) == ([], [])
    assert [(o["event"], o["phase"]) for o in told["log"]] == [(1, "end")]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"kind": "link-down", "link": "tor0->spine7"}, 404, "no link 'tor0->spine7'"),
        ({"kind": "link-rate", "link": "tor0->spine1", "gbps": -1}, 422, "link-rate.gbps: "),
        ({"kind": "meteor"}, 422, "'meteor'"),
        ({"kind": "switch-restart", "switch": "spine1"}, 404, "no ToR 'spine1'; there are tor0 to tor1"),
        ({"kind": "background-constant", "source": "h0", "target": "h0", "gbps": 1}, 422, "h0 would send to itself"),
    ],
)
async def test_an_event_that_cannot_happen_is_refused_and_leaves_nothing(
    api: httpx.AsyncClient, body: dict[str, Any], status: int, says: str
) -> None:
    """404 for names, 422 for values."""
    answer = await api.post("/api/v1/events", json=body)
    assert answer.status_code == status
    assert says in answer.json()["detail"]
    told = (await api.get("/api/v1/events")).json()
    assert (told["active"], told["coming"], told["log"]) == ([], [], [])
    assert (await api.delete("/api/v1/events/9")).json()["code"] == "not_found"


async def test_a_switch_restart_as_an_event_is_over_when_its_server_listens_again(tmp_path: Path) -> None:
    """Its begin and its end are in the log."""
    config = TwinConfig(PRESETS["two-flows"], 1, tmp_path / "verbs.sock", bfrt_port=0, http_port=0)
    twin, ready = Twin(config), asyncio.Event()
    running = asyncio.create_task(twin.run(ready))
    try:
        async with asyncio.timeout(30):
            await ready.wait()
            twin.service.timeline.add(SwitchRestart(kind="switch-restart", switch="tor0", down_ms=10))
            assert [o.phase for o in twin.service.timeline.log] == ["begin"]
            while twin.service.timeline.view()["active"]:  # noqa: ASYNC110  # the twin has no events for tests
                await asyncio.sleep(0.01)
        assert [(o.phase, o.what) for o in twin.service.timeline.log] == [
            ("begin", "tor0 restarts"),
            ("end", "tor0 restarts"),
        ]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    "host", ["evil.com", "evil.com:9301", "127.0.0.1.evil.com", "192.168.1.7:9301", "localhost.evil.com", ""]
)
async def test_a_request_for_another_host_is_refused(api: httpx.AsyncClient, twin: Twin, host: str) -> None:
    """Such as that of a web page whose name resolves to 127.0.0.1 (DNS rebinding); nothing changes."""
    answer = await api.patch("/api/v1/clock", json={"pace": 2}, headers={"host": host})
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_host")
    assert twin.service.clock.pace is None


@pytest.mark.parametrize("host", ["127.0.0.1:9301", "localhost", "LOCALHOST.:1", "127.0.0.2", "[::1]:9301", "[::1]"])
async def test_loopback_names_are_answered(api: httpx.AsyncClient, host: str) -> None:
    """With port or without."""
    assert (await api.get("/api/v1/clock", headers={"host": host})).status_code == 200


async def endless(sent: list[int]) -> AsyncIterator[bytes]:
    """A body that does not end, in chunks; notes how much of it was asked for."""
    while True:
        sent[0] += 10_000
        assert sent[0] < 1_000_000, "it goes on reading"
        yield b" " * 10_000


async def test_a_body_that_is_too_large_is_413(api: httpx.AsyncClient, twin: Twin) -> None:
    """By its announced length, and in chunks without one as soon as it has grown too large."""
    sent = [0]
    json_type = {"content-type": "application/json"}
    for body in (b" " * 70_000, endless(sent)):
        answer = await api.patch("/api/v1/clock", content=body, headers=json_type)
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert "65536 bytes" in answer.json()["detail"]
    assert 65_536 <= sent[0] <= 80_000
    assert (await api.patch("/api/v1/clock", content=b'{"pace": 2}' + b" " * 60_000, headers=json_type)).is_success
    assert twin.service.clock.pace == 2


async def test_paths_and_methods_that_are_not_there_answer_in_the_same_form(api: httpx.AsyncClient) -> None:
    """Detail and code, as all errors."""
    assert (await api.get("/api/v1/nothing")).json() == {"detail": "Not Found", "code": "not_found"}
    assert (await api.delete("/api/v1/clock")).json()["code"] == "method_not_allowed"


async def test_the_process_answers(api: httpx.AsyncClient) -> None:
    """Health without any work."""
    assert (await api.get("/healthz")).json() == {"status": "ok"}
