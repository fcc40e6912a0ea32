# SPDX-License-Identifier: Apache-2.0

"""A packet to UDP port 4791 through rule sets that people have."""

from __future__ import annotations

from typing import Any

import pytest

from ring_bench.doctor import Severity
from ring_bench.doctor.firewall import from_iptables, verdict

from .conftest import FakeHost


def rules(*chains: dict[str, Any], family: str = "inet") -> dict[str, Any]:
    """Build a ruleset of one table; a chain is {"name", "hook", "policy", "rules": [expressions]}."""
    items: list[dict[str, Any]] = [{"metainfo": {}}, {"table": {"family": family, "name": "filter"}}]
    for chain in chains:
        body = {key: value for key, value in chain.items() if key != "rules"}
        items.append({"chain": {"family": family, "table": "filter", **body}})
    for chain in chains:
        items += [
            {"rule": {"family": family, "table": "filter", "chain": chain["name"], "expr": expressions}}
            for expressions in chain["rules"]
        ]
    return {"nftables": items}


def match(protocol: str, field: str, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": {"payload": {"protocol": protocol, "field": field}}, "right": right}}


def meta(key: str, right: Any, kind: str = "meta") -> dict[str, Any]:
    return {"match": {"op": "==", "left": {kind: {"key": key}}, "right": right}}


DPORT = match("udp", "dport", 4791)
ESTABLISHED = meta("state", ["established", "related"], "ct")
DROP, ACCEPT = {"drop": None}, {"accept": None}
INPUT = {"name": "input", "hook": "input", "policy": "accept"}


@pytest.mark.parametrize(
    ("chain_rules", "policy", "severity"),
    [
        ([[DPORT, DROP]], "accept", Severity.ERROR),
        ([[DPORT, {"counter": {}}, {"reject": {}}]], "accept", Severity.ERROR),
        ([[match("udp", "dport", {"range": [4000, 5000]}), DROP]], "accept", Severity.ERROR),
        ([[match("udp", "dport", {"set": [53, {"range": [4790, 4800]}]}), DROP]], "accept", Severity.ERROR),
        ([[match("udp", "dport", 4791, "!="), ACCEPT]], "drop", Severity.ERROR),
        ([[ESTABLISHED, ACCEPT], [meta("iifname", "lo"), ACCEPT]], "drop", Severity.ERROR),
        ([[match("ip", "saddr", "10.0.0.9"), DPORT, DROP]], "accept", Severity.WARNING),
        ([[meta("iifname", "eth1"), ACCEPT]], "drop", Severity.WARNING),
        ([[match("udp", "dport", 53), DROP]], "accept", Severity.OK),
        ([[match("tcp", "dport", 4791), DROP]], "accept", Severity.OK),
        ([[DPORT, ACCEPT], [meta("l4proto", "udp"), DROP]], "drop", Severity.OK),
        ([[meta("state", ["invalid"], "ct"), DROP]], "accept", Severity.OK),
    ],
)
def test_nft_rules_are_taken_in_order(soft: FakeHost, chain_rules: list[Any], policy: str, severity: Severity) -> None:
    soft.answer("nft -j list ruleset", rules({**INPUT, "policy": policy, "rules": chain_rules}))
    soft.one("firewall", severity)


def test_a_chain_that_is_jumped_to_decides_or_returns(soft: FakeHost) -> None:
    roce = {"name": "roce", "rules": [[DPORT, ACCEPT], [DROP]]}
    other = {"name": "other", "rules": [[match("udp", "dport", 53), DROP]]}
    jumps = {**INPUT, "policy": "drop", "rules": [[{"jump": {"target": "other"}}], [{"jump": {"target": "roce"}}]]}
    soft.answer("nft -j list ruleset", rules(jumps, roce, other))
    soft.one("firewall", Severity.OK)


def test_a_named_set_is_looked_up(soft: FakeHost) -> None:
    ruleset = rules({**INPUT, "rules": [[match("udp", "dport", "@closed"), DROP]]})
    ruleset["nftables"].append({"set": {"family": "inet", "table": "filter", "name": "closed", "elem": [4791]}})
    soft.answer("nft -j list ruleset", ruleset)
    soft.one("firewall", Severity.ERROR)


def test_the_rule_that_drops_is_the_evidence(soft: FakeHost) -> None:
    soft.answer(
        "nft -j list ruleset", rules({"name": "out", "hook": "output", "policy": "accept", "rules": [[DPORT, DROP]]})
    )
    evidence = soft.one("firewall", Severity.ERROR).evidence
    assert "nft table inet filter, chain out: udp dport 4791 drop" in evidence


def test_a_hardware_nic_passes_by_the_filter_so_it_is_only_a_warning(host: FakeHost) -> None:
    host.answer("nft -j list ruleset", rules({**INPUT, "rules": [[DPORT, DROP]]}))
    assert "hardware NIC passes by" in host.one("firewall", Severity.WARNING).evidence


IPTABLES = """*filter
:INPUT {policy} [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:roce - [0:0]
{rules}
COMMIT
"""


@pytest.mark.parametrize(
    ("lines", "policy", "answer"),
    [
        ("-A INPUT -p udp -m udp --dport 4791 -j DROP", "ACCEPT", "drop"),
        ("-A INPUT -p udp -m udp --dport 4791 -j REJECT --reject-with icmp-port-unreachable", "ACCEPT", "drop"),
        ("-A INPUT -p udp -m multiport --dports 53,4000:5000 -j DROP", "ACCEPT", "drop"),
        ("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -i lo -j ACCEPT", "DROP", "drop"),
        ("-A INPUT -p tcp -m tcp --dport 4791 -j DROP", "ACCEPT", "accept"),
        ("-A INPUT -p udp -m udp ! --dport 53 -j DROP", "ACCEPT", "drop"),
        ('-A INPUT -p udp -m comment --comment "RoCE -j DROP" -m udp --dport 4791 -j ACCEPT', "DROP", "accept"),
        ("-A INPUT -s 10.0.0.0/8 -j ACCEPT", "DROP", "maybe"),
        ("-A INPUT -s 10.9.0.0/16 -p udp -j DROP", "ACCEPT", "maybe"),
        ("-A INPUT -j roce\n-A roce -p udp -m udp --dport 4791 -j RETURN\n-A roce -j DROP", "ACCEPT", "accept"),
        ("-A INPUT -j LOG", "ACCEPT", "accept"),
    ],
)
def test_iptables_rules_are_taken_in_order(lines: str, policy: str, answer: str) -> None:
    chains = from_iptables(IPTABLES.format(rules=lines, policy=policy))
    assert verdict(chains["INPUT"], chains)[0] == answer


def test_iptables_counts_as_well_as_nft(soft: FakeHost) -> None:
    soft.answer("iptables-save", IPTABLES.format(rules="-A INPUT -p udp --dport 4791 -j DROP", policy="ACCEPT"))
    assert soft.one("firewall", Severity.ERROR).evidence.endswith("--dport 4791 -j DROP")


def test_without_a_program_that_lists_rules_the_answer_is_unknown(soft: FakeHost) -> None:
    soft.answer("nft -j list ruleset", "", status=1, errors="Operation not permitted")
    assert "--probe" in soft.one("firewall", Severity.UNKNOWN).fix


def vmap(left: dict[str, Any], *entries: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
    return {"vmap": {"key": left, "data": {"set": [list(entry) for entry in entries]}}}


STATES = vmap({"ct": {"key": "state"}}, ("established", ACCEPT), ("related", ACCEPT), ("invalid", DROP))
PORTS = {"payload": {"protocol": "udp", "field": "dport"}}


@pytest.mark.parametrize(
    ("expressions", "policy", "severity"),
    [
        ([STATES], "accept", Severity.OK),
        ([STATES], "drop", Severity.ERROR),
        ([vmap(PORTS, (53, ACCEPT), (4791, DROP))], "accept", Severity.ERROR),
        ([vmap(PORTS, (53, DROP), ({"range": [4000, 5000]}, ACCEPT))], "drop", Severity.OK),
        ([vmap({"meta": {"key": "iifname"}}, ("lo", ACCEPT), ("eth0", ACCEPT))], "drop", Severity.WARNING),
        ([vmap(PORTS, (4791, {"jump": {"target": "roce"}}))], "accept", Severity.ERROR),
        ([{"vmap": {"key": PORTS, "data": "@elsewhere"}}], "accept", Severity.WARNING),
    ],
)
def test_a_verdict_map_decides_as_the_rules_that_it_stands_for(
    soft: FakeHost, expressions: list[Any], policy: str, severity: Severity
) -> None:
    roce = {"name": "roce", "rules": [[DROP]]}
    soft.answer("nft -j list ruleset", rules({**INPUT, "policy": policy, "rules": [expressions]}, roce))
    soft.one("firewall", severity)


def test_a_named_verdict_map_is_looked_up(soft: FakeHost) -> None:
    ruleset = rules({**INPUT, "rules": [[{"vmap": {"key": PORTS, "data": "@ports"}}]]})
    named = {"family": "inet", "table": "filter", "name": "ports", "map": "verdict", "elem": [[4791, DROP]]}
    ruleset["nftables"].append({"map": named})
    soft.answer("nft -j list ruleset", ruleset)
    assert "udp dport 4791 drop" in soft.one("firewall", Severity.ERROR).evidence


def test_nft_tables_out_of_sight_are_unknown_though_iptables_has_nothing(soft: FakeHost) -> None:
    soft.answer("nft -j list ruleset", "", status=1)
    soft.answer("iptables-save", IPTABLES.format(rules="", policy="ACCEPT"))
    soft.one("firewall", Severity.OK)
    soft.write("sys/module/nf_tables/refcnt", 3)
    assert (
        "only iptables table filter can be listed, not: nft's own tables"
        in soft.one("firewall", Severity.UNKNOWN).evidence
    )


def test_every_table_of_iptables_is_looked_at(soft: FakeHost) -> None:
    raw = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p udp -m udp --dport 4791 -j DROP\nCOMMIT\n"
    soft.answer("iptables-save", f"{IPTABLES.format(rules='', policy='ACCEPT')}{raw}*nat\n:OUTPUT DROP [0:0]\nCOMMIT\n")
    finding = soft.one("firewall", Severity.ERROR)
    assert "iptables table raw, chain PREROUTING" in finding.evidence
    assert finding.fix == "iptables -t raw -I PREROUTING -p udp --dport 4791 -j ACCEPT"


def test_rules_of_the_older_iptables_that_nobody_lists_are_unknown(soft: FakeHost) -> None:
    """The iptables of today and nft do not see them."""
    soft.write("proc/self/net/ip_tables_names", "filter")
    soft.answer("iptables-save", "# Generated by iptables-save v1.8.9 (nf_tables)\n")
    assert "the tables filter of iptables-legacy" in soft.one("firewall", Severity.UNKNOWN).evidence
    drop = IPTABLES.format(rules="-A INPUT -p udp --dport 4791 -j DROP", policy="ACCEPT")
    soft.answer("iptables-legacy-save", f"# Generated by iptables-save v1.8.9\n{drop}")
    soft.one("firewall", Severity.ERROR)
    assert "unknown" not in {finding.severity for finding in soft.report("firewall").findings}


def test_the_fix_names_the_chain_that_drops(soft: FakeHost) -> None:
    soft.answer("nft -j list ruleset", rules({**INPUT, "rules": [[DPORT, DROP]]}))
    assert soft.one("firewall", Severity.ERROR).fix.startswith("nft insert rule inet filter ")


def test_a_chain_of_one_network_device_may_drop(soft: FakeHost) -> None:
    """nft 1.0 does not list of which device it is."""
    ingress = {"name": "in", "hook": "ingress", "policy": "accept", "rules": [[DPORT, DROP]]}
    soft.answer("nft -j list ruleset", rules(ingress, family="netdev"))
    evidence = soft.one("firewall", Severity.WARNING).evidence
    assert "nft table netdev filter, chain in: udp dport 4791 drop" in evidence
