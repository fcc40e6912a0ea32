# SPDX-License-Identifier: Apache-2.0
"""How fast the twin is with scripted ranks: data packets per second of processor time of the process, set-up excluded.

The work is that of ``benchmarks/twin.py``: on the demo fabric 8 rings of one host per ToR, 8 MiB chunks, a fresh QP
per step, in-order release, Symphony `refined`; here the ranks are ring-bench's, credits included.

    python benchmarks/scripted.py [--iterations 7] [--seed 1] [--json]
"""

from __future__ import annotations

import argparse
import json

from fabric_twin.scripted import RunResult, simulate
from fabric_twin.workload import Job
from ring_bench.config import Config
from switch_agent.dataplane.params import SymphonyParams

SIZE = 32 << 20
"""Bytes of an AllReduce over four ranks: chunks of 8 MiB."""


def run(iterations: int, seed: int) -> RunResult:
    """So many AllReduces of six steps."""
    config = Config(
        world=32, split="MOD 8", minbytes=SIZE, maxbytes=SIZE, iters=iterations, warmup_iters=0, check=0, slots=8
    )
    return simulate("demo", [Job(config=config, symphony=SymphonyParams.variant("refined"))], seed=seed)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the named figures as JSON")
    args = parser.parse_args()
    run(1, args.seed)  # compiles, or loads what was compiled
    result = run(args.iterations, args.seed)
    speed = result.stats.data_packets / result.cpu_s
    if args.json:
        print(json.dumps({"twin.scripted_packets_per_cpu_s": speed}))
        return
    print(f"data packets       {result.stats.data_packets:,}")
    print(f"packets per CPU s  {speed:,.0f} (engine alone {result.stats.data_packets / result.stats.cpu_s:,.0f})")
    print(f"set-up             {result.setup_cpu_s:.3f} CPU s")
    print(f"trace hash         {result.trace_hash}")


if __name__ == "__main__":
    main()
