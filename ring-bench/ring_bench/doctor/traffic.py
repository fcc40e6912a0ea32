# SPDX-License-Identifier: Apache-2.0
"""What the counters say: since the driver was loaded, and while doctor watches. And the link's error correction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ring_bench.counters import LOSS, RNR, port_values
from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Machine, Port
from ring_bench.doctor.options import Examination

__all__ = ["check_congestion", "check_counters", "check_fec"]

_PAUSE = re.compile(r"[rt]x_prio\d_pause")
_DISCARD = re.compile(r"(rx_prio\d_(buf_discard|cong_discard|discards)|rx_discards_phy|tx_discards_phy)")
_FEC_FROM_GBPS = 25.0


def check_counters(on: Examination) -> Iterator[Finding]:
    """Do error counters move while we watch?"""
    machine, interval = on.machine, on.options.interval_s
    if interval <= 0 or not on.ports:
        return
    before = {port.name: _all_values(machine, port) for port in on.ports}
    machine.pause(interval)
    for port in on.ports:
        old, new = before[port.name], _all_values(machine, port)
        deltas = {name: value - old[name] for name, value in new.items() if name in old and value != old[name]}
        evidence = f"within {interval:g} s"
        for names, what, fix in (
            (LOSS, "packets are being lost, damaged or repeated", "find the drop: switch counters, cable, PFC, MTU"),
            (RNR, "receivers are not ready", "post receives before granting credits; min_rnr_timer 12, not 0"),
        ):
            moved = _shown({name: deltas[name] for name in names if name in deltas})
            if moved:
                yield warning("counters", port.name, f"{what} {evidence}: {moved}", fix)
                break
        else:
            if new:
                yield fine("counters", port.name, f"no error counter of {len(new)} moved {evidence}")
            else:
                yield unknown("counters", port.name, "this driver has no counters", "look at the switch's")
        if deltas.get("rx_icrc_encapsulated"):
            yield error(
                "icrc",
                port.name,
                f"packets with a wrong ICRC arrive: rx_icrc_encapsulated +{deltas['rx_icrc_encapsulated']}",
                "something on the way rewrites what the ICRC covers, as ports: only ECN, DSCP and TTL may change",
            )
        pauses = {name: delta for name, delta in deltas.items() if _PAUSE.fullmatch(name)}
        drops = {name: delta for name, delta in deltas.items() if _DISCARD.fullmatch(name)}
        if drops and not any(name.startswith("rx") for name in pauses):
            yield warning(
                "pfc-drops",
                port.name,
                f"queues drop ({_shown(drops)}) and no PFC pause comes in {evidence}",
                "PFC off on one end, another priority than the data's, or FEC off (then PFC frames are ignored)",
            )
        elif pauses:
            yield fine("pfc-drops", port.name, f"PFC at work {evidence}: {_shown(pauses)}, no drops")


def check_congestion(on: Examination) -> Iterator[Finding]:
    """Does DCQCN's loop close, by what was counted since the driver was loaded?"""
    for port in on.hardware:
        values, _ = port_values(port.device, port.number, on.machine.sys)
        marked, sent = values.get("np_ecn_marked_roce_packets"), values.get("np_cnp_sent")
        handled, ignored = values.get("rp_cnp_handled"), values.get("rp_cnp_ignored")
        if marked is None or sent is None or handled is None:
            yield unknown("dcqcn", port.name, "this NIC does not count marks and CNPs", "look at the switch's counters")
            continue
        evidence = (
            f"since load: {marked} marked packets in, {sent} CNPs out; {handled} CNPs handled, {ignored or 0} ignored"
        )
        if marked and not sent:
            yield error("dcqcn", port.name, f"{evidence}: marks are not answered, NP is off", "see ecn-np")
        elif ignored:
            yield warning(
                "dcqcn", port.name, f"{evidence}: RP is off on some priority", "see ecn-rp, and the CNPs' class"
            )
        else:
            yield fine("dcqcn", port.name, evidence)


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
        evidence = f"active FEC {', '.join(modes) or 'none'} at {port.gbps:g} Gb/s"
        if port.gbps >= _FEC_FROM_GBPS and not {"RS", "BaseR", "LLRS", "auto"} & set(modes):
            yield warning(
                "fec",
                port.name,
                f"{evidence}: at this speed frames get lost without it, PFC frames too",
                f"ethtool --set-fec {port.netdev} encoding rs, and RS-FEC on the switch port",
            )
        else:
            yield fine("fec", port.name, f"{evidence}; the switch port must have the same")


def _all_values(machine: Machine, port: Port) -> Mapping[str, int]:
    values, _ = port_values(port.device, port.number, machine.sys)
    try:
        values |= machine.ethtool.statistics(port.netdev)
    except OSError:
        return values
    return values


def _shown(deltas: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {delta:+d}" for name, delta in sorted(deltas.items())[:6])
