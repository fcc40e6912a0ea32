# SPDX-License-Identifier: Apache-2.0
"""Does the packet filter let RoCE through? A packet to UDP port 4791 is taken through the rules, by reading them.

Rules of nftables and iptables are both brought to one small form. A rule whose conditions all hold for such a packet
decides; one with conditions that are not understood here (addresses, interfaces) only may. To connection tracking the
packet is new: the two directions of a RoCE connection have different source ports, so neither answers the other.
Hardware NICs send and receive RoCE past the packet filter; soft-RoCE goes through it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Machine
from ring_bench.doctor.options import Examination

__all__ = ["ROCE_PORT", "Chain", "Rule", "check_firewall", "from_iptables", "from_nft", "verdict"]

ROCE_PORT = 4791

_YES, _NO, _MAYBE = "yes", "no", "maybe"
_DEEPEST = 15
_HOOKS = ("ingress", "prerouting", "input", "output", "postrouting", "egress")
_VERDICTS = ("accept", "drop", "reject", "return", "continue", "jump", "goto")


@dataclass
class Rule:
    """A rule, as far as it matters for a RoCEv2 packet."""

    text: str
    matches: str
    """"yes": every packet to the port; "no": none; "maybe": some."""
    action: str
    """"accept", "drop" (reject too), "jump", "return" or "" (it only counts or logs)."""
    target: str = ""
    """Chain to jump to."""


@dataclass
class Chain:
    """A chain; one with a hook is where packets begin."""

    name: str
    hook: str = ""
    policy: str = "accept"
    rules: list[Rule] = field(default_factory=list)


def check_firewall(on: Examination) -> Iterator[Finding]:
    """Is UDP port 4791 open in both directions?"""
    machine = on.machine
    ruleset = machine.json("nft", "-j", "list", "ruleset")
    nft = from_nft(ruleset) if isinstance(ruleset, dict) else {}
    tables = [_Table(f"nft table {name}", f"nft insert rule {name}", chains) for name, chains in nft.items()]
    legacy, hidden = _iptables(machine)
    tables += legacy
    if ruleset is None and (not tables or (machine.sys / "module" / "nf_tables").exists()):
        hidden.insert(0, "nft's own tables, as firewalld makes them" if tables else "neither nft nor iptables-save")
    if hidden:
        seen = (
            f"only {' and '.join(table.title for table in tables)} can be listed"
            if tables
            else "no rules can be listed"
        )
        yield unknown(
            "firewall",
            "",
            f"{seen}, not: {'; '.join(hidden)}",
            "run as root with nftables and iptables installed, or try it: --probe",
        )
    if not tables and ruleset is None:
        return
    found = [
        (answer, f"{table.title}, chain {chain.name}: {reason}", table.way_through(chain))
        for table in tables
        for chain in table.chains.values()
        if chain.hook in _HOOKS
        for answer, reason in (verdict(chain, table.chains),)
        if answer != "accept"
    ]
    software = any(port.software for port in on.roce) or not on.roce
    for answer, evidence, fix in dict.fromkeys(found):
        if answer == "drop" and software:
            yield error("firewall", "", f"RoCE (UDP port {ROCE_PORT}) is dropped: {evidence}", fix)
        elif answer == "drop":
            yield warning(
                "firewall", "", f"{evidence}; RoCE of a hardware NIC passes by, but see to switch ACLs likewise", fix
            )
        else:
            yield warning("firewall", "", f"RoCE may be dropped, on a condition not understood here: {evidence}", fix)
    if not found:
        yield fine("firewall", "", f"UDP port {ROCE_PORT} passes {len(tables)} rule tables")


class _Table(NamedTuple):
    """Chains that jump to each other."""

    title: str
    insert: str
    """How a rule is put at the head of one of its chains: the beginning of the command."""
    chains: dict[str, Chain]

    def way_through(self, chain: Chain) -> str:
        """Say how RoCE gets through a chain."""
        if self.insert.startswith("nft"):
            return f"{self.insert} {chain.name} udp dport {ROCE_PORT} accept"
        return f"{self.insert} {chain.name} -p udp --dport {ROCE_PORT} -j ACCEPT"


def _iptables(machine: Machine) -> tuple[list[_Table], list[str]]:
    """Give the tables that iptables and its older form list, and what neither of them could list.

    The kernel keeps the older form's tables apart from nft's, where iptables of today does not see them.
    """
    tables, hidden = [], []
    for family, names in (("iptables", "ip_tables_names"), ("ip6tables", "ip6_tables_names")):
        texts = []
        for program in (f"{family}-save", f"{family}-legacy-save"):
            output = machine.run(program)
            if output.status == 0 and output.text not in texts:
                texts.append(output.text)
        for text in texts:
            for name, lines in _by_table(text):
                title = f"{family} table {name}"
                tables.append(_Table(title, f"{family} -t {name} -I", from_iptables(lines)))
        kept = machine.read(machine.proc / "self/net" / names)
        if kept and not any("nf_tables" not in text.partition("\n")[0] for text in texts):
            hidden.append(f"the tables {', '.join(kept.split())} of {family}-legacy")
    return tables, hidden


def _by_table(text: str) -> Iterator[tuple[str, str]]:
    """Split what iptables-save prints; the table nat drops nothing."""
    for part in re.split(r"^\*", text, flags=re.M)[1:]:
        name, _, lines = part.partition("\n")
        if name.strip() != "nat":
            yield name.strip(), lines


def verdict(chain: Chain, chains: dict[str, Chain], depth: int = 0) -> tuple[str, str]:
    """Take a packet through a chain.

    Returns:
        "accept", "drop", "maybe" or (in chains that are jumped to) "return", and the rule or policy that did it.
    """
    doubt = ""
    spared = False
    for rule in chain.rules:
        if rule.matches == _NO:
            continue
        action, reason = rule.action, rule.text
        if action == "return" and rule.matches == _YES:
            break
        if action == "jump":
            if depth > _DEEPEST or rule.target not in chains:
                continue
            action, reason = verdict(chains[rule.target], chains, depth + 1)
        if action == "maybe" or (action == "drop" and rule.matches == _MAYBE):
            doubt = doubt or reason
        elif action == "accept" and rule.matches == _MAYBE:
            spared = True
        elif action in ("accept", "drop"):
            if action == "drop" and spared:
                return "maybe", reason
            return ("maybe", doubt) if action == "accept" and doubt else (action, reason)
    if chain.hook and chain.policy == "drop":
        return "maybe" if spared else "drop", "policy drop"
    return ("maybe", doubt) if doubt else ("accept" if chain.hook else "return", "")


def from_nft(ruleset: dict[str, Any]) -> dict[str, dict[str, Chain]]:
    """Read what ``nft -j list ruleset`` prints; chains by table."""
    tables: dict[str, dict[str, Chain]] = {}
    sets: dict[tuple[str, str], Any] = {}
    for item in ruleset.get("nftables", []):
        (kind, body), *_ = item.items()
        where = f"{body.get('family')} {body.get('table')}" if isinstance(body, dict) else ""
        if kind in ("set", "map"):
            sets[where, f"@{body['name']}"] = {"set": body.get("elem", [])}
        elif kind == "chain":
            chain = Chain(body["name"], body.get("hook", ""), body.get("policy", "accept"))
            tables.setdefault(where, {})[body["name"]] = chain
    for item in ruleset.get("nftables", []):
        rule = item.get("rule")
        if rule is None or rule.get("family") not in ("ip", "ip6", "inet", "netdev"):
            continue
        where = f"{rule['family']} {rule['table']}"
        if rule["chain"] in tables.get(where, {}):
            # A chain of the family netdev sees one network device's packets, and nft 1.0 does not say whose.
            matches = _MAYBE if rule["family"] == "netdev" else _YES
            tables[where][rule["chain"]].rules += _nft_rules(rule.get("expr", []), where, sets, matches)
    return tables


def from_iptables(text: str) -> dict[str, Chain]:
    """Read what ``iptables-save`` prints of a table."""
    chains: dict[str, Chain] = {}
    for line in text.splitlines():
        if line.startswith(":"):
            name, policy, *_ = line[1:].split()
            hook = name.lower() if name in ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING") else ""
            chains[name] = Chain(name, hook, "drop" if policy == "DROP" else "accept")
        elif line.startswith("-A "):
            words = shlex.split(line)
            if words[1] in chains:
                chains[words[1]].rules.append(_iptables_rule(line, words[2:]))
    return chains


def _nft_rules(
    expressions: Sequence[dict[str, Any]], where: str, sets: dict[tuple[str, str], Any], matches: str
) -> list[Rule]:
    """Read a rule; one that ends in a verdict map becomes a rule for each entry of the map."""
    action, target, words = "", "", []
    for expression in expressions:
        (kind, body), *_ = expression.items()
        if kind == "match":
            holds, text = _nft_match(body, where, sets)
            matches = _and(matches, holds)
            words.append(text)
        elif kind in _VERDICTS:
            action, target, text = _nft_verdict(kind, body)
            words.append(text)
        elif kind == "vmap":
            return list(_nft_map(body, where, sets, matches, words))
        elif kind in ("counter", "log"):
            continue
        else:  # limits, maps and what else may come
            matches = _and(matches, _MAYBE)
            words.append(kind)
    return [Rule(" ".join(words), matches, action, target)]


def _nft_verdict(kind: str, body: Any) -> tuple[str, str, str]:
    """Give action, chain to jump to and text of a verdict."""
    if kind in ("jump", "goto"):
        return "jump", body["target"], f"{kind} {body['target']}"
    return {"reject": "drop", "continue": ""}.get(kind, kind), "", kind


def _nft_map(
    body: dict[str, Any], where: str, sets: dict[tuple[str, str], Any], matches: str, words: Sequence[str]
) -> Iterator[Rule]:
    data = body.get("data")
    known = sets.get((where, data)) if isinstance(data, str) else data
    if not isinstance(known, dict):  # may hold anything
        yield Rule(" ".join([*words, "vmap", str(data)]), _and(matches, _MAYBE), "drop")
        return
    for value, outcome in known.get("set", []):
        holds, text = _nft_match({"left": body.get("key"), "right": value}, where, sets)
        (kind, detail), *_ = outcome.items()
        action, target, verdict_text = _nft_verdict(kind, detail)
        yield Rule(" ".join([*words, text, verdict_text]), _and(matches, holds), action, target)


def _nft_match(body: dict[str, Any], where: str, sets: dict[tuple[str, str], Any]) -> tuple[str, str]:
    left, right = body.get("left"), body.get("right")
    right = sets.get((where, right), right) if isinstance(right, str) else right
    payload = left.get("payload", {}) if isinstance(left, dict) else {}
    meta = left.get("meta", {}).get("key") if isinstance(left, dict) and isinstance(left.get("meta"), dict) else None
    protocol, name = payload.get("protocol"), payload.get("field")
    if protocol in ("udp", "th") and name == "dport":
        holds, text = (_YES if _contains(right, ROCE_PORT) else _NO), f"{protocol} dport {_show(right)}"
    elif protocol in ("tcp", "icmp", "icmpv6", "sctp", "dccp"):
        holds, text = _NO, str(protocol)
    elif meta == "l4proto" or (protocol, name) in (("ip", "protocol"), ("ip6", "nexthdr")):
        holds, text = (_YES if _contains(right, "udp") or _contains(right, 17) else _NO), f"protocol {_show(right)}"
    elif isinstance(left, dict) and left.get("ct", {}).get("key") == "state":
        holds, text = (_YES if _contains(right, "new") else _NO), f"ct state {_show(right)}"
    elif meta in ("iif", "iifname", "oif", "oifname") and right == "lo":
        holds, text = _NO, f"{meta} lo"
    else:
        return _MAYBE, "a condition on " + (meta or name or next(iter(left or {"?": 0}), "?"))
    if body.get("op") == "!=" and holds != _MAYBE:
        holds, text = (_NO if holds == _YES else _YES), f"not {text}"
    return holds, text


def _contains(right: Any, wanted: int | str) -> bool:
    if isinstance(right, dict) and "set" in right:
        return any(_contains(element, wanted) for element in right["set"])
    if isinstance(right, dict) and "elem" in right:
        return _contains(right["elem"].get("val"), wanted)
    if isinstance(right, dict) and "range" in right:
        low, high = right["range"]
        return isinstance(low, int) and isinstance(wanted, int) and low <= wanted <= high
    if isinstance(right, list):
        return any(_contains(element, wanted) for element in right)
    return bool(right == wanted)


def _show(right: Any) -> str:
    if isinstance(right, dict) and "range" in right:
        return "-".join(map(str, right["range"]))
    if isinstance(right, dict) and "set" in right:
        return "{" + ",".join(_show(element) for element in right["set"]) + "}"
    return str(right)


def _iptables_rule(text: str, words: Sequence[str]) -> Rule:
    matches, action, target = _YES, "", ""
    inverted = False
    options = iter(words)
    for word in options:
        if word == "!":
            inverted = True
            continue
        if word in ("-j", "-g"):
            target = next(options)
            action = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "drop", "RETURN": "return", "LOG": ""}.get(
                target, "jump"
            )
            break
        if word == "-m":
            if next(options) not in ("udp", "multiport", "comment", "state", "conntrack"):
                matches = _and(matches, _MAYBE)
        elif word in ("--state", "--ctstate"):
            matches = _and(matches, _flip("NEW" in next(options).split(","), inverted))
        elif word in ("-i", "-o"):
            name = next(options)
            matches = _and(matches, _flip(False, inverted) if name == "lo" else _MAYBE)
        elif word == "-p":
            matches = _and(matches, _flip(next(options) in ("udp", "17", "all", "0"), inverted))
        elif word in ("--dport", "--dports", "--destination-port", "--destination-ports"):
            matches = _and(matches, _flip(_in_ports(next(options)), inverted))
        elif word == "--comment":
            next(options)
        elif word.startswith("-"):
            matches = _and(matches, _MAYBE)
        inverted = False
    return Rule(text, matches, action, target)


def _in_ports(text: str) -> bool:
    for part in text.split(","):
        low, _, high = part.partition(":")
        if low.isdigit() and int(low) <= ROCE_PORT <= int(high or low):
            return True
    return False


def _flip(holds: bool, inverted: bool) -> str:
    return _YES if holds is not inverted else _NO


def _and(one: str, other: str) -> str:
    if _NO in (one, other):
        return _NO
    return _MAYBE if _MAYBE in (one, other) else _YES
