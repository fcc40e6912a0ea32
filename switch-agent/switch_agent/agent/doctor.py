# SPDX-License-Identifier: Apache-2.0
"""``switch-agent doctor``: is the switch fit for the agent, and does it hold what it should?

Two views: the agent's own (REST), and the switch's (BF-Runtime as an independent client, which neither
subscribes nor binds and therefore disturbs nobody).
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from switch_agent.agent.console import RestClient
from switch_agent.agent.inputs import split_address
from switch_agent.agent.tables import check_schema, signed_fields
from switch_agent.bfrt.client import Client, open_channel
from switch_agent.bfrt.requests import Value
from switch_agent.bfrt.schema import Schema
from switch_agent.errors import AgentUnreachableError, BfrtError
from symphony_common.rest import is_loopback

__all__ = ["Finding", "examine"]

Level = Literal["ok", "unknown", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what was seen, and what to do when it is not right."""

    id: str
    level: Level
    evidence: str
    fix: str = ""

    def view(self) -> dict[str, Any]:
        """Return the finding as JSON shows it."""
        return asdict(self)


async def examine(url: str, bfrt: str | None, p4_name: str) -> list[Finding]:
    """Examine the agent at ``url`` and its switch, or the switch at ``bfrt``."""
    findings: list[Finding] = []
    try:
        with RestClient(url) as client:
            view = client.get("/api/v1/switch")
            findings.append(Finding("agent.answers", "ok", f"agent {view['name']} at {url}"))
            findings += _agent_findings(client, view)
            bfrt = bfrt or str(view["bfrt"])
    except AgentUnreachableError as error:
        fix = "start it with `switch-agent serve`, or give its address with --url"
        findings.append(Finding("agent.answers", "failure", str(error), fix))
    findings += await _switch_findings(bfrt or "127.0.0.1:50052", p4_name)
    return findings


def _agent_findings(client: RestClient, view: dict[str, Any]) -> Iterator[Finding]:
    state = view["state"]
    if state == "ready":
        yield Finding("agent.session", "ok", f"bound to program {view['program']} as client {view['client_id']}")
    elif state == "read-only":
        fix = "stop the other client if this agent is to change anything; it takes over by itself"
        yield Finding("agent.session", "warning", f"read-only: {view['owner']} owns the program", fix)
    else:
        fix = "see the findings about the switch below"
        yield Finding("agent.session", "failure", f"{state}: {view['last_error']}", fix)
        return
    if view["reconcile_error"]:
        fix = "remove the cause that the text names, then POST /api/v1/reconcile"
        yield Finding("agent.reconcile", "failure", view["reconcile_error"], fix)
    if state == "ready":
        drift = client.get("/api/v1/drift")
        if drift["entries"]:
            fix = "POST /api/v1/reconcile repairs it; find out which other program writes these tables"
            evidence = f"{drift['entries']} entries differ: {'; '.join(drift['details'])}"
            yield Finding("agent.drift", "failure", evidence, fix)
        else:
            yield Finding("agent.drift", "ok", "the switch holds what it should")
    if view["misplaced_jobs"]:
        evidence = "; ".join(f"job {job_id}: {reason}" for job_id, reason in view["misplaced_jobs"].items())
        yield Finding("agent.places", "failure", evidence, "delete these jobs and put them again")
    usage = {name: use for name, use in view["usage"].items() if name.startswith("job_")}
    full = {name: use for name, use in usage.items() if use["peak"] > 0.9 * use["size"]}
    if full:
        evidence = ", ".join(f"{name} {use['peak']} of {use['size']}" for name, use in full.items())
        yield Finding("agent.usage", "warning", f"nearly full at their peak: {evidence}", "use flows with dst null")
    sampler = view["sampler"]
    age = time.time() - (sampler["last_success_unix_s"] or 0)
    if sampler["last_error"] or age > 10:
        evidence = sampler["last_error"] or "no sample for more than 10 s"
        yield Finding("agent.samples", "failure", evidence, "see the agent's log")
    else:
        yield Finding("agent.samples", "ok", f"last sample took {sampler['last_duration_ms']} ms")
    if view["per_pipe_writes"] is False:
        fix = "let all ports of a job's hosts lie in one pipe, or step_max is not lowered after samples"
        yield Finding("agent.pipes", "warning", "the driver refuses register writes to a single pipe", fix)


async def _switch_findings(address: str, p4_name: str) -> list[Finding]:
    findings: list[Finding] = []
    channel = open_channel(address)
    try:
        client = Client(channel, address, client_id=0, p4_name=p4_name, timeout=5.0)
        answer = await client.get_config()
        findings.append(Finding("switch.answers", "ok", f"BF-Runtime at {address}"))
        loaded = {config.p4_name: config.bfruntime_info for config in answer.config}
        if p4_name not in loaded:
            evidence = f"loaded: {', '.join(loaded) or 'nothing'}"
            fix = f"start bf_switchd with program {p4_name} (-p), or give --p4-name"
            findings.append(Finding("switch.program", "failure", evidence, fix))
            return findings
        schema = Schema.parse(p4_name, loaded[p4_name], answer.non_p4_config.bfruntime_info, signed_fields())
        findings.append(Finding("switch.program", "ok", f"{p4_name}, schema {schema.digest[:12]}"))
        problems = check_schema(schema)
        if problems:
            fix = "load the program of this version (switch-agent/p4)"
            findings.append(Finding("switch.tables", "failure", "; ".join(problems), fix))
        else:
            findings.append(Finding("switch.tables", "ok", "all tables, fields and widths found"))
        client.schema = schema
        findings.append(await _ports(client, schema))
    except BfrtError as error:
        fix = "is bf_switchd (or the twin) running there, and listening on this address?"
        findings.append(Finding("switch.answers", "failure", str(error), fix))
        return findings
    finally:
        await channel.close()
    findings += _exposure(address)
    return findings


async def _ports(client: Client, schema: Schema) -> Finding:
    if "$PORT" not in schema:
        return Finding("switch.ports", "unknown", "the switch shows no table $PORT", "look at its ports by hand")
    entries = await client.read_entries(schema.table("$PORT"), from_hw=True)
    ports = {entry.key["$DEV_PORT"]: entry.data for entry in entries if entry.key}
    kinds = Counter(_port_kind(data) for data in ports.values())
    evidence = f"{len(ports)} ports: {', '.join(f'{count} x {kind}' for kind, count in kinds.items()) or 'none'}"
    down = [number for number, data in ports.items() if data.get("$PORT_ENABLE") and data.get("$PORT_UP") is False]
    if down:
        names = ", ".join(f"{number} ({_port_kind(ports[number])})" for number in down)
        fix = "look at cable and transceiver; compare speed, FEC and autonegotiation with the host's ethtool output"
        return Finding("switch.ports", "warning", f"{evidence}. Enabled but down: {names}", fix)
    if any(data.get("$PORT_ENABLE") is None or data.get("$PORT_UP") is None for data in ports.values()):
        return Finding("switch.ports", "unknown", f"{evidence}: not all tell their state", "look at its ports by hand")
    return Finding("switch.ports", "ok", evidence)


def _port_kind(data: Mapping[str, Value]) -> str:
    """Speed, FEC and state of a port in short: ``100G FEC rs up``."""
    speed = str(data.get("$SPEED", "?")).removeprefix("BF_SPEED_")
    fec = str(data.get("$FEC", "?")).removeprefix("BF_FEC_TYP_").lower()
    enabled, up = data.get("$PORT_ENABLE"), data.get("$PORT_UP")
    state = "disabled" if enabled is False else "of unknown state" if None in (enabled, up) else "up" if up else "down"
    return f"{speed} FEC {fec} {state}"


def _exposure(address: str) -> Iterator[Finding]:
    """Warn when BF-Runtime, which has no authentication, answers on an address of the network."""
    host, port = split_address(address)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only asks which address we would use
            own: str | None = probe.getsockname()[0]
    except OSError:
        own = None
    if own is None and is_loopback(host):
        fix = f"see that nothing but loopback listens on port {port}: ss -ltn"
        yield Finding("switch.exposure", "unknown", "this machine has no way out, so no address to try", fix)
        return
    outside = own if own is not None and is_loopback(host) and not is_loopback(own) else host
    if is_loopback(outside):
        yield Finding("switch.exposure", "ok", "BF-Runtime is asked on the loopback interface")
        return
    try:
        with socket.create_connection((outside, port), timeout=0.5):
            pass
    except OSError:
        yield Finding("switch.exposure", "ok", f"BF-Runtime does not answer on {outside}, the address of the way out")
        return
    fix = "let bf_switchd listen locally only, or firewall the port: anybody can reprogram the switch"
    yield Finding("switch.exposure", "warning", f"BF-Runtime answers on {outside}:{port} without a password", fix)
