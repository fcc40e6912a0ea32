# SPDX-License-Identifier: Apache-2.0
"""An async, typed BF-Runtime client: what a Tofino's driver (bf_switchd) and the twin's switches speak.

- ``session``: the session with a switch, supervised: subscribe, bind, schema, reconcile, reconnect
- ``client``: reads and writes on one connection; ``requests``: entries to messages and back
- ``schema``: tables, fields and ids as the live switch describes them; ``codec``: integers to bytes
- ``status``: gRPC failures to typed errors; ``reduce``: one value out of one per pipe
- ``bulk``: whole registers between wire bytes and numpy arrays
"""

from __future__ import annotations

from switch_agent.bfrt.client import Client, open_channel
from switch_agent.bfrt.reduce import REDUCTIONS, Reduction, reduce_pipes
from switch_agent.bfrt.requests import ALL_PIPES, Entry, Lpm, Range, Ternary
from switch_agent.bfrt.schema import Schema, Table
from switch_agent.bfrt.session import Session, SessionOptions, SessionState

__all__ = [
    "ALL_PIPES",
    "REDUCTIONS",
    "Client",
    "Entry",
    "Lpm",
    "Range",
    "Reduction",
    "Schema",
    "Session",
    "SessionOptions",
    "SessionState",
    "Table",
    "Ternary",
    "open_channel",
    "reduce_pipes",
]
