# SPDX-License-Identifier: Apache-2.0
"""How fast a switch-agent is: toggles, sampling, and coming back after the switch has restarted.

The agent, the switch (fabric-twin, or a BF-Runtime server over plain memory where the twin is too small) and the ranks
run as processes of their own, talk over sockets as on hardware, and the agent's processor time is measured alone.

    python benchmarks/switch.py [--json] [--toggles 1000] [--restarts 50] [--kills 5] [--seconds 10]

- toggle: PATCH of `enabled` over REST until the answer, which follows the read-back from the switch, while 100 jobs
  send. The twin is paced, as when somebody looks on, so that it leaves processor time to the agent as hardware does;
  `full_speed` is without a pace: then every request waits for slices of the engine's events.
- sampling: all registers and counters of the jobs, four pipes, read from hardware. The rate is what comes out when the
  agent is told to sample far too often; the share of a core is processor time at 10 Hz.
- restart: the switch's BF-Runtime server ends, forgets everything and starts again while 100 jobs send and are being
  toggled; time from its first accept until the agent is ready. Then an independent client compares every entry.
- kill: the same with SIGKILL of the whole twin, which is then started anew, as are the ranks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program
from switch_agent.agent.entries import DISABLED_LG_K, job_of_classify_entry
from switch_agent.agent.models import Job, JobSpec
from switch_agent.agent.store import Store
from switch_agent.agent.tables import P4_NAME, signed_fields
from switch_agent.bfrt import Client, Schema, open_channel
from switch_agent.dataplane.lookup import lookup_tables
from switch_agent.dataplane.program import Sizes, build_program

BIN = Path(sys.executable).parent
JOBS = 100
PACE = 0.1
"""Virtual seconds per second: the racks' uplinks carry some 120,000 packets per second then."""
DOWN_S = (0.0, 0.05, 0.2, 0.5)


class Process:
    """A child; its output goes to ``log``, its processor time can be asked for."""

    def __init__(self, log: Path, *args: str) -> None:
        with log.open("wb") as out:
            self._child = subprocess.Popen(args, stdout=out, stderr=subprocess.STDOUT)
        self.log = log

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check(self) -> None:
        """Fail when it has ended."""
        if self._child.poll() is not None:
            raise RuntimeError(f"{self._child.args} ended: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Rest:
    """A client with one connection that stays open."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        try:
            return self._once(method, path, body)
        except http.client.RemoteDisconnected:  # the server closes connections that were idle for 5 s
            return self._once(method, path, body)

    def _once(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, name: str, *args: str) -> Iterator[Process]:
    """A process for the length of a block."""
    process = Process(folder / f"{name}.log", *args)
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def twin(folder: Path, *args: str, bfrt_port: int = 0) -> Iterator[dict[str, Any]]:
    """A fabric-twin; gives what its testbed file says, and its process."""
    testbed = folder / "testbed.yaml"
    verbs = ("--verbs", str(folder / "verbs.sock"), "--testbed-file", str(testbed))
    ports = ("--bfrt-port", str(bfrt_port), "--http-port", str(free_port()))
    with running(folder, "fabric-twin", str(BIN / "fabric-twin"), "run", *ports, *verbs, *args) as process:
        while "REST" not in process.log.read_text():
            process.check()
            time.sleep(0.05)
        yield yaml.safe_load(testbed.read_text()) | {"process": process}


@contextlib.contextmanager
def memory_switch(folder: Path, size: int) -> Iterator[str]:
    """A BF-Runtime server with ``size`` states and jobs over plain memory; gives its address."""
    script = ("--serve-memory", str(size))
    with running(folder, "memory-switch", sys.executable, __file__, *script) as process:
        while not (text := process.log.read_text()).endswith("\n"):
            process.check()
            time.sleep(0.05)
        yield text.strip()


async def serve_memory(size: int) -> None:
    """What the process of :func:`memory_switch` does."""
    program = P4Program.from_description(build_program(Sizes(n_state=size, n_job=size, n_class=size)))
    async with BfRtServer(MemoryBackend(program), program, port=0) as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()


@contextlib.contextmanager
def agent(folder: Path, bfrt: str, interval_ms: float) -> Iterator[tuple[Process, Rest, str]]:
    """A switch-agent that is ready."""
    address = f"127.0.0.1:{free_port()}"
    args = ("--bfrt", bfrt, "--listen", address, "--state-dir", str(folder / "state"), "--name", "tor0")
    command = (str(BIN / "switch-agent"), "serve", *args, "--sample-interval-ms", f"{interval_ms:g}")
    with running(folder, "switch-agent", *command) as process:
        rest = Rest(f"http://{address}")
        while True:
            process.check()
            try:
                if rest("GET", "/api/v1/switch")[1]["state"] == "ready":
                    break
            except OSError:
                rest = Rest(f"http://{address}")
            time.sleep(0.05)
        yield process, rest, address


@contextlib.contextmanager
def ring(folder: Path) -> Iterator[None]:
    """100 ranks in 50 pairs, host i of each rack with host i of the other, until the end of the block."""
    with running(folder, "ring-bench", *ring_command(folder)) as process:
        time.sleep(1)
        process.check()
        yield
        process.check()


def ring_command(folder: Path) -> list[str]:
    """What the processes of :func:`ring` run."""
    size = ("-b", "64M", "-e", "64M", "-n", "100000", "-w", "0", "-c", "0", "--payload-scale", "65536")
    ranks = ("--world", str(JOBS), "--split", f"MOD {JOBS // 2}", "--verbs", str(folder / "verbs.sock"))
    return [str(BIN / "ring-bench"), *ranks, *size]


def pairs(testbed: dict[str, Any]) -> list[tuple[str, str]]:
    """Source and destination of the flow of each job, in the order of the job ids."""
    hosts = [host["address"] for host in testbed["hosts"]]
    return [(hosts[i], hosts[(i + JOBS // 2) % JOBS]) for i in range(JOBS)]


def put_jobs(rest: Rest, testbed: dict[str, Any]) -> None:
    """One job per flow, switched on."""
    for number, (src, dst) in enumerate(pairs(testbed), start=1):
        spec = {"name": f"job-{number}", "job_tag": 0, "flows": [{"src": src, "dst": dst}]}
        status, answer = rest("PUT", f"/api/v1/jobs/{number}", spec | {"symphony": {"enabled": True}})
        assert status == 200, answer


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]


# ------------------------------------------------------------------------------------------- the figures


def toggles(count: int) -> dict[str, float]:
    """Toggle 100 running jobs in turn."""
    took, cpu = _toggles(count, "--pace", str(PACE))
    full_speed, _ = _toggles(count)
    return {
        "toggle.p50_ms": percentile(took, 0.5),
        "toggle.p99_ms": percentile(took, 0.99),
        "toggle.agent_cpu_ms": cpu / count * 1000,
        "toggle.p50_full_speed_ms": percentile(full_speed, 0.5),
        "toggle.p99_full_speed_ms": percentile(full_speed, 0.99),
    }


def _toggles(count: int, *pace: str) -> tuple[list[float], float]:
    """Times of the toggles in ms, and the agent's processor time in s, sampling included."""
    with (
        tempfile.TemporaryDirectory() as name,
        twin(Path(name), "--preset", "small", "--hosts-per-tor", str(JOBS // 2), *pace) as testbed,
        agent(Path(name), testbed["switches"][0]["bfrt"], 50) as (process, rest, _),
    ):
        put_jobs(rest, testbed)
        with ring(Path(name)):
            _wait_for_packets(rest)
            before = process.cpu_s()
            took = []
            for number in range(count):
                began = time.perf_counter()
                status, answer = rest("PATCH", f"/api/v1/jobs/{1 + number % JOBS}", {"enabled": number // JOBS % 2 > 0})
                took.append((time.perf_counter() - began) * 1000)
                assert status == 200, answer
            return took, process.cpu_s() - before


def _wait_for_packets(rest: Rest) -> None:
    """Until every job has been seen sending."""
    while sum(sample["packets"]["all"] > 0 for sample in rest("GET", "/api/v1/registers")[1]["samples"]) < JOBS:
        time.sleep(0.1)


def _store_jobs(folder: Path, count: int) -> None:
    """Jobs as an agent finds them on disk when it starts."""
    store = Store(folder / "state")
    for number in range(1, count + 1):
        flows = [{"src": f"10.{number >> 8}.{number & 255}.1"}]
        spec = JobSpec.model_validate({"name": f"job-{number}", "job_tag": 0, "flows": flows})
        store.save(Job(number, spec, number - 1, 1))
    store.close()


def _sampling(folder: Path, bfrt: str, seconds: float, interval_ms: float) -> tuple[float, float]:
    """Samples per second, and the agent's processor time per second."""
    with agent(folder, bfrt, interval_ms) as (process, rest, _):
        time.sleep(1)
        cpu, began = process.cpu_s(), time.perf_counter()
        samples = rest("GET", "/api/v1/switch")[1]["sampler"]["samples"]
        time.sleep(seconds)
        now = rest("GET", "/api/v1/switch")[1]["sampler"]
        assert not now["failures"], now
        wall = time.perf_counter() - began
        return (now["samples"] - samples) / wall, (process.cpu_s() - cpu) / wall


def sampling(seconds: float) -> dict[str, float]:
    """1,000 jobs on a twin, 16,000 on a switch over plain memory."""
    figures = {}
    with tempfile.TemporaryDirectory() as name, twin(Path(name), "--preset", "small") as testbed:
        _store_jobs(Path(name), 1000)
        bfrt = testbed["switches"][0]["bfrt"]
        rate, share = _sampling(Path(name), bfrt, seconds, 2)
        figures["sampling.hz_at_1000_jobs"] = rate
        figures["sampling.cpu_ms_at_1000_jobs"] = share / rate * 1000
        rate, share = _sampling(Path(name), bfrt, seconds, 100)
        figures["sampling.core_share"] = share
        assert rate > 9, f"only {rate:.1f} samples per second: this machine is too busy"
    with tempfile.TemporaryDirectory() as name, memory_switch(Path(name), 16384) as bfrt:
        _store_jobs(Path(name), 16_000)
        rate, share = _sampling(Path(name), bfrt, seconds, 2)
        figures["sampling.hz_at_16000_jobs"] = rate
        figures["sampling.cpu_ms_at_16000_jobs"] = share / rate * 1000
    return figures


def restarts(count: int) -> dict[str, float]:
    """Restart the switch of 100 running jobs while they are toggled; fails when anything is lost or there twice."""
    with (
        tempfile.TemporaryDirectory() as name,
        twin(Path(name), "--preset", "small", "--hosts-per-tor", str(JOBS // 2)) as testbed,
        agent(Path(name), testbed["switches"][0]["bfrt"], 50) as (process, rest, address),
    ):
        put_jobs(rest, testbed)
        with ring(Path(name)):
            _wait_for_packets(rest)
            cpu = process.cpu_s()
            took = _restarts(count, testbed, address)
            cpu = process.cpu_s() - cpu
    return {
        "restart.count": count,
        "restart.p50_s": percentile(took, 0.5),
        "restart.worst_s": max(took),
        "restart.agent_cpu_s": cpu / count,
    }


def _restarts(count: int, testbed: dict[str, Any], address: str) -> list[float]:
    switch = testbed["switches"][0]
    fabric, look, change = Rest(testbed["twin"]["http"]), Rest(f"http://{address}"), Rest(f"http://{address}")
    enabled = dict.fromkeys(range(1, JOBS + 1), True)
    took = []
    for number in range(count):
        sessions = look("GET", "/api/v1/switch")[1]["sessions"]
        toggler = Toggler(change, enabled)
        toggler.begin()
        body = {"down_s": DOWN_S[number % len(DOWN_S)]}
        status, answer = fabric("POST", f"/api/v1/switches/{switch['name']}/restart", body)
        assert status == 200, answer
        began = time.perf_counter()
        took.append(_ready_again(look, sessions) - began)
        toggler.finish()
        asyncio.run(_compare(switch["bfrt"], enabled, pairs(testbed)))
    return took


def kills(count: int) -> dict[str, float]:
    """Kill the process of the twin and start another in its place; fails when anything is lost or there twice."""
    took = []
    preset = ("--preset", "small", "--hosts-per-tor", str(JOBS // 2))
    bfrt_port = free_port()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(ThreadPoolExecutor())
        fabric = stack.enter_context(contextlib.ExitStack())
        testbed = fabric.enter_context(twin(folder, *preset, bfrt_port=bfrt_port))
        _, look, address = stack.enter_context(agent(folder, testbed["switches"][0]["bfrt"], 50))
        put_jobs(look, testbed)
        change = Rest(f"http://{address}")
        enabled = dict.fromkeys(range(1, JOBS + 1), True)
        for _ in range(count):
            ranks = fabric.enter_context(running(folder, "ring-bench", *ring_command(folder)))
            sent = _packets(look)
            while _packets(look) == sent:
                ranks.check()
                time.sleep(0.05)
            sessions = look("GET", "/api/v1/switch")[1]["sessions"]
            toggler = Toggler(change, enabled)
            toggler.begin()
            testbed["process"].kill()
            fabric.close()
            accepted = pool.submit(_first_accept, bfrt_port)
            testbed = fabric.enter_context(twin(folder, *preset, bfrt_port=bfrt_port))
            took.append(_ready_again(look, sessions) - accepted.result())
            toggler.finish()
            asyncio.run(_compare(testbed["switches"][0]["bfrt"], enabled, pairs(testbed)))
    return {"kill.count": count, "kill.p50_s": percentile(took, 0.5), "kill.worst_s": max(took)}


def _ready_again(rest: Rest, sessions: int) -> float:
    """When the agent is ready in another session than the last of ``sessions``."""
    while (view := rest("GET", "/api/v1/switch")[1])["state"] != "ready" or view["sessions"] == sessions:
        time.sleep(0.005)
    return time.perf_counter()


def _packets(rest: Rest) -> int:
    """Packets of all jobs so far."""
    return sum(sample["packets"]["all"] for sample in rest("GET", "/api/v1/registers")[1]["samples"])


def _first_accept(port: int) -> float:
    """When somebody accepts connections there again."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.005)
        else:
            return time.perf_counter()


class Toggler(threading.Thread):
    """Toggles jobs in turn; what was confirmed is in ``enabled``, which a refused toggle leaves as it is."""

    def __init__(self, rest: Rest, enabled: dict[int, bool]) -> None:
        super().__init__()
        self.confirmed = 0
        self._rest = rest
        self._enabled = enabled
        self._halt = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._halt.is_set():
            job = 1 + number % JOBS
            number += 1
            status, answer = self._rest("PATCH", f"/api/v1/jobs/{job}", {"enabled": not self._enabled[job]})
            assert status in (200, 502, 503), answer
            if status == 200:
                self._enabled[job] = not self._enabled[job]
                self.confirmed += 1
            else:
                time.sleep(0.005)

    def begin(self) -> None:
        """Start, and wait for the first toggles."""
        self.start()
        while self.confirmed < 3:
            time.sleep(0.005)

    def finish(self) -> None:
        """Stop, after the toggle under way."""
        self._halt.set()
        self.join()


async def _compare(bfrt: str, enabled: dict[int, bool], flows: list[tuple[str, str]]) -> None:
    """Ask the switch itself: each job once, as last confirmed; all look-up entries."""
    channel = open_channel(bfrt)
    try:
        client = Client(channel, bfrt, client_id=0, p4_name=P4_NAME, timeout=30)
        config = await client.get_config()
        schema = client.schema = Schema.parse(P4_NAME, config.config[0].bfruntime_info, b"", signed_fields())
        params = [e for e in await client.read_entries(schema.table("job_params"), from_hw=True) if not e.is_default]
        found = {entry.key["ig_md.job"]: entry.data["lg_k"] != DISABLED_LG_K for entry in params}
        assert len(params) == len(enabled), f"{len(params)} parameter entries"
        assert found == enabled, f"toggles lost: {[job for job in enabled if found.get(job) != enabled[job]]}"
        classify = await client.read_entries(schema.table("job_classify"), from_hw=True)
        jobs = [job_of_classify_entry(entry) for entry in classify if not entry.is_default]
        assert sorted(map(str, jobs)) == sorted(str(job) for job in range(1, len(flows) + 1)), jobs
        for name, table in lookup_tables().items():
            (used,) = await client.usage([schema.table(name)], from_hw=True)
            assert used == len(table.entries), f"{name} holds {used} entries"
    finally:
        await channel.close()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--toggles", type=int, default=1000)
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each sampling measurement")
    parser.add_argument("--only", choices=("toggles", "sampling", "restarts", "kills"))
    parser.add_argument("--json", action="store_true", help="print the named figures as JSON")
    parser.add_argument("--serve-memory", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_memory:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve_memory(args.serve_memory))
        return
    figures: dict[str, float] = {}
    if args.only in (None, "toggles"):
        figures |= toggles(args.toggles)
    if args.only in (None, "sampling"):
        figures |= sampling(args.seconds)
    if args.only in (None, "restarts"):
        figures |= restarts(args.restarts)
    if args.only in (None, "kills"):
        figures |= kills(args.kills)
    if args.json:
        print(json.dumps(figures))
        return
    for key, value in figures.items():
        print(f"{key:32} {value:10.3f}")


if __name__ == "__main__":
    main()
