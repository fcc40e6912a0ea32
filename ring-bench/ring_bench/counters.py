# SPDX-License-Identifier: Apache-2.0
"""Counters of RDMA ports and of their network devices, and what their change over a run says of it.

Names are the kernel's: files below ``ports/N/counters`` and ``ports/N/hw_counters``, ``carrier_changes`` of the network
device, and the driver's ethtool counters. Units are the kernel's too: ``port_xmit_data`` and ``port_rcv_data`` count
4-byte words. Each file is read for itself: one that cannot be read is named, never taken for 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ring_bench import ethtool
from ring_bench.rdma_sysfs import gid_table
from ring_bench.results import PortCounters, RunCounters, Verdicts

__all__ = ["FLAP", "LOSS", "RNR", "Snapshot", "combine", "judge", "port_values", "snapshot"]

_SYSFS = Path("/sys")
_PAUSE = re.compile(r"[rt]x_(prio\d_pause|pause_ctrl_phy|global_pause)")
_SENT = re.compile(r"tx_prio(\d)_bytes")

# Counters that must stand still in a run, by what their movement means.
FLAP = ("link_downed", "carrier_changes")
RNR = ("rnr_nak_retry_err", "out_of_buffer", "rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err")
LOSS = (
    # mlx5
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "roce_slow_restart",
    "rx_icrc_encapsulated",
    # rxe
    "out_of_seq_request",
    "rcvd_seq_err",
    "completer_retry_err",
    "retry_exceeded_err",
    # the twin
    "retransmitted_packets",
)

_PRIORITY_SHARE = 0.9
"""Least part of a port's bytes that must have gone out on the data's priority."""
_FEW_BYTES = 1 << 20
"""Less traffic than this says nothing about priorities."""


@dataclass(frozen=True)
class Snapshot:
    """The counters of some ports at one moment."""

    ports: Mapping[tuple[str, int], Mapping[str, int]]
    """By (device, port)."""
    unreadable: Mapping[tuple[str, int], tuple[str, ...]]
    netdevs: Mapping[tuple[str, int], str]
    gids: Mapping[tuple[str, int], Mapping[int, str]] = field(default_factory=dict)
    """GIDs of the port's network device by index, with their type; no entry for a port that has no table."""


def port_values(device: str, port: int, sys: Path = _SYSFS) -> tuple[dict[str, int], list[str]]:
    """Read a port's counters.

    Returns:
        The values, and the names of files that could not be read or hold no number.
    """
    values: dict[str, int] = {}
    unreadable = []
    for folder in ("counters", "hw_counters"):
        path = sys / "class" / "infiniband" / device / "ports" / str(port) / folder
        try:
            files = sorted(path.iterdir())
        except OSError:  # some drivers have only one of the two
            continue
        for file in files:
            if file.name == "lifespan":  # a setting: how long the kernel caches hw_counters, ms
                continue
            try:
                values[file.name] = int(file.read_text(encoding="ascii"))
            except (OSError, ValueError):
                unreadable.append(file.name)
    return values, unreadable


def snapshot(ports: Iterable[tuple[str, int, str]], sys: Path = _SYSFS) -> Snapshot:
    """Read counters and GIDs of ports, given as (device, port, network device)."""
    values: dict[tuple[str, int], dict[str, int]] = {}
    unreadable: dict[tuple[str, int], tuple[str, ...]] = {}
    netdevs = {}
    gids = {}
    for device, port, netdev in ports:
        key = device, port
        netdevs[key] = netdev
        table = gid_table(device, sys / "class" / "infiniband")
        gids[key] = {
            gid.index: f"{gid.address} {gid.kind}" for gid in table if (gid.port, gid.netdev) == (port, netdev)
        }
        found, missing = port_values(device, port, sys)
        try:
            path = sys / "class" / "net" / netdev / "carrier_changes"
            found["carrier_changes"] = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            missing.append("carrier_changes")
        try:
            found |= _of_interest(ethtool.statistics(netdev))
        except OSError:
            missing.append("ethtool statistics")
        values[key], unreadable[key] = found, tuple(missing)
    return Snapshot(values, unreadable, netdevs, gids)


def judge(host: str, before: Snapshot, after: Snapshot, traffic_class: int) -> list[PortCounters]:
    """Say what happened at each port between two snapshots.

    Args:
        host: Name of the machine.
        before: At the start.
        after: At the end.
        traffic_class: Of the data; its DSCP / 8 is the priority expected on the wire.
    """
    ports = []
    for (device, number), new in sorted(after.ports.items()):
        key = device, number
        old = before.ports.get(key, {})
        deltas = {name: value - old[name] for name, value in sorted(new.items()) if name in old}
        verdicts, remarks = _verdicts(deltas, traffic_class >> 5)
        if key in before.gids and key in after.gids:
            changes = _gid_changes(before.gids[key], after.gids[key])
            verdicts = verdicts.model_copy(update={"gid_changed": bool(changes)})
            remarks += [f"the GID table changed ({', '.join(changes)})"] if changes else []
        ports.append(
            PortCounters(
                host=host,
                device=device,
                port=number,
                netdev=after.netdevs[key],
                deltas={name: delta for name, delta in deltas.items() if delta},
                unreadable=list(after.unreadable[key]),
                verdicts=verdicts,
                remarks=remarks,
            )
        )
    return ports


def combine(ports: Sequence[PortCounters]) -> RunCounters | None:
    """Bring the ports of all processes together; one that several processes used is kept once. None without any."""
    if not ports:
        return None
    distinct = {(port.host, port.device, port.port): port for port in ports}
    each = [port.verdicts for port in distinct.values()]
    verdicts = Verdicts(**{name: _any([getattr(verdict, name) for verdict in each]) for name in Verdicts.model_fields})
    return RunCounters(
        valid=not any((verdicts.flap, verdicts.gid_changed, verdicts.rnr, verdicts.loss, verdicts.wrong_priority)),
        verdicts=verdicts,
        ports=list(distinct.values()),
    )


def _verdicts(deltas: Mapping[str, int], priority: int) -> tuple[Verdicts, list[str]]:
    remarks = []

    def moved(names: Iterable[str], meaning: str) -> bool | None:
        there = {name: deltas[name] for name in names if name in deltas}
        changed = ", ".join(f"{name} {delta:+d}" for name, delta in there.items() if delta)
        if changed:
            remarks.append(f"{meaning} ({changed})")
        return bool(changed) if there else None

    backwards = [name for name, delta in deltas.items() if delta < 0]
    if backwards:
        remarks.append(f"counters went backwards, the driver was reloaded ({', '.join(backwards[:3])})")
    flap = moved(FLAP, "the link flapped")
    verdicts = Verdicts(
        flap=True if backwards else flap,
        gid_changed=None,
        rnr=moved(RNR, "receiver not ready"),
        loss=moved(LOSS, "packets were lost, damaged or late"),
        wrong_priority=_wrong_priority(deltas, priority, remarks),
        pause=moved([name for name in deltas if _PAUSE.fullmatch(name)], "pause frames"),
    )
    return verdicts, remarks


def _gid_changes(before: Mapping[int, str], after: Mapping[int, str]) -> list[str]:
    return [
        f"{index}: {before.get(index, 'empty')} -> {after.get(index, 'empty')}"
        for index in sorted({*before, *after})
        if before.get(index) != after.get(index)
    ]


def _wrong_priority(deltas: Mapping[str, int], priority: int, remarks: list[str]) -> bool | None:
    sent = {int(match[1]): delta for name, delta in deltas.items() if (match := _SENT.fullmatch(name))}
    total = sum(sent.values())
    if not sent or total < _FEW_BYTES:
        return None
    share = sent.get(priority, 0) / total
    if share >= _PRIORITY_SHARE:
        return False
    most = max(sent, key=lambda number: sent[number])
    remarks.append(f"{share:.0%} of the bytes went out on priority {priority}, {sent[most] / total:.0%} on {most}")
    return True


def _any(values: Sequence[bool | None]) -> bool | None:
    known = [value for value in values if value is not None]
    return any(known) if known else None


def _of_interest(statistics: Mapping[str, int]) -> dict[str, int]:
    """Pick what is judged: a driver has hundreds more."""
    return {name: value for name, value in statistics.items() if _PAUSE.fullmatch(name) or _SENT.fullmatch(name)}
