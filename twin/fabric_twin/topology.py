# SPDX-License-Identifier: Apache-2.0
"""Hosts, switches, links and the paths between them.

A link is a pair of directed *ports*; a port is known by its index, and so is the link that arrives by it. Paths are
worked out here, once for each 5-tuple: the engine follows a list of ports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from fabric_twin.errors import ConfigError, FabricError, UnknownNameError
from fabric_twin.presets import Settings
from fabric_twin.routing import Detour, ecmp_hash, mix, up_down

__all__ = ["NUM_PIPES", "PORTS_PER_PIPE", "Host", "PortInfo", "Switch", "Topology"]

NUM_PIPES = 4
PORTS_PER_PIPE = 128


@dataclass(frozen=True)
class Host:
    """What verbs calls a device: a NIC of a host, with an address of its own.

    A host with one NIC has the NIC's name. The NICs (rails) of another, h3, are h3.r0, h3.r1...; h3 means its first.
    """

    index: int
    name: str
    address: IPv4Address
    nic: int
    """Port from the NIC to its switch."""
    tor: int
    """The switch that it is on."""
    down: int
    """Port from the switch to the NIC."""
    position: int
    """Its place among all NICs in the order of their switches."""
    machine: str
    rail: int
    gbps: float


@dataclass
class Switch:
    """A switch; `ports` are its egress ports in the order of their dense port index."""

    index: int
    name: str
    tier: int
    ports: list[int] = field(default_factory=list)
    salt: int = 0
    hash_sport_mask: int = 0xFFFF
    pipeline: int = -1
    """Its place among the switches with Symphony, or -1."""
    towards: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """switch of the destination -> egress ports of equal cost"""


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
    device_port: int = 0
    """Number of the port at the owning switch's pipes, 0 for a NIC."""
    reverse: int = -1
    """The other direction."""


class Topology:
    """A fabric's graph.

    Args:
        spec: what to build.
        seed: of the ECMP hash.

    Raises:
        ConfigError: a Symphony switch has more ports than its pipes, or the skewed link cannot be skewed.
    """

    def __init__(self, spec: Settings, seed: int) -> None:
        self.spec = spec
        self.hosts: list[Host] = []
        self.switches: list[Switch] = []
        self.ports: list[PortInfo] = []
        self.avoided: frozenset[int] = frozenset()
        """Ports that routing knows to be down."""
        self._build()
        self._hosts: dict[str | int, Host] = {}
        for host in self.hosts:
            for name in (host.name, host.index, str(host.address), host.machine, f"{host.machine}.r{host.rail}"):
                self._hosts.setdefault(name, host)
        self._ports = {port.name: port for port in self.ports}
        self._find_routes()
        self._detour = self._skew()
        self.reseed(seed)

    # ---------------------------------------------------------------------------------------- building

    def _build(self) -> None:
        """NICs' ports first, then those to hosts, then tier by tier all links up and all links down."""
        plan = self.spec.plan()
        mask = 0xFFFF if self.spec.ecmp_sport else 0
        for i, s in enumerate(plan.switches):
            self.switches.append(Switch(i, s.name, s.tier, hash_sport_mask=mask))
        nics_of = Counter(nic.host for nic in plan.nics)
        names = [f"{nic.host}.r{nic.rail}" if nics_of[nic.host] > 1 else nic.host for nic in plan.nics]
        order = sorted(range(len(plan.nics)), key=lambda i: (plan.nics[i].switch, i))
        position = {nic: place for place, nic in enumerate(order)}
        wanted: dict[int, int] = {}
        """Port -> device port that the plan gives it."""
        for i, (name, nic) in enumerate(zip(names, plan.nics, strict=True)):
            self._add_port(f"{name}->{plan.switches[nic.switch].name}", nic.gbps, nic.delay_us, -1, nic.switch, i)
        for i in order:
            name, nic = names[i], plan.nics[i]
            down = self._add_port(
                f"{plan.switches[nic.switch].name}->{name}", nic.gbps, nic.delay_us, nic.switch, -1, i
            )
            self._pair(i, down)
            if nic.port is not None:
                wanted[down] = nic.port
        for i, (name, nic) in enumerate(zip(names, plan.nics, strict=True)):
            down = self.ports[i].reverse
            host = Host(i, name, nic.address, i, nic.switch, down, position[i], nic.host, nic.rail, nic.gbps)
            self.hosts.append(host)
        count: dict[tuple[int, int], int] = {}
        for tier in sorted({s.tier for s in plan.switches}):
            links = sorted(
                (link for link in plan.links if plan.switches[link.lower].tier == tier), key=lambda link: link.lower
            )
            ups = []
            for link in links:
                nth = count[link[:2]] = count.get(link[:2], 0) + 1
                mark = "" if nth == 1 else f"#{nth}"
                lower, upper = plan.switches[link.lower].name, plan.switches[link.upper].name
                up = self._add_port(f"{lower}->{upper}{mark}", link.gbps, link.delay_us, link.lower, link.upper, -1)
                ups.append((link, up, f"{upper}->{lower}{mark}"))
                if link.lower_port is not None:
                    wanted[up] = link.lower_port
            for link, up, name in sorted(ups, key=lambda entry: entry[0].upper):
                down = self._add_port(name, link.gbps, link.delay_us, link.upper, link.lower, -1)
                self._pair(up, down)
                if link.upper_port is not None:
                    wanted[down] = link.upper_port
        for switch, s in zip(self.switches, plan.switches, strict=True):
            self._number_ports(switch, wanted)
            if s.symphony or (s.symphony is None and self.spec.has_symphony(s.tier)):
                switch.pipeline = sum(other.pipeline >= 0 for other in self.switches)
                most = max((self.ports[p].device_port for p in switch.ports), default=0)
                if most >= NUM_PIPES * PORTS_PER_PIPE:
                    raise ConfigError(
                        f"fabric {self.spec.name!r}: {switch.name} has {len(switch.ports)} ports, more than the "
                        f"{NUM_PIPES} pipes of {PORTS_PER_PIPE} ports of a switch with Symphony hold"
                    )

    def _add_port(self, name: str, gbps: float, delay_us: float, node: int, peer: int, host: int) -> int:
        slot = 0
        index = len(self.ports)
        if node >= 0:
            slot = len(self.switches[node].ports)
            self.switches[node].ports.append(index)
        self.ports.append(PortInfo(index, name, gbps, delay_us, node, peer, host, slot))
        return index

    def _pair(self, a: int, b: int) -> None:
        self.ports[a].reverse, self.ports[b].reverse = b, a

    def _number_ports(self, switch: Switch, wanted: dict[int, int]) -> None:
        """Device ports: downwards from pipe 0 on, upwards from the pipe after the last of those."""
        taken = {wanted[p] for p in switch.ports if p in wanted}
        up = [self.ports[p].peer >= 0 and self.switches[self.ports[p].peer].tier > switch.tier for p in switch.ports]
        number = 0
        for upwards in (False, True):
            for p, is_up in zip(switch.ports, up, strict=True):
                if is_up is upwards:
                    while p not in wanted and number in taken:
                        number += 1
                    self.ports[p].device_port = wanted.get(p, number)
                    number += p not in wanted
            number = max(1, -(-number // PORTS_PER_PIPE)) * PORTS_PER_PIPE

    def _find_routes(self) -> None:
        for to in sorted({host.tor for host in self.hosts}):
            choices = up_down(self.switches, self.ports, to)
            around = up_down(self.switches, self.ports, to, self.avoided) if self.avoided else choices
            for switch in self.switches:
                switch.towards[to] = around.get(switch.index) or choices.get(switch.index, ())

    def avoid(self, ports: Collection[int]) -> None:
        """Route around these ports from now on; where no way is left, paths stay as if they were up."""
        self.avoided = frozenset(ports)
        self._find_routes()

    def _skew(self) -> Detour | None:
        skew = self.spec.skew
        if skew is None or skew.factor == 1:
            return None
        where = f"fabric {self.spec.name!r}: skew {skew}"
        port = self._ports.get(skew.link)
        if port is None:
            raise ConfigError(f"{where}: no link {skew.link!r}; names look like {self._example()}")
        choices = self.switches[port.node].towards.values() if port.node >= 0 else []
        fewest = min((len(ports) for ports in choices if port.index in ports), default=1)
        if fewest < skew.factor:
            raise ConfigError(
                f"{where}: {skew.link} shares its traffic with {fewest - 1} other links, from which a load of "
                f"{skew.factor:g} times its share cannot be moved; choose an uplink that has more alternatives"
            )
        return Detour(port.index, skew.factor)

    # ---------------------------------------------------------------------------------------- names

    def host(self, name: str | int) -> Host:
        """The host called `name`, or number `name`.

        Raises:
            UnknownNameError: there is none.
        """
        try:
            return self._hosts[name]
        except KeyError:
            first_rail = [host.name for host in self.hosts if host.rail == self.hosts[0].rail]
            raise UnknownNameError(f"no host {name!r}; this fabric has {first_rail[0]} to {first_rail[-1]}") from None

    def port(self, name: str) -> PortInfo:
        """The directed link called `name`, such as ``tor0->spine1``; ``...#2`` for the second of parallel ones.

        Raises:
            UnknownNameError: there is none.
        """
        try:
            return self._ports[name]
        except KeyError:
            raise UnknownNameError(f"no link {name!r}; names look like {self._example()}") from None

    def _example(self) -> str:
        return f"{self.ports[0].name} and {self.ports[-1].name}"

    @property
    def symphony_switches(self) -> list[Switch]:
        """Those with Symphony, in the order of their `pipeline`."""
        return [switch for switch in self.switches if switch.pipeline >= 0]

    # ---------------------------------------------------------------------------------------- paths

    def reseed(self, seed: int) -> None:
        """Give every switch's ECMP hash its own salt, derived from `seed`."""
        for switch in self.switches:
            switch.salt = mix(mix(seed + 1) ^ (switch.index + 1))

    def path(self, src: Host, dst: Host, sport: int) -> list[int]:
        """Ports from the NIC of `src` to `dst` for UDP source port `sport` (destination port 4791).

        With static routing, a host's place among all NICs is written in the number system of the uplinks that it meets
        on the way up (S-mod-k), so neighbours share evenly at every tier; on the way down it goes by the place itself.

        Raises:
            FabricError: it is the same host, or no path leads there.
        """
        if src.index == dst.index:
            raise FabricError(f"{src.name} sends to itself: loopback does not cross the fabric")
        ports = [src.nic]
        node = src.tor
        digits = src.position
        static = self.spec.routing == "static"
        detour = self._detour
        while node != dst.tor:
            switch = self.switches[node]
            choices = switch.towards[dst.tor]
            if not choices:
                raise FabricError(f"no path from {src.name} to {dst.name}: {switch.name} knows no way up or down")
            egress = choices[0]
            if len(choices) > 1:
                masked = sport & switch.hash_sport_mask
                if not static:
                    egress = choices[ecmp_hash(int(src.address), int(dst.address), masked, switch.salt) % len(choices)]
                elif self.switches[self.ports[egress].peer].tier > switch.tier:
                    egress = choices[digits % len(choices)]
                    digits //= len(choices)
                else:
                    egress = choices[src.position % len(choices)]
                if detour and detour.port in choices and detour.takes(choices, src.position, masked, switch.salt):
                    egress = detour.port
            ports.append(egress)
            node = self.ports[egress].peer
        ports.append(dst.down)
        return ports
