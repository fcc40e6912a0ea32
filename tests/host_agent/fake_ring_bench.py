# SPDX-License-Identifier: Apache-2.0
"""Stands in for ring-bench; behaves as the environment variable FAKE_BENCH says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def fork_child(*, stubborn: bool) -> None:
    """Start a child that sleeps, ignoring SIGTERM if stubborn, and print its PID once it is ready."""
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    code = f"{ignore}import time; print('up', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    print("child", child.pid, flush=True)


mode = os.environ.get("FAKE_BENCH", "ok")
if mode == "ok":
    arguments = sys.argv[1:]
    result = {
        "schema_version": 1,
        "arguments": arguments,
        "token": bool(os.environ["SYMPHONY_EVENTS_TOKEN"]),
        "leaked": "HOST_AGENT_TOKEN" in os.environ,
    }
    Path(arguments[arguments.index("-J") + 1]).write_text(json.dumps(result))
elif mode == "fail":
    print("# a table begins", flush=True)
    print("rank 3 on h3: RETRY_EXC_ERR towards h4, step 17", file=sys.stderr)
    sys.exit(3)
elif mode == "orphan":
    fork_child(stubborn=False)
    os.kill(os.getpid(), signal.SIGKILL)
else:
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fork_child(stubborn=mode == "stubborn")
    time.sleep(600)
