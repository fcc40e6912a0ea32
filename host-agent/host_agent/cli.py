# SPDX-License-Identifier: Apache-2.0
"""`host-agent serve` runs the service; `host-agent jobs ...` is a thin client of its REST interface; `host-agent nics`
and `host-agent doctor` work on this machine themselves, or with --server ask a service.

Exit codes: 0 fine, 1 the request failed or the output could not be written, 2 wrong usage or start-up refused. One
clear line on stderr; tracebacks only with --debug.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn

from host_agent.app import create_app
from host_agent.auth import TOKEN_VARIABLE, load_token
from host_agent.client import RequestError, call
from host_agent.errors import BadInputError, HostAgentError
from host_agent.experiments import Experiments
from host_agent.hub import Hub
from host_agent.nics import NicCounters, NicService
from host_agent.nics.commands import add_nic_commands
from host_agent.store import Store, default_state_dir
from host_agent.testbed import Testbed, load_testbed
from symphony_common.addresses import split_address
from symphony_common.output import with_stdout_checked
from symphony_common.rest import is_loopback
from symphony_common.version import version

__all__ = ["main"]

DEFAULT_LISTEN: Final = "127.0.0.1:9400"
GRACEFUL_S: Final = 5


class _Server(uvicorn.Server):
    """uvicorn that tells the hub about the signal at once, before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM: streams end and benchmarks stop while uvicorn drains."""
        self._on_signal()
        super().handle_exit(sig, frame)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script `host-agent`."""
    return with_stdout_checked("host-agent", lambda: _command(argv))


def _command(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except HostAgentError as error:
        if arguments.debug:
            raise
        print(f"host-agent: {error.detail}", file=sys.stderr)
        return 1 if isinstance(error, RequestError) else 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="host-agent", description="Jobs, figures and the live page of the testbed.")
    parser.add_argument("--version", action="version", version=f"host-agent {version()}")
    parser.add_argument("--debug", action="store_true", help="full tracebacks and verbose logs")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the service")
    serve.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default %(default)s")
    serve.add_argument("--testbed", type=Path, default=Path("testbed.yaml"), metavar="FILE", help="default %(default)s")
    serve.add_argument("--token-file", type=Path, metavar="FILE", help=f"bearer token (or {TOKEN_VARIABLE})")
    serve.add_argument("--state-dir", type=Path, metavar="DIR", help="jobs and results (default: XDG state folder)")
    serve.add_argument("--url", metavar="URL", help="address under which ranks reach this service (default: --listen)")
    serve.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="of symphony-experiments (default %(default)s)",
    )
    serve.add_argument("--ring-bench", metavar="PROGRAM", help="benchmark to start (default: ring-bench beside Python)")
    serve.set_defaults(run=_serve)

    jobs = commands.add_parser("jobs", help="list, start, stop and switch jobs of a running service")
    jobs.add_argument("--server", default=f"http://{DEFAULT_LISTEN}", metavar="URL", help="default %(default)s")
    jobs.add_argument("--token-file", type=Path, metavar="FILE", help=f"bearer token (or {TOKEN_VARIABLE})")
    jobs.add_argument("--json", action="store_true", help="print the service's answer as it is")
    actions = jobs.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="all jobs").set_defaults(run=_jobs_list)
    for name, text, run in (
        ("show", "one job in full", _jobs_show),
        ("stop", "end a job", _jobs_stop),
        ("delete", "end a job and forget it", _jobs_delete),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("job", type=int)
        action.set_defaults(run=run)
    _add_start(actions.add_parser("start", help="start a benchmark on the twin, or register a job"))
    _add_symphony(actions.add_parser("symphony", help="switch Symphony on or off, or change its settings"))
    add_nic_commands(commands)
    return parser


def _add_start(start: argparse.ArgumentParser) -> None:
    start.add_argument("name")
    start.add_argument("--world", type=int, help="number of ranks (default: every host)")
    start.add_argument("--register-only", action="store_true", help="somebody else starts the ranks")
    start.add_argument("--size", default="32M", help="bytes per rank (default %(default)s)")
    start.add_argument("--iterations", type=int, default=20)
    start.add_argument("--rings", type=int, default=1)
    start.add_argument("--split", metavar='"MOD n"', help="groups of ranks, as NCCL_TESTS_SPLIT")
    start.add_argument("--tagging", choices=["per-step", "retag"], default="per-step")
    start.add_argument("--release", choices=["in-order", "independent", "count"], default="in-order")
    start.add_argument("--no-check", action="store_true", help="do not verify the sums")
    start.add_argument("--payload-scale", type=int, default=1)
    start.add_argument("--seed", type=int)
    start.add_argument("--symphony", choices=["off", "paper", "refined"], default="off")
    start.add_argument("--wait", action="store_true", help="until the job has ended; exit 1 unless it finished")
    start.set_defaults(run=_jobs_start)


def _add_symphony(symphony: argparse.ArgumentParser) -> None:
    symphony.add_argument("job", type=int)
    symphony.add_argument("switch", choices=["on", "off"])
    symphony.add_argument("--variant", choices=["paper", "refined"])
    symphony.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="k, tau, window_us, gate ... (repeatable)",
    )
    symphony.set_defaults(run=_jobs_symphony)


# -- serve


def _serve(arguments: argparse.Namespace) -> int:
    host, port = _address(arguments.listen)
    token = load_token(arguments.token_file)
    if not is_loopback(host) and token is None:
        raise BadInputError(
            f"--listen {arguments.listen} can be reached from other machines: give --token-file "
            f"(or {TOKEN_VARIABLE}), or listen on 127.0.0.1"
        )
    if os.environ.get("WEB_CONCURRENCY", "1") != "1":
        raise BadInputError("WEB_CONCURRENCY is set: host-agent keeps its state in one process; unset it")
    testbed = load_testbed(arguments.testbed)
    arguments.ring_bench = _program(arguments.ring_bench)
    store = Store((arguments.state_dir or default_state_dir()).absolute())
    logging.basicConfig(
        level=logging.DEBUG if arguments.debug else logging.INFO,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # After its graceful end uvicorn raises the signal again: exit with a code instead of dying of it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with store.claimed(), _bind(host, port) as listener:
        asyncio.run(_serve_on(listener, arguments, host, token, testbed, store))
    return 0


def _program(given: str | None) -> str | None:
    """--ring-bench as an absolute path: benchmarks run in folders of their own."""
    if given is None:
        return None
    found = shutil.which(given)
    if found is None:
        raise BadInputError(f"--ring-bench {given}: no program of that name can be executed; give its path")
    return str(Path(found).absolute())


async def _serve_on(
    listener: socket.socket,
    arguments: argparse.Namespace,
    host: str,
    token: str | None,
    testbed: Testbed,
    store: Store,
) -> None:
    from host_agent.page import (
        attach_page,
    )  # NiceGUI takes a second to import: the client commands do without

    port = listener.getsockname()[1]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    url = arguments.url or f"http://{reachable}:{port}"
    hub = Hub(testbed, store, url=url, ring_bench=arguments.ring_bench)
    app = create_app(
        hub,
        token=token,
        local_only=is_loopback(host),
        nics=NicService(store.root),
        nic_counters=NicCounters(testbed),
        experiments=Experiments(arguments.results.absolute()),
    )
    attach_page(app, hub)
    config = uvicorn.Config(
        app,
        workers=1,
        log_level="debug" if arguments.debug else "warning",
        log_config=None,
        timeout_graceful_shutdown=GRACEFUL_S,
        timeout_keep_alive=30,
    )
    loop = asyncio.get_running_loop()
    server = _Server(config, lambda: _soon(loop, hub.begin_shutdown))
    logging.getLogger("host_agent").info(
        "listening on %s (testbed %s, page at %s/)", arguments.listen, testbed.name, url
    )
    try:
        await server.serve(sockets=[listener])
    finally:
        hub.kill_processes()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


def _address(text: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError as error:
        raise BadInputError(f"--listen: {error}; write it like {DEFAULT_LISTEN}") from None


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise BadInputError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise BadInputError(
            f"cannot listen on {host}:{port}: {error.strerror}; is another host-agent running there? "
            "Choose another --listen"
        ) from error
    return listener


# -- jobs


def _jobs_list(arguments: argparse.Namespace) -> int:
    answer = call(arguments.server, arguments.token_file, "GET", "/api/v1/jobs")
    if arguments.json:
        return _print_json(answer)
    print(f"{'id':>4}  {'name':<24} {'state':<10} {'ranks':>5}  symphony")
    for job in answer["jobs"]:
        symphony = job["variant"] if job["enabled"] else "off"
        print(f"{job['id']:>4}  {job['name']:<24} {job['state']:<10} {job['world']:>5}  {symphony}")
    return 0


def _jobs_show(arguments: argparse.Namespace) -> int:
    return _print_job(arguments, call(arguments.server, arguments.token_file, "GET", f"/api/v1/jobs/{arguments.job}"))


def _jobs_stop(arguments: argparse.Namespace) -> int:
    return _print_job(
        arguments, call(arguments.server, arguments.token_file, "POST", f"/api/v1/jobs/{arguments.job}/stop")
    )


def _jobs_delete(arguments: argparse.Namespace) -> int:
    call(arguments.server, arguments.token_file, "DELETE", f"/api/v1/jobs/{arguments.job}")
    return 0


def _jobs_start(arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {
        "name": arguments.name,
        "provider": "external" if arguments.register_only else "twin",
        "symphony": {"enabled": arguments.symphony != "off"},
    }
    if arguments.symphony != "off":
        body["symphony"]["variant"] = arguments.symphony
    if arguments.world is not None:
        body["world"] = arguments.world
    if arguments.seed is not None:
        body["seed"] = arguments.seed
    if not arguments.register_only:
        body["bench"] = {
            "size": arguments.size,
            "iterations": arguments.iterations,
            "rings": arguments.rings,
            "split": arguments.split,
            "tagging": arguments.tagging,
            "release": arguments.release,
            "check": not arguments.no_check,
            "payload_scale": arguments.payload_scale,
        }
    job = call(arguments.server, arguments.token_file, "POST", "/api/v1/jobs", body)
    while arguments.wait and job["state"] in ("registered", "running"):
        time.sleep(0.5)
        job = call(arguments.server, arguments.token_file, "GET", f"/api/v1/jobs/{job['id']}")
    _print_job(arguments, job)
    if job["state"] == "failed":
        print(f"host-agent: job {job['id']} failed: {job['error']}", file=sys.stderr)
    return 1 if job["state"] == "failed" or (arguments.wait and job["state"] != "finished") else 0


def _jobs_symphony(arguments: argparse.Namespace) -> int:
    change: dict[str, Any] = {"enabled": arguments.switch == "on"}
    if arguments.variant:
        change["variant"] = arguments.variant
    for item in arguments.set:
        name, equals, value = item.partition("=")
        if not equals:
            raise BadInputError(f"--set {item!r} is no NAME=VALUE, like k=0.02")
        try:
            change[name] = json.loads(value)
        except ValueError:
            change[name] = value
    return _print_job(
        arguments,
        call(arguments.server, arguments.token_file, "PATCH", f"/api/v1/jobs/{arguments.job}/symphony", change),
    )


def _print_json(answer: Any) -> int:
    print(json.dumps(answer, indent=1))
    return 0


def _print_job(arguments: argparse.Namespace, job: dict[str, Any]) -> int:
    if arguments.json:
        return _print_json(job)
    kind = f"{job['provider']}, {job['world']} ranks, job_tag {job['job_tag']}"
    rows = {
        "job": f"{job['id']} {job['name']} ({kind})",
        "state": job["state"] + (f": {job['error']}" if job["error"] else ""),
        "symphony": f"{'on' if job['enabled'] else 'off'} ({job['variant']})",
        "step overlap": _overlap_text(job["overlap"]),
        "CCT": _cct_text(job["cct"]),
        "marks": _marks_text(job),
    }
    for switch, view in job["switches"].items():
        rows[f"switch {switch}"] = view["error"] or "ok"
    if "reporting" in job:
        rows["events to"] = job["reporting"]["url"]
        rows["token"] = f"{job['reporting']['token']}  (SYMPHONY_EVENTS_TOKEN of the ranks; shown once)"
    for name, value in rows.items():
        print(f"{name:<14} {value}")
    return 0


def _overlap_text(overlap: dict[str, Any]) -> str:
    return "none yet" if overlap["max"] is None else f"max {overlap['max']}, mean {overlap['mean']:.2f}"


def _cct_text(cct: dict[str, Any]) -> str:
    if cct["p50_s"] is None:
        return "none yet"
    text = f"p50 {cct['p50_s'] * 1e3:.3f} ms, p99 {cct['p99_s'] * 1e3:.3f} ms over {cct['collectives']}"
    return text if cct["busbw_gbps"] is None else f"{text}; bus bandwidth {cct['busbw_gbps']:.3f} GB/s"


def _marks_text(job: dict[str, Any]) -> str:
    if job["marks"]["symphony"] is None and job["marks"]["queue"] is None:
        return "unknown: no sample of a switch"
    text = ", ".join(f"{kind} {'unknown' if count is None else count}" for kind, count in job["marks"].items())
    return f"{text}; incomplete, without {', '.join(job['counters_missing'])}" if job["counters_missing"] else text
