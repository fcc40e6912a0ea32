# SPDX-License-Identifier: Apache-2.0
"""The way to the peers: names, routes, neighbours, MTUs, one-subnet traps. Only ring edges are looked at."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Address, Machine, Output, Port
from ring_bench.doctor.options import Examination

__all__ = ["Edge", "check_mtu", "check_path_mtu", "check_peers", "check_routes", "check_subnets", "local_edges"]

ROCE_HEADERS = {4: 64, 6: 84}
"""Bytes around the payload within the L3 MTU: IPv4 20 or IPv6 40, UDP 8, BTH 12, RETH 16, immediate 4, ICRC 4."""
_JUMBO = 4200
"""L3 MTU that holds packets of active MTU 4096."""
_SMALL_PING = 84
_NEIGHBOUR_WAIT_S = 1.0
_GOOD_NEIGHBOUR = {"PERMANENT", "REACHABLE", "STALE", "DELAY", "PROBE", "NOARP"}


class Edge(NamedTuple):
    """A ring edge that leaves this machine."""

    source: Address
    port: Port
    netdev: str
    """Network device of the source's GID: a VLAN's, where the address is there."""
    target: Address

    @property
    def name(self) -> str:
        """As findings name it."""
        return f"{self.source} -> {self.target}"


def local_edges(on: Examination) -> list[Edge]:
    """Give the edges of the ring of peers, in both directions, whose source is a port of this machine."""
    ring = [address for addresses in (_resolve(peer) for peer in on.options.peers) for address in addresses[:1]]
    if len(ring) < 2:
        return []
    found = {}
    for one, other in pairwise([*ring, ring[0]]):
        for source, target in ((one, other), (other, one)):  # acknowledgements and credits take the way back
            port = on.machine.port_of(source)
            if port is not None and source != target:
                netdev = next(gid.netdev for gid in on.machine.usable(port) if gid.address == source)
                found[source, target] = Edge(source, port, netdev, target)
    return list(found.values())


def check_peers(on: Examination) -> Iterator[Finding]:
    """Do the peers' names mean one RoCE address each, and is one of them this machine?"""
    peers = on.options.peers
    if not peers:
        if on.roce:
            evidence = "no ring is given: routes, neighbours and the path MTU were not looked at"
            yield unknown("peers", "", evidence, "--peers with the addresses of the ring's hosts in rank order")
        return
    seen: dict[Address, str] = {}
    for peer in peers:
        addresses = _resolve(peer)
        if not addresses:
            yield error("peers", peer, "resolves to no address", "give the address of its RoCE port")
            continue
        address = addresses[0]
        if address.is_loopback or address.is_link_local:
            kind = "a loopback" if address.is_loopback else "a link-local"
            yield error("peers", peer, f"is {address}, {kind} address", "give the address of its RoCE port")
        elif address in seen:
            yield error("peers", peer, f"is {address}, as {seen[address]} is", "each rank has an address of its own")
        elif len(addresses) > 1:
            listed = ", ".join(map(str, addresses))
            yield warning("peers", peer, f"has several addresses: {listed}", "name the one of its RoCE port")
        seen.setdefault(address, peer)
    if len(peers) == 1:
        yield error("peers", peers[0], "one host is no ring", "--peers takes all hosts of the ring, this one included")
    here = [str(address) for address in seen if on.machine.port_of(address) is not None]
    if here:
        yield fine("peers", "", f"{len(peers)} peers, of which this machine is {', '.join(here)}")
    else:
        own = [str(gid.address) for port in on.roce for gid in on.machine.usable(port)]
        yield error(
            "peers",
            "",
            f"none of {', '.join(map(str, seen))} is a usable RoCE address of this machine, which has "
            f"{', '.join(own) or 'none'}",
            "run this on a host of the ring, and see gid",
        )


def check_routes(on: Examination) -> Iterator[Finding]:
    """Is there a route along each ring edge, out of the right port, and does the next hop answer?"""
    machine = on.machine
    for edge in local_edges(on):
        family = ("-6",) if edge.target.version == 6 else ()
        ask = ("ip", "-j", *family, "route", "get", str(edge.target), "from", str(edge.source))
        bound = machine.json(*ask, "oif", edge.netdev)
        if not bound:
            answer = machine.run(*ask, "oif", edge.netdev)
            if answer.status is None:
                yield unknown(
                    "route", "", "the program ip is missing, routes are not known", "apt-get install iproute2"
                )
                return
            fix = f"ip route add {edge.target} dev {edge.netdev}, or a gateway for its subnet"
            yield error("route", edge.name, f"none over {edge.netdev}: {answer.last_words}", fix)
            continue
        hop = ipaddress.ip_address(bound[0].get("gateway", str(edge.target)))
        free = machine.json(*ask)
        via = f" by gateway {hop}" if hop != edge.target else ""
        if not free:
            yield warning(
                "route",
                edge.name,
                f"there is none; bound to {edge.netdev}, as RoCE is, the kernel takes {edge.target} to be on the link",
                f"a gateway for its subnet: ip route add {edge.target} via GATEWAY dev {edge.netdev}",
            )
        elif (chosen := free[0].get("dev", "?")) not in (edge.netdev, "lo"):  # lo: both ends are here
            yield warning(
                "route",
                edge.name,
                f"RoCE goes out of {edge.netdev}{via}, all else out of {chosen}: TCP working says nothing of RoCE",
                f"a rule for the source address: ip rule add from {edge.source} lookup TABLE",
            )
        else:
            yield fine("route", edge.name, f"over {edge.netdev}{via}")
        yield _neighbour(machine, edge, hop)


def check_path_mtu(on: Examination) -> Iterator[Finding]:
    """Do full packets reach the peers on other machines? A ping of their size, which no router may cut, tells; it is
    the only word on the switch's MTU, and on a host that is down while its neighbour entry still looks well.
    """
    machine = on.machine
    for edge in local_edges(on):
        mtu = _active_mtu(machine, edge.port)
        own = machine.number(machine.netdev(edge.netdev) / "mtu")
        headers = ROCE_HEADERS[edge.target.version]
        if mtu is None or own is None or own < mtu + headers or machine.port_of(edge.target) is not None:
            continue  # check_mtu says that; ends that are both here are its own and --probe's
        size = mtu + headers
        answers = [_ping(machine, edge, size)]
        if answers[0].status == 0:
            yield fine("path-mtu", edge.name, f"a ping of {size} bytes comes back in one piece")
            continue
        answers.append(_ping(machine, edge, _SMALL_PING))
        limit = next((line for line in f"{answers[0].errors}\n{answers[0].text}".splitlines() if "mtu" in line), "")
        if answers[1].status == 0:
            yield error(
                "path-mtu",
                edge.name,
                f"a ping of {_SMALL_PING} bytes is answered, one of {size} bytes, a full packet of active MTU {mtu}, "
                f"is not{': ' if limit else ''}{limit.strip()}",
                f"the same MTU on the switch ports and on the peer ({_JUMBO} for active MTU 4096)",
            )
        elif answers[1].status == 1:
            yield unknown(
                "path-mtu",
                edge.name,
                f"{edge.target} answers no ping over {edge.netdev}: it is down (a neighbour entry may be from "
                "earlier), or ICMP is filtered",
                "see that it is up; let ICMP echo through, or give --switch-mtu and run doctor on it too",
            )
        else:
            yield unknown(
                "path-mtu",
                edge.name,
                f"ping does not run: {answers[1].last_words}",
                "apt-get install iputils-ping, and run as root; or give --switch-mtu",
            )


def check_mtu(on: Examination) -> Iterator[Finding]:
    """Do network device, port and the other end of the link fit together, and the ports with each other?"""
    machine = on.machine
    active: dict[str, int] = {}
    for port in on.roce:
        known = _active_mtu(machine, port)
        own = machine.number(machine.netdev(port.netdev) / "mtu") if port.netdev else None
        if known is None or own is None:
            have = f"{port.netdev or 'its network device'} has {own or 'none here'}"
            yield unknown(
                "mtu", port.name, f"{have}, the port's active MTU is not known", "mend pyverbs and provider first"
            )
            continue
        mtu = active[port.name] = known
        others, bridges = _other_ends(machine, port.netdev)
        switch = on.options.switch_mtu
        links = {port.netdev: own} | others
        told = links | ({"the switch": switch} if switch is not None else {}) | bridges
        evidence = ", ".join([f"active MTU {mtu}", *(f"{name} {value}" for name, value in told.items())])
        usable = machine.usable(port)
        needed = mtu + ROCE_HEADERS[usable[0].address.version if usable else 4]
        small = [name for name, value in links.items() if value < needed]
        small_switch = switch is not None and switch < needed
        if small or small_switch:
            wide = max(needed, _JUMBO)
            fixes = [f"ip link set {name} mtu {wide}" for name in small]
            fixes += [f"an L3 MTU of {wide} on the switch ports"] if small_switch else []
            where = " and ".join([*small, *(["the switch"] if small_switch else [])])
            yield error(
                "mtu",
                port.name,
                f"{evidence}: packets of up to {needed} bytes do not pass {where}",
                f"{', '.join(fixes)}; the same on the whole path",
            )
        elif narrow := [name for name, value in bridges.items() if value < needed]:
            yield warning(
                "mtu",
                port.name,
                f"{evidence}: packets of up to {needed} bytes do not reach every member of {narrow[0]}, whose MTU is "
                "the smallest of theirs unless it was set",
                f"the same MTU on all members: ip link show master {narrow[0]}",
            )
        elif mtu < 4096:
            yield warning(
                "mtu",
                port.name,
                f"{evidence}: 4096 would take fewer, larger packets",
                f"ip link set {port.netdev} mtu {_JUMBO}, on the whole path; jumbo frames on the switch",
            )
        else:
            yield fine("mtu", port.name, evidence)
    if len(set(active.values())) > 1:
        listed = ", ".join(f"{name} {mtu}" for name, mtu in active.items())
        in_ring = {edge.port.name for edge in local_edges(on)}
        fix = "the same MTU on every host of the ring; ring-bench takes the smallest, other programs fail"
        if len({mtu for name, mtu in active.items() if name in in_ring}) > 1:
            yield error("mtu-mismatch", "", f"ports of the ring differ in active MTU: {listed}", fix)
        else:
            yield warning("mtu-mismatch", "", f"active MTUs differ: {listed}", fix)
    elif 0 < len(active) < len(on.roce):
        evidence = f"known of {len(active)} of {len(on.roce)} ports only: {next(iter(active.values()))}"
        yield unknown("mtu-mismatch", "", evidence, "see mtu")
    elif len(active) > 1:
        yield fine("mtu-mismatch", "", f"all {len(active)} ports have active MTU {next(iter(active.values()))}")


def check_subnets(on: Examination) -> Iterator[Finding]:
    """Several NICs in one subnet, RoCE or not: does each answer and send for itself only?"""
    machine = on.machine
    roce = {gid.netdev for port in on.roce for gid in machine.usable(port)}
    if roce and not machine.addresses:
        evidence = "without the program ip the prefixes of the addresses here are not known"
        yield unknown("subnet", "", evidence, "apt-get install iproute2")
        return
    shared = {version: _sharing(machine, roce, version) for version in (4, 6)}
    if roce and not any(shared.values()):
        yield fine("subnet", "", "each RoCE port has a subnet of its own")
    if shared[4]:
        yield _shared_ipv4(machine, shared[4])
    if shared[6]:
        yield warning(
            "subnet",
            ", ".join(shared[6]),
            "they share an IPv6 prefix: the kernel has a route to it by each and takes the first, so packets may leave "
            "by the wrong port",
            "a prefix per port, or a rule for each source address: ip -6 rule add from ADDRESS lookup TABLE, and in "
            "TABLE the route by its own port",
        )


def _sharing(machine: Machine, roce: Collection[str], version: int) -> list[str]:
    """Give the network devices that share a subnet with another one where at least one of the two is RoCE's."""
    homes = [
        (name, interface.network)
        for name, interfaces in machine.addresses.items()
        for interface in interfaces
        if interface.version == version
        and not interface.is_loopback
        and not interface.is_link_local
        and interface.network.prefixlen < interface.max_prefixlen - 1  # no point-to-point link, no single address
    ]
    return sorted(
        {
            name
            for (one, here), (other, there) in combinations(homes, 2)
            if one != other and {one, other} & set(roce) and here.overlaps(there)
            for name in (one, other)
        }
    )


def _shared_ipv4(machine: Machine, shared: Sequence[str]) -> Finding:
    names, wrong, hidden = ", ".join(shared), [], []
    for name in shared:
        for setting, least in (("arp_ignore", 1), ("arp_announce", 2)):
            value = _effective(machine, name, setting)
            if value is None:
                hidden.append(f"{name} {setting}")
            elif value < least:
                wrong.append(f"{name} {setting} {value} (want {least})")
        strict = _effective(machine, name, "rp_filter")
        if strict is None:
            hidden.append(f"{name} rp_filter")
        elif strict == 1:
            wrong.append(f"{name} rp_filter 1 (want 0 or 2)")
    if wrong:
        return warning(
            "subnet",
            names,
            f"they share a subnet: packets may leave or answers come by the wrong port; {', '.join(wrong)}",
            "a subnet per port, or sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 "
            "net.ipv4.conf.all.rp_filter=0, also for each device",
        )
    if hidden:
        evidence = f"they share a subnet, and what that needs cannot be read: {', '.join(hidden)}"
        return unknown("subnet", names, evidence, "sysctl net.ipv4.conf, as root; or a subnet per port")
    return fine("subnet", names, "they share a subnet; arp_ignore, arp_announce and rp_filter are set for that")


def _neighbour(machine: Machine, edge: Edge, hop: Address) -> Finding:
    netdev = edge.netdev

    def state() -> str | None:
        entries = machine.json("ip", "-j", "neigh", "show", str(hop), "dev", netdev)
        if entries is None:
            return None
        return ",".join(entries[0].get("state", [])) if entries else "none"

    found = state()
    if found is None:
        return unknown("neighbour", edge.name, f"ip does not list {netdev}'s neighbours", "apt-get install iproute2")
    if found not in _GOOD_NEIGHBOUR:
        machine.poke(edge.source, hop)
        for _ in range(5):
            found = state()
            if found in _GOOD_NEIGHBOUR:
                break
            machine.pause(_NEIGHBOUR_WAIT_S / 5)
    if found in _GOOD_NEIGHBOUR:
        return fine("neighbour", edge.name, f"{hop} on {netdev}: {found}")
    return error(
        "neighbour",
        edge.name,
        f"{hop} does not answer on {netdev} (neighbour entry: {found})",
        "is the host up, in this VLAN, its port connected? In a routed fabric without ARP give a gateway",
    )


def _ping(machine: Machine, edge: Edge, size: int) -> Output:
    """Send two pings that may not be fragmented, of so many bytes of IP packet."""
    payload = size - (28 if edge.target.version == 4 else 48)
    options = ("-n", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", str(payload), "-I", edge.netdev)
    return machine.run("ping", *options, str(edge.target))


def _active_mtu(machine: Machine, port: Port) -> int | None:
    ports = (machine.library.get("devices", {}).get(port.device) or {}).get("ports", {})
    known = ports.get(str(port.number))
    return None if known is None else int(known["active_mtu"])


def _other_ends(machine: Machine, netdev: str) -> tuple[dict[str, int], dict[str, int]]:
    """Give the MTUs beyond a virtual link, as far as this namespace sees them: of a veth's other end, which drops
    what is larger, and of its bridge, which does not: forwarding looks at the members' MTUs only.
    """
    ends: dict[str, int] = {}
    bridges: dict[str, int] = {}
    link = machine.number(machine.netdev(netdev) / "iflink")
    if link in (None, machine.number(machine.netdev(netdev) / "ifindex")):
        return ends, bridges
    for name in machine.netdevs:
        if machine.number(machine.netdev(name) / "ifindex") != link:
            continue
        for found, names in ((ends, [name]), (bridges, _master(machine, name))):
            known = {other: machine.number(machine.netdev(other) / "mtu") for other in names}
            found.update({other: mtu for other, mtu in known.items() if mtu is not None})
    return ends, bridges


def _master(machine: Machine, netdev: str) -> list[str]:
    path = machine.netdev(netdev) / "master"
    return [path.resolve().name] if path.exists() else []


def _effective(machine: Machine, netdev: str, setting: str) -> int | None:
    """Give a setting as the kernel applies it: the larger of "all" and the device's own."""
    folder = machine.proc / "sys" / "net" / "ipv4" / "conf"
    values = [machine.number(folder / name / setting) for name in ("all", netdev)]
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _resolve(peer: str) -> list[Address]:
    try:
        answers = socket.getaddrinfo(peer, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # the latter for a name that can be none
        return []
    texts = dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers)
    return [ipaddress.ip_address(text) for text in texts]
