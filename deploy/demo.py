# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the whole testbed on the twin, started, used over REST, and taken down again.

Starts fabric-twin, a switch-agent per ToR and host-agent as processes, runs ring-bench through host-agent's REST
interface, and prints what came out. Everything it writes lies in ``demo/``: logs, ``summary.json``,
``overlap.png``, the results of every run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

BIN = Path(sys.executable).parent
HOLD_NS = 500_000_000
"""When the fourth run gets Symphony: the paper's late start (figure 4a), in virtual time."""
START_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 600.0
console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


class DemoError(Exception):
    """The demo cannot go on; the text says why and where to look."""


# ------------------------------------------------------------------------------------------- the stack


class Stack:
    """The programs of the testbed, each a process with a log in ``folder/logs``."""

    def __init__(self, folder: Path, *, preset: str = "demo", seed: int = 1, pace: float | None = None) -> None:
        self.folder = folder
        self.preset = preset
        self.seed = seed
        self.pace = pace
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.testbed: dict[str, Any] = {}
        self.host_url = ""
        self.twin_url = ""

    def start(self) -> None:
        """Start everything and wait until it answers."""
        http, agent, host = _free_port(9301), _free_port(9401, 4), _free_port(9400)
        bfrt = _free_port(50052, 4)
        testbed_file = self.folder / "testbed.yaml"
        self._spawn(
            "fabric-twin",
            *("run", "--preset", self.preset, "--seed", str(self.seed), "--verbs", str(self.folder / "verbs.sock")),
            *("--bfrt-port", str(bfrt), "--http-port", str(http), "--agent-port", str(agent)),
            *("--testbed-file", str(testbed_file)),
            *(("--pace", str(self.pace)) if self.pace else ()),
        )
        self.twin_url = f"http://127.0.0.1:{http}"
        self._await("fabric-twin", f"{self.twin_url}/healthz")
        self.testbed = yaml.safe_load(testbed_file.read_text())
        for switch in self.testbed["switches"]:
            name = f"switch-agent-{switch['name']}"
            self._spawn(
                name,
                *("serve", "--name", switch["name"], "--bfrt", switch["bfrt"]),
                *("--listen", switch["url"].removeprefix("http://")),
                *("--state-dir", str(self.folder / "state" / switch["name"])),
            )
        self._spawn(
            "host-agent",
            *("serve", "--listen", f"127.0.0.1:{host}", "--testbed", str(testbed_file)),
            *("--state-dir", str(self.folder / "state" / "host-agent")),
        )
        self.host_url = f"http://127.0.0.1:{host}"
        for switch in self.testbed["switches"]:
            self._await(f"switch-agent-{switch['name']}", f"{switch['url']}/api/v1/switch", _is_ready)
        self._await("host-agent", f"{self.host_url}/healthz")

    def _spawn(self, name: str, *args: str) -> None:
        program = BIN / name.split("-tor")[0]
        log = (self.folder / "logs" / f"{name}.log").open("wb")
        with log:
            self._processes[name] = subprocess.Popen(
                [program, *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # no threads here
            )

    def _await(self, name: str, url: str, good: Callable[[httpx.Response], bool] | None = None) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(url, timeout=5)
                if answer.is_success and (good is None or good(answer)):
                    return
            time.sleep(0.1)
        raise DemoError(f"{name} did not get ready within {START_TIMEOUT_S:.0f} s; its log: {self._log(name)}")

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """The process of a program: ``fabric-twin``, ``switch-agent-tor0``, ``host-agent``."""
        return self._processes[name]

    def check(self) -> None:
        """Raise when a program has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                last = self._log(name).read_text(errors="replace").strip().splitlines()[-1:] or ["(it said nothing)"]
                raise DemoError(f"{name} ended with exit status {process.returncode}: {last[0]}")

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def stop(self) -> None:
        """End every process group; nothing stays behind."""
        for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + patience_s
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
            if all(process.poll() is not None for process in self._processes.values()):
                return


def _end_with_parent() -> None:
    """In the child: SIGTERM when the demo dies, even of SIGKILL (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _is_ready(answer: httpx.Response) -> bool:
    return bool(answer.json().get("state") == "ready")


def _free_port(wanted: int, count: int = 1) -> int:
    """`wanted`, or the first port above from which `count` ports are free on 127.0.0.1."""
    for first in range(wanted, wanted + 2000, max(count, 10)):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    listener = stack.enter_context(socket.socket())
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise DemoError(f"no {count} free ports on 127.0.0.1 above {wanted}")


# ------------------------------------------------------------------------------------------- runs


class Runner:
    """Runs jobs through host-agent's REST interface."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.seed = seed
        self.api = httpx.Client(base_url=stack.host_url, timeout=30)
        self.twin = httpx.Client(base_url=stack.twin_url, timeout=30)

    def run(
        self, name: str, world: int, bench: dict[str, Any], symphony: dict[str, Any], progress: Progress, toggle: bool
    ) -> dict[str, Any]:
        """Start a job, follow it to its end, and return its view, result and curves."""
        before = self._ask(self.twin, "GET", "/api/v1/stats")
        if toggle:
            self._ask(self.twin, "PATCH", "/api/v1/clock", {"hold_after_ns": HOLD_NS})
        body = {"name": name, "world": world, "bench": bench, "symphony": symphony, "seed": self.seed}
        job = self._ask(self.api, "POST", "/api/v1/jobs", body)
        path = f"/api/v1/jobs/{job['id']}"
        total = bench["iterations"] * _groups(bench)
        bar = progress.add_task(name, total=total)
        deadline = time.monotonic() + RUN_TIMEOUT_S
        try:
            # on_switches ends after the last register samples; then the next run gets the same job_tag and paths
            while job["on_switches"]:
                if time.monotonic() > deadline:
                    raise DemoError(
                        f"run {name} has not ended after {RUN_TIMEOUT_S:.0f} s; logs are in {job['folder']}"
                    )
                self.stack.check()
                time.sleep(0.1)
                if toggle and self._ask(self.twin, "GET", "/api/v1/clock")["held"]:
                    self._ask(self.api, "PATCH", f"{path}/symphony", {"enabled": True, "variant": "refined"})
                    self._ask(self.twin, "PATCH", "/api/v1/clock", {"hold_at_ns": None})
                    toggle = False
                job = self._ask(self.api, "GET", path)
                progress.update(bar, completed=job["cct"]["collectives"])
        except BaseException:
            with contextlib.suppress(httpx.HTTPError):
                self.api.post(f"{path}/stop")
            self.stack.check()  # a program that has died explains it better
            raise
        if job["state"] != "finished":
            self.stack.check()
            tail = "\n  ".join(job["log_tail"][-6:])
            raise DemoError(f"run {name} {job['state']}: {job['error']}\n  {tail}\n  more in {job['folder']}")
        progress.update(bar, completed=total)
        after = self._ask(self.twin, "GET", "/api/v1/stats")
        return {
            "job": job,
            "result": self._ask(self.api, "GET", f"{path}/result"),
            "overlap": self._ask(self.api, "GET", f"{path}/overlap"),
            "engine": {key: after[key] - before[key] for key in ("data_packets", "events", "cpu_s")},
        }

    @staticmethod
    def _ask(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise DemoError(f"{method} {client.base_url}{path}: {error}") from None
        if answer.is_error:
            raise DemoError(f"{method} {client.base_url}{path}: {answer.status_code} {answer.text[:500]}")
        out: dict[str, Any] = answer.json()
        return out


def _groups(bench: dict[str, Any]) -> int:
    kind, number = (bench.get("split") or "DIV 0").split()
    return int(number) if kind == "MOD" else 1


VERIFIED = {"size": "1M", "iterations": 4, "check": True}
"""The short AllReduce in which every byte really moves."""
FABRIC = {"size": "32M", "iterations": 20, "split": "MOD 8", "check": True, "payload_scale": 256}
"""The paper's figure 4: 8 rings of 4 hosts, one node per ToR, 8 MB chunks, 120 steps."""
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("off", {"enabled": False}),
    ("paper", {"enabled": True, "variant": "paper"}),
    ("refined", {"enabled": True, "variant": "refined"}),
    ("toggled", {"enabled": False, "variant": "refined"}),
)


# ------------------------------------------------------------------------------------------- reporting


def summarise(name: str, run: dict[str, Any], seed: int) -> dict[str, Any]:
    """One entry of ``summary.json``'s "runs"; every number comes from the run's own result or the switches."""
    job, result = run["job"], run["result"]
    (size,) = result["results"]
    return {
        "name": name,
        "cct_ms": {key: round(size["cct_us"][key] / 1000, 3) for key in ("p50", "p99")},
        "job_ms": round(_span_ns(run) / 1e6, 3),
        "busbw_gbps": size["busbw_gbps"],
        "overlap": {key: size["step_overlap"][key] for key in ("max", "mean")},
        "marks": job["marks"],
        "wrong": size["wrong"],
        "agreement": job["agreement"]["share"],
        "toggle_ms": _toggle_ms(run) if name == "toggled" else None,
        "seed": seed,
        "release_rule": result["release_rule"],
        "qp_mode": result["qp_mode"],
        "preset": result["preset"],
    }


def _span_ns(run: dict[str, Any]) -> int:
    curve = run["overlap"]["host"]
    return int(curve[-1][0] - curve[0][0])


def _toggle_ms(run: dict[str, Any]) -> float | None:
    for toggle in run["overlap"]["toggles"]:
        if toggle["t_ns"] is not None and toggle["enabled"]:
            return float((toggle["t_ns"] - run["overlap"]["host"][0][0]) / 1e6)
    return None


def show_table(summary: dict[str, Any]) -> None:
    """The numbers, as a table."""
    off = next(r for r in summary["runs"] if r["name"] == "off")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run")
    for title in (
        "CCT p50",
        "p99 ms",
        "all ms",
        "vs off",
        "busbw",
        "overlap",
        "mean",
        "marks: Sym",
        "queue",
        "wrong",
        "agree",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for r in summary["runs"]:
        table.add_row(
            r["name"],
            f"{r['cct_ms']['p50']:.1f}",
            f"{r['cct_ms']['p99']:.1f}",
            f"{r['job_ms']:.0f}",
            f"{100 * (r['job_ms'] / off['job_ms'] - 1):+.1f}%" if r is not off else "",
            f"{r['busbw_gbps']:.3f}",
            f"{r['overlap']['max']}",
            f"{r['overlap']['mean']:.1f}",
            f"{r['marks']['symphony']:,}",
            f"{r['marks']['queue']:,}",
            f"{r['wrong']}",
            "n/a" if r["agreement"] is None else f"{100 * r['agreement']:.0f}%",
        )
    console.print(table)
    engine = summary["engine"]
    rate = engine["data_packets"] / engine["cpu_s"] if engine["cpu_s"] else 0.0
    console.print(
        "CCT: of one AllReduce in one ring; all: the whole run; busbw in GB/s; overlap: largest degree of step overlap "
        "the hosts saw; agree: samples of the switches' registers within one step of it"
    )
    console.print(
        f"\ntwin: {engine['data_packets']:,} data packets, {engine['events']:,} events in {engine['cpu_s']:.1f} s of "
        f"processor time: {rate / 1e6:.2f} M data packets per CPU second"
    )
    console.print(
        f"assumes: release rule {off['release_rule']}, QP mode {off['qp_mode']}, preset {off['preset']}, "
        f"seed {off['seed']}; "
        f"8 rings of 4 hosts, 20 AllReduces of 32 MiB each, payload sampled 1:{FABRIC['payload_scale']}"
    )


def draw(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Step overlap over time, the moment of the toggle drawn in."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(10, 4.5), layout="constrained")
    colours = {"off": "#7f7f7f", "paper": "#1f77b4", "refined": "#2ca02c", "toggled": "#d62728"}
    for name, run in runs.items():
        curve = run["overlap"]["host"]
        t0 = curve[0][0]
        times = [(t - t0) / 1e6 for t, _ in curve]
        axis.step(times, [v for _, v in curve], where="post", label=name, color=colours[name], linewidth=1.4)
        if name == "toggled":
            moment = _toggle_ms(run)
            if moment is not None:
                axis.axvline(moment, color=colours[name], linestyle="--", linewidth=1)
                top = axis.get_ylim()[1]
                axis.annotate(
                    "Symphony switched on\nover REST (toggled)",
                    (moment, 0.9 * top),
                    fontsize=8,
                    xytext=(4, 0),
                    textcoords="offset points",
                )
    axis.set(xlabel="virtual time since the first step was posted (ms)", ylabel="degree of step overlap")
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    axis.set_title(
        "Ring AllReduce, 8 rings x 4 hosts, 10G leaf-spine twin: step overlap seen by the hosts", fontsize=10
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


# ------------------------------------------------------------------------------------------- main


def demo(folder: Path, seed: int, keep: bool, pace: float | None) -> None:
    """Run it all and write ``folder``."""
    _fresh(folder)
    stack = Stack(folder, seed=seed, pace=pace)
    with _ended_by_signals():
        try:
            with console.status(
                "starting twin, four switch agents and host-agent (the first start compiles the engine)"
            ):
                stack.start()
            hint = "" if keep else "; KEEP=1 leaves it up"
            console.print(f"live page: [bold]{stack.host_url}/[/bold]  (while this runs{hint})\n")
            runner = Runner(stack, seed)
            runs = _all_runs(runner)
            summary = _write(folder, runs, seed)
            show_table(summary)
            console.print(f"\nwritten: {folder}/summary.json, {folder}/overlap.png, results and logs in {folder}/")
            if keep:
                console.print(f"\nleft up: {stack.host_url}/  -  Ctrl-C ends it")
                while True:
                    stack.check()
                    time.sleep(0.5)
        finally:
            stack.stop()


def _all_runs(runner: Runner) -> dict[str, dict[str, Any]]:
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    runs = {}
    with Progress(*columns, console=console) as progress:
        verified = runner.run("verified", 8, dict(VERIFIED), {"enabled": False}, progress, toggle=False)
        (size,) = verified["result"]["results"]
        progress.console.print(
            f"verified: 8 ranks, {size['size_bytes']:,} bytes of {size['type']}, {size['iterations']} iterations, "
            f"{size['wrong']} wrong elements"
        )
        if size["wrong"]:
            raise DemoError("the AllReduce gave wrong sums")
        for name, symphony in RUNS:
            runs[name] = runner.run(name, 32, dict(FABRIC), symphony, progress, toggle=name == "toggled")
    console.print()
    return runs


def _write(folder: Path, runs: dict[str, dict[str, Any]], seed: int) -> dict[str, Any]:
    engine = {key: sum(run["engine"][key] for run in runs.values()) for key in ("data_packets", "events", "cpu_s")}
    engine["cpu_s"] = round(engine["cpu_s"], 3)
    summary = {"runs": [summarise(name, run, seed) for name, run in runs.items()], "engine": engine}
    try:
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        for name, run in runs.items():
            (folder / f"{name}.json").write_text(json.dumps(run["result"], indent=2) + "\n")
            (folder / f"{name}-overlap.json").write_text(json.dumps(run["overlap"]) + "\n")
        draw(runs, folder / "overlap.png")
    except OSError as error:
        raise DemoError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return summary


def _fresh(folder: Path) -> None:
    try:
        if folder.exists():
            if not (folder / "logs").is_dir() and any(folder.iterdir()):
                raise DemoError(f"{folder} is not empty and not a demo's; choose another --output")
            shutil.rmtree(folder)
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise DemoError(f"cannot make {folder}: {error.strerror}") from None


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that it takes its processes along."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="The whole Symphony testbed on the twin, about a minute.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave everything up until Ctrl-C")
    parser.add_argument("--pace", type=float, help="virtual seconds per second, to watch it live (default: full speed)")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder to write (default: demo)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args()
    try:
        demo(args.output, args.seed, args.keep, args.pace)
    except KeyboardInterrupt:
        sys.exit(130)
    except DemoError as error:
        if args.debug:
            raise
        console.print(f"[red]demo:[/red] {error}", soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
