# SPDX-License-Identifier: Apache-2.0
"""Active checks: real messages over queue pairs made for it, where both ends are on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.options import Examination
from ring_bench.doctor.paths import Edge, local_edges

__all__ = ["check_exchange"]

_BLOCKED = (
    "addresses and ports are fine, so look for what stands between: packet filter on UDP 4791 (nft, iptables, tc), "
    "the switch's ACL, VLAN, a link that is down"
)


def check_exchange(on: Examination) -> Iterator[Finding]:
    """Do messages pass along the ring's edges, whole packets too, and can their tag be changed?"""
    if not on.options.probe:
        return
    machine = on.machine
    if machine.library.get("error"):
        yield unknown("exchange", "", "no messages without pyverbs", "mend pyverbs first")
        return
    edges = local_edges(on)
    within = [edge for edge in edges if machine.port_of(edge.target) is not None]
    pairs = {f"{edge.source}={edge.target}": edge.name for edge in within}
    if not edges:  # no ring given: each port with itself, which shows device and tagging
        for port in on.roce:
            if usable := machine.usable(port):
                address = usable[0].address
                pairs[f"{address}={address}"] = f"{port.name} with itself"
    answers = machine.ask("ring_bench.doctor.exchange", *pairs) if pairs else {}
    for pair, name in pairs.items():
        nothing = {"small": str(answers.get("error", "no answer"))}
        yield from _judge(name, answers.get(pair) or nothing)
    away = [edge for edge in edges if edge not in within]
    if away:
        yield _from_afar(away)


def _judge(name: str, answer: dict[str, Any]) -> Iterator[Finding]:
    if answer["small"] is not None:
        yield error("exchange", name, f"an 8-byte write does not arrive: {answer['small']}", _BLOCKED)
    elif answer["large"] is not None:
        yield error(
            "exchange",
            name,
            f"8 bytes arrive, {answer['bytes']} bytes in full packets do not: {answer['large']}",
            "the path MTU does not hold what the port's active MTU promises: see mtu, bridges and switch ports too",
        )
    else:
        yield fine("exchange", name, f"8 and {answer['bytes']} bytes arrive")
        if answer["retag"] is None:
            yield fine("sport-probe", name, f"the source port was changed in RTS: {answer['mechanism']}")
        else:
            yield warning(
                "sport-probe",
                name,
                f"the source port cannot be changed in RTS ({answer['mechanism']}): {answer['retag']}",
                "--tagging per-step or static (flow label at RTR) works without",
            )


def _from_afar(edges: list[Edge]) -> Finding:
    names = ", ".join(edge.name for edge in edges)
    return unknown(
        "exchange",
        "",
        f"the other end is another machine: {names}",
        "one small AllReduce tries all edges: ring-bench --provider pyverbs -b 8 -n 1 on every host",
    )
