# SPDX-License-Identifier: Apache-2.0
"""Hosts, switches, links and the paths between them.

A link is a pair of directed *ports*; a port is known by its index, and so is the link that arrives by it. ECMP is
worked out here, once for each 5-tuple: the engine follows a list of ports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address

from fabric_twin.errors import FabricError, UnknownNameError
from fabric_twin.presets import Preset

__all__ = ["Host", "PortInfo", "Switch", "Topology", "leaf_spine"]

_M64 = (1 << 64) - 1


@dataclass(frozen=True)
class Host:
    """A host with one NIC."""

    index: int
    name: str
    address: IPv4Address
    nic: int
    tor: int


@dataclass
class Switch:
    """A switch; `ports` are its egress ports in the order of their dense port index."""

    index: int
    name: str
    tier: int
    ports: list[int] = field(default_factory=list)
    salt: int = 0
    hash_sport_mask: int = 0xFFFF
    to_host: dict[int, list[int]] = field(default_factory=dict)
    """host -> equal-cost egress ports"""


@dataclass
class PortInfo:
    """A directed link `source` -> `target`, names of hosts or switches."""

    index: int
    name: str
    gbps: float
    delay_us: float
    node: int
    """Switch that owns the egress, or -1 for a NIC."""
    peer: int
    """Switch it leads to, or -1 for a host."""
    host: int
    """The host at either end, or -1 between switches."""
    slot: int
    """Dense index at the owning switch, 0 for a NIC."""


class Topology:
    """A fabric's graph."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self.hosts: list[Host] = []
        self.switches: list[Switch] = []
        self.ports: list[PortInfo] = []
        self.avoided: frozenset[int] = frozenset()
        """Ports that routing knows to be down."""

    def add_port(self, name: str, gbps: float, node: int, peer: int, host: int) -> int:
        """Add a directed link and return its index."""
        slot = 0
        index = len(self.ports)
        if node >= 0:
            slot = len(self.switches[node].ports)
            self.switches[node].ports.append(index)
        self.ports.append(PortInfo(index, name, gbps, self.preset.delay_us, node, peer, host, slot))
        return index

    def host(self, name: str | int) -> Host:
        """The host called `name`, or number `name`.

        Raises:
            UnknownNameError: there is none.
        """
        for host in self.hosts:
            if name in (host.name, host.index, str(host.address)):
                return host
        raise UnknownNameError(f"no host {name!r}; this fabric has {self.hosts[0].name} to {self.hosts[-1].name}")

    def port(self, name: str) -> PortInfo:
        """The directed link called `name`, such as ``tor0->spine1``.

        Raises:
            UnknownNameError: there is none.
        """
        for port in self.ports:
            if port.name == name:
                return port
        raise UnknownNameError(f"no link {name!r}; names look like {self.ports[0].name} and {self.ports[-1].name}")

    def reseed(self, seed: int) -> None:
        """Give every switch's ECMP hash its own salt, derived from `seed`."""
        for switch in self.switches:
            switch.salt = _mix(_mix(seed + 1) ^ (switch.index + 1))

    def path(self, src: Host, dst: Host, sport: int) -> list[int]:
        """Ports from the NIC of `src` to `dst` for UDP source port `sport` (destination port 4791)."""
        if src.index == dst.index:
            raise FabricError(f"{src.name} sends to itself: loopback does not cross the fabric")
        ports = [src.nic]
        node = self.ports[src.nic].peer
        while node >= 0:
            switch = self.switches[node]
            choices = self._usable(switch, dst.index)
            egress = choices[0]
            if len(choices) > 1:
                hashed = ecmp_hash(int(src.address), int(dst.address), sport & switch.hash_sport_mask, switch.salt)
                egress = choices[hashed % len(choices)]
            ports.append(egress)
            node = self.ports[egress].peer
        return ports

    def _usable(self, switch: Switch, host: int) -> list[int]:
        """Equal-cost ports towards a host without those that lead nowhere now; all of them when none is left."""
        choices = switch.to_host[host]
        return [port for port in choices if self._reaches(port, host)] or choices if self.avoided else choices

    def _reaches(self, port: int, host: int) -> bool:
        if port in self.avoided:
            return False
        peer = self.ports[port].peer
        return peer < 0 or any(self._reaches(onward, host) for onward in self.switches[peer].to_host[host])


def leaf_spine(preset: Preset, seed: int) -> Topology:
    """Hosts h0.. below ToRs tor0.., every ToR linked to every spine."""
    topology = Topology(preset)
    n_tors = preset.tors
    mask = 0xFFFF if preset.ecmp_sport else 0
    for i in range(n_tors):
        topology.switches.append(Switch(i, f"tor{i}", tier=0, hash_sport_mask=mask))
    for i in range(preset.spines):
        topology.switches.append(Switch(n_tors + i, f"spine{i}", tier=1, hash_sport_mask=mask))
    down: dict[int, int] = {}
    for tor in range(n_tors):
        for i in range(preset.hosts_per_tor):
            index = tor * preset.hosts_per_tor + i
            name = f"h{index}"
            nic = topology.add_port(f"{name}->tor{tor}", preset.host_gbps, -1, tor, index)
            topology.hosts.append(Host(index, name, IPv4Address(f"10.0.{tor}.{i + 1}"), nic, tor))
    for tor in range(n_tors):
        for i in range(preset.hosts_per_tor):
            index = tor * preset.hosts_per_tor + i
            down[index] = topology.add_port(f"tor{tor}->h{index}", preset.host_gbps, tor, -1, index)
    up: dict[int, list[int]] = {tor: [] for tor in range(n_tors)}
    for tor in range(n_tors):
        for i in range(preset.spines):
            up[tor].append(topology.add_port(f"tor{tor}->spine{i}", preset.uplink_gbps, tor, n_tors + i, -1))
    spine_down: dict[tuple[int, int], int] = {}
    for i in range(preset.spines):
        for tor in range(n_tors):
            spine_down[i, tor] = topology.add_port(f"spine{i}->tor{tor}", preset.uplink_gbps, n_tors + i, tor, -1)
    for host in topology.hosts:
        for tor in range(n_tors):
            topology.switches[tor].to_host[host.index] = [down[host.index]] if tor == host.tor else up[tor]
        for i in range(preset.spines):
            topology.switches[n_tors + i].to_host[host.index] = [spine_down[i, host.tor]]
    topology.reseed(seed)
    return topology


def _mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & _M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
    return x ^ (x >> 31)


def ecmp_hash(src: int, dst: int, sport: int, salt: int) -> int:
    """A well-mixed hash of a RoCEv2 5-tuple; a plain CRC would map neighbouring source ports alike everywhere."""
    return _mix(_mix(src << 32 | dst) ^ _mix(sport << 16 | 4791) ^ salt)
