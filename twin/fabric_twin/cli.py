# SPDX-License-Identifier: Apache-2.0
"""The command `fabric-twin`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from fabric_twin.errors import ConfigError, FabricError, TwinError
from fabric_twin.presets import DCQCN_SETS, PRESETS, get_preset
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
    run.add_argument("--preset", default="demo", help=f"fabric: {', '.join(PRESETS)}")
    run.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of all coins and of ECMP; a benchmark's own seed overrides it",
    )
    run.add_argument("--verbs", type=Path, default=Path("/tmp/fabric-twin/verbs.sock"), help="verbs socket")  # noqa: S108
    run.add_argument(
        "--bfrt-port", type=int, default=50052, help="BF-Runtime port of tor0, the others count up; 0: any"
    )
    run.add_argument("--http-port", type=int, default=9301, help="REST port on 127.0.0.1; 0: any")
    run.add_argument(
        "--agent-port", type=int, default=9401, help="where tor0's switch-agent will listen (testbed file)"
    )
    run.add_argument("--testbed-file", type=Path, help="write a testbed.yaml for host-agent here")
    run.add_argument("--pace", type=float, help="virtual seconds per second (default: as fast as possible)")
    run.add_argument(
        "--events", type=Path, metavar="FILE", help="what happens to the fabric in each run (TOML, see docs/twin.md)"
    )
    fabric = run.add_argument_group("changes to the preset", "What is left out is the preset's: fabric-twin presets")
    fabric.add_argument("--tors", type=int, metavar="N", help="leaf switches")
    fabric.add_argument("--hosts-per-tor", type=int, metavar="N")
    fabric.add_argument("--spines", type=int, metavar="N")
    fabric.add_argument("--host-gbps", type=float, metavar="GBPS", help="rate of the hosts' links")
    fabric.add_argument("--uplink-gbps", type=float, metavar="GBPS", help="rate of the links to the spines")
    fabric.add_argument("--mtu", type=int, metavar="BYTES", help="payload of a full packet")
    fabric.add_argument("--buffer-bytes", type=int, metavar="BYTES", help="shared buffer of a switch")
    fabric.add_argument("--dcqcn", choices=sorted(DCQCN_SETS), help="parameter set of the NICs")
    fabric.add_argument("--pfc", action=argparse.BooleanOptionalAction, help="lossless or lossy")
    fabric.add_argument("--ecmp-sport", action=argparse.BooleanOptionalAction, help="hash the UDP source port")

    commands.add_parser("presets", help="list fabrics and DCQCN parameter sets")
    return parser


_PRESET_OPTIONS = (
    "tors", "hosts_per_tor", "spines", "host_gbps", "uplink_gbps", "mtu", "buffer_bytes", "dcqcn", "pfc", "ecmp_sport",
)  # fmt: skip


def _run(args: argparse.Namespace) -> None:
    from fabric_twin.daemon import TwinConfig, serve  # the engine takes a second to import
    from fabric_twin.events import load_events
    from fabric_twin.verbs_service import MAX_PACE

    if args.pace is not None and not 0 < args.pace <= MAX_PACE:
        raise ConfigError(f"--pace {args.pace}: allowed are more than 0 up to {MAX_PACE:g}")
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: give 0 or a positive number")
    preset = get_preset(args.preset, **{name: getattr(args, name) for name in _PRESET_OPTIONS})
    ports = (
        ("http", args.http_port, 1),
        ("bfrt", args.bfrt_port, preset.tors),
        ("agent", args.agent_port, preset.tors),
    )
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
    except FabricError as error:
        raise ConfigError(f"{args.events}: {error}") from error
    except OSError as error:
        raise TwinError(str(error)) from error


def _presets() -> None:
    print(f"{'fabric':12} {'ToRs':>4} {'hosts':>5} {'spines':>6} {'links':>10} {'MTU':>5} {'DCQCN':>6}")
    for p in PRESETS.values():
        links = f"{p.host_gbps:g}/{p.uplink_gbps:g}G"
        print(f"{p.name:12} {p.tors:4} {p.n_hosts:5} {p.spines:6} {links:>10} {p.mtu:5} {p.dcqcn:>6}")
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
