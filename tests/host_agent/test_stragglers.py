# SPDX-License-Identifier: Apache-2.0
"""Switches that were away when a job ended or was changed: what they missed is remembered, shown and made up for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from host_agent import switches as client_module

JOB = {"name": "a", "provider": "external"}


async def shown(bench: Any, job_id: int = 1) -> dict[str, Any]:
    """The job as REST shows it."""
    return dict((await bench.client.get(f"/api/v1/jobs/{job_id}")).json())


async def stopped_while_away(bench: Any) -> None:
    """Job 1 has ended while tor1's agent was away."""
    await bench.register("a")
    bench.switches["tor1"].down = True
    assert (await bench.client.post("/api/v1/jobs/1/stop")).status_code == 200


async def restarted(bench: Any, make_bench: Callable[..., Any]) -> Any:
    """Another host-agent on the same state folder and the same switches."""
    await bench.hub.close()
    second = make_bench()
    for name, switch in second.switches.items():
        switch.jobs, switch.down = bench.switches[name].jobs, bench.switches[name].down
    await second.hub.start()
    return second


async def test_a_job_that_a_switch_still_holds_is_shown_and_taken_off_later(
    bench: Any, eventually: Callable[..., Any]
) -> None:
    """on_switches tells, the switch's error says why, and its identities and name stay reserved."""
    await stopped_while_away(bench)
    job = await shown(bench)
    assert (job["state"], job["on_switches"]) == ("stopped", True)
    assert "still on it" in job["switches"]["tor1"]["error"]
    assert "does not answer" in job["switches"]["tor1"]["error"]
    assert (job["switches"]["tor0"]["pending"], job["switches"]["tor1"]["pending"]) == (None, "removal")
    bench.switches["tor1"].down = False
    await eventually(lambda: 1 not in bench.switches["tor1"].jobs)
    await eventually(lambda: not bench.hub.jobs.get(1).active)
    job = await shown(bench)
    assert job["on_switches"] is False
    assert job["switches"]["tor1"]["error"] is None
    again = (await bench.client.post("/api/v1/jobs", json=JOB)).json()
    assert (again["job_tag"], again["state"]) == (0, "registered")


async def test_deleting_a_job_that_a_switch_still_holds_is_refused(bench: Any, eventually: Callable[..., Any]) -> None:
    """503 with the reason, or 502 if the agent says no; 204 only when it is off."""
    await stopped_while_away(bench)
    answer = await bench.client.delete("/api/v1/jobs/1")
    assert (answer.status_code, answer.json()["code"]) == (503, "switch_unreachable")
    assert "tor1" in answer.json()["detail"]
    assert (await shown(bench))["on_switches"] is True
    bench.switches["tor1"].down, bench.switches["tor1"].refuse = False, "read-only"
    answer = await bench.client.delete("/api/v1/jobs/1")
    assert (answer.status_code, answer.json()["code"]) == (502, "switch_refused")
    assert "read-only" in answer.json()["detail"]
    bench.switches["tor1"].refuse = None
    assert (await bench.client.delete("/api/v1/jobs/1")).status_code == 204
    assert bench.switches["tor1"].jobs == {}


async def test_its_name_is_refused_with_the_reason(bench: Any) -> None:
    """Not "an active job": it has ended, and which switch holds it is said."""
    await stopped_while_away(bench)
    body = {**JOB, "hosts": ["h0"]}  # behind tor0, which answers
    answer = await bench.client.post("/api/v1/jobs", json=body)
    assert answer.status_code == 409
    assert "has ended but is still on switch tor1" in answer.json()["detail"]


async def test_held_job_tags_are_not_blamed_on_others(bench: Any) -> None:
    """16 ended jobs that a switch holds use up the tags; the refusal says whose they are and where."""
    for index in range(16):
        await bench.register(f"j{index}")
    bench.switches["tor1"].down = True
    await asyncio.gather(*(bench.client.post(f"/api/v1/jobs/{job_id}/stop") for job_id in range(1, 17)))
    answer = await bench.client.post("/api/v1/jobs", json={**JOB, "hosts": ["h0"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "capacity")
    assert "0 jobs are active here, 16 have ended but are still on switch tor1" in answer.json()["detail"]
    assert "hold 0 that are not host-agent's" in answer.json()["detail"]


async def test_a_restarted_host_agent_still_takes_it_off(
    bench: Any, make_bench: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """What a switch holds is on disk."""
    await stopped_while_away(bench)
    second = await restarted(bench, make_bench)
    try:
        job = await shown(second)
        assert (job["name"], job["state"], job["on_switches"]) == ("a", "stopped", True)
        await eventually(lambda: second.hub.jobs.get(1).switch_errors)
        second.switches["tor1"].down = False
        await eventually(lambda: not second.hub.jobs.get(1).active)
        assert second.switches["tor1"].jobs == {}
    finally:
        await second.client.aclose()
        await second.hub.close()
    third = make_bench()
    await third.hub.start()
    assert len(third.hub.jobs) == 0  # done is done
    await third.client.aclose()
    await third.hub.close()


async def test_a_new_job_that_cannot_be_taken_back_stays_in_the_list(
    bench: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One switch refuses it, the other freezes meanwhile: the list shows what may be left, until it is not."""
    monkeypatch.setattr(client_module, "ANSWER_S", 0.2)
    monkeypatch.setattr(client_module, "INSTALL_S", 0.2)
    bench.switches["tor1"].refuse = "full"
    assert (await bench.client.post("/api/v1/jobs", json=JOB)).status_code == 502
    assert len(bench.hub.jobs) == 0  # nothing was left
    bench.switches["tor0"].changes_frozen = True
    assert (await bench.client.post("/api/v1/jobs", json=JOB)).json()["code"] == "switch_refused"
    [left] = bench.hub.jobs
    assert (left.state, left.held_by) == ("failed", {"tor0"})
    bench.switches["tor0"].changes_frozen = False
    await eventually(lambda: not left.active)


async def test_a_switch_that_missed_a_change_gets_it_when_it_is_back(
    bench: Any, eventually: Callable[..., Any]
) -> None:
    """Until then the job shows the difference; afterwards there is none, and the toggle is complete."""
    await bench.register("a")
    tor1 = bench.switches["tor1"]
    tor1.down = True
    answer = await bench.client.patch("/api/v1/jobs/1/symphony", json={"enabled": True, "k": 0.02})
    assert (answer.status_code, answer.json()["code"]) == (502, "partial_update")
    tor1.down, tor1.refuse = False, "not ready"
    await eventually(lambda: bench.hub.collectors["tor1"].success)
    await eventually(lambda: "not ready" in bench.hub.jobs.get(1).switch_errors["tor1"])
    view = (await shown(bench))["switches"]["tor1"]
    assert view["pending"] == "settings"
    assert "does not have the settings asked for" in view["error"]
    tor1.refuse = None
    await eventually(lambda: not bench.hub.jobs.get(1).switch_errors)
    assert tor1.jobs[1]["symphony"] == {"enabled": True, "variant": "paper", "k": 0.02}
    job = await shown(bench)
    assert job["switches"]["tor1"]["state"]["symphony"]["enabled"] is True
    assert job["switches"]["tor1"]["pending"] is None
    assert [toggle["complete"] for toggle in job["toggles"]] == [False, True]


async def test_a_change_that_no_switch_took_is_not_made_later(bench: Any, eventually: Callable[..., Any]) -> None:
    """503 means that the settings are as before, on a switch that got the request late, too."""
    await bench.register("a")
    for switch in bench.switches.values():
        switch.down = True
    answer = await bench.client.patch("/api/v1/jobs/1/symphony", json={"enabled": True})
    assert answer.status_code == 503
    bench.switches["tor0"].jobs[1]["symphony"]["enabled"] = True  # it had taken it; only its answer was lost
    for switch in bench.switches.values():
        switch.down = False
    await eventually(lambda: not bench.hub.jobs.get(1).switch_errors)
    assert [switch.jobs[1]["symphony"]["enabled"] for switch in bench.switches.values()] == [False, False]
    assert (await shown(bench))["enabled"] is False


async def test_a_missed_change_outlives_host_agent(
    bench: Any, make_bench: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """The next host-agent brings the switch to the settings asked for."""
    await bench.register("a")
    bench.switches["tor1"].down = True
    await bench.client.patch("/api/v1/jobs/1/symphony", json={"enabled": True})
    second = await restarted(bench, make_bench)
    try:
        second.switches["tor1"].down = False
        await eventually(lambda: second.switches["tor1"].jobs[1]["symphony"]["enabled"])
    finally:
        await second.client.aclose()
        await second.hub.close()


async def test_a_frozen_switch_holds_up_a_change_for_seconds_only(
    bench: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """502 that names it, while the others have the change; it gets it when it thaws."""
    assert client_module.ANSWER_S <= 5
    await bench.register("a")
    monkeypatch.setattr(client_module, "ANSWER_S", 0.2)
    bench.switches["tor1"].frozen = True
    started = time.monotonic()
    answer = await bench.client.patch("/api/v1/jobs/1/symphony", json={"enabled": True})
    assert time.monotonic() - started < 5
    assert (answer.status_code, answer.json()["code"]) == (502, "partial_update")
    assert "nothing within 0.2 s" in answer.json()["switches"]["tor1"]["detail"]
    assert answer.json()["switches"]["tor0"]["ok"] is True
    bench.switches["tor1"].frozen = False
    await eventually(lambda: bench.switches["tor1"].jobs[1]["symphony"]["enabled"])
    await eventually(lambda: not bench.hub.jobs.get(1).switch_errors)


async def test_a_stream_ends_with_its_job_whatever_a_switch_holds(bench: Any) -> None:
    """A dead switch must not keep the job's readers waiting."""
    await stopped_while_away(bench)
    async with asyncio.timeout(10):
        text = (await bench.client.get("/api/v1/jobs/1/stream")).text
    assert "job stopped" in text


async def test_figures_of_a_job_of_an_earlier_host_agent_are_unknown_not_zero(
    bench: Any, make_bench: Callable[..., Any]
) -> None:
    """What was counted before the restart is gone; from the first report on it is counted again."""
    job = await bench.register("a")
    await bench.report(job, events=[(0, 0, 0, 0, 0, "post", 0)])
    second = await restarted(bench, make_bench)
    try:
        view = await shown(second)
        assert view["overlap"] == {"max": None, "mean": None}
        assert view["marks"] == {"symphony": None, "queue": None}
        assert view["packets"] == {"all": None, "outpacing": None}
        assert view["events"] == {"received": None, "dropped": None}
        overlap = (await second.client.get("/api/v1/jobs/1/overlap")).json()
        assert (overlap["max"], overlap["events"]["received"]) == (None, None)
        await second.report(job, events=[(0, 0, 0, 0, 1, "post", 5)])
        assert (await shown(second))["events"] == {"received": 1, "dropped": 0}
    finally:
        await second.client.aclose()
        await second.hub.close()


async def counted_while_away(bench: Any, eventually: Callable[..., Any]) -> Any:
    """Job 1 has ended with counters of tor0 alone: tor1's agent went away before the last packets."""
    await bench.register("a")
    job, now = bench.hub.jobs.get(1), time.time()
    for name in ("tor0", "tor1"):
        bench.switches[name].feed(1, at=now, ns=1, low=0, high=0, packets=10)
    await eventually(lambda: job.view()["packets"]["all"] == 20)
    bench.switches["tor1"].down = True
    await eventually(lambda: job.counters_missing == ["tor1"])
    bench.switches["tor0"].feed(1, at=now + 0.05, ns=2, low=0, high=0, packets=50)
    assert (await bench.client.post("/api/v1/jobs/1/stop")).status_code == 200
    assert ((await shown(bench))["packets"]["all"], job.counters_missing) == (60, ["tor1"])
    return job


async def test_a_switch_that_is_back_after_a_jobs_end_gives_its_last_counters_first(
    bench: Any, eventually: Callable[..., Any]
) -> None:
    """Its registers have counted on without the agent; only then is the job taken off. An hour later is as good."""
    job = await counted_while_away(bench, eventually)
    tor1 = bench.switches["tor1"]
    tor1.feed(1, at=time.time() + 3600, ns=3, low=0, high=0, packets=44)
    tor1.down = False
    await eventually(lambda: not job.active)
    view = await shown(bench)
    assert (view["packets"]["all"], view["counters_missing"], view["on_switches"]) == (94, [], False)
    assert tor1.jobs == {}


async def test_one_that_has_just_started_is_waited_for_until_its_first_sample(
    bench: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers before it has read a register."""
    monkeypatch.setattr("host_agent.hub.LATE_READ_S", 3600.0)
    job = await counted_while_away(bench, eventually)
    tor1 = bench.switches["tor1"]
    tor1.down = False
    await eventually(lambda: "tor1" in job.answering_since)
    assert (1 in tor1.jobs, job.counters_missing) == (True, ["tor1"])
    tor1.feed(1, at=time.time(), ns=3, low=0, high=0, packets=44)
    await eventually(lambda: not job.active)
    assert (job.counters_missing, tor1.jobs) == ([], {})


async def test_one_that_never_samples_again_does_not_hold_the_job_for_ever(
    bench: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing stays named."""
    monkeypatch.setattr("host_agent.hub.LATE_READ_S", 0.0)
    job = await counted_while_away(bench, eventually)
    bench.switches["tor1"].down = False
    await eventually(lambda: not job.active)
    assert job.counters_missing == ["tor1"]
    assert (await shown(bench))["packets"]["all"] == 60
