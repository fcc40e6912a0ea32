# SPDX-License-Identifier: Apache-2.0
"""A ring of four ranks on real soft-RoCE in the VM against as many concurrent pairs of perftest's ib_write_bw.

    python benchmarks/soft_roce.py [--json] [--rounds 3]

Both move messages of 1 MiB between the same four devices in the same boot, alternately, in processes of their own: four
of ring-bench, started by mpirun, int32 (emulated floats are slow), verification off; eight of ib_write_bw. Throughput
is payload of all ranks or pairs together. Everything is emulated, so only the ratio means something:
`verbs.throughput_ratio` (median of the rounds).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "deploy" / "vm"))

from soft_roce_vm import VirtualMachine, VmError

MIB = 1 << 20
RANKS = 4
STEP = MIB
ITERATIONS = 6
RING = f"""
mpirun --allow-run-as-root --oversubscribe -np {RANKS} ring-bench --provider pyverbs \\
  -b {RANKS * STEP} -n {ITERATIONS} -w 1 -c 0 -d int32 -J /share/ring.json >/share/ring.log 2>&1
rc=$?; cat /share/ring.log; exit $rc
"""
# -u 18: the default ACK time-out is too short for emulation; -x 1: the IPv4 RoCE v2 GID
PAIRS = f"""
write="timeout 200 ib_write_bw -x 1 -s {STEP} -n 30 -m 4096 -u 18 -F"
for i in 0 1 2 3; do $write -d rxe$i -p 600$i >/dev/null 2>&1 & done
until [ "$(ss -ltn | grep -c ':600[0-3] ')" = 4 ]; do sleep 0.1; done
for i in 0 1 2 3; do $write -d rxe$(((i + 1) % 4)) -p 600$i 10.77.0.$((i + 1)) >/share/pair$i 2>&1 & done
wait
cat /share/pair?
"""


def run(vm: VirtualMachine, command: str) -> str:
    """Run a command in the guest; give its output, or leave with it."""
    status, output = vm.run(command, timeout_s=600)
    if status != 0:
        raise SystemExit(f"soft_roce.py: failed in the guest with status {status}:\n{output}")
    return output


def ring_rate(vm: VirtualMachine) -> float:
    """Payload of all ranks, MiB/s: 2(N-1) steps of a chunk from each of them per iteration."""
    run(vm, RING)
    (row,) = json.loads((vm.share / "ring.json").read_text())["results"]
    return float(RANKS * 2 * (RANKS - 1) * STEP / MIB / (row["time_us"] / 1e6))


def pairs_rate(vm: VirtualMachine) -> float:
    """Payload of all pairs, MiB/s, as they say themselves."""
    output = run(vm, PAIRS)
    rates = [float(line.split()[3]) for line in output.splitlines() if line.split()[:1] == [str(STEP)]]
    if len(rates) != RANKS:
        raise SystemExit(f"soft_roce.py: {len(rates)} of {RANKS} pairs of ib_write_bw came through:\n{output}")
    return sum(rates)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description="A ring on soft-RoCE against ib_write_bw pairs, in one boot of the VM."
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default 3)")
    given = parser.parse_args()
    rounds = []
    try:
        with VirtualMachine(hosts=RANKS) as vm:
            for _ in range(given.rounds):
                pairs, ring = pairs_rate(vm), ring_rate(vm)
                rounds.append((pairs, ring))
                print(f"{RANKS} pairs of ib_write_bw {pairs:6.1f} MiB/s, ring {ring:6.1f} MiB/s", file=sys.stderr)
    except VmError as error:
        print(f"soft_roce.py: {error}", file=sys.stderr)
        return 1
    figures = {
        "verbs.throughput_ratio": statistics.median(ring / pairs for pairs, ring in rounds),
        "verbs.ring_mib_per_s": statistics.median(ring for _, ring in rounds),
        "verbs.write_bw_mib_per_s": statistics.median(pairs for pairs, _ in rounds),
    }
    print(json.dumps(figures) if given.json else "\n".join(f"{name} {value:.2f}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
