# SPDX-License-Identifier: Apache-2.0
"""The desired state comes back: restarts, drift, orphans, a second agent, a switch that is not there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program, Port
from switch_agent.agent import Agent, build_app
from switch_agent.agent.config import EcmpConfig, PortConfig, RedConfig, SwitchConfig, load_config
from switch_agent.bfrt import Entry, SessionState
from switch_agent.bfrt.requests import KeyValue, Ternary, delete_update, insert_update, modify_update
from switch_agent.dataplane.lookup import TernaryEntry, dense_array, lookup_tables
from switch_agent.errors import ConfigError

from .conftest import Bench, eventually, job_spec, options


@asynccontextmanager
async def agent_on(server: BfRtServer, folder: Path, **changes: Any) -> AsyncIterator[tuple[Agent, httpx.AsyncClient]]:
    """An agent with a REST client; not necessarily ready."""
    agent = Agent(options(server, folder, **changes))
    transport = httpx.ASGITransport(build_app(agent))
    async with agent.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield agent, http


async def test_look_up_entries_are_installed_and_compute_the_same(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path
) -> None:
    """What the switch holds gives the dense arrays of the definition; a second agent run changes nothing."""
    server, _ = switch
    for expected in (3254, 0):
        async with agent_on(server, tmp_path) as (agent, _):
            await agent.session.wait_for(SessionState.READY, timeout=60)
            assert agent.drift is not None
            assert agent.drift.total == expected
    for name, table in lookup_tables().items():
        snapshot = server.snapshot(name)
        installed = [
            TernaryEntry(value, mask, entry.priority, datum)
            for entry in snapshot.entries
            for value, mask in cast("list[tuple[int, int]]", list(entry.key.values()))
            for datum in cast("list[int]", list(entry.data.values()))
        ]
        assert (dense_array(name, installed, table.default) == dense_array(name, table.entries, table.default)).all()


async def test_jobs_come_back_after_a_restart_of_the_switch(bench: Bench) -> None:
    """Entries, parameters and state return without a request; the job goes on at the step it was at."""
    await bench.put(symphony={"enabled": True})
    bench.set_register("steps", 0, 0, mn=50 << 22 | 1, mx=51 << 22 | 1)
    bench.set_register("window_start", 0, 0, f1=99)
    await bench.sample()
    before = bench.entries("job_params")[0].data
    await bench.server.faults.restart()
    session = bench.agent.session
    await session.wait_until(lambda: session.generation == 2 and session.owned, timeout=20)
    assert bench.entries("job_params")[0].data == before
    assert len(bench.entries("job_classify")) == 2
    assert bench.memory.registers["steps"]["mn"][:, 0].tolist() == [50 << 22 | 1] * 4
    assert bench.memory.registers["window_start"]["f1"][:, 0].tolist() == [0] * 4


async def test_no_confirmed_toggle_is_lost_over_restarts(bench: Bench) -> None:
    """The switch restarts while toggles run: what was answered with 200 is what the switch ends up with, soon."""
    await bench.put()
    confirmed: dict[str, Any] = {}

    async def toggle() -> None:
        on = False
        while True:
            on = not on
            await asyncio.sleep(0.001)  # refusals come at once: leave the loop to the others
            answer = await bench.patch(1, enabled=on)
            assert answer.status_code in (200, 502, 503)
            if answer.status_code == 200:
                confirmed.update(answer.json())

    def more_than(revision: int) -> bool:
        return bool(confirmed.get("revision", 0) > revision)

    def is_back(generation: int) -> bool:
        return bench.agent.session.generation > generation and bench.agent.session.owned

    toggling = asyncio.create_task(toggle())
    session = bench.agent.session
    took = []
    for _ in range(8):
        seen = confirmed.get("revision", 0)
        await eventually(partial(more_than, seen + 3))
        newer = partial(is_back, session.generation)
        await bench.server.faults.restart()
        began = time.monotonic()
        await session.wait_until(newer, timeout=20)
        took.append(time.monotonic() - began)
    toggling.cancel()
    await asyncio.gather(toggling, return_exceptions=True)
    job = (await bench.http.get("/api/v1/jobs/1")).json()
    assert job["revision"] >= confirmed["revision"]
    assert sorted(took)[4] < 2.0, took
    drift = (await bench.http.get("/api/v1/drift")).json()
    assert drift["entries"] == 0, drift
    assert len(bench.entries("job_params")) == 1
    assert len(bench.entries("job_classify")) == 2


async def test_restart_of_the_agent_leaves_running_state_alone(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None
) -> None:
    """The switch kept everything, so nothing is written; jobs are known from disk."""
    server, memory = switch
    async with agent_on(server, tmp_path) as (agent, http):
        await agent.session.wait_for(SessionState.READY, timeout=20)
        assert (await http.put("/api/v1/jobs/3", json=job_spec())).status_code == 200
    memory.registers["alpha"]["f1"][2, 0] = 44
    async with agent_on(server, tmp_path) as (agent, http):
        await agent.session.wait_for(SessionState.READY, timeout=20)
        assert agent.drift is not None
        assert agent.drift.total == 0
        assert [job["job_id"] for job in (await http.get("/api/v1/jobs")).json()["jobs"]] == [3]
    assert memory.registers["alpha"]["f1"][2, 0] == 44


async def test_drift_is_reported_and_repaired_within_our_own_key_space(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None
) -> None:
    """Missing, different and orphaned entries are found; ids of others and NoAction entries stay."""
    server, _ = switch
    async with agent_on(server, tmp_path, job_ids=range(1, 100)) as (agent, http):
        await agent.session.wait_for(SessionState.READY, timeout=20)
        for job_id in (1, 2):
            spec = job_spec(name=f"j{job_id}", job_tag=job_id)
            assert (await http.put(f"/api/v1/jobs/{job_id}", json=spec)).status_code == 200
        client = agent.session.writer()
        assert client.schema is not None
        params, classify = client.schema.table("job_params"), client.schema.table("job_classify")
        entries = await client.read_entries(params, from_hw=True)
        wrong = next(entry for entry in entries if entry.key.get("ig_md.job") == 2)

        def foreign(source: int, job: int | None) -> Entry:
            key: dict[str, KeyValue] = {
                "hdr.ipv4.src": Ternary(source, 0xFFFFFFFF),
                "hdr.ipv4.dst": Ternary(0, 0),
                "hdr.udp.sport": Ternary(0, 0),
                "$MATCH_PRIORITY": 1,
            }
            if job is None:
                return Entry(key=key, action="NoAction")
            return Entry(key=key, action="Ingress.set_job", data={"job": job, "state": 9})

        await client.write(
            [
                delete_update(params, {"ig_md.job": 1}),
                modify_update(params, Entry(wrong.key, wrong.action, {**wrong.data, "amax": 7})),
                insert_update(params, Entry({"ig_md.job": 50}, wrong.action, wrong.data)),
                insert_update(params, Entry({"ig_md.job": 500}, wrong.action, wrong.data)),
                insert_update(classify, foreign(1, 60)),
                insert_update(classify, foreign(2, 600)),
                insert_update(classify, foreign(3, None)),
            ]
        )
        drift = (await http.get("/api/v1/drift")).json()
        assert (drift["added"], drift["modified"], drift["deleted"]) == (1, 1, 2)
        assert "missing: job_params[ig_md.job=1]" in drift["details"]
        assert len(server.snapshot("job_params").entries) == 3, "a comparison changes nothing"
        repaired = (await http.post("/api/v1/reconcile")).json()
        assert (repaired["entries"], repaired["repaired"]) == (4, True)
        assert (await http.get("/api/v1/drift")).json()["entries"] == 0
        assert {entry.key["ig_md.job"] for entry in server.snapshot("job_params").entries} == {1, 2, 500}
        left = [entry.data.get("job") for entry in server.snapshot("job_classify").entries]
        assert sorted(left, key=str) == sorted([1, 1, 2, 2, 600, None], key=str)


async def test_look_up_entries_of_others_are_found_and_removed(bench: Bench) -> None:
    """Also when the tables had been found right before: an answer that was right is only known by its bytes."""
    for _ in range(2):
        assert (await bench.http.get("/api/v1/drift")).json()["entries"] == 0
    client = bench.agent.session.writer()
    assert client.schema is not None
    exp2 = client.schema.table("exp2")
    first, second, third = [entry for entry in await client.read_entries(exp2, from_hw=True) if not entry.is_default]
    strange = Entry({"ig_md.lg": Ternary(77, 0xFFFF), "$MATCH_PRIORITY": 3}, first.action, first.data)
    wrong = Entry(first.key, first.action, {"thr": 1})
    await client.write([delete_update(exp2, second.key), modify_update(exp2, wrong), insert_update(exp2, strange)])
    drift = (await bench.http.get("/api/v1/drift")).json()
    assert (drift["added"], drift["modified"], drift["deleted"]) == (1, 1, 1)
    assert (await bench.http.post("/api/v1/reconcile")).json()["repaired"] is True
    left = [entry for entry in await client.read_entries(exp2, from_hw=True) if not entry.is_default]
    assert sorted((str(entry.key), entry.data["thr"]) for entry in left) == sorted(
        (str(entry.key), entry.data["thr"]) for entry in (first, second, third)
    )


async def test_a_reconcile_that_the_switch_refuses_is_shown(bench: Bench) -> None:
    """The session is up all the same; cause in session, metrics and REST, until it is solved."""
    await bench.put()
    bench.server.faults.table_capacity["job_classify"] = 0
    await bench.server.faults.restart()
    session = bench.agent.session
    await session.wait_until(lambda: session.generation == 2 and session.owned, timeout=20)
    view = (await bench.http.get("/api/v1/switch")).json()
    assert "RESOURCE_EXHAUSTED" in view["reconcile_error"]
    text = (await bench.http.get("/metrics")).text
    assert 'symphony_collector_success{collector="reconcile",switch="tor0"} 0.0' in text
    bench.server.faults.table_capacity.clear()
    assert (await bench.http.post("/api/v1/reconcile")).json()["repaired"] is True
    assert (await bench.http.get("/api/v1/switch")).json()["reconcile_error"] is None


async def test_second_agent_reads_only_and_takes_over(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None
) -> None:
    """It says who owns the switch, samples the owner's jobs, refuses changes; later it is the owner."""
    server, memory = switch
    async with AsyncExitStack() as first_life:
        first, http = await first_life.enter_async_context(agent_on(server, tmp_path / "a"))
        await first.session.wait_for(SessionState.READY, timeout=20)
        await http.put("/api/v1/jobs/4", json=job_spec(symphony={"scope": "port"}))
        memory.registers["steps"]["mn"][0, 3] = 8 << 22 | 1
        memory.registers["steps"]["mx"][0, 3] = 11 << 22 | 1
        memory.registers["window_start"]["f1"][0, 3] = 5
        async with agent_on(server, tmp_path / "b") as (second, other):
            await second.session.wait_for(SessionState.READ_ONLY, timeout=20)
            view = (await other.get("/api/v1/switch")).json()
            assert (view["mode"], view["owner"]) == ("read-only", "client 101")
            answer = await other.put("/api/v1/jobs/5", json=job_spec(name="x"))
            assert (answer.status_code, answer.json()["code"]) == (409, "read_only")
            assert "client 101" in answer.json()["detail"]
            assert await second.sampler.sample(0) is not None
            (sample,) = (await other.get("/api/v1/registers?job=4")).json()["samples"]
            assert (sample["name"], sample["overlap"]) == ("job-4", 4)
            assert memory.registers["steps"]["mx"][0, 3] == 11 << 22 | 1, "a reader writes nothing"
            await first_life.aclose()
            await second.session.wait_for(SessionState.READY, timeout=20)
            assert not server.snapshot("job_params").entries, "the new owner's desired state is in force"


async def test_unreachable_switch_keeps_the_agent_serving(tmp_path: Path, program: P4Program) -> None:
    """State connecting, 503 that says why, health fine; when the switch appears, work begins."""
    server = BfRtServer(MemoryBackend(program), program, port=0)
    await server.start()
    await server.stop()  # the port is known now, and nobody listens
    async with agent_on(server, tmp_path) as (agent, http):
        await agent.session.wait_until(lambda: agent.session.last_error is not None, timeout=20)
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        view = (await http.get("/api/v1/switch")).json()
        assert (view["state"], view["mode"]) == ("connecting", None)
        assert "UNAVAILABLE" in view["last_error"]
        for method, path, body in (
            ("PUT", "/api/v1/jobs/1", job_spec()),
            ("GET", "/api/v1/drift", None),
            ("POST", "/api/v1/reconcile", None),
        ):
            answer = await http.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "switch_not_ready")
            assert "connecting" in answer.json()["detail"]
        assert (await http.get("/api/v1/registers")).json()["samples"] == []
        assert (await http.get("/metrics")).status_code == 200
        await server.start()
        await agent.session.wait_for(SessionState.READY, timeout=60)
        assert (await http.put("/api/v1/jobs/1", json=job_spec())).status_code == 200
    await server.stop()


async def test_metrics_of_a_lost_switch_vanish(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are too old leave no series; job and session series stay, a scrape does not wait."""
    await bench.put()
    await bench.sample()
    assert "symphony_step_overlap{" in (await bench.http.get("/metrics")).text
    await bench.server.stop()
    await bench.agent.session.wait_for(SessionState.LOST, timeout=20)
    at = bench.agent.sampler._clock()
    stale = bench.agent.sampler.stale_after_s
    monkeypatch.setattr(bench.agent.sampler, "_clock", lambda: at + stale + 1)
    text = (await bench.http.get("/metrics")).text
    assert "symphony_step_overlap{" not in text
    assert "symphony_packets_total{" not in text
    assert 'symphony_job_enabled{job="ring",switch="tor0"} 0.0' in text
    assert 'symphony_collector_success{collector="registers",switch="tor0"} 0.0' in text


async def test_configured_red_ecmp_and_ports_are_reconciled(
    tmp_path: Path, program: P4Program, few_lookups: None
) -> None:
    """The YAML file's thresholds, hash mask and ports are on the switch, and only once."""
    config = SwitchConfig(
        ecmp=EcmpConfig(hash_source_port=False),
        red=RedConfig(kmin_bytes=50_000, kmax_bytes=100_000, pmax=0.2),
        ports=[
            PortConfig(dev_port=8, speed="100G", fec="rs", mtu=9216),
            PortConfig(dev_port=16, speed="10G"),
        ],
    )
    memory = MemoryBackend(program)
    async with BfRtServer(memory, program, port=0, ports=[Port(16, "1/0", 25)]) as server:
        for expected in (True, False):
            async with agent_on(server, tmp_path, config=config) as (agent, _):
                await agent.session.wait_for(SessionState.READY, timeout=20)
                assert agent.reconcile_error is None
                assert agent.drift is not None
                assert agent.drift.repaired is expected
        assert memory.tables["ecmp_config"].default == ("Ingress.set_hash_sport", {"mask": 0})
        depths = {entry.key["eg_intr_md.deq_qdepth"]: entry.data for entry in server.snapshot("red_profile").entries}
        assert max(depths) == (568, (1 << 19) - 1)
        assert depths[max(depths)]["prob"] == 0xFFFF
        assert min(depths) == (1, 283)
        assert depths[1, 283] == {"prob": 0, "busy": 1}
        ports = {entry.key["$DEV_PORT"]: entry.data for entry in server.snapshot("$PORT").entries}
        assert (ports[8]["$SPEED"], ports[8]["$FEC"]) == ("BF_SPEED_100G", "BF_FEC_TYP_RS")
        assert ports[16]["$SPEED"] == "BF_SPEED_10G"


def test_red_ramp_is_monotonic_and_without_gaps() -> None:
    """Every depth from the first busy cell on has one probability, rising to Pmax, then 1."""
    red = RedConfig(kmin_bytes=5_000, kmax_bytes=200_000, pmax=0.5, steps=7)
    ranges = [(entry.key["eg_intr_md.deq_qdepth"], entry.data["prob"]) for entry in red.entries()]
    for (before, low_prob), (after, high_prob) in pairwise(ranges):
        assert before.high + 1 == after.low  # type: ignore[union-attr]
        assert low_prob <= high_prob  # type: ignore[operator]
    assert ranges[-2][1] == pytest.approx(0.5 * 65536 * 13 / 14, rel=0.01)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("red: {kmin_bytes: 5, kmax_bytes: 4, pmax: 0.1}", "must exceed"),
        ("red: {kmin_bytes: 5, kmax_bytes: 400, pmax: 2}", "red.pmax"),
        ("ecmp: {hash_sport: true}", "ecmp.hash_sport"),
        ("ports: [{dev_port: 1, speed: 11G}]", "ports.0.speed"),
        ("nonsense: [", "cannot read"),
    ],
)
def test_config_errors_name_file_and_field(tmp_path: Path, text: str, what: str) -> None:
    """One message with everything that is wrong."""
    path = tmp_path / "switch.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_an_empty_config_file_asks_for_nothing(tmp_path: Path) -> None:
    """All parts are optional."""
    path = tmp_path / "switch.yaml"
    path.write_text("")
    assert load_config(path) == SwitchConfig()


async def test_reconcile_waits_for_running_changes_and_holds_back_new_ones(bench: Bench) -> None:
    """The lock over all and the locks of jobs exclude each other."""
    locks = bench.agent.jobs.locks
    order: list[str] = []

    async def change(name: str) -> None:
        async with locks.job(1):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    async def everything() -> None:
        async with locks.all():
            order.append("all in")
            await asyncio.sleep(0)
            order.append("all out")

    first = asyncio.create_task(change("first"))
    await eventually(lambda: order)
    await asyncio.gather(asyncio.create_task(everything()), asyncio.create_task(change("second")), first)
    assert order == ["first in", "first out", "all in", "all out", "second in", "second out"]


async def test_a_mistake_in_the_sampler_is_logged_and_sampling_goes_on(
    switch: tuple[BfRtServer, MemoryBackend],
    tmp_path: Path,
    few_lookups: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error that nobody foresaw, once: without care the background task would end in silence."""
    async with agent_on(switch[0], tmp_path, sample_interval=0.02) as (agent, _):
        await agent.session.wait_for(SessionState.READY, timeout=20)
        sampler, sample = agent.sampler, agent.sampler.sample

        async def fail_once(seq: int) -> None:
            monkeypatch.setattr(sampler, "sample", sample)
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(sampler, "sample", fail_once)
        await eventually(lambda: "the sampler failed and is started again" in caplog.text)
        failed_at = time.time()
        await eventually(lambda: (sampler.last_success_unix_s or 0) > failed_at)
