# SPDX-License-Identifier: Apache-2.0
"""A fabric of any shape from a YAML file, in the words of testbed.yaml; docs/twin.md has an example.

    name: lab
    settings: {mtu: 4096, routing: ecmp}             # fields of `fabric_twin.presets.Settings`
    defaults: {gbps: 100, delay_us: 1}               # of links that do not say
    switches: [{name: tor0}, {name: spine0, tier: 1, symphony: true}]
    hosts: [{name: h0, address: 10.0.0.1}, {name: h1}]
    links: [{ends: [h0, tor0]}, {ends: ["tor0:128", spine0], gbps: 400}]

YAML and not TOML: it is what operators already write for host-agent, and its parser keeps the line of every value,
so that each refusal can name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any

import yaml

from fabric_twin.errors import ConfigError
from fabric_twin.plan import LinkPlan, NicPlan, Plan, SwitchPlan
from fabric_twin.presets import MAX_DELAY_US, MAX_GBPS, Settings, Skew
from fabric_twin.topology import NUM_PIPES, PORTS_PER_PIPE, Topology

__all__ = ["FabricFile", "load_fabric"]

MAX_BYTES = 16 << 20
MAX_TIER = 9
MAX_RAIL = 249
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}", re.ASCII)
NIC_NAME = re.compile(r".*\.r\d+")


@dataclass(frozen=True, kw_only=True)
class FabricFile(Settings):
    """A fabric as its file describes it."""

    graph: Plan = field(repr=False)

    def description(self) -> dict[str, Any]:
        """What results say about the fabric: its size, and the settings."""
        hosts = len({nic.host for nic in self.graph.nics})
        size = {"hosts": hosts, "nics": len(self.graph.nics), "switches": len(self.graph.switches)}
        return size | super().description()

    def plan(self) -> Plan:
        """What the file has."""
        return self.graph


def load_fabric(path: Path) -> FabricFile:
    """Read and check a fabric file.

    Raises:
        ConfigError: it cannot be read or describes no fabric that can work; says file, line and reason.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB: this is no fabric file")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no UTF-8 text: byte {error.start} cannot be read") from None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{path}: empty; a fabric file has switches, hosts and links")
        return _Reader(loader).fabric(node, path.stem)
    except _LineError as error:
        raise ConfigError(f"{path}:{error.line}: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: no YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: no YAML: {' '.join(str(error).split())}") from None


class _LineError(Exception):
    def __init__(self, node: yaml.Node, reason: str) -> None:
        super().__init__(reason)
        self.line = node.start_mark.line + 1


@dataclass
class _Host:
    node: yaml.Node
    name: str
    addresses: list[IPv4Address]
    nics: dict[int, tuple[yaml.Node, int, int | None, float, float]] = field(default_factory=dict)
    """rail -> the link's node, switch, its device port, rate, delay"""


class _Reader:
    """Goes through the file once; stops at the first thing that is wrong."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._switches: dict[str, int] = {}
        self._switch_nodes: list[yaml.Node] = []
        self._plans: list[SwitchPlan] = []
        self._hosts: dict[str, _Host] = {}
        self._links: list[LinkPlan] = []
        self._linked: set[int] = set()
        self._used: dict[tuple[str, int], int] = {}
        """(name, port) -> line"""

    # ---------------------------------------------------------------------------------------- pieces of YAML

    def _map(
        self, node: yaml.Node, what: str, allowed: tuple[str, ...], needed: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Key -> node of its value."""
        if not isinstance(node, yaml.MappingNode):
            raise _LineError(node, f"{what} must be a map with {', '.join(allowed)}")
        out: dict[str, Any] = {}
        for key_node, value in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "(no word)"
            if key not in allowed:
                raise _LineError(key_node, f"{what} has an unknown key {key!r}; there are {', '.join(allowed)}")
            if key in out:
                raise _LineError(key_node, f"{what} has {key} twice")
            out[key] = value
        for key in needed:
            if key not in out:
                raise _LineError(node, f"{what} has no {key}")
        return out

    def _list(self, node: yaml.Node, what: str) -> Iterator[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise _LineError(node, f"{what} must be a list")
        yield from node.value

    def _value(self, node: yaml.Node) -> Any:
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, OverflowError) as error:
            raise _LineError(node, f"{node.value!r} cannot be read: {error}") from None

    def _name(self, node: yaml.Node, what: str) -> str:
        name = node.value if isinstance(node, yaml.ScalarNode) else None
        if name is None or not NAME.fullmatch(name):
            raise _LineError(node, f"{what} must be a letter and then letters, digits and . _ -, 63 in all")
        return str(name)

    def _number(self, node: yaml.Node | None, what: str, low: float, high: float, default: float) -> float:
        if node is None:
            return default
        value = self._value(node)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            shown = f" is {node.value!r}" if isinstance(node, yaml.ScalarNode) else " is no number"
            raise _LineError(node, f"{what}{shown}; allowed are {low:g} to {high:g}")
        return float(value)

    # ---------------------------------------------------------------------------------------- the file

    def fabric(self, node: yaml.Node, default_name: str) -> FabricFile:
        top = self._map(
            node,
            "the file",
            ("name", "settings", "defaults", "switches", "hosts", "links"),
            ("switches", "hosts", "links"),
        )
        name = self._name(top["name"], "name") if "name" in top else default_name
        defaults = self._map(top["defaults"], "defaults", ("gbps", "delay_us")) if "defaults" in top else {}
        for entry in self._list(top["switches"], "switches"):
            self._switch(entry)
        for entry in self._list(top["hosts"], "hosts"):
            self._host(entry)
        if not self._hosts:
            raise _LineError(top["hosts"], "there is no host")
        gbps, delay_us = self._speed(defaults, "defaults", 10.0, 1.0)
        for entry in self._list(top["links"], "links"):
            self._link(entry, gbps, delay_us)
        graph = Plan(self._plans, self._nics(), self._links)
        for switch, s in enumerate(self._plans):
            if switch not in self._linked:
                raise _LineError(self._switch_nodes[switch], f"switch {s.name} has no link")
        settings, marks = self._settings(top.get("settings"))
        marks |= {s.name: mark for s, mark in zip(self._plans, self._switch_nodes, strict=True)}
        try:
            spec = FabricFile(name, graph=graph, **settings)
            topology = Topology(spec, 0)
        except ConfigError as error:
            reason = str(error)
            words = re.split(r"[ ,:;=]+", reason)
            raise _LineError(next((marks[word] for word in words if word in marks), node), reason) from None
        self._check_routes(topology)
        return spec

    def _settings(self, node: yaml.Node | None) -> tuple[dict[str, Any], dict[str, yaml.Node]]:
        known = {f.name: f.default for f in fields(Settings) if f.name != "name"}
        given = self._map(node, "settings", tuple(known)) if node is not None else {}
        values: dict[str, Any] = {}
        for key, value_node in given.items():
            value, default = self._value(value_node), known[key]
            if key == "skew":
                try:
                    values[key] = Skew.parse(str(value))
                except ConfigError as error:
                    raise _LineError(value_node, str(error)) from None
                continue
            if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not type(default):
                kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[type(default)]
                raise _LineError(value_node, f"{key} must be {kind}")
            values[key] = value
        return values, dict(given)

    def _switch(self, node: yaml.Node) -> None:
        given = self._map(node, "a switch", ("name", "tier", "symphony"), ("name",))
        name = self._name(given["name"], "name of a switch")
        self._new(given["name"], name)
        tier = self._number(given.get("tier"), f"tier of {name}", 0, MAX_TIER, 0)
        symphony = self._value(given["symphony"]) if "symphony" in given else None
        if symphony is not None and not isinstance(symphony, bool):
            raise _LineError(given["symphony"], f"symphony of {name} must be true or false")
        if tier != int(tier):
            raise _LineError(given["tier"], f"tier of {name} must be a whole number")
        self._switches[name] = len(self._plans)
        self._switch_nodes.append(node)
        self._plans.append(SwitchPlan(name, int(tier), symphony))

    def _new(self, node: yaml.Node, name: str) -> None:
        if name in self._switches or name in self._hosts:
            raise _LineError(node, f"there are two of the name {name}")

    def _host(self, node: yaml.Node) -> None:
        given = self._map(node, "a host", ("name", "address"), ("name",))
        name = self._name(given["name"], "name of a host")
        if NIC_NAME.fullmatch(name):
            raise _LineError(given["name"], f"name of a host is {name}, but .r and a number is how its NICs are called")
        self._new(given["name"], name)
        addresses = []
        if "address" in given:
            entry = given["address"]
            for one in entry.value if isinstance(entry, yaml.SequenceNode) else [entry]:
                try:
                    addresses.append(IPv4Address(str(one.value)))
                except AddressValueError:
                    raise _LineError(one, f"address of {name} is {one.value!r}, which is no IPv4 address") from None
        self._hosts[name] = _Host(node, name, addresses)

    def _speed(self, given: dict[str, Any], what: str, gbps: float, delay_us: float) -> tuple[float, float]:
        return (
            self._number(given.get("gbps"), f"gbps of {what}", 0.01, MAX_GBPS, gbps),
            self._number(given.get("delay_us"), f"delay_us of {what}", 0, MAX_DELAY_US, delay_us),
        )

    def _link(self, node: yaml.Node, gbps: float, delay_us: float) -> None:
        given = self._map(node, "a link", ("ends", "gbps", "delay_us"), ("ends",))
        ends = [self._end(end) for end in self._list(given["ends"], "ends of a link")]
        if len(ends) != 2:
            raise _LineError(given["ends"], f"a link has {len(ends)} ends; it must have two")
        what = f"link {ends[0][0]} - {ends[1][0]}"
        gbps, delay_us = self._speed(given, what, gbps, delay_us)
        if ends[0][0] in self._switches and ends[1][0] in self._hosts:
            ends.reverse()
        (a, a_port), (b, b_port) = ends
        if b in self._hosts:
            raise _LineError(node, f"{what} joins two hosts; a host hangs on a switch")
        for name, port in ends:
            if port is not None:
                self._use(node, name, port)
        upper = self._switches[b]
        self._linked.add(upper)
        if a in self._hosts:
            nics = self._hosts[a].nics
            rail = next(r for r in range(len(nics) + 1) if r not in nics) if a_port is None else a_port
            if rail in nics:
                raise _LineError(
                    node, f"two links to one port, {a}:{rail}; the other is in line {self._line(nics[rail][0])}"
                )
            nics[rail] = (node, upper, b_port, gbps, delay_us)
            return
        lower = self._switches[a]
        if self._plans[lower].tier > self._plans[upper].tier:
            lower, upper, a_port, b_port = upper, lower, b_port, a_port
        if self._plans[lower].tier == self._plans[upper].tier:
            raise _LineError(
                node,
                f"{what} joins two switches of tier {self._plans[lower].tier}; links lead from a tier to a higher one, "
                "so that paths go up and down and pause frames cannot wait for each other in a circle",
            )
        self._linked |= {lower, upper}
        self._links.append(LinkPlan(lower, upper, gbps, delay_us, a_port, b_port))

    @staticmethod
    def _line(node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1

    def _end(self, node: yaml.Node) -> tuple[str, int | None]:
        """``tor0`` or ``tor0:128``: a host's port is its rail, a switch's port its device port."""
        name, colon, number = str(node.value if isinstance(node, yaml.ScalarNode) else "").partition(":")
        if name not in self._switches and name not in self._hosts:
            raise _LineError(node, f"a link leads to {name!r}, but there is no switch or host of that name")
        if not colon:
            return name, None
        most = MAX_RAIL if name in self._hosts else NUM_PIPES * PORTS_PER_PIPE - 1
        if not number.isdecimal() or not number.isascii() or len(number) > 4 or int(number) > most:
            raise _LineError(node, f"port {number!r} of {name}; allowed are 0 to {most}")
        return name, int(number)

    def _use(self, node: yaml.Node, name: str, port: int) -> None:
        if (name, port) in self._used:
            raise _LineError(
                node, f"two links to one port, {name}:{port}; the other is in line {self._used[name, port]}"
            )
        self._used[name, port] = self._line(node)

    # ---------------------------------------------------------------------------------------- what follows from it

    def _nics(self) -> list[NicPlan]:
        """NICs rail by rail, with an address for each."""
        nics = []
        count: dict[int, int] = {}
        taken: dict[IPv4Address, str] = {}
        for host in self._hosts.values():
            if not host.nics:
                raise _LineError(host.node, f"host {host.name} has no link: nothing connects it")
            if host.addresses and len(host.addresses) != len(host.nics):
                raise _LineError(
                    host.node, f"host {host.name} has {len(host.addresses)} addresses and {len(host.nics)} links"
                )
            for place, (rail, (_, switch, port, gbps, delay_us)) in enumerate(sorted(host.nics.items())):
                nth = count[switch] = count.get(switch, 0) + 1
                if host.addresses:
                    address = host.addresses[place]
                elif nth <= 250 and switch <= 255:
                    address = IPv4Address(f"10.{rail}.{switch}.{nth}")
                else:
                    raise _LineError(
                        host.node, f"host {host.name} needs an address: 10.<rail>.<switch>.<n> has no more"
                    )
                if taken.setdefault(address, host.name) != host.name:
                    raise _LineError(host.node, f"{host.name} has the address {address} of {taken[address]}")
                nics.append(NicPlan(host.name, rail, address, switch, gbps, delay_us, port))
        return sorted(nics, key=lambda nic: nic.rail)

    def _check_routes(self, topology: Topology) -> None:
        """Hosts of one rail reach each other."""
        first: dict[tuple[int, int], str] = {}
        for host in topology.hosts:
            first.setdefault((host.rail, host.tor), host.machine)
        for (rail, a), name in first.items():
            for (other_rail, b), other in first.items():
                if rail == other_rail and a != b and not topology.switches[a].towards[b]:
                    raise _LineError(
                        self._hosts[name].node,
                        f"no route from {name} to {other}: no path goes up from {topology.switches[a].name} "
                        f"and then down to {topology.switches[b].name}",
                    )
