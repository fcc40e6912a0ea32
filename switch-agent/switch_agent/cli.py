# SPDX-License-Identifier: Apache-2.0
"""The command ``switch-agent``: serve, show, watch, doctor, replay."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from switch_agent import replay
from switch_agent.dataplane.program import P4_NAME
from switch_agent.errors import ConfigError, StoreError, SwitchAgentError
from symphony_common.addresses import whole
from symphony_common.output import with_stdout_checked
from symphony_common.version import version

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["main"]

log = logging.getLogger(__name__)

DEFAULT_URL = "http://127.0.0.1:9401"


def _job_ids(text: str) -> range:
    first, last = (whole(part) for part in text.partition("-")[::2])
    if first is None or last is None or not 1 <= first <= last < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of Job_IDs: write e.g. 1-1023")
    return range(first, last + 1)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="switch-agent", description="Symphony on one Tofino2 (or twin) switch: jobs, registers, metrics."
    )
    parser.add_argument("--debug", action="store_true", help="debug log, tracebacks for errors")
    parser.add_argument("--version", action="version", version=f"switch-agent {version()}")
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("serve", help="run the agent")
    run.add_argument("--bfrt", default="127.0.0.1:50052", metavar="HOST:PORT", help="the switch's BF-Runtime")
    run.add_argument("--listen", default="127.0.0.1:9401", metavar="HOST:PORT", help="REST and metrics")
    run.add_argument("--name", default="switch", help="the switch's name, a label of its metrics")
    run.add_argument("--state-dir", type=Path, required=True, help="where the desired state is kept")
    run.add_argument("--config", type=Path, help="YAML with RED thresholds, ECMP hashing, ports")
    run.add_argument("--sample-interval-ms", type=_positive, default=50.0, metavar="MS")
    run.add_argument("--token-file", type=Path, help="bearer token for changes (or SWITCH_AGENT_TOKEN)")
    run.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further host name under which clients may ask for this agent; may be given several times",
    )
    run.add_argument("--p4-name", default=P4_NAME, help="name of the program on the switch")
    run.add_argument("--client-id", type=int, default=101, help="BF-Runtime client id (tries 7 more)")
    run.add_argument("--ports", type=int, default=64, help="state blocks of a job with scope port")
    run.add_argument(
        "--drift-interval-s", type=_positive, default=60.0, metavar="S", help="compare with the desired state so often"
    )
    run.add_argument(
        "--job-ids", type=_job_ids, default=range(1, 1 << 16), metavar="FIRST-LAST", help="Job_IDs to manage"
    )

    shown = commands.add_parser("show", help="print jobs, registers or session of a running agent")
    shown.add_argument("what", choices=("jobs", "registers", "session"))
    watched = commands.add_parser(
        "watch",
        help="registers as a live table",
        description="Registers as a live table. When standard output is no terminal: a plain line per job and "
        "interval, written at once.",
    )
    watched.add_argument(
        "--interval", type=_positive, default=0.5, metavar="S", help="seconds between two looks (default 0.5)"
    )
    checked = commands.add_parser("doctor", help="examine agent and switch")
    checked.add_argument("--bfrt", metavar="HOST:PORT", help="the switch's BF-Runtime (default: the agent's)")
    checked.add_argument("--p4-name", default=P4_NAME)
    for command in (shown, watched, checked):
        command.add_argument("--url", default=DEFAULT_URL, help=f"the agent (default {DEFAULT_URL})")
    for command in (shown, watched):
        command.add_argument("--job", type=int, help="only this job id")
    replay.add_parser(commands)
    for command in (shown, checked):
        command.add_argument("--json", action="store_true", help="JSON instead of a table")
    return parser


# Each command imports what it needs: `show` is not to wait for a web server's import.


def _serve(args: argparse.Namespace) -> int:
    from switch_agent.agent.config import SwitchConfig, load_config
    from switch_agent.agent.inputs import read_token, split_address
    from switch_agent.agent.server import listen, serve
    from switch_agent.agent.service import AgentOptions
    from symphony_common.rest import KnownHosts, is_loopback

    if not 1 <= args.ports <= 512:
        raise ConfigError(f"--ports {args.ports}: give 1 to 512")
    if not 0 <= args.client_id < (1 << 32) - 8:
        raise ConfigError(f"--client-id {args.client_id}: give a number from 0 to {(1 << 32) - 9}")
    if not is_loopback(split_address(args.bfrt)[0]):
        log.warning(
            "BF-Runtime at %s is not on this machine, and it has no authentication: anybody who reaches it can "
            "reprogram the switch; run the agent on the switch, or use a tunnel",
            args.bfrt,
        )
    token = read_token(args.token_file)
    config = load_config(args.config) if args.config else SwitchConfig()
    options = AgentOptions(
        bfrt=args.bfrt,
        state_dir=args.state_dir,
        name=args.name,
        sample_interval=args.sample_interval_ms / 1000,
        p4_name=args.p4_name,
        client_id=args.client_id,
        ports=args.ports,
        drift_interval=args.drift_interval_s,
        job_ids=args.job_ids,
        config=config,
    )
    with listen(args.listen, token) as listener:
        hosts = KnownHosts(split_address(args.listen)[0], args.allow_host)
        try:
            asyncio.run(serve(options, listener, token, hosts))
        except OSError as error:
            raise SwitchAgentError(str(error)) from error
    return 0


def _console() -> Console:
    from rich.console import Console

    # A pipe has no width: 80 columns would cut tables that nobody sees.
    narrow = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=160 if narrow else None)


def _doctor(args: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from switch_agent.agent.doctor import examine
    from switch_agent.agent.inputs import split_address

    console = _console()
    if args.bfrt:
        split_address(args.bfrt)
    findings = asyncio.run(examine(args.url, args.bfrt, args.p4_name))
    healthy = all(finding.level != "failure" for finding in findings)
    if args.json:
        report = {"healthy": healthy, "findings": [finding.view() for finding in findings]}
        console.out(json.dumps(report, indent=2), highlight=False)
    else:
        table = Table("", "finding", "evidence", "what to do", box=None, padding=(0, 1), header_style="underline")
        signs = {
            "ok": "[green]ok[/]",
            "unknown": "[cyan]unknown[/]",
            "warning": "[yellow]warning[/]",
            "failure": "[bold red]failure[/]",
        }
        for finding in findings:
            table.add_row(signs[finding.level], finding.id, escape(finding.evidence), escape(finding.fix))
        console.print(table)
    return 0 if healthy else 1


def _show(args: argparse.Namespace) -> int:
    from switch_agent.agent.console import RestClient, show
    from switch_agent.agent.watch import watch

    with RestClient(args.url) as client:
        if args.command == "show":
            show(args.what, client, _console(), as_json=args.json, job=args.job)
        else:
            watch(client, _console(), interval=args.interval, job=args.job)
    return 0


_COMMANDS = {"serve": _serve, "doctor": _doctor, "show": _show, "watch": _show, "replay": replay.run}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: fine. 1: an error, or an examination that failed. 2: wrong usage, configuration or state folder, which starting
    again does not cure. Whoever closes our standard output (head, less) has seen enough: 1, and not a word.
    """
    return with_stdout_checked("switch-agent", lambda: _command(argv))


def _command(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not args.debug:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it keeps its fonts is nobody's concern
    try:
        return _COMMANDS[args.command](args)
    except KeyboardInterrupt:
        return 130
    except SwitchAgentError as error:
        if args.debug:
            raise
        print(f"switch-agent: {error}", file=sys.stderr)
        # A store that fails while the agent runs is an answer of REST; here it is one that cannot be started with.
        return 2 if isinstance(error, ConfigError | StoreError) else 1


if __name__ == "__main__":
    sys.exit(main())
