# SPDX-License-Identifier: Apache-2.0
"""Jobs over REST: registering on switches, taking back, switching Symphony, errors, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from metric_names import lint
from prometheus_client.parser import text_string_to_metric_families


async def metrics(bench: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """GET /metrics, parsed: (sample name, labels) -> value."""
    answer = await bench.client.get("/metrics", follow_redirects=False)
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_health_says_ok(bench: Any) -> None:
    """/healthz answers whatever the switches do."""
    for switch in bench.switches.values():
        switch.down = True
    assert (await bench.client.get("/healthz")).json() == {"status": "ok"}


async def test_register_puts_the_job_on_every_switch_with_a_source(bench: Any) -> None:
    """Without a benchmark the ring order is unknown: each switch classifies all flows of its hosts."""
    job = await bench.register("ext", symphony={"enabled": True, "variant": "refined"})
    assert (job["id"], job["job_tag"], job["state"]) == (1, 0, "registered")
    spec = bench.switches["tor1"].jobs[1]
    assert spec["flows"] == [{"src": "10.0.1.1", "dst": None}, {"src": "10.0.1.2", "dst": None}]
    assert spec["symphony"] == {"enabled": True, "variant": "refined"}
    assert (spec["first_step"], spec["step_bits"], spec["job_tag"]) == (0, 10, 0)


async def test_a_benchmark_s_ring_edges_go_to_the_switch_of_their_source(bench: Any) -> None:
    """world 4, split MOD 2: rings h0 <-> h2 and h1 <-> h3."""
    body = {"name": "j", "bench": {"split": "MOD 2"}}
    job = (await bench.client.post("/api/v1/jobs", json=body)).json()
    await bench.hub.stop(job["id"])
    puts = [s.calls[0] for s in bench.switches.values()]
    assert puts == [("put", 1), ("put", 1)]
    flows = {flow for flows in bench.hub.jobs.get(1).flows.values() for flow in flows}
    assert flows == {
        ("10.0.0.1", "10.0.1.1"),
        ("10.0.1.1", "10.0.0.1"),
        ("10.0.0.2", "10.0.1.2"),
        ("10.0.1.2", "10.0.0.2"),
    }


async def test_ids_and_tags_do_not_clash(bench: Any) -> None:
    """Two active jobs differ in both; one that the switches hold from elsewhere is respected."""
    bench.switches["tor0"].jobs[1] = {"job_id": 1, "job_tag": 0, "name": "foreign"}
    first = await bench.register("a")
    second = await bench.register("b")
    assert (first["id"], first["job_tag"]) == (2, 1)
    assert (second["id"], second["job_tag"]) == (3, 2)


async def test_a_name_can_be_active_only_once(bench: Any) -> None:
    """It labels the metrics; after the first job's end it is free again."""
    job = await bench.register("a")
    again = await bench.client.post("/api/v1/jobs", json={"name": "a", "provider": "external"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    await bench.client.post(f"/api/v1/jobs/{job['id']}/stop")
    assert (await bench.register("a"))["state"] == "registered"


async def test_all_tags_in_use_is_a_clear_refusal(bench: Any) -> None:
    """16 job_tags: the 17th job is told so."""
    for index in range(16):
        await bench.register(f"j{index}")
    answer = await bench.client.post("/api/v1/jobs", json={"name": "more", "provider": "external"})
    assert (answer.status_code, answer.json()["code"]) == (409, "capacity")
    assert "job_tag" in answer.json()["detail"]


async def test_a_refusing_switch_rolls_the_others_back(bench: Any) -> None:
    """502 with the switch's name and words; nothing stays anywhere and the id is free again."""
    bench.switches["tor1"].refuse = "table job_classify is full"
    answer = await bench.client.post("/api/v1/jobs", json={"name": "a", "provider": "external"})
    assert answer.status_code == 502
    assert answer.json()["switch"] == "tor1"
    assert "tor1" in answer.json()["detail"]
    assert "table job_classify is full" in answer.json()["detail"]
    assert bench.switches["tor0"].jobs == {}
    assert (await bench.client.get("/api/v1/jobs")).json() == {"jobs": []}


async def test_a_dead_switch_is_503_with_its_name(bench: Any) -> None:
    """After the retries; nothing was put anywhere."""
    bench.switches["tor0"].down = True
    answer = await bench.client.post("/api/v1/jobs", json={"name": "a", "provider": "external"})
    assert (answer.status_code, answer.json()["code"]) == (503, "switch_unreachable")
    assert answer.json()["switch"] == "tor0"
    assert bench.switches["tor1"].jobs == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": "a", "world": 5}, "has 4"),
        ({"name": "a", "hosts": ["h0", "h9"]}, "h9"),
        ({"name": "a", "hosts": ["h0", "h0"]}, "twice"),
        ({"name": "a", "world": 2, "hosts": ["h0"]}, "not both"),
        ({"name": "a", "surprise": 1}, "surprise"),
        ({"name": "no spaces"}, "name"),
        ({"name": "a", "bench": {"size": "32X"}}, "32X"),
        ({"name": "a", "bench": {"split": "MOD 3"}}, "choose a divisor"),
        ({"name": "a", "bench": {"split": "by two"}}, "MOD n"),
        ({"name": "a", "provider": "external", "bench": {}}, "external"),
        ({"name": "a", "provider": "pyverbs", "bench": {}}, "mpirun"),
        ({"name": "a", "symphony": {"k": 0}}, "k"),
    ],
)
async def test_bad_requests_are_422_and_say_what_is_wrong(bench: Any, body: dict[str, Any], words: str) -> None:
    """Each names the value or the rule."""
    answer = await bench.client.post("/api/v1/jobs", json=body)
    assert answer.status_code == 422
    assert words in answer.text
    assert set(answer.json()) >= {"detail", "code"}


async def test_unknown_jobs_are_404_everywhere(bench: Any) -> None:
    """With the same code."""
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/stop"),
        ("GET", "/overlap"),
        ("GET", "/cct"),
        ("GET", "/progress"),
        ("GET", "/switches"),
        ("GET", "/result"),
        ("GET", "/stream"),
    ):
        answer = await bench.client.request(method, f"/api/v1/jobs/77{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job"), path
    patch = await bench.client.patch("/api/v1/jobs/77/symphony", json={"enabled": True})
    assert patch.status_code == 404


async def test_unknown_paths_keep_the_error_shape(bench: Any) -> None:
    """404 and 405 of the framework carry detail and code as well."""
    assert (await bench.client.get("/nope")).json()["code"] == "not_found"
    assert (await bench.client.put("/api/v1/jobs")).json()["code"] == "method_not_allowed"


async def test_symphony_is_switched_on_all_switches(bench: Any) -> None:
    """The answer shows what each switch read back; only the sent fields travel."""
    job = await bench.register("a")
    answer = await bench.client.patch(f"/api/v1/jobs/{job['id']}/symphony", json={"enabled": True, "k": 0.02})
    assert answer.status_code == 200
    for name, switch in bench.switches.items():
        assert switch.jobs[1]["symphony"] == {"enabled": True, "variant": "paper", "k": 0.02}
        assert answer.json()["switches"][name]["state"]["revision"] == 2
    assert answer.json()["symphony"]["k"] == 0.02
    assert [toggle["enabled"] for toggle in answer.json()["toggles"]] == [True]


async def test_switching_twice_is_fine(bench: Any) -> None:
    """Repeated and simultaneous changes to the same value all succeed."""
    job = await bench.register("a")
    url = f"/api/v1/jobs/{job['id']}/symphony"
    answers = await asyncio.gather(*(bench.client.patch(url, json={"enabled": True}) for _ in range(5)))
    assert [a.status_code for a in answers] == [200] * 5
    assert all(s.jobs[1]["symphony"]["enabled"] for s in bench.switches.values())


@pytest.mark.parametrize("change", [{"enabled": None}, {"speed": 9}, {"variant": "best"}, {"tau": 2}, {"k": None}])
async def test_senseless_changes_are_422_and_reach_no_switch(bench: Any, change: dict[str, Any]) -> None:
    """Unknown fields, null, unknown variants, values out of range."""
    job = await bench.register("a")
    answer = await bench.client.patch(f"/api/v1/jobs/{job['id']}/symphony", json=change)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_input")
    assert bench.switches["tor0"].calls == [("put", 1)]


async def test_a_partial_change_is_502_and_listed_per_switch(bench: Any) -> None:
    """One switch took it, the other is gone: both outcomes are told, and the job shows the error."""
    job = await bench.register("a")
    bench.switches["tor1"].down = True
    url = f"/api/v1/jobs/{job['id']}"
    answer = await bench.client.patch(f"{url}/symphony", json={"enabled": True})
    assert (answer.status_code, answer.json()["code"]) == (502, "partial_update")
    assert answer.json()["switches"]["tor0"]["ok"] is True
    assert answer.json()["switches"]["tor1"]["ok"] is False
    shown = (await bench.client.get(url)).json()
    assert "tor1" in shown["switches"]["tor1"]["error"]
    assert shown["toggles"][-1]["complete"] is False
    bench.switches["tor1"].down = False
    assert (await bench.client.patch(f"{url}/symphony", json={"enabled": True})).status_code == 200


async def test_a_switch_that_reads_back_something_else_is_an_error(bench: Any) -> None:
    """200 means every switch has it, so a switch that answers with the old value fails the change."""
    job = await bench.register("a")
    for switch in bench.switches.values():
        switch.forget_patches = True
    answer = await bench.client.patch(f"/api/v1/jobs/{job['id']}/symphony", json={"enabled": True})
    assert (answer.status_code, answer.json()["code"]) == (502, "switch_refused")
    assert "read back enabled = False" in answer.json()["detail"]
    assert (await bench.client.get(f"/api/v1/jobs/{job['id']}")).json()["enabled"] is False


async def test_an_ended_job_cannot_be_switched(bench: Any) -> None:
    """409: its entries are gone from the switches."""
    job = await bench.register("a")
    await bench.client.post(f"/api/v1/jobs/{job['id']}/stop")
    assert bench.switches["tor0"].jobs == {}
    answer = await bench.client.patch(f"/api/v1/jobs/{job['id']}/symphony", json={"enabled": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


async def test_stopping_and_deleting_twice(bench: Any) -> None:
    """Stopping again is fine; deleting again is a 404."""
    job = await bench.register("a")
    url = f"/api/v1/jobs/{job['id']}"
    for _ in range(2):
        assert (await bench.client.post(f"{url}/stop")).json()["state"] == "stopped"
    assert (await bench.client.delete(url)).status_code == 204
    assert (await bench.client.delete(url)).status_code == 404


async def test_events_need_the_job_s_own_token(bench: Any) -> None:
    """No token and another job's token are 401; the token is shown only in the answer to POST."""
    job, other = await bench.register("a"), await bench.register("b")
    batch = {"run": "r", "clock": "twin", "host": "h0"}
    url = f"/api/v1/jobs/{job['id']}/events"
    assert (await bench.client.post(url, json=batch)).status_code == 401
    wrong = {"Authorization": f"Bearer {other['reporting']['token']}"}
    assert (await bench.client.post(url, json=batch, headers=wrong)).status_code == 401
    assert (await bench.report(job)).status_code == 202
    assert job["reporting"]["token"] not in (await bench.client.get(f"/api/v1/jobs/{job['id']}")).text


async def test_figures_of_a_reported_run(bench: Any, eventually: Callable[..., Any]) -> None:
    """Events and samples in; overlap of both kinds, agreement, CCT, progress, alpha and marks out."""
    job = await bench.register("a")
    events = []
    for rank in range(4):
        for step in range(4):
            begin = step * 100 + rank * 10
            events += [
                (rank, 0, 0, 0, step, "post", begin),
                (rank, 0, 0, 0, step, "done", begin + 100),
            ]
    await bench.report(job, events=events, collectives=[(0, 0, 0, 430, 1.25)])
    for tick in range(1, 4):
        for name, first in (("tor0", 0), ("tor1", 20)):
            now = tick * 100 + first + 50
            bench.switches[name].feed(1, at=1000 + tick * 0.05, ns=now, low=tick, high=tick, packets=tick, alpha=tick)
    await eventually(lambda: len(bench.hub.jobs.get(1).switch_log.figures) == 3)
    overlap = (await bench.client.get("/api/v1/jobs/1/overlap")).json()
    assert overlap["max"] == 2
    assert overlap["host"][0] == [0, 1]
    assert [point[1] for point in overlap["switch"]] == [1, 1, 1]
    assert overlap["agreement"]["samples"] == 2  # the first tick has no window yet
    assert overlap["agreement"]["share"] == 1.0
    late = (await bench.client.get("/api/v1/jobs/1/overlap?since=400")).json()
    assert all(point[0] > 400 for point in late["host"])
    cct = (await bench.client.get("/api/v1/jobs/1/cct")).json()
    assert cct["summary"]["p50_s"] == pytest.approx(430e-9)
    assert cct["collectives"][0]["busbw_gbps"] == 1.25
    assert (await bench.client.get("/api/v1/jobs/1/cct?since=0")).json()["collectives"] == []
    progress = (await bench.client.get("/api/v1/jobs/1/progress")).json()
    assert progress["rings"] == [{"group": 0, "ring": 0, "lowest": None, "highest": None, "completed": 3}]
    series = (await bench.client.get("/api/v1/jobs/1/switches")).json()["switches"]["tor0"]
    assert [point["alpha"] for point in series] == [1, 2, 3]


async def test_a_registered_job_follows_its_reporters(bench: Any) -> None:
    """Events make it running; the result is kept and makes it wait for the next run."""
    job = await bench.register("a")
    assert (await bench.client.get("/api/v1/jobs/1/result")).json()["code"] == "result_not_ready"
    await bench.report(job, events=[(0, 0, 0, 0, 0, "post", 1)])
    assert (await bench.client.get("/api/v1/jobs/1")).json()["state"] == "running"
    await bench.report(job, result={"schema_version": 1})
    assert (await bench.client.get("/api/v1/jobs/1")).json()["state"] == "registered"
    assert (await bench.client.get("/api/v1/jobs/1/result")).json() == {"schema_version": 1}


async def test_too_large_a_report_is_413(bench: Any) -> None:
    """Refused by its length, before it is read."""
    job = await bench.register("a")
    headers = {"Authorization": f"Bearer {job['reporting']['token']}", "Content-Type": "application/json"}
    answer = await bench.client.post("/api/v1/jobs/1/events", content=b" " * (16 * 1024 * 1024 + 1), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_metrics_follow_the_jobs(bench: Any) -> None:
    """Series appear with the job, use base units and bounded labels, and go with the job."""
    job = await bench.register("a", symphony={"enabled": True})
    await bench.report(
        job,
        events=[(0, 0, 0, 0, 0, "post", 0), (0, 0, 0, 0, 0, "done", 40_000), (0, 0, 0, 2, 1, "post", 50_000)],
        collectives=[(0, 0, 0, 2_000_000, 1.5), (0, 1, 3_000_000, 5_000_000, 1.5)],
        dropped=3,
    )
    found = await metrics(bench)

    def value(name: str, **labels: str) -> float | None:
        return found.get((name, frozenset(labels.items())))

    assert value("symphony_job_enabled", job="a") == 1
    assert value("symphony_step_overlap", job="a", source="host") == 1
    assert value("symphony_step_overlap", job="a", source="switch") is None  # no sample yet: left out, not 0
    assert value("symphony_bus_bandwidth_bytes_per_second", job="a") == pytest.approx(1.2e9)  # 2 x 3 MB in 5 ms
    assert value("symphony_collective_bus_bandwidth_bytes_per_second", job="a") == 1.5e9
    assert value("symphony_events_dropped_total", job="a") == 3
    assert value("symphony_collective_duration_seconds_count", job="a") == 1
    assert value("symphony_collective_duration_seconds_bucket", job="a", le="0.001") == 0
    assert value("symphony_collective_duration_seconds_bucket", job="a", le="0.0025") == 1
    assert value("symphony_step_duration_seconds_sum", job="a") == pytest.approx(40e-6)
    assert any(name == "symphony_job_info" for name, _ in found)
    allowed = {"job", "source", "le", "collector"} | {
        "job_id", "provider", "world", "variant", "release_rule", "qp_mode",
    }  # fmt: skip
    assert {label for _, labels in found for label, _ in labels} <= allowed
    await bench.client.delete("/api/v1/jobs/1")
    assert not [name for name, labels in await metrics(bench) if ("job", "a") in labels]


async def test_metrics_of_an_ended_run_are_those_of_its_result(bench: Any) -> None:
    """Bus bandwidth as in ring-bench's last line; no figure of the newest collective is left beside it."""
    job = await bench.register("a")
    await bench.report(job, collectives=[(0, 0, 0, 2_000_000, 1.5)])
    rows = [{"cct_ns": [[2_000_000, 4_000_000]]}]
    await bench.report(job, result={"results": rows, "totals": {"avg_busbw_gbps": 1.25}})
    found = {name: value for (name, labels), value in (await metrics(bench)).items() if ("job", "a") in labels}
    assert found["symphony_bus_bandwidth_bytes_per_second"] == 1.25e9
    assert "symphony_collective_bus_bandwidth_bytes_per_second" not in found
    cct = (await bench.client.get("/api/v1/jobs/1/cct")).json()["summary"]
    assert (cct["final"], cct["collectives"], cct["p50_s"], cct["p99_s"]) == (True, 2, 2e-3, 4e-3)


async def test_names_of_metrics_are_conventional(bench: Any) -> None:
    """promtool has nothing to say about a job that has all figures."""
    job = await bench.register("a", symphony={"enabled": True})
    await bench.report(
        job,
        events=[(0, 0, 0, 0, 0, "post", 0), (0, 0, 0, 0, 0, "done", 40_000)],
        collectives=[(0, 0, 0, 2_000_000, 1.5)],
    )
    text = (await bench.client.get("/metrics")).content
    assert b"symphony_bus_bandwidth_bytes_per_second{" in text
    lint(text)


async def test_a_dead_collector_shows_as_one(bench: Any, eventually: Callable[..., Any]) -> None:
    """symphony_collector_success turns 0 for the switch that stopped answering, and the job names it."""
    await bench.register("a")
    await eventually(lambda: bench.hub.collectors["tor0"].success)
    bench.switches["tor1"].down = True
    await eventually(lambda: bench.hub.collectors["tor1"].success is False)
    found = await metrics(bench)
    assert found["symphony_collector_success", frozenset({("collector", "switch:tor1")})] == 0
    assert found["symphony_collector_success", frozenset({("collector", "switch:tor0")})] == 1
    assert "tor1" in (await bench.client.get("/api/v1/jobs/1")).json()["switches"]["tor1"]["error"]


async def test_state_changes_need_the_token_when_one_is_set(make_bench: Callable[..., Any]) -> None:
    """Reading stays open; a wrong token and none are 401."""
    bench = make_bench(token="correct horse battery")
    await bench.hub.start()
    try:
        body = {"name": "a", "provider": "external"}
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = await bench.client.post("/api/v1/jobs", json=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        right = {"Authorization": "Bearer correct horse battery"}
        assert (await bench.client.post("/api/v1/jobs", json=body, headers=right)).status_code == 201
        assert (await bench.client.get("/api/v1/jobs")).status_code == 200
    finally:
        await bench.client.aclose()
        await bench.hub.close()


async def test_requests_for_other_hosts_are_refused_on_loopback(bench: Any) -> None:
    """A foreign Host header (DNS rebinding) gets 400."""
    answer = await bench.client.get("/api/v1/jobs", headers={"Host": "evil.example"})
    assert answer.status_code == 400


async def test_a_restarted_host_agent_picks_up_registered_jobs(bench: Any, make_bench: Callable[..., Any]) -> None:
    """Closing leaves them on the switches; the next host-agent knows them, their token still works."""
    job = await bench.register("a")
    await bench.hub.close()
    assert 1 in bench.switches["tor0"].jobs
    second = make_bench()
    await second.hub.start()
    try:
        assert (await second.client.get("/api/v1/jobs/1")).json()["state"] == "registered"
        assert (await second.report(job)).status_code == 202
    finally:
        await second.client.aclose()
        await second.hub.close()


async def test_after_a_restart_what_was_counted_before_is_unknown(bench: Any, make_bench: Callable[..., Any]) -> None:
    """REST says null and /metrics leaves it out, until the ranks report again."""
    job = await bench.register("a")
    await bench.report(job, collectives=[(0, 0, 0, 2_000_000, 1.5)])
    await bench.hub.close()
    second = make_bench()
    await second.hub.start()

    async def counted() -> tuple[int | None, set[str]]:
        view = (await second.client.get("/api/v1/jobs/1")).json()
        names = {name for name, labels in await metrics(second) if ("job", "a") in labels}
        return view["cct"]["collectives"], names & {
            "symphony_events_total",
            "symphony_events_dropped_total",
            "symphony_collective_duration_seconds_count",
            "symphony_step_duration_seconds_count",
        }

    try:
        assert await counted() == (None, set())
        await second.report(job, collectives=[(0, 1, 2_000_000, 4_000_000, 1.5)])
        collectives, names = await counted()
        assert (collectives, len(names)) == (1, 4)
    finally:
        await second.client.aclose()
        await second.hub.close()
