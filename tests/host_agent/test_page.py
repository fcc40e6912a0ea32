# SPDX-License-Identifier: Apache-2.0
"""The live page: chart options from a job's figures, and the page used by a simulated visitor."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nicegui import ui
from nicegui.testing import User
from nicegui.testing.user_simulation import user_simulation

from host_agent.auth import TokenGate
from host_agent.page import charts
from host_agent.page.job_panel import assumptions
from host_agent.page.layout import LivePage
from host_agent.page.widgets import bandwidth, number, seconds
from host_agent.views import MAX_POINTS


@asynccontextmanager
async def visiting(bench: Any, token: str | None = None) -> AsyncIterator[User]:
    """A visitor of the hub's page."""
    async with user_simulation(root=lambda: LivePage(bench.hub, TokenGate(token), None).build()) as user:
        await user.open("/")
        yield user


async def reported(bench: Any, name: str = "a") -> Any:
    """A job with events, two collectives and samples of both switches."""
    job = await bench.register(name)
    events = []
    for step in range(300):
        begin = step * 10_000_000
        events += [(0, 0, 0, step // 6, step, "post", begin), (0, 0, 0, step // 6, step, "done", begin + 15_000_000)]
    events.append((1, 1, 0, 0, 290, "post", 2_990_000_000))
    await bench.report(job, events=events, collectives=[(0, 0, 0, 60_000_000, 1.2), (1, 0, 0, 70_000_000, None)])
    for tick in range(1, 4):
        for switch in bench.switches.values():
            switch.feed(job["id"], at=1000 + tick * 0.05, ns=tick * 1_000_000, low=tick, high=tick + 1, packets=tick)
    return bench.hub.jobs.get(job["id"])


ALL = [
    charts.overlap_options,
    charts.progress_options,
    charts.alpha_options,
    charts.marks_options,
    charts.cct_options,
]


@pytest.mark.parametrize("options", ALL)
async def test_charts_of_a_job_without_figures_are_empty_not_wrong(
    bench: Any, options: Callable[[Any], dict[str, Any]]
) -> None:
    """A job that has just been registered can be looked at."""
    await bench.register("a")
    json.dumps(options(bench.hub.jobs.get(1)))


async def test_charts_show_the_job_s_figures(bench: Any, eventually: Callable[..., Any]) -> None:
    """Overlap of both kinds, a mark line at the toggle, progress per group, CCT per iteration; all
    serialisable.
    """
    job = await reported(bench)
    await eventually(lambda: len(job.switch_log.figures) == 3)
    await bench.client.patch("/api/v1/jobs/1/symphony", json={"enabled": True, "variant": "refined"})
    overlap = charts.overlap_options(job)
    host, switch = overlap["series"]
    assert host["data"][0] == [0.0, 1]
    assert [value for _, value in switch["data"]] == [2, 2, 2]
    assert [line["label"]["formatter"] for line in host["markLine"]["data"]] == ["on: refined"]
    assert overlap["xAxis"]["name"] == "time since first post [s]"
    progress = charts.progress_options(job)
    assert progress["yAxis"]["data"] == ["group 1"]  # group 0 has nothing in flight
    cct = charts.cct_options(job)
    assert cct["series"][0]["data"] == [[0, 60.0], [0, 70.0]]
    assert cct["yAxis"][0]["name"] == "CCT [ms]"
    json.dumps([options(job) for options in ALL])


async def sampled(bench: Any, gap: int, eventually: Callable[..., Any]) -> Any:
    """A job with ten samples per switch, tor1's with a gap of so many ticks after the fifth."""
    await bench.register("a")
    job = bench.hub.jobs.get(1)
    for name, switch in bench.switches.items():
        for tick in range(1, 11 + gap):
            if not (name == "tor1" and 5 < tick <= 5 + gap):
                switch.feed(1, at=1000 + tick * 0.05, ns=tick * 1_000_000, low=tick, high=tick + 1, packets=tick)
            else:
                switch._seq += 1
    await eventually(lambda: all(job.switch_log.last_seq[name] == 10 + gap for name in bench.switches))
    return job


async def test_a_gap_in_the_samples_is_no_line(bench: Any, eventually: Callable[..., Any]) -> None:
    """tor1's agent was away: nothing is drawn over that time, of its own curves and of the switches' overlap."""
    job = await sampled(bench, 8, eventually)
    for options, of_tor1 in ((charts.overlap_options, 1), (charts.alpha_options, 1), (charts.marks_options, 2)):
        points = options(job)["series"][of_tor1]["data"]
        curve = [value for _, value in points]
        assert curve.index(None) == 5, options
        assert curve.count(None) == 1
        assert points[5][0] == points[4][0]  # where the line ends: a stepped one would reach over the gap
        assert len(curve) == 11
    tor0 = [value for _, value in charts.alpha_options(job)["series"][0]["data"]]
    assert None not in tor0
    rest = (await bench.client.get("/api/v1/jobs/1/overlap")).json()
    assert all(value is not None for _, value in rest["switch"])


async def test_a_tick_that_is_left_out_is_no_gap(bench: Any, eventually: Callable[..., Any]) -> None:
    """An agent on a busy machine may miss a few."""
    job = await sampled(bench, 2, eventually)
    assert None not in [value for _, value in charts.overlap_options(job)["series"][1]["data"]]


async def test_totals_without_a_switch_are_marked(bench: Any, eventually: Callable[..., Any]) -> None:
    """tor1's agent dies and the job ends: its packets are not in the totals, which say so everywhere."""
    job = await reported(bench)
    await eventually(lambda: len(job.switch_log.figures) == 3)
    assert job.view()["counters_missing"] == []
    bench.switches["tor1"].down = True
    await eventually(lambda: job.view()["counters_missing"] == ["tor1"])
    bench.switches["tor1"].down = False
    await eventually(lambda: job.view()["counters_missing"] == [])  # it counts from the job's start: nothing is lost
    bench.switches["tor1"].down = True
    await bench.client.post("/api/v1/jobs/1/stop")
    view = (await bench.client.get("/api/v1/jobs/1")).json()
    assert (view["state"], view["counters_missing"], view["packets"]["all"]) == ("stopped", ["tor1"], 6)
    async with visiting(bench) as user:
        await user.should_see("without tor1")
        await user.should_see("tor1 could not be read at the end of the job")


async def test_unknown_figures_are_a_dash(bench: Any) -> None:
    """A job without a report or a sample, as after a restart of host-agent: nothing of it is 0."""
    await bench.register("a")
    bench.hub.jobs.get(1).preset = None
    async with visiting(bench) as user:
        await user.should_see("preset: –")
        tiles = [e.text for e in user.find(kind=ui.label).elements if "v" in e.classes]
        assert tiles == ["–"] * 7


def test_labels_of_toggles_do_not_cover_each_other() -> None:
    """Two rows; beyond that the older one goes without. What holds now is always said."""
    assert charts._label_rows([0.0, 50.0, 100.0], 20.0) == [0, 0, 0]
    assert charts._label_rows([0.0, 5.0, 100.0], 20.0) == [1, 0, 0]
    assert charts._label_rows([0.0, 5.0, 10.0], 20.0) == [None, 1, 0]


async def test_the_page_s_figures_are_those_of_rest(bench: Any) -> None:
    """CCT and bus bandwidth; what the newest collectives had by themselves is named so, and gone once it ended."""
    await reported(bench)
    cct = (await bench.client.get("/api/v1/jobs/1")).json()["cct"]
    async with visiting(bench) as user:
        await user.should_see(bandwidth(cct["busbw_gbps"]))
        await user.should_see(seconds(cct["p50_s"]))
        await user.should_see(f"p99 {seconds(cct['p99_s'])}")
        await user.should_see("newest alone 1.2")


async def test_the_empty_page_has_no_markup_to_read(bench: Any) -> None:
    """No backticks."""
    async with visiting(bench) as user:
        await user.should_see("No job yet")
        await user.should_not_see("`")


async def test_curves_are_bounded(bench: Any) -> None:
    """A long run sends at most MAX_POINTS per curve to a page."""
    job = await bench.register("a")
    for begin in range(0, 20_000, 5000):
        events = []
        for step in range(begin, begin + 5000):
            length = 1500 if step % 2 else 500
            events += [(0, 0, 0, 0, step, "post", step * 1000), (0, 0, 0, 0, step, "done", step * 1000 + length)]
        await bench.report(job, events=events)
    assert len(charts.overlap_options(bench.hub.jobs.get(1))["series"][0]["data"]) <= MAX_POINTS


async def test_a_visitor_sees_jobs_and_switches_symphony(bench: Any, eventually: Callable[..., Any]) -> None:
    """The switch on the page goes the way of the REST API: every switch agent has the change."""
    await reported(bench, "seen")
    async with visiting(bench) as user:
        await user.should_see("seen")
        await user.should_see("Degree of step overlap")
        user.find(kind=ui.switch).click()
        await eventually(lambda: all(s.jobs[1]["symphony"]["enabled"] for s in bench.switches.values()))
        await user.should_see("read back from 2 switches")


async def test_a_change_from_elsewhere_moves_the_switch_and_is_not_sent_again(
    bench: Any, eventually: Callable[..., Any]
) -> None:
    """A PATCH over REST shows on an open page; the page itself must not answer it with a change of its own."""
    await reported(bench)
    async with visiting(bench) as user:
        toggle = next(iter(user.find(kind=ui.switch).elements))
        for enabled in (True, False):
            change = {"enabled": enabled, "variant": "refined" if enabled else "paper"}
            await bench.client.patch("/api/v1/jobs/1/symphony", json=change)
            await eventually(lambda wanted=enabled: toggle.value is wanted)
        await user.should_see("Degree of step overlap")
    assert bench.switches["tor0"].calls == [("put", 1), ("patch", 1), ("patch", 1)]


async def test_a_failing_switch_is_shown_to_the_visitor(bench: Any, eventually: Callable[..., Any]) -> None:
    """The words of the refusal, and the control back where it was."""
    await reported(bench)
    bench.switches["tor1"].refuse = "not now"
    bench.switches["tor0"].refuse = "not now"
    async with visiting(bench) as user:
        user.find(kind=ui.switch).click()
        await user.should_see("not now")
        toggle = next(iter(user.find(kind=ui.switch).elements))
        await eventually(lambda: toggle.value is False)


async def test_the_page_asks_for_the_token_before_a_change(bench: Any, eventually: Callable[..., Any]) -> None:
    """A wrong one changes nothing, the right one is used from then on."""
    await reported(bench)
    async with visiting(bench, token="correct horse battery") as user:
        user.find(kind=ui.switch).click()
        await user.should_see("needs its token")
        user.find("Token").type("wrong")
        user.find("Use it").click()
        await user.should_see("token is wrong")
        assert bench.switches["tor0"].calls == [("put", 1)]
        user.find(kind=ui.switch).click()
        await user.should_see("needs its token")
        user.find("Token").type("correct horse battery")
        user.find("Use it").click()
        await eventually(lambda: bench.switches["tor0"].jobs[1]["symphony"]["enabled"])


async def test_a_demo_job_is_started_from_the_form(bench: Any, eventually: Callable[..., Any]) -> None:
    """The form's values become a job, which the page then shows."""
    async with visiting(bench) as user:
        await user.should_see("No job yet")
        user.find(kind=ui.button, content="Start a demo job").click()
        await user.should_see("Payload scale")
        user.find("Size per rank").clear().type("8M")
        user.find("Start now").click()
        job = await eventually(lambda: next(iter(bench.hub.jobs), None))
        assert job.request.bench.size == "8M"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (1.5, "1.5 s"), (0.0021, "2.1 ms"), (4e-6, "4 µs"), (0.9995, "1000 ms"), (0.0, "0 µs")],
)
def test_durations_read_well(value: float | None, text: str) -> None:
    """Three digits and the fitting unit."""
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (66271, "66.3 k"),
        (708_000, "708 k"),
        (999_600, "1.00 M"),
        (2_352_000, "2.35 M"),
        (31_457_280, "31.5 M"),
    ],
)
def test_counts_read_well(value: int | None, text: str) -> None:
    """One format: three digits, with k and M from 1000 on; a dash for what is not known."""
    assert number(value) == text


def test_a_count_that_misses_a_switch_says_so() -> None:
    """It is a lower bound."""
    assert number(66271, at_least=True) == "≥ 66.3 k"
    assert bandwidth(None) == "–"
    assert bandwidth(0.26426) == "0.264 GB/s"


async def test_assumptions_are_stated(bench: Any) -> None:
    """Release rule, QP mode, preset and seed of a job; "as started" for one whose ranks somebody else
    starts.
    """
    await bench.register("a")
    assert "release rule and QP mode: as its ranks were started" in assumptions(bench.hub.jobs.get(1))
    body = {"name": "b", "bench": {"split": "MOD 2", "payload_scale": 8}, "seed": 5}
    job = bench.hub.jobs.get((await bench.client.post("/api/v1/jobs", json=body)).json()["id"])
    stated = assumptions(job)
    assert {"release rule: in-order", "QP mode: per-step", "seed: 5", "payload scale 8"} <= set(stated)
