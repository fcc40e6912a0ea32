# SPDX-License-Identifier: Apache-2.0
"""What fits: places of jobs, next hops and state blocks, table use, RED entries; and drift that nobody asked about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program
from switch_agent.agent import Agent, build_app
from switch_agent.agent.config import PortConfig, RedConfig, SwitchConfig, load_config
from switch_agent.agent.store import Store
from switch_agent.bfrt import Entry, SessionState
from switch_agent.bfrt.requests import delete_update, insert_update
from switch_agent.dataplane.program import Sizes, build_program
from switch_agent.errors import ConfigError

from .conftest import Bench, eventually, job_spec, options


async def add_next_hop(bench: Bench, member: int, port_index: int) -> None:
    """A next hop, as whoever does the routing installs it."""
    client = bench.agent.session.writer()
    assert client.schema is not None
    data = {"port": 8, "port_index": port_index, "smac": 1, "dmac": 2}
    entry = Entry({"$ACTION_MEMBER_ID": member}, "Ingress.forward", data)
    await client.write([insert_update(client.schema.table("nexthop"), entry)])


async def test_scope_port_needs_a_state_block_for_every_next_hop(bench: Bench) -> None:
    """A port_index beyond --ports would count in somebody else's state: refused, and said what to do."""
    await add_next_hop(bench, 1, 63)
    assert (await bench.http.post("/api/v1/reconcile")).status_code == 200
    await bench.put(1, symphony={"scope": "port"})
    await add_next_hop(bench, 2, 70)
    assert (await bench.http.post("/api/v1/reconcile")).status_code == 200
    answer = await bench.http.put("/api/v1/jobs/2", json=job_spec(name="b", job_tag=4, symphony={"scope": "port"}))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_job")
    assert "port_index 70" in answer.json()["detail"]
    assert "--ports 71" in answer.json()["detail"]
    await bench.put(2, name="b", job_tag=4)
    assert (await bench.patch(2, scope="port")).status_code == 422
    view = (await bench.http.get("/api/v1/switch")).json()
    assert view["ports"] == {"state_blocks": 64, "highest_port_index": 70}


async def test_a_job_whose_blocks_became_too_few_is_taken_off_the_switch(bench: Bench) -> None:
    """It was placed before the next hop was there: no packet may count beyond its blocks."""
    await bench.put(1, symphony={"scope": "port"})
    await bench.put(2, name="b", job_tag=4)
    await add_next_hop(bench, 1, 64)
    drift = (await bench.http.get("/api/v1/drift")).json()
    assert drift["deleted"] == 3
    assert (await bench.http.post("/api/v1/reconcile")).json()["repaired"] is True
    assert {entry.data["job"] for entry in bench.entries("job_classify")} == {2}
    view = (await bench.http.get("/api/v1/switch")).json()
    assert "port_index 64" in view["misplaced_jobs"]["1"]
    assert 'symphony_misplaced_jobs{switch="tor0"} 1.0' in (await bench.http.get("/metrics")).text
    frame = await bench.agent.sampler.sample(0)
    assert frame is not None
    assert frame.rows["job_id"].tolist() == [2]
    assert (await bench.http.delete("/api/v1/jobs/1")).status_code == 204
    assert (await bench.http.get("/api/v1/drift")).json()["entries"] == 0
    assert (await bench.http.get("/api/v1/switch")).json()["misplaced_jobs"] == {}


async def test_jobs_of_a_larger_program_stay_off_a_smaller_one(tmp_path: Path, few_lookups: None) -> None:
    """State index and Job_ID are checked against the sizes of the program that runs."""
    large = P4Program.from_description(build_program(Sizes(n_state=2048, n_job=2048)))
    small = P4Program.from_description(build_program(Sizes(n_state=64, n_job=64)))
    for program in (large, small):
        memory = MemoryBackend(program, name="tor0")
        async with BfRtServer(memory, program, port=0) as server:
            agent = Agent(options(server, tmp_path, ports=60))
            transport = httpx.ASGITransport(build_app(agent))
            async with agent.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await agent.session.wait_for(SessionState.READY, timeout=20)
                if program is large:
                    for job_id, tag, scope in ((1, 1, "port"), (2, 2, "port"), (100, 3, "job")):
                        spec = job_spec(name=f"j{job_id}", job_tag=tag, symphony={"scope": scope})
                        assert (await http.put(f"/api/v1/jobs/{job_id}", json=spec)).status_code == 200
                    continue
                assert agent.reconcile_error is None
                assert set(agent.misplaced) == {2, 100}
                assert "state blocks 60 to 119 are beyond the program's 64" in agent.misplaced[2]
                assert "its id is beyond the program's 64 jobs" in agent.misplaced[100]
                assert {entry.data["job"] for entry in server.snapshot("job_classify").entries} == {1}
    store = Store(tmp_path)
    assert [job.job_id for job in store.load()] == [1, 2, 100], "they are not forgotten"
    store.close()


async def test_table_use_and_its_peak_are_known_without_asking(bench: Bench) -> None:
    """Entries go up and down with the jobs, the peak stays."""
    await bench.put(1)
    await bench.put(2, name="b", job_tag=4)
    assert (await bench.http.delete("/api/v1/jobs/1")).status_code == 204
    usage = (await bench.http.get("/api/v1/switch")).json()["usage"]
    assert usage["job_classify"] == {"entries": 2, "peak": 4, "size": 2048}
    assert usage["job_params"] == {"entries": 1, "peak": 2, "size": 1024}
    assert usage["exp2"]["entries"] == len(bench.entries("exp2"))
    text = (await bench.http.get("/metrics")).text
    assert 'symphony_table_entries{switch="tor0",table="job_classify"} 2.0' in text
    assert 'symphony_table_entries_peak{switch="tor0",table="job_classify"} 4.0' in text


async def test_drift_is_found_by_itself(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None
) -> None:
    """A comparison every interval: the metric shows drift that nobody asked about, and that it has gone."""
    server, _ = switch
    agent = Agent(options(server, tmp_path, drift_interval=0.02))
    transport = httpx.ASGITransport(build_app(agent))
    async with agent.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await agent.session.wait_for(SessionState.READY, timeout=20)
        assert (await http.put("/api/v1/jobs/1", json=job_spec())).status_code == 200
        client = agent.session.writer()
        assert client.schema is not None
        await client.write([delete_update(client.schema.table("job_params"), {"ig_md.job": 1})])
        await eventually(lambda: agent.drift is not None and agent.drift.total == 1)
        assert 'symphony_reconcile_drift{switch="tor0"} 1.0' in (await http.get("/metrics")).text
        assert not server.snapshot("job_params").entries, "a comparison repairs nothing"
        assert (await http.post("/api/v1/reconcile")).json()["repaired"] is True
        await eventually(lambda: agent.drift is not None and agent.drift.total == 0)


async def test_a_change_under_way_is_no_drift(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a comparison without locks finds is looked at again with changes held back."""
    await bench.put()
    compare, calls = bench.agent._reconciler.compare, []

    async def first_sees_the_past(*args: object) -> object:
        drift = await compare(*args)  # type: ignore[arg-type]
        calls.append(bench.agent.jobs.locks._exclusive)
        return replace(drift, modified=1) if len(calls) == 1 else drift

    monkeypatch.setattr(bench.agent._reconciler, "compare", first_sees_the_past)
    assert (await bench.http.get("/api/v1/drift")).json()["entries"] == 0
    assert calls == [False, True]
    await bench.http.get("/api/v1/drift")
    assert calls == [False, True, False], "without drift nobody is held back"


async def test_red_of_single_ports_goes_before_that_of_all(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None
) -> None:
    """Entries of a port cover every depth, so that nothing of the common profile shines through."""
    server, _ = switch
    config = SwitchConfig(
        red=RedConfig(kmin_bytes=50_000, kmax_bytes=100_000, pmax=0.2, steps=4),
        ports=[
            PortConfig(
                dev_port=9,
                speed="100G",
                red=RedConfig(kmin_bytes=200_000, kmax_bytes=400_000, pmax=0.5, steps=2, busy_min_cells=3),
            )
        ],
    )
    agent = Agent(options(server, tmp_path, config=config))
    async with agent.running():
        await agent.session.wait_for(SessionState.READY, timeout=20)
        assert agent.reconcile_error is None
    entries = server.snapshot("red_profile").entries
    own = sorted(
        (entry.key["eg_intr_md.deq_qdepth"], entry.data["prob"], entry.data["busy"], entry.priority)
        for entry in entries
        if entry.key["eg_intr_md.egress_port"] == (9, 0x1FF)
    )
    assert own == [
        ((0, 2), 0, 0, 10),
        ((3, 1135), 0, 1, 10),
        ((1136, 1703), 8192, 1, 10),
        ((1704, 2271), 24576, 1, 10),
        ((2272, (1 << 19) - 1), 0xFFFF, 1, 10),
    ]
    common = [entry for entry in entries if entry.key["eg_intr_md.egress_port"] == (0, 0)]
    assert {entry.priority for entry in common} == {20}
    assert len(common) == 6


async def test_more_red_entries_than_the_table_holds_are_refused_before_anything_is_written(
    switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None
) -> None:
    """The session is up, the text names table, size and number."""
    server, _ = switch
    red = RedConfig(kmin_bytes=100_000, kmax_bytes=400_000, pmax=0.5, steps=256)
    config = SwitchConfig(ports=[PortConfig(dev_port=port, speed="100G", red=red) for port in range(4)])
    agent = Agent(options(server, tmp_path, config=config))
    async with agent.running():
        await agent.session.wait_for(SessionState.READY, timeout=20)
        assert agent.reconcile_error is not None
        assert "red_profile of the switch has 1024 entries, 1036 are wanted" in agent.reconcile_error
    assert not server.snapshot("red_profile").entries


def test_a_busy_depth_inside_the_ramp_splits_a_piece() -> None:
    """The gate opens where it was told to, and the ramp stays what it is."""
    entries = RedConfig(kmin_bytes=17_600, kmax_bytes=35_200, pmax=1.0, steps=1, busy_min_cells=150).entries()
    shown = [
        (entry.key["eg_intr_md.deq_qdepth"].low, entry.data["prob"], entry.data["busy"])  # type: ignore[union-attr]
        for entry in entries
    ]
    assert shown == [(100, 32768, 0), (150, 32768, 1), (200, 0xFFFF, 1)]


def test_a_port_may_be_there_once_only(tmp_path: Path) -> None:
    """Which of two would hold?"""
    path = tmp_path / "switch.yaml"
    path.write_text("ports: [{dev_port: 1, speed: 100G}, {dev_port: 2, speed: 10G}, {dev_port: 1, speed: 25G}]")
    with pytest.raises(ConfigError, match="dev_port 1 more than once"):
        load_config(path)
