# SPDX-License-Identifier: Apache-2.0
"""doctor: what is wrong with this machine for RoCE with step tags, with evidence and a fix for each finding.

`diagnose` takes a `Machine` and `Options` and gives a `Report`. Nothing is changed on the machine. Checks that need
verbs run in processes of their own. ring-bench and host-agent share this package.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ring_bench.doctor import (
    devices,
    environment,
    firewall,
    gids,
    host,
    paths,
    probe,
    quality,
    tagging,
    traffic,
)
from ring_bench.doctor.findings import Finding, Report, Severity, unknown
from ring_bench.doctor.machine import Machine
from ring_bench.doctor.options import Examination, Options

__all__ = ["CHECKS", "Check", "Finding", "Machine", "Options", "Report", "Severity", "diagnose"]


class Check(NamedTuple):
    """A function that looks at one thing, and the ids of what it finds."""

    ids: tuple[str, ...]
    run: Callable[[Examination], Iterator[Finding]]


CHECKS: Sequence[Check] = (
    Check(("pyverbs",), environment.check_pyverbs),
    Check(("abi",), environment.check_abi),
    Check(("memlock",), environment.check_memlock),
    Check(("capabilities",), environment.check_capabilities),
    Check(("devices",), devices.check_devices),
    Check(("uverbs",), devices.check_nodes),
    Check(("provider",), devices.check_providers),
    Check(("port",), devices.check_ports),
    Check(("rxe",), devices.check_rxe),
    Check(("gid",), gids.check_gids),
    Check(("gid-index",), gids.check_gid_index),
    Check(("mtu", "mtu-mismatch"), paths.check_mtu),
    Check(("peers",), paths.check_peers),
    Check(("route", "neighbour"), paths.check_routes),
    Check(("path-mtu",), paths.check_path_mtu),
    Check(("subnet",), paths.check_subnets),
    Check(("firewall",), firewall.check_firewall),
    Check(("sport",), tagging.check_sport),
    Check(("lag",), tagging.check_lag),
    Check(("traffic-class",), tagging.check_traffic_class),
    Check(("trust", "pfc", "pause"), quality.check_classes),
    Check(("ecn-np", "ecn-rp", "cnp-class"), quality.check_ecn),
    Check(("dcqcn",), traffic.check_congestion),
    Check(("fec",), traffic.check_fec),
    Check(("counters", "icrc", "pfc-drops"), traffic.check_counters),
    Check(("numa", "affinity", "governor"), host.check_cpus),
    Check(("clock",), host.check_clock),
    Check(("bfrt-exposed",), host.check_exposure),
    Check(("exchange", "sport-probe"), probe.check_exchange),
)
"""In the order in which a user mends things."""


def diagnose(
    machine: Machine, options: Options, *, only: Sequence[str] = (), checks: Sequence[Check] = CHECKS
) -> Report:
    """Examine a machine.

    Args:
        machine: Where to look.
        options: What is to be run.
        only: Ids to look at; empty: all.
        checks: What to run.
    """
    examination = Examination(machine, options)
    findings: list[Finding] = []
    for check in checks:
        if only and not set(only) & set(check.ids):
            continue
        try:
            found = list(check.run(examination))
        except Exception as error:  # one check that trips over an odd machine must not silence the others
            reason = f"the check broke off: {type(error).__name__}: {error}"
            found = [unknown(check.ids[0], "", reason, "please report this, with ring-bench doctor --json")]
        findings += [finding for finding in found if not only or finding.id in only]
    answered = {finding.id for finding in findings}
    findings += [
        unknown(name, "", "there is nothing here for this check to look at", _nothing(machine))
        for name in dict.fromkeys(only)
        if name not in answered
    ]
    return Report(platform.node(), findings)


def _nothing(machine: Machine) -> str:
    """Say what a check that had nothing to look at needs."""
    if not machine.devices:
        return "an RDMA device: see --only devices"
    return "it needs NIC hardware (soft-RoCE has no QoS), a ring with this machine (--peers), or --probe, --gid-index"
