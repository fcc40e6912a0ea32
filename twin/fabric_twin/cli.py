# SPDX-License-Identifier: Apache-2.0
"""The command `fabric-twin`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from fabric_twin.errors import ConfigError, FabricError, TwinError
from fabric_twin.presets import (
    DCQCN_SETS,
    PRESETS,
    RETRANSMISSIONS,
    ROUTINGS,
    WINDOWS,
    Preset,
    Settings,
    Skew,
    changed,
    get_preset,
)
from symphony_common.output import with_stdout_checked
from symphony_common.version import version

__all__ = ["main"]


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that there are: an option without one says itself what leaving it out means."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fabric-twin",
        description="A RoCEv2 testbed without hardware: NICs, links and Symphony switches, packet by packet, "
        "in virtual time. It serves a verbs socket for ring-bench and BF-Runtime for switch-agent.",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=f"fabric-twin {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a twin until Ctrl-C", formatter_class=_Defaults)
    run.add_argument("--preset", help=f"fabric: {', '.join(PRESETS)} (default: demo)")
    run.add_argument("--fabric", type=Path, metavar="FILE", help="fabric of any shape from a YAML file (docs/twin.md)")
    run.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of all coins and of ECMP; a benchmark's own seed overrides it",
    )
    run.add_argument("--verbs", type=Path, default=Path("/tmp/fabric-twin/verbs.sock"), help="verbs socket")  # noqa: S108
    run.add_argument(
        "--bfrt-port",
        type=int,
        default=50052,
        help="BF-Runtime port of the first Symphony switch, the others count up; 0: any",
    )
    run.add_argument("--http-port", type=int, default=9301, help="REST port on 127.0.0.1; 0: any")
    run.add_argument(
        "--agent-port",
        type=int,
        default=9401,
        help="where the first switch-agent will listen, the others count up (testbed file)",
    )
    run.add_argument("--testbed-file", type=Path, help="write a testbed.yaml for host-agent here")
    run.add_argument("--pace", type=float, help="virtual seconds per second (default: as fast as possible)")
    run.add_argument(
        "--events", type=Path, metavar="FILE", help="what happens to the fabric in each run (TOML, see docs/twin.md)"
    )
    shape = run.add_argument_group(
        "changes to the preset's shape", "What is left out is the preset's: fabric-twin presets"
    )
    shape.add_argument("--pods", type=int, metavar="N", help="spine groups, joined by core switches")
    shape.add_argument("--tors", type=int, metavar="N", help="ToRs of all pods")
    shape.add_argument("--hosts-per-tor", type=int, metavar="N", help="NICs on each ToR")
    shape.add_argument("--rails", type=int, metavar="N", help="NICs per host, each on a ToR of its own")
    shape.add_argument("--spines", type=int, metavar="N", help="spines of each pod")
    shape.add_argument("--cores", type=int, metavar="N", help="core switches of the whole fabric")
    shape.add_argument(
        "--oversubscription",
        metavar="1:N[,1:M]",
        help="instead of --spines (and --cores): as many as give this ratio at the ToRs (and at the spines)",
    )
    shape.add_argument("--host-gbps", type=float, metavar="GBPS", help="rate of the hosts' links")
    shape.add_argument("--uplink-gbps", type=float, metavar="GBPS", help="rate of the links to the spines")
    shape.add_argument("--core-gbps", type=float, metavar="GBPS", help="rate of the links to the core switches")
    shape.add_argument("--delay-us", type=float, metavar="US", help="delay of each link")
    fabric = run.add_argument_group("changes to the preset or the fabric file")
    fabric.add_argument("--mtu", type=int, metavar="BYTES", help="payload of a full packet")
    fabric.add_argument("--buffer-bytes", type=int, metavar="BYTES", help="shared buffer of a switch")
    fabric.add_argument("--dcqcn", choices=sorted(DCQCN_SETS), help="parameter set of the NICs")
    fabric.add_argument("--window", choices=WINDOWS, help="limit on what a queue pair has on its way")
    fabric.add_argument("--retransmission", choices=RETRANSMISSIONS, help="what a NIC sends again after a loss")
    fabric.add_argument("--pfc", action=argparse.BooleanOptionalAction, help="lossless or lossy")
    fabric.add_argument("--ecmp-sport", action=argparse.BooleanOptionalAction, help="hash the UDP source port")
    fabric.add_argument("--routing", choices=ROUTINGS, help="by hash, or balanced and fixed by host")
    fabric.add_argument(
        "--skew", metavar="LINK=FACTOR", help="load of one uplink, 1.0 to 2.0 times its share: tor1->spine0=1.13"
    )
    fabric.add_argument(
        "--symphony-tiers",
        metavar="TIERS",
        help="which switches run Symphony: tor,spine,core (some of them), all, none",
    )

    commands.add_parser("algorithms", help="list what may keep steps together in simulations, with its source")
    presets = commands.add_parser("presets", help="list fabrics and DCQCN parameter sets")
    presets.add_argument("name", nargs="?", metavar="PRESET", help="show where each of its values comes from")
    return parser


_SHAPE_OPTIONS = (
    "tors", "hosts_per_tor", "rails", "spines", "pods", "cores", "oversubscription",
    "host_gbps", "uplink_gbps", "core_gbps", "delay_us",
)  # fmt: skip
_SETTING_OPTIONS = (
    "mtu",
    "buffer_bytes",
    "dcqcn",
    "window",
    "retransmission",
    "pfc",
    "ecmp_sport",
    "routing",
    "symphony_tiers",
)


def _spec(args: argparse.Namespace) -> Settings:
    """The fabric that the options ask for."""
    settings = {name: getattr(args, name) for name in _SETTING_OPTIONS}
    settings["skew"] = None if args.skew is None else Skew.parse(args.skew)
    shape = {name: getattr(args, name) for name in _SHAPE_OPTIONS if getattr(args, name) is not None}
    if args.fabric is None:
        return get_preset(args.preset or "demo", **shape, **settings)
    from fabric_twin.fabric_file import load_fabric

    for option in ("preset", *shape):
        if getattr(args, option) is not None:
            raise ConfigError(f"--{option.replace('_', '-')} and --fabric do not go together: the file has the shape")
    return changed(load_fabric(args.fabric), **settings)


def _run(args: argparse.Namespace) -> None:
    from fabric_twin.daemon import TwinConfig, serve  # the engine takes a second to import
    from fabric_twin.events import load_events
    from fabric_twin.topology import Topology
    from fabric_twin.verbs_service import MAX_PACE

    if args.pace is not None and not 0 < args.pace <= MAX_PACE:
        raise ConfigError(f"--pace {args.pace}: allowed are more than 0 up to {MAX_PACE:g}")
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: give 0 or a positive number")
    preset = _spec(args)
    servers = max(1, len(Topology(preset, args.seed).symphony_switches))
    ports = (("http", args.http_port, 1), ("bfrt", args.bfrt_port, servers), ("agent", args.agent_port, servers))
    for option, first, count in ports:
        if not 0 <= first <= 65536 - count:
            raise ConfigError(f"--{option}-port {first}: allowed are 0 to {65536 - count}")
    config = TwinConfig(
        preset=preset,
        seed=args.seed,
        verbs=args.verbs,
        bfrt_port=args.bfrt_port,
        http_port=args.http_port,
        agent_port=args.agent_port,
        pace=args.pace,
        testbed_file=args.testbed_file,
        events=load_events(args.events) if args.events else (),
    )
    try:
        serve(config)
    except FabricError as error:  # an event that cannot happen here
        raise ConfigError(f"{args.events}: {error}" if args.events else str(error)) from error
    except OSError as error:
        raise TwinError(str(error)) from error


def _rates(p: Preset) -> str:
    return "/".join(f"{rate:g}" for rate in (p.host_gbps, p.uplink_gbps, *([p.core_gbps] if p.cores else []))) + "G"


def _sources(p: Preset) -> None:
    """One preset, value by value."""
    for name, value in vars(p).items():
        if name not in ("name", "sources"):
            print(f"{name:15} {value!s:>9}  {p.source(name)}")
    ratios = ", ".join(f"1:{ratio:g}" for ratio in p.oversubscription) or "-"
    print(
        f"{'oversubscription':15} {ratios}, from the above: {', '.join(('ToRs', 'spines')[: len(p.oversubscription)])}"
    )


def _algorithms() -> None:
    """Each algorithm with the first line of its docstring."""
    from fabric_twin.algorithms import describe  # the engine takes a moment to import

    for name, text in describe():
        print(f"{name:12} {text}")


def _presets() -> None:
    print(
        f"{'fabric':15} {'pods':>4} {'ToRs':>4} {'hosts':>5} {'NICs':>4} {'spines':>6} {'cores':>5} {'links':>9}",
        end="",
    )
    print(f" {'oversub':>8} {'MTU':>5} {'DCQCN':>6}")
    for p in PRESETS.values():
        over = ",".join(f"1:{ratio:g}" for ratio in p.oversubscription) or "-"
        print(f"{p.name:15} {p.pods:4} {p.tors:4} {p.n_hosts // p.rails:5} {p.n_hosts:4} {p.pods * p.spines:6}", end="")
        print(f" {p.cores:5} {_rates(p):>9} {over:>8} {p.mtu:5} {p.dcqcn:>6}")
    print("\nWhere a fabric's values come from: fabric-twin presets FABRIC")
    print(f"\n{'DCQCN':6} {'machine':>7} {'alpha us':>8} {'cut us':>6} {'T us':>5} {'F':>2} {'AI':>4} {'HAI':>4} Mb/s")
    for c in DCQCN_SETS.values():
        print(
            f"{c.name:6} {c.machine:>7} {c.alpha_timer_us:8g} {c.decrease_us:6g} {c.increase_us:5g} "
            f"{c.fast_recovery_stages:2} {c.ai_mbps:4g} {c.hai_mbps:4g}"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with one line on stderr when something goes wrong.

    1: an error. 2: wrong usage, an option, address or file that cannot be used: starting again does not help. Whoever
    closes our standard output (head, less) has seen enough: 1, and not a word.
    """
    if status := with_stdout_checked("fabric-twin", lambda: _command(argv)):
        sys.exit(status)


def _command(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    try:
        if args.command == "run":
            _run(args)
        elif args.command == "algorithms":
            _algorithms()
        elif args.name is not None:
            _sources(get_preset(args.name))
        else:
            _presets()
    except TwinError as error:
        if args.debug:
            traceback.print_exc()
        print(f"fabric-twin: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
