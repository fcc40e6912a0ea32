# SPDX-License-Identifier: Apache-2.0
"""The lazy reaction point against one that runs every timer tick when it is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_twin.engine import dcqcn
from fabric_twin.engine.dcqcn import CcQp
from fabric_twin.errors import ConfigError
from fabric_twin.presets import DCQCN_SETS, PRESETS, Dcqcn, get_preset

US = 10**6
LINE = 10e9
NEVER = 1 << 62


@dataclass
class Eager:
    """Every tick is an event: of two at the same time the one whose timer was started first comes first."""

    p: Dcqcn
    rate: float = LINE
    target: float = LINE
    alpha: float = 1.0
    started: bool = False
    alpha_cnp: bool = False
    cut_cnp: bool = False
    timer_stage: int = 0
    byte_stage: int = 0
    sent: int = 0
    alpha_at: int = NEVER
    cut_at: int = NEVER
    increase_at: int = NEVER
    cuts: list[float] = field(default_factory=list)

    def run(self, now: int) -> None:
        """All ticks up to `now`."""
        while (t := min(self.alpha_at, self.increase_at, self.cut_at)) <= now:
            if t == self.alpha_at:
                self.alpha_at += round(self.p.alpha_timer_us * US)
                self.alpha *= 1 - self.p.g
                if self.alpha_cnp:
                    self.alpha += self.p.g
                self.alpha_cnp = False
            elif t == self.increase_at:
                self.increase_at += round(self.p.increase_us * US)
                if self.p.machine == "mlx":
                    self.increase(self.timer_stage, self.timer_stage)
                    self.timer_stage += 1
                else:
                    self.timer_stage += 1
                    self.increase(max(self.timer_stage, self.byte_stage) - 1, min(self.timer_stage, self.byte_stage))
            else:
                self.cut_at += round(self.p.decrease_us * US)
                if self.cut_cnp:
                    self.cut(t)
                    self.cut_cnp = False

    def increase(self, high: int, low: int) -> None:
        """Fast recovery while `high` < F, hyper increase when `low` > F, additive increase between."""
        if high >= self.p.fast_recovery_stages:
            hyper = low > self.p.fast_recovery_stages
            self.target = min(LINE, self.target + (self.p.hai_mbps if hyper else self.p.ai_mbps) * 1e6)
        self.rate = (self.rate + self.target) / 2

    def cut(self, now: int) -> None:
        """By half of alpha, not below the minimum."""
        if self.p.clamp_target or self.timer_stage > 0:
            self.target = self.rate
        self.rate = max(self.p.min_mbps * 1e6, self.rate * (1 - self.alpha / 2))
        self.timer_stage = self.byte_stage = self.sent = 0
        self.increase_at = now + round(self.p.increase_us * US)
        self.cuts.append(self.rate)

    def cnp(self, now: int) -> None:
        """A CNP arrives."""
        self.run(now)
        first, self.started = not self.started, True
        if self.p.machine == "mlx":
            self.cut_cnp = True
            if first:
                self.alpha_at = now + round(self.p.alpha_timer_us * US)
                self.cut_at = now + round(self.p.decrease_us * US) + 1000
            else:
                self.alpha_cnp = True
        else:
            self.cut(now)
            self.alpha = (1 - self.p.g) * self.alpha + self.p.g
            self.alpha_at = now + round(self.p.alpha_timer_us * US)

    def bytes_sent(self, count: int, now: int) -> None:
        """A packet has left."""
        self.run(now)
        if not self.started or not self.p.byte_counter:
            return
        self.sent += count
        if self.sent >= self.p.byte_counter:
            self.sent -= self.p.byte_counter
            self.byte_stage += 1
            self.increase(max(self.timer_stage, self.byte_stage) - 1, min(self.timer_stage, self.byte_stage))


class Lazy:
    """The engine's machine."""

    def __init__(self, p: Dcqcn) -> None:
        self.cc = p.vector()
        self.qp: Any = np.zeros(CcQp.COLUMNS)
        dcqcn.reset(self.qp, 0, LINE)

    def run(self, now: int) -> None:
        """Look at the rate."""
        dcqcn.advance(self.cc, self.qp, 0, float(now))

    def cnp(self, now: int) -> None:
        """A CNP arrives."""
        dcqcn.on_cnp(self.cc, self.qp, 0, float(now))

    def bytes_sent(self, count: int, now: int) -> None:
        """A packet has left."""
        self.run(now)
        dcqcn.on_bytes_sent(self.cc, self.qp, 0, float(count))

    @property
    def rate(self) -> float:
        """Bits per second."""
        return float(self.qp[CcQp.RATE])


ticks = st.one_of(
    st.integers(0, 3000).map(lambda ns: ns * 1000),  # within one alpha period
    st.integers(0, 400).map(lambda us: us * US),  # on the grid of the timers
    st.integers(0, 400_000).map(lambda ns: ns * 1000),
    st.integers(0, 3000).map(lambda us: us * US),  # long enough for hyper increase
)
happenings = st.lists(st.tuples(st.sampled_from(["cnp", "cnp", "look", "bytes"]), ticks), max_size=40)
slow_bytes = Dcqcn("test", "spec", 1 / 16, 55, 0, 55, 5, 40, 200, 40, True, 30_000, 0)
clamped = Dcqcn("test", "mlx", 1 / 16, 1, 4, 20, 2, 50, 100, 100, True, 0, 0)


@pytest.mark.parametrize("p", [DCQCN_SETS["mlx"], DCQCN_SETS["spec"], slow_bytes, clamped], ids=lambda p: p.machine)
@settings(deadline=None, max_examples=40)
@given(what=happenings)
def test_the_lazy_machine_equals_the_eager_one(p: Dcqcn, what: list[tuple[str, int]]) -> None:
    """Rate, target and alpha agree after any series of CNPs, packets and looks at any times."""
    eager, lazy = Eager(p), Lazy(p)
    now = 1_234_567
    for kind, gap in what:
        now += gap
        for machine in (eager, lazy):
            if kind == "cnp":
                machine.cnp(now)
            elif kind == "bytes":
                machine.bytes_sent(20_000, now)
            else:
                machine.run(now)
        assert lazy.rate == pytest.approx(eager.rate, rel=1e-9)
        assert lazy.qp[CcQp.TARGET] == pytest.approx(eager.target, rel=1e-9)


def test_the_first_cnp_halves_the_rate_of_the_paper_machine() -> None:
    """Alpha starts at 1; the cut comes at once."""
    lazy = Lazy(DCQCN_SETS["spec"])
    lazy.cnp(5 * US)
    assert lazy.rate == LINE / 2
    assert lazy.qp[CcQp.TARGET] == LINE


def test_the_first_cut_of_the_mlx_machine_comes_one_decrease_interval_after_the_first_cnp() -> None:
    """4 us and 1 ns later (anchors D1), with the alpha of that moment; the target stays at line rate."""
    lazy = Lazy(DCQCN_SETS["mlx"])
    lazy.cnp(0)
    lazy.run(4 * US)
    assert lazy.rate == LINE
    lazy.run(4 * US + 1000)
    assert lazy.rate == pytest.approx(LINE * (1 - (255 / 256) ** 4 / 2))
    assert lazy.qp[CcQp.TARGET] == LINE


def test_fast_recovery_of_the_paper_machine_takes_five_iterations() -> None:
    """F = 5 successive iterations go half the way to the target; the sixth raises the target by R_AI."""
    lazy = Lazy(DCQCN_SETS["spec"])
    for _ in range(2):
        lazy.cnp(0)
    assert (lazy.rate, lazy.qp[CcQp.TARGET]) == (LINE / 4, LINE / 2)
    lazy.run(5 * 55 * US)
    assert lazy.qp[CcQp.TARGET] == LINE / 2
    assert lazy.rate == LINE / 2 - LINE / 4 / 2**5
    lazy.run(6 * 55 * US)
    assert lazy.qp[CcQp.TARGET] == LINE / 2 + 40e6


def test_the_rate_never_leaves_its_bounds() -> None:
    """A storm of CNPs stops at the minimum, silence at line rate."""
    for p in (DCQCN_SETS["mlx"], DCQCN_SETS["spec"]):
        lazy = Lazy(p)
        for i in range(2000):
            lazy.cnp(i * 5 * US)
        assert lazy.rate == p.min_mbps * 1e6
        lazy.run(10**13)
        assert 0.99 * LINE < lazy.rate <= LINE


def test_presets_hold_the_papers_fabric() -> None:
    """Table 1: 10G links, 4 ToRs with 4 spines, 8 rings of 4 hosts, Kmin 50 KB, Kmax 100 KB, Pmax 0.2."""
    demo = PRESETS["demo"]
    assert (demo.tors, demo.spines, demo.n_hosts, demo.host_gbps, demo.uplink_gbps) == (4, 4, 32, 10.0, 10.0)
    assert (demo.kmin, demo.kmax, demo.pmax, demo.pfc, demo.dcqcn) == (50_000, 100_000, 0.2, True, "mlx")
    assert PRESETS["paper-128"].n_hosts == 128


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tors": 0}, "at least one ToR"),
        ({"spines": 0}, "one spine"),
        ({"hosts_per_tor": 251}, "250"),
        ({"mtu": 100}, "mtu 100; allowed are 256 to 9000"),
        ({"kmin": 100_000}, "kmin < kmax"),
        ({"pmax": 1.5}, "pmax 1.5"),
        ({"host_gbps": 0}, "not positive"),
        ({"buffer_bytes": 1000}, "20 packets"),
        ({"dcqcn": "fast"}, "there are mlx, spec, off"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_preset_that_cannot_be_says_what_is_wrong(changes: dict[str, Any], says: str) -> None:
    """The message names the value and what is allowed."""
    with pytest.raises(ConfigError, match=says):
        get_preset("demo", **changes)


def test_a_changed_preset_says_so_in_its_name() -> None:
    """Results carry the name."""
    assert get_preset("demo", mtu=1024, pfc=None).name == "demo,mtu=1024"
    assert get_preset("demo", mtu=4096) is PRESETS["demo"]
    with pytest.raises(ConfigError, match="no preset 'dmo'; there are demo"):
        get_preset("dmo")
