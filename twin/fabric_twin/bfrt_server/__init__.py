# SPDX-License-Identifier: Apache-2.0
"""A BF-Runtime gRPC server for a switch that is not there, or not a Tofino.

It speaks the wire protocol of bf_switchd for any program described by a bf-rt.json: sessions, program
ownership, match tables with their entry scopes, action profiles and selectors, dynamic hashing, registers and
counters with one value per pipe, the driver's shadow copies, its error shapes, and the fixed tables for ports. The
data plane behind it is a
:class:`SwitchBackend`; :class:`MemoryBackend` is one for tests of control planes::

    program = P4Program.from_description()
    async with BfRtServer(MemoryBackend(program), program, port=0) as server:
        ...  # clients connect to server.address
        server.faults.table_capacity["job_params"] = 1
"""

from __future__ import annotations

from fabric_twin.bfrt_server.backend import (
    FixedTableSource,
    HashBackend,
    HashSettings,
    MemoryBackend,
    ReloadableBackend,
    Slice,
    SwitchBackend,
)
from fabric_twin.bfrt_server.errors import BfRtServerError, BindError, SchemaError
from fabric_twin.bfrt_server.faults import Faults
from fabric_twin.bfrt_server.fixed_tables import Port
from fabric_twin.bfrt_server.program import P4Program
from fabric_twin.bfrt_server.schema import Info
from fabric_twin.bfrt_server.server import DEFAULT_PORT, BfRtServer
from fabric_twin.bfrt_server.tables import InstalledEntry, TableSnapshot

__all__ = [
    "DEFAULT_PORT",
    "BfRtServer",
    "BfRtServerError",
    "BindError",
    "Faults",
    "FixedTableSource",
    "HashBackend",
    "HashSettings",
    "Info",
    "InstalledEntry",
    "MemoryBackend",
    "P4Program",
    "Port",
    "ReloadableBackend",
    "SchemaError",
    "Slice",
    "SwitchBackend",
    "TableSnapshot",
]
