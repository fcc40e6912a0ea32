# SPDX-License-Identifier: Apache-2.0
"""A fabric as it is described, before it is built: what presets and fabric files come down to."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import NamedTuple

__all__ = ["LinkPlan", "NicPlan", "Plan", "SwitchPlan"]


class SwitchPlan(NamedTuple):
    """A switch. Links lead from a lower tier to a higher one; ToRs are tier 0."""

    name: str
    tier: int
    symphony: bool | None = None
    """It runs Symphony; None: if its tier does."""


class NicPlan(NamedTuple):
    """A NIC of a host and its link to a switch (by its place in `Plan.switches`)."""

    host: str
    rail: int
    address: IPv4Address
    switch: int
    gbps: float
    delay_us: float
    port: int | None = None
    """Device port of the switch; None: the next one."""


class LinkPlan(NamedTuple):
    """A link between two switches, by their places, the lower tier first; both directions are alike."""

    lower: int
    upper: int
    gbps: float
    delay_us: float
    lower_port: int | None = None
    upper_port: int | None = None


@dataclass(frozen=True)
class Plan:
    """NICs rail by rail, in the order of the hosts; links in the order of their lower ends."""

    switches: list[SwitchPlan]
    nics: list[NicPlan]
    links: list[LinkPlan]
