# SPDX-License-Identifier: Apache-2.0
"""Jobs over REST: what ends up on the switch, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from switch_agent.agent.entries import DISABLED_LG_K

from .conftest import Bench, job_spec


def params_of(bench: Bench, job_id: int = 1) -> dict[str, int]:
    """The job's parameters on the switch, raw; fails when there are none."""
    (entry,) = (e for e in bench.entries("job_params") if e.key["ig_md.job"] == job_id)
    return dict(entry.data)


def raw16(value: int) -> int:
    """Two's complement."""
    return value & 0xFFFF


async def test_put_installs_classification_parameters_and_state(bench: Bench) -> None:
    """A new job: ternary entries per flow with the tag, parameters that mark nothing, state at first_step."""
    bench.set_register("alpha", 0, 2, f1=99)
    bench.set_register("window_start", 0, 2, f1=12345)
    bench.memory.counters["job_all"][:, 1] = 7
    state = await bench.put(first_step=1025)
    assert state["symphony"]["enabled"] is False
    assert (state["state_index"], state["state_count"], state["revision"]) == (0, 1, 1)
    first, second = bench.entries("job_classify")
    assert first.key["hdr.udp.sport"] == (0xC000 | 3 << 10, 0xFC00)
    assert first.key["hdr.ipv4.dst"] == (0x0A000101, 0xFFFFFFFF)
    assert second.key["hdr.ipv4.dst"] == (0, 0)
    assert first.priority < second.priority, "the more specific flow must win (lower number)"
    assert first.data == {"job": 1, "state": 0}
    assert params_of(bench)["lg_k"] == raw16(DISABLED_LG_K)
    assert bench.memory.registers["steps"]["mn"][:, 0].tolist() == [1 << 22 | 1] * 4
    assert bench.memory.registers["steps"]["mx"][:, 0].tolist() == [1 << 22 | 1] * 4
    assert bench.memory.registers["alpha"]["f1"][:, 0].tolist() == [1] * 4
    assert bench.memory.registers["window_start"]["f1"][:, 0].tolist() == [0] * 4
    assert bench.memory.counters["job_all"][:, 1].sum() == 0


async def test_ipv6_flows_go_to_their_own_table(bench: Bench) -> None:
    """The address family decides the classification table."""
    await bench.put(flows=[{"src": "fd00::1", "dst": "fd00::2"}])
    assert bench.entries("job_classify") == []
    (entry,) = bench.entries("job_classify6")
    assert entry.key["hdr.ipv6.src"] == (0xFD << 120 | 1, (1 << 128) - 1)


async def test_toggle_changes_the_gain_and_starts_alpha_afresh(bench: Bench) -> None:
    """Enabling resets score and alpha; disabling leaves them; nothing else of the state is touched."""
    await bench.put()
    bench.set_register("alpha", 0, 1, f1=50)
    bench.set_register("score", 0, 1, score=1000, count=20)
    bench.set_register("psn_rec", 0, 1, f1=77 << 8)
    answer = await bench.patch(1, enabled=True)
    assert answer.status_code == 200
    assert (answer.json()["symphony"]["enabled"], answer.json()["revision"]) == (True, 2)
    assert params_of(bench)["lg_k"] == raw16(-1701)
    assert bench.memory.registers["alpha"]["f1"][:, 0].tolist() == [1] * 4
    assert bench.memory.registers["score"]["count"][:, 0].tolist() == [0] * 4
    assert bench.memory.registers["psn_rec"]["f1"][1, 0] == 77 << 8
    bench.set_register("alpha", 0, 1, f1=60)
    await bench.patch(1, k=0.02)
    await bench.patch(1, enabled=False)
    assert bench.memory.registers["alpha"]["f1"][1, 0] == 60
    assert params_of(bench)["lg_k"] == raw16(DISABLED_LG_K)


async def test_patch_keeps_what_it_does_not_name(bench: Bench) -> None:
    """A PATCH of one parameter is a MODIFY with all values; the answer is the whole new state."""
    await bench.put(symphony={"enabled": True, "variant": "refined", "tau": 0.5})
    answer = await bench.patch(1, k=0.05)
    symphony = answer.json()["symphony"]
    assert (symphony["k"], symphony["tau"], symphony["gate"], symphony["alpha_max"]) == (0.05, 0.5, True, 128)
    assert symphony["ratio_floor"] == 1.0
    assert params_of(bench)["d_op"] == 128
    answer = await bench.patch(1, ratio_floor=0)
    assert answer.json()["symphony"]["ratio_floor"] == 0.0
    assert params_of(bench)["lg_floor"] == raw16(-32768)


async def test_two_fast_toggles_end_in_the_second_one(bench: Bench) -> None:
    """Concurrent changes of a job run one after the other; answers, switch and store agree."""
    await bench.put()
    answers = await asyncio.gather(*(bench.patch(1, enabled=on) for on in (True, False) * 5))
    assert [answer.status_code for answer in answers] == [200] * 10
    revisions = [answer.json()["revision"] for answer in answers]
    assert sorted(revisions) == list(range(2, 12))
    last = max(answers, key=lambda answer: answer.json()["revision"]).json()
    assert (await bench.http.get("/api/v1/jobs/1")).json() == last
    expected = raw16(-1701 if last["symphony"]["enabled"] else DISABLED_LG_K)
    assert params_of(bench)["lg_k"] == expected


async def test_double_toggle_is_no_error(bench: Bench) -> None:
    """Enabling what is enabled confirms it again and leaves alpha alone."""
    await bench.put(symphony={"enabled": True})
    bench.set_register("alpha", 0, 0, f1=9)
    assert (await bench.patch(1, enabled=True)).status_code == 200
    assert bench.memory.registers["alpha"]["f1"][0, 0] == 9


async def test_put_of_the_same_traffic_only_changes_settings(bench: Bench) -> None:
    """PUT may be repeated: state and counters go on."""
    await bench.put()
    bench.set_register("psn_rec", 0, 0, f1=5)
    state = await bench.put(symphony={"enabled": True})
    assert state["revision"] == 2
    assert bench.memory.registers["psn_rec"]["f1"][0, 0] == 5
    assert len(bench.entries("job_classify")) == 2


async def test_put_of_other_traffic_starts_the_job_afresh(bench: Bench) -> None:
    """Other flows or another first step: old entries go, state starts anew in other blocks."""
    await bench.put()
    state = await bench.put(first_step=9, flows=[{"src": "10.0.0.9", "dst": None}])
    (entry,) = bench.entries("job_classify")
    assert entry.key["hdr.ipv4.src"][0] == 0x0A000009
    assert entry.data["state"] == state["state_index"]
    mn = bench.memory.registers["steps"]["mn"][:, state["state_index"]]
    assert mn.tolist() == [9 << 22 | 1] * 4


async def test_delete_removes_only_its_own_entries(bench: Bench) -> None:
    """The other job stays; the id is unknown afterwards."""
    await bench.put(1)
    await bench.put(2, name="other", job_tag=4)
    assert (await bench.http.delete("/api/v1/jobs/1")).status_code == 204
    assert {entry.data["job"] for entry in bench.entries("job_classify")} == {2}
    assert [entry.key["ig_md.job"] for entry in bench.entries("job_params")] == [2]
    assert (await bench.http.delete("/api/v1/jobs/1")).status_code == 404


async def test_scope_port_reserves_a_block_of_states(bench: Bench) -> None:
    """One state per egress port, in consecutive blocks; a change of scope moves the job at its step."""
    await bench.put(1)
    state = await bench.put(2, name="wide", job_tag=4, symphony={"scope": "port"})
    assert (state["state_index"], state["state_count"]) == (1, 64)
    assert params_of(bench, 2)["scope_mask"] == 0xFFFF
    bench.set_register("steps", 0, 0, mn=40 << 22 | 1, mx=42 << 22 | 1)
    bench.set_register("window_start", 0, 0, f1=1000)
    await bench.sample()
    moved = (await bench.patch(1, scope="port")).json()
    assert (moved["state_index"], moved["state_count"], moved["revision"]) == (65, 64, 2)
    assert bench.memory.registers["steps"]["mn"][0, 65:129].tolist() == [40 << 22 | 1] * 64
    assert {entry.data["state"] for entry in bench.entries("job_classify") if entry.data["job"] == 1} == {65}


async def test_no_room_for_states_names_the_register(bench: Bench) -> None:
    """State blocks are checked against the register's size: the data plane would not."""
    for job_id in range(1, 17):
        await bench.put(job_id, name=f"j{job_id}", job_tag=job_id - 1, symphony={"scope": "port"})
    spec = job_spec(name="j17", flows=[{"src": "10.8.0.1"}], symphony={"scope": "port"})
    answer = await bench.http.put("/api/v1/jobs/17", json=spec)
    assert (answer.status_code, answer.json()["code"], answer.json()["table"]) == (409, "table_full", "steps")
    assert "1024" in answer.json()["detail"]


async def test_full_table_refuses_the_job_whole(bench: Bench) -> None:
    """RESOURCE_EXHAUSTED in the middle of a job names the table; nothing of the job stays."""
    bench.server.faults.table_capacity["job_classify"] = 1
    answer = await bench.http.put("/api/v1/jobs/1", json=job_spec())
    assert (answer.status_code, answer.json()["code"]) == (409, "table_full")
    assert answer.json()["table"] == "job_classify"
    assert bench.entries("job_classify") == bench.entries("job_params") == []
    assert (await bench.http.get("/api/v1/jobs/1")).status_code == 404
    bench.server.faults.table_capacity.clear()
    await bench.put()


async def test_a_job_larger_than_the_table_is_refused_before_writing(bench: Bench) -> None:
    """The usage is asked for first: 2048 entries are all there are."""
    flows = [{"src": f"10.1.{index // 250}.{index % 250}", "dst": None} for index in range(2048)]
    await bench.put(1, flows=flows[:1500])
    answer = await bench.http.put("/api/v1/jobs/2", json=job_spec(name="b", job_tag=1, flows=flows[:600]))
    assert answer.status_code == 409
    assert "room for 548" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"job_tag": 1, "name": "ring"}, "named ring already"),
        ({"name": "b"}, "give the new job another job_tag"),
        ({"name": "b", "flows": [{"src": "10.0.0.2", "dst": "10.9.9.9"}]}, "another job_tag"),
    ],
)
async def test_clashes_between_jobs_are_conflicts(bench: Bench, changes: dict[str, Any], what: str) -> None:
    """Same name, or flows that could match the same packet with the same tag."""
    await bench.put(1)
    answer = await bench.http.put("/api/v1/jobs/2", json=job_spec(**changes))
    assert (answer.status_code, answer.json()["code"]) == (409, "job_conflict")
    assert what in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"job_tag": 16}, "job_tag 16"),
        ({"job_tag": "3x"}, "job_tag"),
        ({"step_bits": 8}, "step_bits 8"),
        ({"first_step": -1}, "first_step"),
        ({"flows": []}, "flows"),
        ({"flows": [{"src": "10.0.0.1"}, {"src": "10.0.0.1", "dst": "10.0.0.2"}]}, "overlaps another"),
        ({"flows": [{"src": "10.0.0.1", "dst": "fd00::1"}]}, "address families"),
        ({"flows": [{"src": "10.0.0.300"}]}, "flows.0.src"),
        ({"name": "a b"}, "name"),
        ({"extra": 1}, "extra"),
        ({"symphony": {"k": 2.0}}, "symphony.k"),
        ({"symphony": {"variant": "best"}}, "symphony.variant"),
        ({"symphony": None}, "symphony"),
    ],
)
async def test_bad_specs_are_422_and_name_the_field(bench: Bench, changes: dict[str, Any], field: str) -> None:
    """Nothing is written for a body that does not validate."""
    answer = await bench.http.put("/api/v1/jobs/1", json=job_spec(**changes))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert field in answer.json()["detail"]
    assert bench.entries("job_params") == []


@pytest.mark.parametrize(
    "change",
    [
        {"enable": True},
        {"enabled": None},
        {"k": None},
        {"enabled": "yes"},
        {"gate": 1},
        {"tau": 0},
        {"window_us": -1},
        {"alpha_max": 65536},
        {"n_warmup": 1.5},
        {"ratio_floor": 0.0001},
        {"scope": "pod"},
    ],
)
async def test_bad_patches_are_422_and_change_nothing(bench: Bench, change: dict[str, Any]) -> None:
    """Unknown fields, null, wrong types and values out of range are refused."""
    before = await bench.put()
    answer = await bench.http.patch("/api/v1/jobs/1", json=change)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert (await bench.http.get("/api/v1/jobs/1")).json() == before


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_unknown_job_is_404(bench: Bench, method: str) -> None:
    """With a code and a hint."""
    body = {"enabled": True} if method == "PATCH" else None
    answer = await bench.http.request(method, "/api/v1/jobs/77", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    assert "GET /api/v1/jobs" in answer.json()["detail"]


@pytest.mark.parametrize("job_id", [0, 1024, 70000])
async def test_job_ids_are_checked_against_the_tables(bench: Bench, job_id: int) -> None:
    """Ids beyond the parameter table or the counters do not exist on this switch."""
    answer = await bench.http.put(f"/api/v1/jobs/{job_id}", json=job_spec())
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_job")
    assert "1 to 1023" in answer.json()["detail"]


async def test_a_disk_that_fails_leaves_the_old_state_in_force(bench: Bench, monkeypatch: Any) -> None:
    """The answer is an error, the job does not exist, and the switch is cleaned up by reconcile."""
    from switch_agent.errors import StoreError

    def full(_: object) -> None:
        raise StoreError("cannot save the job in x: database or disk is full")

    monkeypatch.setattr(bench.agent._store, "save", full)
    answer = await bench.http.put("/api/v1/jobs/1", json=job_spec())
    assert (answer.status_code, answer.json()["code"]) == (507, "store_failed")
    assert (await bench.http.get("/api/v1/jobs")).json()["jobs"] == []
    assert (await bench.http.post("/api/v1/reconcile")).json()["deleted"] == 3
    assert bench.entries("job_params") == []


def test_store_is_for_one_agent_and_survives(tmp_path: Path) -> None:
    """A second agent on the same folder is refused; jobs come back as they were."""
    from switch_agent.agent.models import Job, JobSpec
    from switch_agent.agent.store import Store
    from switch_agent.errors import StoreError

    store = Store(tmp_path)
    with pytest.raises(StoreError, match="in use by another"):
        Store(tmp_path)
    job = Job(4, JobSpec.model_validate(job_spec(symphony={"enabled": True, "k": 0.5})), 2, 1, 9)
    store.save(job)
    store.close()
    again = Store(tmp_path)
    assert list(again.load()) == [job]
    again.delete(4)
    assert list(again.load()) == []
    again.close()


def test_store_that_cannot_be_used_says_where(tmp_path: Path) -> None:
    """A path that is no folder, and a file that is no database."""
    from switch_agent.agent.store import Store
    from switch_agent.errors import StoreError

    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot use state directory"):
        Store(tmp_path / "file")
    (tmp_path / "desired.sqlite").write_text("this is no database, " * 100)
    with pytest.raises(StoreError, match=r"desired\.sqlite"):
        Store(tmp_path)
