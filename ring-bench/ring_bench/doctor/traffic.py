# SPDX-License-Identifier: Apache-2.0
"""What the counters say: since the driver was loaded, and while doctor watches. And the link's error correction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ring_bench.counters import FLAP, LOSS, RNR, is_gauge, port_values
from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Machine, Port
from ring_bench.doctor.options import Examination
from ring_bench.doctor.quality import data_priority

__all__ = ["check_congestion", "check_counters", "check_fec"]

_PAUSE = re.compile(r"[rt]x_prio\d_pause")
_DISCARD = re.compile(r"(rx_prio\d_(buf_discard|cong_discard|discards)|rx_discards_phy|tx_discards_phy)")
_ICRC = "rx_icrc_encapsulated"
_FEC_FROM_GBPS = 25.0
_CONGESTION = (
    ("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd"),  # mlx5, bnxt_re, irdma
    ("np_cnp_sent", "tx_cnp_pkts", "cnpSent"),
    ("rp_cnp_handled", "rx_cnp_pkts", "cnpHandled"),
    ("rp_cnp_ignored", "cnpIgnored"),
)
"""Names of what DCQCN's two points count: marks in, CNPs out, CNPs that slowed a sender down, CNPs that did not."""


def check_counters(on: Examination) -> Iterator[Finding]:
    """Do error counters move while we watch, and which must never have moved at all?"""
    machine, interval = on.machine, on.options.interval_s
    before = {port.name: _all_values(machine, port)[0] for port in on.roce}
    if interval > 0 and on.roce:
        interval = max([interval, *(_cached_s(machine, port) for port in on.roce)])
        machine.pause(interval)
    for port in on.roce:
        old = before[port.name]
        new, unreadable = _all_values(machine, port)
        changes = {name: value - old[name] for name, value in new.items() if name in old and not is_gauge(name)}
        deltas = {name: change for name, change in changes.items() if change >= 0}
        unreadable += changes.keys() - deltas.keys()  # began anew meanwhile, or is no counter
        if interval > 0:
            yield from _errors(port, new, deltas, unreadable, f"within {interval:g} s")
        yield from _icrc(port, new, deltas)
        yield from _drops(port, new, deltas, data_priority(machine, port, on.options.dscp), interval)


def _errors(
    port: Port, values: Mapping[str, int], deltas: Mapping[str, int], unreadable: Sequence[str], when: str
) -> Iterator[Finding]:
    closed = [name.rpartition("/")[2] for name in unreadable]
    quiet = []
    for event, fix in (
        (LOSS, "find the drop: switch counters, cable, PFC, MTU"),
        (RNR, "post receives before granting credits; min_rnr_timer 12, not 0"),
        (FLAP, "cable and transceiver, FEC on both ends, the switch's log of the port"),
    ):
        verdict, moved, reason = event.seen(deltas, closed if event is not FLAP else ())
        if verdict:
            yield warning("counters", port.name, f"{event.meaning} {when}: {_shown(moved)}", fix)
        elif verdict is None:
            evidence = f"not known whether {event.meaning}: {reason}" if values else "this driver has no counters"
            yield unknown("counters", port.name, evidence, "look at the switch's counters of the port")
        else:
            quiet += [name for name in event.telling if name in deltas]
        if not values:
            return
    if quiet:
        past = {name: values[name] for event in (LOSS, RNR) for name in event.telling + event.hints if values.get(name)}
        past |= {"link_downed": values["link_downed"]} if values.get("link_downed") else {}
        since = f"; since the driver was loaded: {_shown(past, '-')}" if past else ""
        yield fine("counters", port.name, f"no movement {when} of {', '.join(quiet)}{since}")


def _icrc(port: Port, values: Mapping[str, int], deltas: Mapping[str, int]) -> Iterator[Finding]:
    total, new = values.get(_ICRC), deltas.get(_ICRC)
    fix = "something on the way rewrites what the ICRC covers, as ports: only ECN, DSCP and TTL may change"
    if new:
        yield error("icrc", port.name, f"packets with a wrong ICRC arrive: {_ICRC} +{new}", fix)
    elif total:
        evidence = f"packets with a wrong ICRC came and were dropped, since the driver was loaded: {_ICRC} {total}"
        yield warning("icrc", port.name, evidence, fix)
    elif total is not None:
        yield fine("icrc", port.name, f"{_ICRC} 0")


def _drops(
    port: Port, values: Mapping[str, int], deltas: Mapping[str, int], priority: int, interval_s: float
) -> Iterator[Finding]:
    pauses = {name: delta for name, delta in deltas.items() if delta and _PAUSE.fullmatch(name)}
    drops = {name: delta for name, delta in deltas.items() if delta and _DISCARD.fullmatch(name)}
    counted = {name: value for name, value in values.items() if _DISCARD.fullmatch(name)}
    lossy = {name: value for name, value in values.items() if name in _discards(priority) and value}
    never = [name for name in _pauses(priority) if values.get(name) == 0]
    off = "PFC off on one end, another priority than the data's, or FEC off (then PFC frames are ignored)"
    if drops and not any(name.startswith("rx") for name in pauses):
        also = f" ({_shown(pauses)} go out)" if pauses else ""
        yield warning("pfc-drops", port.name, f"queues drop ({_shown(drops)}) and no PFC pause comes in{also}", off)
    elif drops:
        yield warning(
            "pfc-drops",
            port.name,
            f"queues drop ({_shown(drops)}) although PFC pauses pass ({_shown(pauses)})",
            "PFC on the data's priority on both ends, and buffers with headroom for the cable's length",
        )
    elif lossy and len(never) == len(_pauses(priority)):
        evidence = f"since the driver was loaded the data's priority {priority} dropped ({_shown(lossy, '-')})"
        yield warning("pfc-drops", port.name, f"{evidence} and was never paused ({', '.join(never)} 0)", off)
    elif not counted:
        if pauses:
            evidence = f"PFC at work: {_shown(pauses)}; this driver does not count what queues drop"
            yield unknown("pfc-drops", port.name, evidence, "look at the switch's counters of the port")
    else:
        past = {name: value for name, value in counted.items() if value}
        since = f"; since the driver was loaded: {_shown(past, '-') or 'none'}"
        watched = f"no queue drops within {interval_s:g} s" if interval_s > 0 else "queue drops"
        at_work = f"PFC at work: {_shown(pauses)}, " if pauses else ""
        yield fine("pfc-drops", port.name, f"{at_work}{watched}{since}")


def _discards(priority: int) -> tuple[str, ...]:
    return tuple(f"rx_prio{priority}_{kind}" for kind in ("buf_discard", "cong_discard", "discards"))


def _pauses(priority: int) -> tuple[str, str]:
    return f"rx_prio{priority}_pause", f"tx_prio{priority}_pause"


def _cached_s(machine: Machine, port: Port) -> float:
    """Give how long the kernel repeats a port's hw_counters before it reads them anew."""
    folder = machine.infiniband / port.device / "ports" / str(port.number) / "hw_counters"
    return (machine.number(folder / "lifespan") or 0) / 1000


def check_congestion(on: Examination) -> Iterator[Finding]:
    """Does DCQCN's loop close, by what was counted since the driver was loaded?"""
    for port in on.hardware:
        values, _ = port_values(port.device, port.number, on.machine.sys)
        marked, sent, handled, ignored = (_first(values, names) for names in _CONGESTION)
        if marked is None or sent is None or handled is None:
            yield unknown("dcqcn", port.name, "this NIC does not count marks and CNPs", "look at the switch's counters")
            continue
        left = "not counted" if ignored is None else ignored
        evidence = f"since load: {marked} marked packets in, {sent} CNPs out; {handled} CNPs handled, {left} ignored"
        if marked and not sent:
            yield error("dcqcn", port.name, f"{evidence}: marks are not answered, NP is off", "see ecn-np")
        elif ignored:
            yield warning(
                "dcqcn", port.name, f"{evidence}: RP is off on some priority", "see ecn-rp, and the CNPs' class"
            )
        elif not marked and not handled:
            yield unknown("dcqcn", port.name, f"{evidence}: no mark has come yet", "look again after a run with ECN")
        else:
            yield fine("dcqcn", port.name, evidence)


def _first(values: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((values[name] for name in names if name in values), None)


def check_fec(on: Examination) -> Iterator[Finding]:
    """Is forward error correction on where the speed needs it, and for the switch to compare?"""
    machine = on.machine
    for port in on.hardware:
        try:
            modes = machine.ethtool.fec_modes(port.netdev)
        except OSError as reason:
            yield unknown(
                "fec", port.name, f"{port.netdev}: {reason.strerror or reason}", f"ethtool --show-fec {port.netdev}"
            )
            continue
        on_now = {"RS", "BaseR", "LLRS", "auto"} & set(modes)
        speed = "a speed that is not known" if port.gbps is None else f"{port.gbps:g} Gb/s"
        evidence = f"active FEC {', '.join(modes) or 'none'} at {speed}"
        if port.gbps is None and not on_now:
            yield unknown("fec", port.name, f"{evidence}: whether that is enough", f"ethtool {port.netdev}; see port")
        elif port.gbps is not None and port.gbps >= _FEC_FROM_GBPS and not on_now:
            yield warning(
                "fec",
                port.name,
                f"{evidence}: at this speed frames get lost without it, PFC frames too",
                f"ethtool --set-fec {port.netdev} encoding rs, and RS-FEC on the switch port",
            )
        else:
            yield fine("fec", port.name, f"{evidence}; the switch port must have the same")


def _all_values(machine: Machine, port: Port) -> tuple[Mapping[str, int], list[str]]:
    """Give a port's counters, and those that cannot be read."""
    values, unreadable = port_values(port.device, port.number, machine.sys)
    changes = machine.number(machine.netdev(port.netdev) / "carrier_changes") if port.netdev else None
    if changes is not None:
        values["carrier_changes"] = changes
    try:
        values |= machine.ethtool.statistics(port.netdev)
    except OSError:
        return values, unreadable
    return values, unreadable


def _shown(values: Mapping[str, int], sign: str = "+") -> str:
    return ", ".join(f"{name} {value:{sign}d}" for name, value in sorted(values.items())[:6])
