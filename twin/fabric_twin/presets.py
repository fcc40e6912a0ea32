# SPDX-License-Identifier: Apache-2.0
"""Named fabrics and DCQCN parameter sets.

The paper (section 4.1) fixes topology, link rate, RED thresholds and Symphony's parameters, and says "the RDMA
configuration of HPCC" for the rest, which leaves several published values to choose from. Each set below says
where its values come from; results carry the set's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fabric_twin.engine import dcqcn
from fabric_twin.engine.dcqcn import Cc
from fabric_twin.errors import ConfigError

__all__ = ["DCQCN_SETS", "PRESETS", "Dcqcn", "Preset", "get_preset"]

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


@dataclass(frozen=True)
class Preset:
    """A whole fabric.

    Attributes:
        tors, hosts_per_tor, spines: leaf-spine shape; with one ToR there need be no spine.
        host_gbps, uplink_gbps: link rates.
        delay_us: propagation delay of each link.
        mtu: payload bytes of a full packet (RoCE path MTU).
        buffer_bytes: shared buffer of each switch.
        kmin, kmax, pmax: RED at dequeue, bytes and probability.
        pfc: lossless (XOFF/XON with dynamic thresholds) or lossy.
        ecmp_sport: the ECMP hash includes the UDP source port.
        dcqcn: name in `DCQCN_SETS`.
    """

    name: str
    tors: int
    hosts_per_tor: int
    spines: int
    host_gbps: float = 10.0
    uplink_gbps: float = 10.0
    delay_us: float = 1.0
    mtu: int = 4096
    buffer_bytes: int = 9_000_000
    kmin: int = 50_000
    kmax: int = 100_000
    pmax: float = 0.2
    pfc: bool = True
    ecmp_sport: bool = True
    dcqcn: str = "mlx"

    def __post_init__(self) -> None:
        problem = None
        if self.tors < 1 or self.hosts_per_tor < 1 or self.spines < (1 if self.tors > 1 else 0):
            problem = "needs at least one ToR, one host per ToR and, with several ToRs, one spine"
        elif self.hosts_per_tor > 250 or self.tors > 250:
            problem = "has more hosts per ToR or ToRs than its 10.<tor>.<n> addresses hold (250)"
        elif not (256 <= self.mtu <= 9000):
            problem = f"has mtu {self.mtu}; allowed are 256 to 9000 bytes"
        elif not (0 <= self.kmin < self.kmax) or not (0 <= self.pmax <= 1):
            problem = f"has RED kmin {self.kmin}, kmax {self.kmax}, pmax {self.pmax}; needs kmin < kmax, 0 <= pmax <= 1"
        elif self.host_gbps <= 0 or self.uplink_gbps <= 0 or self.delay_us < 0:
            problem = "has a link rate or delay that is not positive"
        elif self.buffer_bytes < 20 * self.mtu:
            problem = f"has a switch buffer of {self.buffer_bytes} bytes; needs 20 packets at least"
        elif self.dcqcn not in DCQCN_SETS:
            problem = f"names DCQCN set {self.dcqcn!r}; there are {', '.join(DCQCN_SETS)}"
        if problem:
            raise ConfigError(f"preset {self.name!r} {problem}")

    @property
    def n_hosts(self) -> int:
        """Hosts in the fabric."""
        return self.tors * self.hosts_per_tor


PRESETS = {
    # The paper's table 1: 4 ToR, 4 spine, 8 x 4 nodes, 10G.
    "demo": Preset("demo", tors=4, hosts_per_tor=8, spines=4),
    "paper-128": Preset("paper-128", tors=4, hosts_per_tor=32, spines=4),
    "rack16": Preset("rack16", tors=4, hosts_per_tor=4, spines=4),
    # One bottleneck, two ToRs: quick looks and tests.
    "small": Preset("small", tors=2, hosts_per_tor=4, spines=2),
    # The paper's figure 9: hosts on one switch, MTU 1024, the DCQCN paper's timers.
    "two-flows": Preset("two-flows", tors=1, hosts_per_tor=4, spines=0, mtu=1024, dcqcn="spec"),
}


def get_preset(name: str, **changes: Any) -> Preset:
    """The preset `name` with some fields changed; a changed preset says so in its name.

    Raises:
        ConfigError: no such preset or field, or a value out of range.
    """
    try:
        preset = PRESETS[name]
    except KeyError:
        raise ConfigError(f"no preset {name!r}; there are {', '.join(PRESETS)}") from None
    changes = {k: v for k, v in changes.items() if v is not None and v != getattr(preset, k, None)}
    if not changes:
        return preset
    try:
        label = name + "," + ",".join(f"{k}={v}" for k, v in sorted(changes.items()))
        return replace(preset, name=label, **changes)
    except TypeError as error:
        raise ConfigError(f"preset {name!r}: {error}") from None
