# SPDX-License-Identifier: Apache-2.0
"""The agents' real metrics objects, filled with a simulated testbed: two jobs, two switches, one host with a NIC.

Nothing runs here: `advance` moves the jobs on by a few steps, and the texts are what the agents' /metrics answer.
`Exposition` serves them, one port per agent, and advances with every scrape of host-agent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from host_agent.hub import Hub
from host_agent.jobs import Job as HostJob
from host_agent.metrics import HubCollector, metrics_text
from host_agent.models import EventBatch, EventRow, JobRequest
from host_agent.placement import flows_by_switch
from host_agent.sampling import TickFigure
from host_agent.store import Store as HostStore
from host_agent.streams import StreamSlots
from host_agent.testbed import Testbed
from switch_agent.agent.capacity import TableUse
from switch_agent.agent.history import ROW, Frame
from switch_agent.agent.metrics import CONTENT_TYPE, render
from switch_agent.agent.models import Flow, Job, JobSpec, SymphonySettings
from switch_agent.agent.reconcile import Drift
from switch_agent.agent.service import Agent, AgentOptions
from switch_agent.agent.store import Store
from switch_agent.bfrt.session import SessionState

__all__ = ["NODE_COUNTERS", "Exposition", "SimulatedTestbed", "names_in"]

RANKS = 4
STEP_NS = 2_000_000
STEPS_PER_COLLECTIVE = 6

NODE_COUNTERS = (
    "node_infiniband_np_ecn_marked_roce_packets_received_total",
    "node_infiniband_np_cnp_packets_sent_total",
    "node_infiniband_rp_cnp_packets_handled_total",
    "node_infiniband_rp_cnp_ignored_packets_received_total",
    "node_infiniband_out_of_sequence_packets_received_total",
    "node_infiniband_packet_sequence_errors_total",
    "node_infiniband_local_ack_timeout_errors_total",
    "node_infiniband_roce_slow_restart_total",
    "node_infiniband_port_data_transmitted_bytes_total",
    "node_infiniband_port_data_received_bytes_total",
    "node_ethtool_received_prio3_pause",
    "node_ethtool_received_prio3_pause_duration",
    "node_ethtool_transmitted_prio3_pause",
    "node_ethtool_transmitted_prio3_pause_duration",
)
"""As node_exporter's infiniband and ethtool collectors name mlx5's counters (the latter are untyped)."""


class SimulatedTestbed:
    """Jobs `off` and `refined` of four ranks each, behind switches tor0 and tor1."""

    def __init__(self, folder: Path) -> None:
        self.switches = ["tor0", "tor1"]
        self.testbed = Testbed.model_validate(
            {
                "name": "simulated",
                "switches": [{"name": name, "url": "http://127.0.0.1:1"} for name in self.switches],
                "hosts": [
                    {"name": f"h{rank}", "address": f"10.0.0.{rank + 1}", "switch": self.switches[rank % 2]}
                    for rank in range(RANKS)
                ],
            }
        )
        self.hub = Hub(self.testbed, HostStore(folder / "host-agent"), environment={})
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(HubCollector(self.hub, StreamSlots()))
        for number, variant in enumerate(("off", "refined"), start=1):
            self.hub.jobs.add(self._host_job(number, variant, folder))
        self.agents = {name: self._agent(name, folder / name) for name in self.switches}
        self.step = 0

    def _host_job(self, number: int, name: str, folder: Path) -> HostJob:
        request = JobRequest.model_validate({"name": name, "provider": "external"})
        return HostJob(
            id=number,
            tag=number,
            request=request,
            hosts=list(self.testbed.hosts),
            flows=flows_by_switch(list(self.testbed.hosts), None),
            folder=folder,
            symphony={"enabled": name != "off", "variant": "refined"},
            state="running",
        )

    @staticmethod
    def _agent(name: str, folder: Path) -> Agent:
        store = Store(folder)
        for number, job in enumerate(("off", "refined"), start=1):
            spec = JobSpec(
                name=job,
                job_tag=number,
                flows=[Flow.model_validate({"src": f"10.0.0.{number}"})],
                symphony=SymphonySettings(enabled=job != "off", variant="refined"),
            )
            store.save(Job(number, spec, state=number, n_states=1))
        store.close()
        agent = Agent(AgentOptions(bfrt="127.0.0.1:1", state_dir=folder, name=name))
        agent.session.state = SessionState.READY
        agent.drift = Drift(added=2)
        agent.usage.tables["job_classify"] = use = TableUse(4096)
        use.entries = use.peak = 8
        return agent

    def close(self) -> None:
        """Let go of clients and locks."""
        asyncio.run(self.hub.close())
        for agent in self.agents.values():
            asyncio.run(_close(agent))

    def advance(self) -> None:
        """A collective later."""
        begin, self.step = self.step, self.step + STEPS_PER_COLLECTIVE
        for job in self.hub.jobs:
            spread = 4 if job.name == "off" else 2
            self._report(job, begin, spread)
            job.switch_log.figures.append(
                TickFigure(self.step, time.time(), self.step * STEP_NS, self.step - spread, self.step, spread + 1, ())
            )
        for status in self.hub.collectors.values():
            status.success, status.last_success_unix_s = True, time.time()
        for agent in self.agents.values():
            agent.sampler.history.append(self._frame())
            agent.sampler.last_success_unix_s = time.time()
            agent.sampler.last_duration_s = 0.004

    def _report(self, job: HostJob, begin: int, spread: int) -> None:
        """Steps are posted on time and complete `spread` steps later, so that many are in flight at any time."""
        events: list[EventRow] = []
        for step in range(begin, self.step):
            for rank in range(RANKS):
                events.append((rank, 0, 0, step // STEPS_PER_COLLECTIVE, step, "post", step * STEP_NS))
                if step >= spread:
                    done = step - spread
                    events.append((rank, 0, 0, done // STEPS_PER_COLLECTIVE, done, "done", step * STEP_NS + 1000))
        span = STEPS_PER_COLLECTIVE * STEP_NS
        start = begin * STEP_NS
        job.recorder.ingest(
            EventBatch(
                run="run",
                clock="twin",
                host="h0",
                events=events,
                collectives=[(0, begin // STEPS_PER_COLLECTIVE, start, start + span - 1000 * spread, 1.2)],
            )
        )

    def _frame(self) -> Frame:
        rows = np.zeros(2, ROW)
        rows["job_id"] = [1, 2]
        rows["switch_time_ns"] = self.step * STEP_NS
        rows["step_min"] = self.step % 1024
        rows["step_max"] = (self.step + 3) % 1024
        rows["overlap"] = 4
        rows["alpha"] = [1, 7]
        rows["psn_recorded"] = 17 * self.step % 2000
        rows["packets"] = 2000 * self.step
        rows["outpacing"] = 300 * self.step
        rows["marked_symphony"] = [0, 20 * self.step]
        rows["marked_queue"] = 10 * self.step
        rows["live_pipes"] = 1
        return Frame(self.step, time.time(), rows, ("off", "refined"))

    # -- what /metrics answers

    def host_text(self) -> bytes:
        """host-agent's exposition."""
        return metrics_text(self.registry)

    def switch_text(self, name: str) -> bytes:
        """A switch agent's exposition."""
        return render(self.agents[name])

    def node_text(self) -> bytes:
        """node_exporter's exposition, as far as the dashboards read it."""
        lines = []
        for name in NODE_COUNTERS:
            labels = '{device="eth2"}' if "ethtool" in name else '{device="mlx5_0",port="1"}'
            kind = "counter" if name.endswith("_total") else "untyped"
            lines += [f"# TYPE {name} {kind}", f"{name}{labels} {100 * self.step}"]
        return ("\n".join(lines) + "\n").encode()


async def _close(agent: Agent) -> None:
    async with agent.running():
        pass


def names_in(exposition: bytes) -> set[str]:
    """Names of the samples in an exposition."""
    return {sample.name for family in text_string_to_metric_families(exposition.decode()) for sample in family.samples}


class Exposition:
    """Serves a simulated testbed on free ports of 127.0.0.1; `addresses` has them by agent."""

    def __init__(self, testbed: SimulatedTestbed) -> None:
        self._lock = threading.Lock()
        self._servers: list[ThreadingHTTPServer] = []
        self._testbed = testbed
        self.addresses = {"host-agent": self._serve(self._advanced, CONTENT_TYPE_LATEST)}
        for name in testbed.switches:
            self.addresses[name] = self._serve(partial(testbed.switch_text, name), CONTENT_TYPE)
        self.addresses["node"] = self._serve(testbed.node_text, CONTENT_TYPE)

    def _advanced(self) -> bytes:
        self._testbed.advance()
        return self._testbed.host_text()

    def _serve(self, text: Callable[[], bytes], content_type: str) -> str:
        lock = self._lock

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with lock:
                    body = text()
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self._servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    def close(self) -> None:
        """Stop all servers."""
        for server in self._servers:
            server.shutdown()
            server.server_close()


@contextmanager
def serving(testbed: SimulatedTestbed) -> Iterator[Exposition]:
    """The exposition of a testbed for the time of a block."""
    exposition = Exposition(testbed)
    try:
        yield exposition
    finally:
        exposition.close()
