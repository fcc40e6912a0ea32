# SPDX-License-Identifier: Apache-2.0
"""`host-agent nics show | plan | apply | restore` and `host-agent doctor`.

Both work on this machine, as the user who runs them; with --server they ask a host-agent, and what that may and sees
counts: the way to look at limits and devices from inside a service.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console

from host_agent.auth import TOKEN_VARIABLE
from host_agent.client import RequestError, call
from host_agent.errors import BadInputError, ConflictError, NicError, NotPermittedError, UnknownNicError
from host_agent.nics.checks import CHECKS
from host_agent.nics.models import Wishes
from host_agent.nics.routes import LONGEST_WATCH_S
from host_agent.nics.service import NicService
from host_agent.store import default_state_dir
from ring_bench.doctor import Finding, Report, Severity
from ring_bench.doctor.cli import add_arguments, examine, show

__all__ = ["add_nic_commands"]


def add_nic_commands(commands: Any) -> None:
    """Declare both commands on the subparsers of `host-agent`."""
    nics = commands.add_parser("nics", help="show, prepare and restore this machine's NICs")
    _add_server(nics)
    nics.add_argument("--json", action="store_true", help="print the answer as it is")
    nics.add_argument("--state-dir", type=Path, metavar="DIR", help="where original values lie")
    actions = nics.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("show", help="what there is, and what is changed").set_defaults(run=_show)
    for name, text, run in (
        ("plan", "what would have to change", _plan),
        ("apply", "change it, all or nothing", _apply),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("file", type=Path, help="YAML or JSON, - for stdin: nics: [{netdev: eth0, mtu: 4200}]")
        action.set_defaults(run=run)
    restore = actions.add_parser("restore", help="put back what was changed")
    restore.add_argument("--force", action="store_true", help="also what somebody else has changed since")
    restore.set_defaults(run=_restore)

    doctor = commands.add_parser("doctor", help="find out what on this machine stands against RoCE with step tags")
    _add_server(doctor)
    add_arguments(doctor, CHECKS)
    doctor.set_defaults(run=_doctor)


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="URL", help="ask this host-agent instead of looking from here")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=f"its bearer token (or {TOKEN_VARIABLE})")


def _show(arguments: argparse.Namespace) -> int:
    if arguments.server:
        answer = call(arguments.server, arguments.token_file, "GET", "/api/v1/nics")
    else:
        with _local(arguments) as service:
            answer = service.show()
    if arguments.json:
        return _print(answer)
    print(f"{'netdev':<15} {'state':<14} {'MTU':>5}  {'RDMA device':<14} {'usable GIDs':<24} addresses")
    for nic in answer["nics"]:
        rdma = nic["rdma"]
        device = f"{rdma['device']}/{rdma['port']}" if rdma else "-"
        usable = ", ".join(str(gid["index"]) for gid in rdma["gids"] if gid["rejected"] is None) if rdma else "-"
        print(
            f"{nic['netdev'] or '-':<15} {nic['state'] or '-':<14} {nic['mtu'] or '-':>5}  {device:<14} "
            f"{usable or 'none':<24} {', '.join(nic['addresses']) or '-'}"
        )
    for change in answer["changed"]:
        print(f"changed: {_line(change)} (host-agent nics restore puts it back)")
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    wishes = _wishes(arguments.file)
    if arguments.server:
        answer = call(arguments.server, arguments.token_file, "POST", "/api/v1/nics/plan", wishes.model_dump())
    else:
        with _local(arguments) as service:
            answer = service.plan(wishes).model_dump()
    if arguments.json:
        _print(answer)
    else:
        for change in answer["changes"]:
            print(_line(change) + (f"   # {change['note']}" if change["note"] else ""))
        for obstacle in answer["obstacles"]:
            print(f"impossible: {obstacle}")
        if not answer["changes"] and not answer["obstacles"]:
            print("nothing to change")
    return 1 if answer["obstacles"] else 0


def _apply(arguments: argparse.Namespace) -> int:
    wishes = _wishes(arguments.file)
    if arguments.server:
        answer = call(arguments.server, arguments.token_file, "POST", "/api/v1/nics/apply", wishes.model_dump())
    else:
        with _local(arguments) as service:
            answer = service.apply(wishes).model_dump()
    return _outcome(arguments, answer)


def _restore(arguments: argparse.Namespace) -> int:
    if arguments.server:
        body = {"force": arguments.force}
        answer = call(arguments.server, arguments.token_file, "POST", "/api/v1/nics/restore", body)
    else:
        with _local(arguments) as service:
            answer = service.restore(force=arguments.force).model_dump()
    return _outcome(arguments, answer)


def _outcome(arguments: argparse.Namespace, answer: dict[str, Any]) -> int:
    if arguments.json:
        _print(answer)
    else:
        for change in answer["done"]:
            print(_line(change))
        if not answer["done"] and not answer["left"]:
            print("nothing to change")
    for problem in answer["left"]:
        print(f"host-agent: {problem} (--force puts it back)", file=sys.stderr)
    return 1 if answer["left"] else 0


def _doctor(arguments: argparse.Namespace) -> int:
    if not arguments.server:
        return examine(arguments, checks=CHECKS)
    if arguments.interval > LONGEST_WATCH_S:
        raise BadInputError(
            f"--interval {arguments.interval:g}: a service watches counters for at most {LONGEST_WATCH_S:g} s; "
            "for longer, run doctor on that machine without --server"
        )
    body = {
        "only": arguments.only,
        "devices": arguments.device,
        "peers": arguments.peers,
        "memory": arguments.memory,
        "traffic_class": arguments.traffic_class,
        "gid_index": arguments.gid_index,
        "switch_mtu": arguments.switch_mtu,
        "interval_s": arguments.interval,
        "probe": arguments.probe,
    }
    answer = call(arguments.server, arguments.token_file, "POST", "/api/v1/doctor", body)
    found = [Finding(**{**entry, "severity": Severity(entry["severity"])}) for entry in answer["findings"]]
    report = Report(answer["host"], found)
    if arguments.json:
        _print(answer)
    else:
        show(report, Console(), verbose=arguments.verbose)
    return report.exit_status(strict=arguments.strict)


@contextlib.contextmanager
def _local(arguments: argparse.Namespace) -> Iterator[NicService]:
    service = NicService((arguments.state_dir or default_state_dir()).resolve())
    try:
        yield service
    except (NicError, NotPermittedError, UnknownNicError, ConflictError) as error:
        raise RequestError(error.detail) from error
    finally:
        service.close()


def _wishes(path: Path) -> Wishes:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        return Wishes.model_validate(yaml.safe_load(text))
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is no UTF-8 text: byte {error.start} cannot be read") from error
    except yaml.YAMLError as error:
        raise BadInputError(f"{path} is no YAML: {error}".replace("\n", " ")) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise BadInputError(f"{path}: {where}: {first['msg']}") from error


def _line(change: dict[str, Any]) -> str:
    detail = f" {change['detail']}" if change["detail"] else ""
    return f"{change['netdev']} {change['what']}{detail}: {_text(change['before'])} -> {_text(change['after'])}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(str, value.values()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _print(answer: Any) -> int:
    print(json.dumps(answer, indent=1))
    return 0
