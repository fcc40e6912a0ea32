# SPDX-License-Identifier: Apache-2.0
"""Named fabrics and DCQCN parameter sets.

The paper (section 4.1) fixes topology, link rate, RED thresholds and Symphony's parameters, and says "the RDMA
configuration of HPCC" for the rest, which leaves several published values to choose from. Each set below says
where its values come from; results carry the set's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import Any, TypeVar

import numpy as np

from fabric_twin.engine import dcqcn
from fabric_twin.engine.dcqcn import Cc
from fabric_twin.errors import ConfigError
from fabric_twin.plan import LinkPlan, NicPlan, Plan, SwitchPlan

__all__ = [
    "DCQCN_SETS",
    "PRESETS",
    "RETRANSMISSIONS",
    "TIERS",
    "WINDOWS",
    "Dcqcn",
    "Preset",
    "Settings",
    "Skew",
    "changed",
    "get_preset",
]

PS_PER_US = 1_000_000


@dataclass(frozen=True)
class Dcqcn:
    """Parameters of DCQCN's reaction and notification points. Times in us, rates in Mb/s."""

    name: str
    machine: str
    g: float
    alpha_timer_us: float
    decrease_us: float
    increase_us: float
    fast_recovery_stages: int
    ai_mbps: float
    hai_mbps: float
    min_mbps: float
    clamp_target: bool
    byte_counter: int
    cnp_interval_us: float

    def vector(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The engine's parameter vector, see `Cc`."""
        cc = np.zeros(Cc.COLUMNS, dtype=np.float64)
        cc[Cc.MACHINE] = {"mlx": dcqcn.MLX, "spec": dcqcn.SPEC}[self.machine]
        cc[Cc.G] = self.g
        cc[Cc.ALPHA_PS] = self.alpha_timer_us * PS_PER_US
        cc[Cc.DECREASE_PS] = self.decrease_us * PS_PER_US
        cc[Cc.INCREASE_PS] = self.increase_us * PS_PER_US
        cc[Cc.F] = self.fast_recovery_stages
        cc[Cc.AI_BPS] = self.ai_mbps * 1e6
        cc[Cc.HAI_BPS] = self.hai_mbps * 1e6
        cc[Cc.MIN_BPS] = self.min_mbps * 1e6
        cc[Cc.CLAMP_TARGET] = float(self.clamp_target)
        cc[Cc.BYTE_COUNTER] = self.byte_counter
        cc[Cc.CNP_INTERVAL_PS] = self.cnp_interval_us * PS_PER_US
        return cc


DCQCN_SETS = {
    # HPCC's ns-3 code (modelled on ConnectX firmware) with the values of its DCQCN runs at low link rates.
    "mlx": Dcqcn("mlx", "mlx", 1 / 256, 1, 4, 300, 1, 50, 100, 100, False, 0, 0),
    # The DCQCN paper's values (SIGCOMM 2015, table 14): 55 us timers, F = 5, 10 MB byte counter, CNP every 50 us.
    "spec": Dcqcn("spec", "spec", 1 / 256, 55, 0, 55, 5, 40, 200, 40, True, 10_000_000, 50),
    # No reaction to marks: shows what PFC alone does.
    "off": Dcqcn("off", "mlx", 0, 1, 4, 300, 1, 0, 0, 1e9, False, 0, 1e12),
}


PAPER_TABLE = "paper, table 1"
PAPER_TEXT = "paper, section 4.1"
_SOURCES = {
    "host_gbps": PAPER_TEXT + ": 10 Gb/s links",
    "uplink_gbps": PAPER_TEXT + ": 10 Gb/s links",
    "core_gbps": PAPER_TEXT + ": 10 Gb/s links",
    "kmin": PAPER_TEXT,
    "kmax": PAPER_TEXT,
    "pmax": PAPER_TEXT,
    "ecmp_sport": PAPER_TEXT + ": ECMP by 5-tuple",
    "routing": PAPER_TEXT + ": ECMP by 5-tuple",
    "symphony_tiers": "paper, discussion: needed on ToRs only",
    "dcqcn": PAPER_TEXT + ": HPCC's configuration, as docs/twin.md reads it",
}
"""Where the values that presets share come from; what is not named is ours."""

ROUTINGS = ("ecmp", "static")
TIERS = ("tor", "spine", "core")
MAX_GBPS = 800.0
MAX_DELAY_US = 1000.0
WINDOWS = ("off", "bdp", "scaled")
RETRANSMISSIONS = ("go-back-n", "selective")


@dataclass(frozen=True)
class Skew:
    """One link that carries more than its share.

    Attributes:
        link: directed link between switches, such as ``tor1->spine0``, that has alternatives of equal cost.
        factor: load of this link (bytes over the run) over the load it has without skew, where all its alternatives
            carry alike. 1.13 is the paper's "1.13x traffic skew on a single hop". Flows are moved here from the
            alternatives: a share (factor - 1) / (alternatives - 1) of them, chosen by host and UDP source port, so a
            host's flow takes the detour in that share of its steps. Traffic is moved, rather than the link slowed,
            because that is what the paper says and what a hash collision does; `set_link` slows a link.
    """

    link: str
    factor: float

    def __str__(self) -> str:
        return f"{self.link}={self.factor:g}"

    @staticmethod
    def parse(text: str) -> Skew:
        """``tor1->spine0=1.13``.

        Raises:
            ConfigError: it is not of this form, or the factor is not 1.0 to 2.0.
        """
        link, _, factor = text.rpartition("=")
        try:
            return Skew(link, float(factor))
        except ValueError:
            raise ConfigError(f"skew {text!r}: write LINK=FACTOR, such as tor1->spine0=1.13") from None

    def __post_init__(self) -> None:
        if not self.link or not 1 <= self.factor <= 2:
            raise ConfigError(f"skew {str(self)!r}: needs a link and a factor from 1.0 to 2.0")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every fabric has, whatever its shape.

    Attributes:
        mtu: payload bytes of a full packet (RoCE path MTU).
        buffer_bytes: shared buffer of each switch.
        kmin, kmax, pmax: RED at dequeue, bytes and probability.
        pfc: lossless (XOFF/XON with dynamic thresholds) or lossy.
        routing: ``ecmp``: by hash of the 5-tuple; ``static``: by host, so that uplinks carry equally many rings.
        ecmp_sport: the ECMP hash includes the UDP source port, and so the step.
        skew: one link with more than its share.
        symphony_tiers: tiers whose switches run Symphony: names of `TIERS` with commas, ``all`` or ``none``.
        dcqcn: name in `DCQCN_SETS`.
        window: what a QP may have on its way: "off" (no limit), "bdp" (base RTT x line rate), "scaled" (that times its
            rate over line rate), as HAS_WIN and VAR_WIN of HPCC's ns-3 code.
        retransmission: "go-back-n" or "selective".
    """

    name: str = field(kw_only=False)
    mtu: int = 4096
    buffer_bytes: int = 9_000_000
    kmin: int = 50_000
    kmax: int = 100_000
    pmax: float = 0.2
    pfc: bool = True
    routing: str = "ecmp"
    ecmp_sport: bool = True
    skew: Skew | None = None
    symphony_tiers: str = "tor"
    dcqcn: str = "mlx"
    window: str = "off"
    retransmission: str = "go-back-n"

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise ConfigError(f"fabric {self.name!r} {problem}")

    def _problem(self) -> str | None:
        if not (256 <= self.mtu <= 9000):
            return f"has mtu {self.mtu}; allowed are 256 to 9000 bytes"
        if not (0 <= self.kmin < self.kmax) or not (0 <= self.pmax <= 1):
            return f"has RED kmin {self.kmin}, kmax {self.kmax}, pmax {self.pmax}; needs kmin < kmax, 0 <= pmax <= 1"
        if self.buffer_bytes < 20 * self.mtu:
            return f"has a switch buffer_bytes of {self.buffer_bytes}; needs 20 packets at least"
        if self.routing not in ROUTINGS:
            return f"has routing {self.routing!r}; there are {', '.join(ROUTINGS)}"
        if self.symphony_tiers not in ("all", "none") and not set(self.symphony_tiers.split(",")) <= set(TIERS):
            return f"has symphony_tiers {self.symphony_tiers!r}; give all, none, or some of {','.join(TIERS)}"
        if self.dcqcn not in DCQCN_SETS:
            return f"names dcqcn set {self.dcqcn!r}; there are {', '.join(DCQCN_SETS)}"
        if self.window not in WINDOWS:
            return f"has window {self.window!r}; there are {', '.join(WINDOWS)}"
        if self.retransmission not in RETRANSMISSIONS:
            return f"has retransmission {self.retransmission!r}; there are {', '.join(RETRANSMISSIONS)}"
        return None

    def has_symphony(self, tier: int) -> bool:
        """Switches of this tier run Symphony."""
        words = self.symphony_tiers.split(",")
        return words == ["all"] or (tier < len(TIERS) and TIERS[tier] in words)

    def description(self) -> dict[str, Any]:
        """What results say about the fabric."""
        said = {"mtu": self.mtu, "dcqcn": self.dcqcn, "ecmp_sport": self.ecmp_sport, "routing": self.routing}
        said |= {"window": self.window, "retransmission": self.retransmission}
        return {**said, "symphony_tiers": self.symphony_tiers, "skew": self.skew and str(self.skew)}

    def plan(self) -> Plan:
        """Switches, NICs and links, in order."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Preset(Settings):
    """A fabric of two tiers, or of three: pods of ToRs and spines below core switches.

    Every ToR is linked to every spine of its pod, every spine to every core switch.

    Attributes:
        tors, hosts_per_tor: ToRs of the whole fabric, NICs on each.
        spines: spines (aggregation switches) per pod; with one ToR there need be none.
        pods, cores: pods, and core switches of the whole fabric; one pod needs no core.
        rails: NICs per host. With several, NIC r of a rack's hosts is on the rack's ToR r ("rail-optimised").
        host_gbps, uplink_gbps, core_gbps: rates of the links of hosts, between ToRs and spines, spines and cores.
        delay_us: propagation delay of each link.
        sources: where a field's value comes from, if it is not that of `source`.
    """

    tors: int
    hosts_per_tor: int
    spines: int
    pods: int = 1
    cores: int = 0
    rails: int = 1
    host_gbps: float = 10.0
    uplink_gbps: float = 10.0
    core_gbps: float = 10.0
    delay_us: float = 1.0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def _problem(self) -> str | None:
        rates = self.host_gbps, self.uplink_gbps, self.core_gbps
        if self.tors < 1 or self.hosts_per_tor < 1 or self.spines < (1 if self.tors > 1 else 0):
            return "needs at least one ToR, one host per ToR and, with several ToRs, one spine"
        if self.pods < 1 or self.cores < (1 if self.pods > 1 else 0):
            return "needs at least one pod and, with several pods, one core switch"
        if self.rails < 1 or self.tors % (self.pods * self.rails):
            return (
                f"has {self.tors} ToRs for {self.pods} pods and {self.rails} rails; "
                "needs a multiple of pods x rails: each pod has as many, each rack one per rail"
            )
        if self.hosts_per_tor > 250 or self.tors > 250:
            return "has more hosts per ToR or ToRs than its 10.<rail>.<tor>.<n> addresses hold (250)"
        if not all(0 < rate <= MAX_GBPS for rate in rates) or not 0 <= self.delay_us <= MAX_DELAY_US:
            return f"has a link rate that is not positive and up to {MAX_GBPS:g} Gb/s, or a delay not 0 to 1000 us"
        return super()._problem()

    @property
    def n_hosts(self) -> int:
        """NICs in the fabric: as many as hosts where a host has one."""
        return self.tors * self.hosts_per_tor

    @property
    def oversubscription(self) -> list[float]:
        """Per tier from the ToRs up: rate of all links down over that of all links up; a top tier has none."""
        up = self.spines * self.uplink_gbps
        ratios = [self.hosts_per_tor * self.host_gbps / up] if up and self.tors > 1 else []
        if self.cores:
            ratios.append(self.tors // self.pods * self.uplink_gbps / (self.cores * self.core_gbps))
        return ratios

    def source(self, name: str) -> str:
        """Where the value of field `name` comes from."""
        return self.sources.get(name) or _SOURCES.get(name, "ours")

    def description(self) -> dict[str, Any]:
        """What results say about the fabric: its shape, and the settings."""
        shape = ("tors", "spines", "pods", "cores", "rails", "host_gbps", "uplink_gbps", "core_gbps")
        size = {"hosts": self.n_hosts // self.rails, "nics": self.n_hosts}
        return size | {name: getattr(self, name) for name in shape} | super().description()

    def plan(self) -> Plan:
        """Pods of ToRs and spines, and core switches."""
        return _pods(self)


def _pods(p: Preset) -> Plan:
    """Hosts h0.. below ToRs tor0.., spines spine0.. pod by pod, core switches core0..; see `Preset`."""
    tors_per_pod, spines = p.tors // p.pods, p.spines if p.tors > 1 or p.spines else 0
    switches = [SwitchPlan(f"tor{i}", 0) for i in range(p.tors)]
    switches += [SwitchPlan(f"spine{i}", 1) for i in range(p.pods * spines)]
    switches += [SwitchPlan(f"core{i}", 2) for i in range(p.cores)]
    nics = []
    for rail in range(p.rails):
        for tor in range(rail, p.tors, p.rails):
            for i in range(p.hosts_per_tor):
                host = f"h{tor // p.rails * p.hosts_per_tor + i}"
                address = IPv4Address(f"10.{rail}.{tor}.{i + 1}")
                nics.append(NicPlan(host, rail, address, tor, p.host_gbps, p.delay_us))
    links = [
        LinkPlan(tor, p.tors + tor // tors_per_pod * spines + i, p.uplink_gbps, p.delay_us)
        for tor in range(p.tors)
        for i in range(spines)
    ]
    first_core = p.tors + p.pods * spines
    links += [
        LinkPlan(spine, first_core + i, p.core_gbps, p.delay_us)
        for spine in range(p.tors, first_core)
        for i in range(p.cores)
    ]
    return Plan(switches, nics, links)


_SHAPE = ("tors", "hosts_per_tor", "spines")
_TABLE_1 = dict.fromkeys(_SHAPE, PAPER_TABLE)
_POD = {
    "tors": PAPER_TABLE + ": 4 ToRs per spine group; groups of 128 hosts: section 4.1",
    "hosts_per_tor": PAPER_TABLE,
    "spines": PAPER_TABLE,
    "pods": PAPER_TEXT + ": multi-pod beyond 128 hosts",
    "cores": PAPER_TABLE + ": 2/4",
}
_WIDE_POD = _POD | {"spines": "ours, for an oversubscription out of 1:2 to 1:8 (section 4.1)"}
_SMALL = dict.fromkeys(_SHAPE, "ours")
_FIGURE_9 = {
    "tors": "paper, figure 9: hosts on one switch",
    "spines": "paper, figure 9: hosts on one switch",
    "mtu": "ours: gives figure 9's time of one flow alone",
    "dcqcn": "ours: the DCQCN paper's values",
}

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("demo", tors=4, hosts_per_tor=8, spines=4, sources=_TABLE_1),
        Preset("paper-128", tors=4, hosts_per_tor=32, spines=4, sources=_TABLE_1),
        # 128 hosts are one spine group (4 ToRs, 4 spines); more are several groups below 2 or 4 core switches.
        Preset("paper-256", tors=8, hosts_per_tor=32, spines=4, pods=2, cores=2, sources=_POD),
        Preset("paper-512", tors=16, hosts_per_tor=32, spines=4, pods=4, cores=4, sources=_POD),
        Preset("paper-512-2core", tors=16, hosts_per_tor=32, spines=4, pods=4, cores=2, sources=_POD),
        Preset("paper-512-1to4", tors=16, hosts_per_tor=32, spines=8, pods=4, cores=4, sources=_WIDE_POD),
        Preset("paper-512-1to2", tors=16, hosts_per_tor=32, spines=16, pods=4, cores=4, sources=_WIDE_POD),
        Preset("rack16", tors=4, hosts_per_tor=4, spines=4, sources=_SMALL),
        # One bottleneck, two ToRs: quick looks and tests.
        Preset("small", tors=2, hosts_per_tor=4, spines=2, sources=_SMALL),
        # Three tiers, two NICs per host: quick looks and tests.
        Preset("small-pods", tors=8, hosts_per_tor=2, spines=2, pods=2, cores=2, rails=2, sources=_SMALL),
        # The paper's figure 9: hosts on one switch, MTU 1024, the DCQCN paper's timers.
        Preset("two-flows", tors=1, hosts_per_tor=4, spines=0, mtu=1024, dcqcn="spec", sources=_FIGURE_9),
    )
}


def get_preset(name: str, *, oversubscription: str | None = None, **changes: Any) -> Preset:
    """The preset `name` with some fields changed; a changed preset says so in its name.

    Args:
        name: key of `PRESETS`.
        oversubscription: ``1:4``, or ``1:4,1:2`` for ToRs and spines: as many spines (and cores) as give it.
        changes: fields of `Preset`; None leaves a field as it is.

    Raises:
        ConfigError: no such preset or field, a value out of range, or an oversubscription that no whole number of
            spines or cores gives.
    """
    try:
        preset = PRESETS[name]
    except KeyError:
        raise ConfigError(f"no preset {name!r}; there are {', '.join(PRESETS)}") from None
    preset = changed(preset, **changes)
    if oversubscription is None:
        return preset
    for given in ("spines", "cores"):
        if changes.get(given) is not None:
            raise ConfigError(f"oversubscription {oversubscription} and {given} say the same thing: give one of them")
    return changed(preset, **_uplinks(preset, oversubscription))


Spec = TypeVar("Spec", bound=Settings)


def changed(spec: Spec, **changes: Any) -> Spec:
    """`spec` with some fields changed (None: not changed), which its name says.

    Raises:
        ConfigError: no such field, or a value out of range.
    """
    changes = {k: v for k, v in changes.items() if v is not None and v != getattr(spec, k, None)}
    if not changes:
        return spec
    label = spec.name + "," + ",".join(f"{k}={v}" for k, v in sorted(changes.items()))
    if isinstance(spec, Preset):
        changes["sources"] = {**spec.sources, **dict.fromkeys(changes, "option")}
    try:
        return replace(spec, name=label, **changes)
    except TypeError as error:
        raise ConfigError(f"fabric {spec.name!r}: {error}") from None


def _uplinks(p: Preset, oversubscription: str) -> dict[str, int]:
    """How many spines (and cores) give an oversubscription at the preset's rates."""
    words = oversubscription.split(",")
    tiers = [("spines", "ToR", p.hosts_per_tor * p.host_gbps, p.uplink_gbps)]
    if p.cores:
        tiers.append(("cores", "spine", p.tors // p.pods * p.uplink_gbps, p.core_gbps))
    if p.tors == 1 or len(words) > len(tiers):
        raise ConfigError(
            f"oversubscription {oversubscription}: {p.name} has {len(p.oversubscription)} tiers with uplinks"
        )
    out = {}
    for word, (field_name, tier, down, rate) in zip(words, tiers, strict=False):
        one, _, ratio = word.partition(":")
        try:
            if one.strip() != "1" or not 1 <= float(ratio) <= 1024:
                raise ValueError
        except ValueError:
            raise ConfigError(f"oversubscription {word!r}: write 1:1 to 1:8, or 1:4,1:2 for ToRs and spines") from None
        count = down / (float(ratio) * rate)
        if abs(count - round(count)) > 1e-9 * count or round(count) < 1:
            nearest = max(1, round(count))
            raise ConfigError(
                f"oversubscription {word} is impossible: a {tier} of {p.name} has {down:g} Gb/s downwards, so it needs "
                f"{count:g} uplinks of {rate:g} Gb/s; {nearest} give 1:{down / (nearest * rate):.4g}"
            )
        out[field_name] = round(count)
    return out
