# SPDX-License-Identifier: Apache-2.0
"""Quality of service: the data class end to end, PFC, and both legs of DCQCN.

The loop needs the notification point (NP: the receiver turns marks into CNPs) and the reaction point (RP: the sender
slows down on CNPs). On mlx5 NP is one switch of the port, shown once per priority; RP is per priority. The value in
sysfs runs now, the one mlxconfig shows holds from the next boot on; where a tree is missing the answer is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Machine, Port
from ring_bench.doctor.options import Examination
from ring_bench.doctor.tagging import firmware_port, pci_address

__all__ = ["PRIORITIES", "check_classes", "check_ecn", "data_priority", "enabled_priorities"]

PRIORITIES = range(8)
_DEFAULT_CNP_PRIORITY = 6
_DEFAULT_CNP_DSCP = 48


def check_classes(on: Examination) -> Iterator[Finding]:
    """Trust, the data's priority, PFC on that one only."""
    machine = on.machine
    for port in on.hardware:
        trust = _trust(machine, port)
        priority = data_priority(machine, port, on.options.dscp)
        wanted = f"DSCP {on.options.dscp} means priority {priority}"
        if trust is None:
            yield unknown(
                "trust",
                port.name,
                "neither qos/trust nor dcb tells",
                f"mlnx_qos -i {port.netdev}; dcb app show dev {port.netdev}",
            )
        elif trust == "dscp":
            yield fine("trust", port.name, f"trust dscp; {wanted}")
        else:
            yield error(
                "trust",
                port.name,
                f"trust {trust}: the DSCP is not looked at, all untagged RoCE shares priority 0",
                f"mlnx_qos -i {port.netdev} --trust dscp, "
                f"or dcb app add dev {port.netdev} dscp-prio {on.options.dscp}:{priority}",
            )
        yield from _pfc(machine, port, priority)
        yield from _pause(machine, port)


def check_ecn(on: Examination) -> Iterator[Finding]:
    """Both legs of DCQCN, running and after the next boot, and the class of CNPs."""
    machine = on.machine
    for port in on.hardware:
        priority = data_priority(machine, port, on.options.dscp)
        ecn = machine.netdev(port.netdev) / "ecn"
        name, mask = _next_boot(machine, port)
        later = "unknown" if mask is None else f"enabled for {_list(mask) or 'no priority'}"
        for leg, folder, meaning in (
            ("ecn-np", "roce_np", "marks are answered with CNPs"),
            ("ecn-rp", "roce_rp", "CNPs slow the sender down"),
        ):
            on_for = enabled_priorities(machine, ecn / folder)
            running = bool(on_for) if leg == "ecn-np" else on_for is not None and priority in on_for
            shown = "unknown" if on_for is None else f"enabled for {_list(on_for) or 'no priority'}"
            evidence = f"running: {shown}; next boot: {later}"
            if on_for is None:
                hint = f"the tree {ecn / folder} comes with MLNX_OFED; mlxconfig and debugfs cc_params tell more"
                yield unknown(leg, port.name, evidence, hint)
            elif running and mask is not None and priority not in mask:
                yield warning(
                    leg,
                    port.name,
                    f"{evidence}: {meaning}, but not for data priority {priority} once the machine has rebooted",
                    f"mlxconfig -d {pci_address(machine, port)} set {name}=255",
                )
            elif running:
                note = "; one switch for the port" if leg == "ecn-np" else ""
                yield fine(leg, port.name, f"{evidence}: {meaning}{note}")
            else:
                yield error(
                    leg,
                    port.name,
                    f"{evidence}: without it not ({meaning}) for data priority {priority}",
                    f"echo 1 > {ecn / folder}/enable/{priority} (host-agent nics apply does it, and can take it back)",
                )
        yield from _cnp_class(machine, port, ecn, priority)


def data_priority(machine: Machine, port: Port, dscp: int) -> int:
    """Give the priority of the data's DSCP: by dcb's table, else the usual DSCP / 8."""
    return _dscp_table(machine, port.netdev).get(dscp, dscp >> 3)


def enabled_priorities(machine: Machine, folder: Path) -> list[int] | None:
    """Give the priorities with a 1 in ``folder/enable/``; None where there is no such tree, or not all can be read."""
    values = {priority: machine.number(folder / "enable" / str(priority)) for priority in PRIORITIES}
    if None in values.values():
        return None
    return [priority for priority, value in values.items() if value]


def _lossless(machine: Machine, port: Port) -> list[int] | None:
    """Give the priorities with PFC; None where dcb does not tell."""
    answer = machine.json("dcb", "-j", "pfc", "show", "dev", port.netdev)
    flags = answer.get("prio-pfc") if isinstance(answer, dict) else None
    if not isinstance(flags, list):
        return None
    return [number for number, on in enumerate(flags) if on is True or on == "on"]


def _pfc(machine: Machine, port: Port, priority: int) -> Iterator[Finding]:
    lossless = _lossless(machine, port)
    if lossless is None:
        yield unknown(
            "pfc", port.name, "dcb does not tell", f"dcb pfc show dev {port.netdev}; mlnx_qos -i {port.netdev}"
        )
        return
    evidence = f"PFC on priority {_list(lossless) or 'none'}; data priority {priority}"
    setting = " ".join(f"{number}:{'on' if number == priority else 'off'}" for number in PRIORITIES)
    fix = f"dcb pfc set dev {port.netdev} prio-pfc {setting}, and the same on the switch"
    if lossless == [priority]:
        yield fine("pfc", port.name, evidence)
    elif priority not in lossless:
        yield warning("pfc", port.name, f"{evidence}: the data class is lossy, drops cost a retransmission", fix)
    else:
        yield warning("pfc", port.name, f"{evidence}: other classes can be paused too", fix)


def _pause(machine: Machine, port: Port) -> Iterator[Finding]:
    try:
        receives, sends = machine.ethtool.pause_frames(port.netdev)
    except OSError:  # a driver without pause frames
        return
    if receives or sends:
        yield warning(
            "pause",
            port.name,
            "global pause is on: it stops all classes, and PFC does not work beside it",
            f"ethtool -A {port.netdev} rx off tx off",
        )
    else:
        yield fine("pause", port.name, "global pause is off")


def _cnp_class(machine: Machine, port: Port, ecn: Path, priority: int) -> Iterator[Finding]:
    debug = machine.sys / "kernel" / "debug" / "mlx5" / (pci_address(machine, port) or "none") / "cc_params"
    cnp = _first(machine, ecn / "roce_np" / "cnp_802p_prio", debug / "np_cnp_prio")
    dscp = _first(machine, ecn / "roce_np" / "cnp_dscp", debug / "np_cnp_dscp")
    by_dscp = None if dscp is None else data_priority(machine, port, dscp)
    told = [] if cnp is None else [f"priority {cnp}"]
    told += [] if dscp is None else [f"DSCP {dscp} (priority {by_dscp})"]
    lossless = _lossless(machine, port)
    evidence = f"CNPs have {', '.join(told) or 'a class that is not told here'}; data has priority {priority}"
    if priority in (cnp, by_dscp):
        yield error(
            "cnp-class",
            port.name,
            f"{evidence}: CNPs queue behind the data that they are to slow down",
            f"echo {_DEFAULT_CNP_PRIORITY} > {ecn}/roce_np/cnp_802p_prio; "
            f"echo {_DEFAULT_CNP_DSCP} > {ecn}/roce_np/cnp_dscp",
        )
    elif paused := {cnp, by_dscp} & set(lossless or []):
        yield warning(
            "cnp-class",
            port.name,
            f"{evidence}: PFC is on for priority {_list(sorted(number for number in paused if number is not None))}, "
            "so a pause can hold CNPs back",
            f"PFC on priority {priority} alone (see pfc), on the switch too",
        )
    elif cnp is None or dscp is None:
        yield unknown(
            "cnp-class",
            port.name,
            f"{evidence}; usual are priority {_DEFAULT_CNP_PRIORITY} and DSCP {_DEFAULT_CNP_DSCP}",
            "see that the switch gives CNPs a class of their own, without PFC",
        )
    elif lossless is None:
        evidence += "; whether PFC can pause them is not known"
        yield unknown("cnp-class", port.name, evidence, f"see pfc; dcb pfc show dev {port.netdev}")
    else:
        yield fine("cnp-class", port.name, evidence)


def _first(machine: Machine, *paths: Path) -> int | None:
    return next((value for path in paths if (value := machine.number(path)) is not None), None)


def _trust(machine: Machine, port: Port) -> str | None:
    text = machine.read(machine.netdev(port.netdev) / "qos" / "trust")
    if text:
        return text.split()[-1].lower()
    # The kernel's own mlx5 driver trusts the DSCP as soon as it has an entry for one.
    if machine.json("dcb", "-N", "-j", "app", "show", "dev", port.netdev) is None:
        return None
    return "dscp" if _dscp_table(machine, port.netdev) else "pcp"


def _dscp_table(machine: Machine, netdev: str) -> dict[int, int]:
    answer = machine.json("dcb", "-N", "-j", "app", "show", "dev", netdev)
    pairs = answer.get("dscp-prio", []) if isinstance(answer, dict) else []
    return {
        pair[0]: pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int)
    }


def _next_boot(machine: Machine, port: Port) -> tuple[str, list[int] | None]:
    """Give the firmware's setting for a port and the priorities it holds from the next boot on; None: unknown."""
    address = pci_address(machine, port)
    if address is None or (machine.infiniband / port.device / "device" / "physfn").exists():  # no NIC, a VF
        return "", None
    name = f"ROCE_CC_PRIO_MASK_P{firmware_port(machine, port)}"
    for program in ("mlxconfig", "mstconfig"):
        match = re.search(rf"{name}\s+(0x[0-9a-fA-F]+|\d+)", machine.run(program, "-d", address, "q", name).text)
        if match is not None:
            mask = int(match[1], 0)
            return name, [priority for priority in PRIORITIES if mask >> priority & 1]
    return name, None


def _list(numbers: list[int]) -> str:
    return "all priorities" if numbers == list(PRIORITIES) else ", ".join(map(str, numbers))
