# SPDX-License-Identifier: Apache-2.0
"""What the twin tells of its fabric reaches the jobs that ran then: REST, job.json, and the live page."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from host_agent.fabric_events import FabricEvent, FabricLog, spans
from host_agent.page import charts

MS = 1_000_000


class FakeTwin:
    """A twin's log of events."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.down = False
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url="http://twin")

    def occur(self, t_ns: int, phase: str = "begin", event: int = 1, what: str = "tor0<->spine1 down") -> None:
        """Something happens."""
        self.log.append({"sequence": len(self.log) + 1, "t_ns": t_ns, "event": event, "kind": "link-down",
                         "phase": phase, "what": what})  # fmt: skip

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("gone", request=request)
        since = int(request.url.params["since"])
        return httpx.Response(
            200, json={"newest": len(self.log), "log": [r for r in self.log if r["sequence"] > since]}
        )


async def test_each_occurrence_is_told_once_and_none_is_lost_while_the_twin_is_away() -> None:
    """None while it does not answer; then what has happened meanwhile."""
    twin = FakeTwin()
    log = FabricLog(twin.client)
    twin.occur(1)
    assert [e.t_ns for e in await log.new() or ()] == [1]
    assert await log.new() == []
    twin.down = True
    twin.occur(2)
    assert await log.new() is None
    twin.down = False
    twin.occur(3)
    assert [e.t_ns for e in await log.new() or ()] == [2, 3]


async def test_another_twin_on_the_same_address_counts_from_one() -> None:
    """Its first occurrences are told, though their numbers are small."""
    twin = FakeTwin()
    log = FabricLog(twin.client)
    for t_ns in (1, 2, 3):
        twin.occur(t_ns)
    await log.new()
    twin.log.clear()
    twin.occur(7)
    assert [e.t_ns for e in await log.new() or ()] == [7]


async def test_an_answer_that_is_no_log_is_not_known() -> None:
    """An older twin has no such path."""
    transport = httpx.MockTransport(lambda _: httpx.Response(404, json={"code": "not_found"}))
    assert await FabricLog(httpx.AsyncClient(transport=transport, base_url="http://twin")).new() is None


def test_a_begin_has_the_end_that_follows_it() -> None:
    """A flapping link has several of both under one number."""
    rows = [(1, "begin", 10), (2, "begin", 11), (1, "end", 12), (1, "begin", 14), (1, "end", 15), (3, "failed", 16)]
    events = [FabricEvent(t, number, "k", phase, "w") for number, phase, t in rows]
    assert [(event.t_ns, over) for event, over in spans(events)] == [(10, 12), (11, None), (14, 15)]


async def test_a_job_shows_what_happened_while_it_ran(bench: Any, eventually: Callable[..., Any]) -> None:
    """Null before anybody has told; then over REST, in job.json and as numbered lines with a legend."""
    twin = FakeTwin()
    twin.occur(1, what="before its time")
    bench.hub._fabric_log = FabricLog(twin.client)
    await bench.hub._read_fabric()
    made = await bench.register("a")
    job = bench.hub.jobs.get(1)
    assert (await bench.client.get("/api/v1/jobs/1")).json()["fabric_events"] is None
    events = [(0, 0, 0, 0, s, kind, t * MS) for s in range(3) for kind, t in (("post", 9 * s), ("done", 9 * s + 5))]
    await bench.report(made, events=events)
    twin.occur(2 * MS)
    twin.occur(4 * MS, event=2, what="h0->tor0 1G")
    twin.occur(7 * MS, "end")
    twin.occur(8 * MS, "failed", event=3, what="h9 has 4096 queue pairs")
    await eventually(lambda: len(job.fabric_events or ()) == 4)
    seen = (await bench.client.get("/api/v1/jobs/1/overlap")).json()["fabric_events"]
    assert seen[0] == {"t_ns": 2 * MS, "event": 1, "kind": "link-down", "phase": "begin", "what": "tor0<->spine1 down"}
    options = charts.overlap_options(job)
    lines = options["series"][0]["markLine"]["data"]
    assert [(line["xAxis"], line["label"]["formatter"]) for line in lines] == [(2.0, "1"), (4.0, "2")]
    areas = options["series"][0]["markArea"]["data"]
    assert [(begin["xAxis"], end["xAxis"]) for begin, end in areas] == [(2.0, 7.0), (4.0, 23.0)]
    assert charts.fabric_notes(job) == (
        "Fabric  1: tor0<->spine1 down, from 2 to 7 ms · 2: h0->tor0 1G, at 4 ms · "
        "h9 has 4096 queue pairs (could not happen)"
    )
    await bench.client.post("/api/v1/jobs/1/stop")
    assert len(json.loads((job.folder / "job.json").read_text())["fabric_events"]) == 4
    twin.occur(9 * MS, what="after its time")
    await bench.hub._read_fabric()
    assert len(job.fabric_events or ()) == 4
