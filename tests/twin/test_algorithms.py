# SPDX-License-Identifier: Apache-2.0
"""Algorithms side by side on one small workload, and the arithmetic behind coordination and the bound."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_twin import algorithms
from fabric_twin.algorithms import ALGORITHMS, named
from fabric_twin.bound import busiest_link_ns
from fabric_twin.errors import ConfigError
from fabric_twin.presets import get_preset
from fabric_twin.rate_split import fair_rates, link_shares
from fabric_twin.scripted import RunResult
from fabric_twin.topology import Topology
from fabric_twin.workload import Job
from ring_bench.config import Config

FABRIC = get_preset("small")


def job(
    name: str = "job", *, iters: int = 4, chunk: int = 1 << 20, hosts: tuple[int, ...] | None = None, start_ns: int = 0
) -> Job:
    """Rings of one host per ToR of the preset `small`."""
    world = 8 if hosts is None else len(hosts)
    size = 2 * chunk
    config = Config(
        world=world, split=f"MOD {world // 2}", minbytes=size, maxbytes=size, iters=iters, warmup_iters=0, check=0
    )
    return Job(config=config, hosts=hosts, name=name, start_ns=start_ns)


def cct_ms(result: RunResult, name: str = "job") -> float:
    times = result.job(name).collectives
    assert (times >= 0).all()
    return float(times[..., 1].max() - times[..., 0].min()) / 1e6


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_finishes_and_repeats_itself(name: str) -> None:
    runs = [algorithms.run(FABRIC, [(job(), named(name, start_ns=1_000_000))], seed=3) for _ in range(2)]
    assert runs[0].job("job").failure is None
    assert runs[0].trace_hash == runs[1].trace_hash


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_where_it_comes_from(name: str) -> None:
    first = dict(algorithms.describe())[name]
    assert first.endswith((".", ")", "281."))
    assert any(word in (ALGORITHMS[name].__doc__ or "") for word in ("paper", "doi"))


def test_the_theoretical_schedule_takes_as_long_as_its_busiest_link_and_no_schedule_less() -> None:
    bound = busiest_link_ns(FABRIC, job()) / 1e6
    assert bound <= cct_ms(algorithms.run(FABRIC, [(job(), named("theoretical"))])) < 1.02 * bound
    for name in ("off", "symphony", "priority", "prc"):
        assert cct_ms(algorithms.run(FABRIC, [(job(), named(name))])) > bound


def test_the_bound_of_a_ring_is_its_bytes_over_its_share_of_the_uplinks() -> None:
    steps, packets = 4 * 2, (1 << 20) // 4096
    wire = steps * packets * (4096 + 82) * 4  # four hosts of a ToR, two uplinks of 10 Gb/s
    assert busiest_link_ns(FABRIC, job()) == pytest.approx(wire * 8 / 20)


def test_jobs_have_algorithms_of_their_own() -> None:
    a, b = job("a", hosts=(0, 1, 4, 5)), job("b", hosts=(2, 3, 6, 7))
    result = algorithms.run(FABRIC, [(a, named("symphony")), (b, named("off"))])
    assert result.job("a").failure is result.job("b").failure is None
    assert result.job("b").marked["symphony"] == 0


def test_algorithms_that_want_different_fabrics_are_refused_together() -> None:
    a, b = job("a", hosts=(0, 1, 4, 5)), job("b", hosts=(2, 3, 6, 7))
    with pytest.raises(ConfigError, match="want different fabrics"):
        algorithms.run(FABRIC, [(a, named("theoretical")), (b, named("off"))])


def test_an_unknown_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no algorithm 'best'; there are off, symphony"):
        named("best")


def test_coordinated_jobs_that_overlap_both_finish_and_the_later_one_is_looked_after_too() -> None:
    a, b = job("a", hosts=(0, 1, 4, 5), iters=8), job("b", hosts=(2, 3, 6, 7), start_ns=3_000_000)
    result = algorithms.run(FABRIC, [(a, named("coordinated")), (b, named("coordinated"))])
    assert result.job("a").failure is result.job("b").failure is None
    assert cct_ms(result, "b") > busiest_link_ns(FABRIC, b) / 1e6


def test_flows_spread_evenly_over_links_of_equal_cost() -> None:
    topology = Topology(get_preset("demo"), 1)
    hosts = topology.hosts
    shares = link_shares(topology, [(hosts[0], hosts[8], 1.0)])
    assert sorted(shares.values()) == [0.25] * 8 + [1.0, 1.0]


rates = st.dictionaries(st.integers(0, 5), st.floats(0.1, 4), min_size=1, max_size=4)


@given(st.dictionaries(st.sampled_from("abcd"), rates, min_size=1))
def test_fair_rates_fill_links_and_nobody_can_have_more_without_taking_it_from_one_with_less(
    shares: Mapping[str, Mapping[int, float]],
) -> None:
    """Max-min fairness: every job crosses a full link on which no other job has a higher rate."""
    capacity = dict.fromkeys(range(6), 10.0)
    got = fair_rates(capacity, shares)
    load = {port: sum(got[job] * ports.get(port, 0.0) for job, ports in shares.items()) for port in capacity}
    assert all(value <= 10.0 * (1 + 1e-6) for value in load.values())
    for job_name, ports in shares.items():
        full = [port for port in ports if load[port] >= 10.0 * (1 - 1e-6)]
        assert any(
            got[job_name] >= got[other] - 1e-6 for port in full for other, others in shares.items() if port in others
        )
        assert full
