# SPDX-License-Identifier: Apache-2.0
"""Counters of RDMA ports and of their network devices, and what their change over a run says of it.

Names are the kernel's: files below ``ports/N/counters`` and ``ports/N/hw_counters``, ``carrier_changes`` of the network
device, and the driver's ethtool counters. Units are the kernel's too: ``port_xmit_data`` and ``port_rcv_data`` count
4-byte words. Each file is read for itself: one that cannot be read is named, never taken for 0.

Drivers name the same thing differently (drivers/infiniband/hw/*/ in Linux 6.x), and what a driver counts under a name
that is not known here was not looked at: then the answer is None, not False.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ring_bench import ethtool
from ring_bench.rdma_sysfs import gid_table
from ring_bench.results import PortCounters, RunCounters, Verdicts

__all__ = [
    "FLAP",
    "LOSS",
    "RNR",
    "Event",
    "Snapshot",
    "combine",
    "counter_value",
    "is_gauge",
    "judge",
    "port_values",
    "snapshot",
]

_SYSFS = Path("/sys")
_PAUSE = re.compile(r"[rt]x_(prio\d_pause|pause_ctrl_phy|global_pause)")
_SENT = re.compile(r"tx_prio(\d)_bytes")
_GAUGE = re.compile(r"(active|watermark|max)_(pd|ah|qp|rc_qp|ud_qp|srq|cq|mr|mw)s?|\w+_watermark")
"""Resources in use and their high-water marks, which bnxt_re keeps among its counters."""


class Event(NamedTuple):
    """Something that must not happen in a run, and the counters that show it."""

    meaning: str
    telling: tuple[str, ...]
    """Counters of which one that a driver has says by standing still that it did not happen."""
    hints: tuple[str, ...] = ()
    """Counters that move only if it happened, but may stand still although it did."""

    def seen(
        self, deltas: Mapping[str, int], unreadable: Collection[str] = ()
    ) -> tuple[bool | None, dict[str, int], str]:
        """Tell whether it happened.

        Args:
            deltas: Change of each counter, those that stood still included.
            unreadable: Names of counters that the driver has, but that cannot be read.

        Returns:
            True, False or None (not known); the counters that moved; for None, why it is not known.
        """
        moved = {name: deltas[name] for name in (*self.telling, *self.hints) if deltas.get(name)}
        closed = [name for name in self.telling if name in unreadable]
        if moved:
            return True, moved, ""
        if closed:
            return None, {}, f"{', '.join(closed)} cannot be read, or went backwards"
        if not any(name in deltas for name in self.telling):
            return None, {}, f"none of {len(deltas)} counters here is known to tell"
        return False, {}, ""


FLAP = Event("the link flapped", ("carrier_changes", "link_downed"))
RNR = Event(
    "receiver not ready",
    (
        *("rnr_nak_retry_err", "out_of_buffer"),  # mlx5
        *("rcvd_rnr_err", "send_rnr_err"),  # rxe
        "rnr_naks_rcvd",  # bnxt_re
        *("RNR sent", "RNR received"),  # irdma, third generation
    ),
    ("retry_rnr_exceeded_err", "rx_out_of_buffer", "res_oob_drop_count"),
)
LOSS = Event(
    "packets were lost, damaged or late",
    (
        *("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err"),  # mlx5
        *("out_of_seq_request", "rcvd_seq_err", "completer_retry_err"),  # rxe
        *("to_retransmits", "seq_err_naks_rcvd"),  # bnxt_re
        *("Nak Sequence Error", "Nak Sequence Error Implied", "RTO"),  # irdma, third generation
        *("retrans_pkts", "retrans_timeout_events"),  # efa
        "retransmitted_packets",  # the twin
    ),
    (
        *("roce_adp_retrans", "roce_slow_restart", "rx_icrc_encapsulated"),  # mlx5
        "retry_exceeded_err",  # rxe
        *("max_retry_exceeded", "missing_resp", "oos_drop_count", "res_oos_drop_count"),  # bnxt_re
        *("rx_roce_errors", "rx_roce_discards", "tx_roce_errors", "tx_roce_discards"),
        *("tcpRetransSegs", "RetransSegs"),  # irdma
        *("rx_drops", "retrans_bytes"),  # efa
        *("tx_disable_drop_cnt", "tx_bps_limit_drop_cnt", "tx_pps_limit_drop_cnt"),  # erdma
        *("rx_disable_drop_cnt", "rx_bps_limit_drop_cnt", "rx_pps_limit_drop_cnt"),
        *("rx_err_pkt", "tx_err_pkt"),  # hns
    ),
)

_LAST_VALUES = {"link_downed": 0xFF}
"""Where a counter stops for good: it cannot tell any more (IB spec, 16.1.3.5, has it in 8 bits)."""
_RESET_COUNTERS = 2
"""So many that go backwards together mean that all began anew; a single one may be what is no counter."""
_LARGEST = (1 << 64) - 1
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


def is_gauge(name: str) -> bool:
    """Tell whether a file among the counters holds a level, which may fall."""
    return _GAUGE.fullmatch(name) is not None


def counter_value(text: str) -> int | None:
    """Give the number that a counter file holds, 0 to 2^64-1; None for anything else: text, -1, a thousand digits."""
    text = text.strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
    return number if number is not None and number <= _LARGEST else None


def port_values(device: str, port: int, sys: Path = _SYSFS) -> tuple[dict[str, int], list[str]]:
    """Read a port's counters.

    Returns:
        The values by name, and "folder/name" of files that could not be read, hold no counter's value, or have a name
        that is no text.
    """
    values: dict[str, int] = {}
    unreadable = []
    for folder in ("counters", "hw_counters"):
        path = sys / "class" / "infiniband" / device / "ports" / str(port) / folder
        try:
            files = sorted(path.iterdir())
        except FileNotFoundError:  # some drivers have only one of the two
            continue
        except OSError:
            unreadable.append(folder)
            continue
        for file in files:
            if file.name == "lifespan":  # a setting: how long the kernel caches hw_counters, ms
                continue
            shown = os.fsencode(file.name).decode("utf-8", "backslashreplace")
            value = _file_value(file) if shown == file.name else None
            if value is None:
                unreadable.append(f"{folder}/{shown}")
            else:
                values[file.name] = value
    return values, unreadable


def _file_value(path: Path) -> int | None:
    try:
        return counter_value(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


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
        changes = _file_value(sys / "class" / "net" / netdev / "carrier_changes")
        if changes is None:
            missing.append("carrier_changes")
        else:
            found["carrier_changes"] = changes
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
        gone = sorted(name for name in {*old, *new} if name not in deltas)
        unreadable = list(dict.fromkeys([*before.unreadable.get(key, ()), *after.unreadable.get(key, ()), *gone]))
        stopped = [name for name, last in _LAST_VALUES.items() if old.get(name) == last and not deltas.get(name)]
        telling = {name: delta for name, delta in deltas.items() if not is_gauge(name) and name not in stopped}
        verdicts, remarks = _verdicts(telling, unreadable, traffic_class >> 5)
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
                unreadable=unreadable,
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
    spoilt = _any([verdicts.flap, verdicts.rnr, verdicts.loss])
    if verdicts.gid_changed or verdicts.wrong_priority:
        spoilt = True
    return RunCounters(
        valid=None if spoilt is None else not spoilt,
        verdicts=verdicts,
        ports=list(distinct.values()),
    )


def _verdicts(deltas: Mapping[str, int], unreadable: Sequence[str], priority: int) -> tuple[Verdicts, list[str]]:
    backwards = [name for name, delta in deltas.items() if delta < 0]
    shown = ", ".join(f"{name} {deltas[name]:+d}" for name in backwards[:3])
    if len(backwards) >= _RESET_COUNTERS:  # what was counted before is gone, so nothing but that is known
        remark = f"counters went backwards, the driver was reloaded ({shown})"
        return Verdicts(flap=True, gid_changed=None, rnr=None, loss=None, wrong_priority=None, pause=None), [remark]
    remarks = [f"{shown} alone went backwards: it is left out"] if backwards else []
    forwards = {name: delta for name, delta in deltas.items() if delta >= 0}
    closed = [*(name.rpartition("/")[2] for name in unreadable), *backwards]

    def of(event: Event, closed_to: Collection[str] = ()) -> bool | None:
        verdict, moved, reason = event.seen(forwards, closed_to)
        if moved:
            remarks.append(f"{event.meaning} ({', '.join(f'{name} {delta:+d}' for name, delta in moved.items())})")
        elif verdict is None and event is LOSS:
            remarks.append(f"whether packets were lost is not known: {reason}")
        return verdict

    flap, rnr, loss = of(FLAP, backwards), of(RNR, closed), of(LOSS, closed)
    pause = Event("pause frames", tuple(name for name in forwards if _PAUSE.fullmatch(name)))
    verdicts = Verdicts(
        flap=flap,
        gid_changed=None,
        rnr=rnr,
        loss=loss,
        wrong_priority=_wrong_priority(forwards, priority, remarks),
        pause=of(pause),
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
    """One yes is a yes; else one that is not known leaves it open."""
    if any(values):
        return True
    return None if None in values else False


def _of_interest(statistics: Mapping[str, int]) -> dict[str, int]:
    """Pick what is judged: a driver has hundreds more."""
    return {name: value for name, value in statistics.items() if _PAUSE.fullmatch(name) or _SENT.fullmatch(name)}
