# SPDX-License-Identifier: Apache-2.0
"""`make bench`: runs every benchmark, prints the named figures and writes ``benchmarks/out.json``.

Each benchmark is a script here that prints its figures as one JSON object when called with ``--json``. Speeds are
per second of processor time; compare them within one run only, machines differ.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = tuple(sorted(path.name for path in HERE.glob("*.py") if path.name != Path(__file__).name))


def main() -> int:
    """Entry point; 1 when a benchmark failed (its figures are then missing from the output)."""
    figures: dict[str, float] = {}
    failed = []
    for script in SCRIPTS:
        print(f"running {script} ...", file=sys.stderr)
        done = subprocess.run([sys.executable, HERE / script, "--json"], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            failed.append(script)
            continue
        figures |= json.loads(done.stdout.strip().splitlines()[-1])
    for name, value in sorted(figures.items()):
        print(f"{name:36} {value:>16,.3f}")
    out = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "figures": figures,
    }
    (HERE / "out.json").write_text(json.dumps(out, indent=2) + "\n")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
