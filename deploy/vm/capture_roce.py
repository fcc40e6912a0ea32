# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: captures all RoCE packets on the bridge while a command runs.

    capture_roce.py FILE COMMAND ...

Ends with the command's exit status.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["captured"]

MARK = b"end of capture"
MARK_PORT = 4792  # next to RoCE's, so that no reader takes the mark for RoCE


@contextlib.contextmanager
def captured(path: Path) -> Iterator[None]:
    """Capture into a file, to the last packet: a marked one is sent at the end and waited for."""
    command = ["tcpdump", "-i", "br0", "-s", "96", "-B", "16384", "-U", "-w", str(path), "udp portrange 4791-4792"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as dump:
        assert dump.stderr is not None
        try:
            for line in dump.stderr:
                if "listening" in line:
                    break
            yield
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mark:
                mark.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"h0")  # else it takes the loopback
                mark.sendto(MARK, ("10.77.0.4", MARK_PORT))
            deadline = time.monotonic() + 30
            while MARK not in path.read_bytes()[-200:] and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            dump.terminate()
            report = dump.stderr.read()
    if "\n0 packets dropped" not in report:
        raise RuntimeError(f"tcpdump missed packets: {report}")


if __name__ == "__main__":
    with captured(Path(sys.argv[1])):
        status = subprocess.run(sys.argv[2:], check=False).returncode
    sys.exit(status)
