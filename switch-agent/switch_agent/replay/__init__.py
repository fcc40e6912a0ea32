# SPDX-License-Identifier: Apache-2.0
"""Replay: the switch's pipeline over a capture file, for ``switch-agent replay``.

- ``command``: options, output, exit codes
- ``capture``, ``records``: pcap and pcapng files; ``frames``: from the frame to the BTH; ``outcomes``: what is junk
- ``jobs``: which job a packet belongs to; ``loop``: packets through the data plane, one after the other
- ``replayer``: all of it together; ``report``: the result; ``render``: tables and picture

It needs ``switch_agent.dataplane`` and no running agent. Importing this package does not import numba.
"""

from __future__ import annotations

from switch_agent.replay.command import add_parser, run
from switch_agent.replay.errors import (
    CaptureError,
    EmptyCaptureError,
    NotACaptureError,
    OptionError,
    OutputError,
    ReplayError,
)

__all__ = [
    "CaptureError",
    "EmptyCaptureError",
    "NotACaptureError",
    "OptionError",
    "OutputError",
    "ReplayError",
    "add_parser",
    "run",
]
