# SPDX-License-Identifier: Apache-2.0
"""How fast the twin's engine is: data packets and events per second of processor time of one core.

The work is the demo's: rings of one node per ToR, 8 MiB chunks, a fresh QP per step, in-order release, Symphony
`refined` in every ToR. It runs on `Fabric` itself, so what is measured is the engine, not sockets or ranks.

    python benchmarks/twin.py [--preset demo] [--dcqcn spec] [--steps 40] [--variant refined] [--seed 1] [--json]
"""

from __future__ import annotations

import argparse
import functools
import json
from collections import defaultdict
from typing import Any

from fabric_twin.engine import kernel
from fabric_twin.engine.state import Port
from fabric_twin.fabric import ACKED, DELIVERED, Fabric, warm_up
from fabric_twin.presets import DCQCN_SETS, RETRANSMISSIONS, WINDOWS, Preset, get_preset
from switch_agent.dataplane.params import SymphonyParams

CHUNK = 8 << 20
SLOTS = 8
ACK_TIMEOUT = 18
"""4.096 us x 2^18 = 1.07 s."""
JOB = 1


def _classify(local: set[int], src: int, _dst: int, _sport: int) -> tuple[int, int] | None:
    """Job and state block of packets from this ToR's own hosts."""
    return (JOB, JOB) if src in local else None


class RingDriver:
    """Hosts that send step s + 1 to the host below the next ToR once all steps <= s have arrived."""

    def __init__(self, preset: Preset, steps: int, variant: str, seed: int, timeout: int = ACK_TIMEOUT) -> None:
        self.fabric = Fabric(preset, seed)
        self.steps = steps
        self._timeout = timeout
        self._preset = self.fabric.preset
        hosts = self.fabric.topology.hosts
        self._qps = {}
        for host in hosts:
            after = hosts[(host.index + self._preset.hosts_per_tor) % len(hosts)]
            for slot in range(SLOTS):
                self._qps[host.index, slot] = (
                    host,
                    after,
                    self.fabric.create_qp(host, 100 + slot),
                    self.fabric.create_qp(after, 200 + slot),
                )
        if variant != "off":
            self._enable(SymphonyParams.variant(variant))

    def _enable(self, params: SymphonyParams) -> None:
        first_step = 1  # step 0, left-aligned, with the flag bit
        self.fabric.planes.regs.steps_mn[:, JOB] = first_step
        self.fabric.planes.regs.steps_mx[:, JOB] = first_step
        for tor in range(self._preset.tors):
            self.fabric.set_params(tor, JOB, params.to_entry().values())
            local = {int(h.address) for h in self.fabric.topology.hosts if h.tor == tor}
            self.fabric.set_classifier(tor, functools.partial(_classify, local))

    def _send(self, host: int, step: int) -> int:
        src, dst, tx, rx = self._qps[host, step % SLOTS]
        fabric = self.fabric
        common = {"mtu": self._preset.mtu, "psn": 0, "ect": True, "timeout": self._timeout, "retry_cnt": 7}
        common |= {"rnr_retry": 7, "rnr_timer_ps": 640_000_000}
        for q, dest, peer, sport in ((rx, src, tx, 0xC000), (tx, dst, rx, 0xC000 | step % 1024)):
            fabric.reset_qp(q)
            fabric.connect(q, dest, peer, sport=sport, **common)  # type: ignore[arg-type]
        fabric.receives(rx, 1)
        fabric.post(tx, CHUNK, write=True, imm=True, signaled=False)
        return rx

    def run(self) -> dict[str, Any]:
        """All steps of all hosts; returns the figures."""
        n = self._preset.n_hosts
        carries: dict[int, tuple[int, int]] = {}
        arrived: dict[int, set[int]] = defaultdict(set)
        complete = [0] * n
        in_flight: set[tuple[int, int]] = set()
        widest = 0
        area = before = 0  # the overlap's integral over time, and the time up to which it goes

        def send(host: int, step: int) -> None:
            carries[self._send(host, step)] = (host, step)
            in_flight.add((host, step))

        for host in range(n):
            send(host, 0)
        left = n * self.steps
        while left:
            if self.fabric.run() == kernel.IDLE:
                raise RuntimeError(f"nothing moves and {left} steps are missing")
            for event in self.fabric.take_events():
                if event.kind == ACKED:
                    self.fabric.free_message(event.message)
                elif event.kind == DELIVERED:
                    overlap = max(s for _, s in in_flight) - min(s for _, s in in_flight) + 1
                    widest = max(widest, overlap)
                    area += overlap * (event.time_ps - before)
                    before = event.time_ps
                    host, step = carries[event.qp]
                    in_flight.discard((host, step))
                    left -= 1
                    after = (host + self._preset.hosts_per_tor) % n
                    arrived[after].add(step)
                    while complete[after] in arrived[after]:
                        complete[after] += 1
                        if complete[after] < self.steps:
                            send(after, complete[after])
        stats = self.fabric.stats()
        counters = [self.fabric.host_counters(host) for host in self.fabric.topology.hosts]
        marks = int(self.fabric.view.counts.reshape(-1, 4, 2)[:, 2, 0].sum())
        return {
            "preset": self._preset.name,
            "hosts": n,
            "steps": self.steps,
            "cct_ms": self.fabric.now_ns / 1e6,
            "max_overlap": widest,
            "mean_overlap": area / before,
            "marked_symphony": marks,
            "retransmitted": sum(count["retransmitted_packets"] for count in counters),
            "timeouts": sum(count["local_ack_timeout_err"] for count in counters),
            "marked_queue": int(self.fabric.view.port[Port.MARKED :: Port.COLUMNS].sum()),
            "data_packets": stats.data_packets,
            "events": stats.events,
            "cpu_s": stats.cpu_s,
            "packets_per_cpu_s": stats.data_packets / stats.cpu_s,
            "events_per_cpu_s": stats.events / stats.cpu_s,
        }


def figures(steps: int = 40) -> dict[str, float]:
    """The named figures of ``make bench``.

    The cost ratio compares a packet's cost on 16 and on 128 hosts of fabrics that are alike but for their size: 4 ToRs,
    uplinks for half of what the hosts can send, as in the demo. It is the median of three pairs run in turn.
    """
    warm_up()
    demo = RingDriver(get_preset("demo"), steps, "refined", 1).run()
    ratios = []
    for seed in (1, 2, 3):
        small = RingDriver(get_preset("rack16", spines=2), steps, "refined", seed).run()
        large = RingDriver(get_preset("paper-128", spines=16), max(steps // 6, 4), "refined", seed).run()
        ratios.append(small["packets_per_cpu_s"] / large["packets_per_cpu_s"])
    return {
        "twin.packets_per_cpu_s": demo["packets_per_cpu_s"],
        "twin.events_per_cpu_s": demo["events_per_cpu_s"],
        "twin.cost_ratio_128_to_16": sorted(ratios)[1],
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--variant", choices=["off", "paper", "refined"], default="refined")
    parser.add_argument("--dcqcn", choices=sorted(DCQCN_SETS), help="instead of the preset's")
    parser.add_argument("--window", choices=WINDOWS, help="instead of the preset's")
    parser.add_argument("--retransmission", choices=RETRANSMISSIONS, help="instead of the preset's")
    parser.add_argument("--drop", type=float, default=0.0, help="probability that an uplink loses a packet")
    parser.add_argument("--timeout", type=int, default=ACK_TIMEOUT, help="exponent of the local ACK timeout")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the named figures as JSON")
    args = parser.parse_args()
    if args.json:
        print(json.dumps(figures(args.steps)))
        return
    warm_up()
    preset = get_preset(args.preset, dcqcn=args.dcqcn, window=args.window, retransmission=args.retransmission)
    driver = RingDriver(preset, args.steps, args.variant, args.seed, args.timeout)
    for port in driver.fabric.topology.ports:
        if port.node >= 0 and port.peer >= 0:
            driver.fabric.set_link(port.name, drop=args.drop)
    for key, value in driver.run().items():
        print(f"{key:18} {value:,.1f}" if isinstance(value, float) else f"{key:18} {value}")


if __name__ == "__main__":
    main()
