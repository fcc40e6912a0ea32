# SPDX-License-Identifier: Apache-2.0
"""Symphony in the data plane: one definition, run as reference, as integers and on the ASIC.

- ``params``: the parameters, and the integers of the P4 action that carries them
- ``lookup``: entries of the look-up tables for the marking probability
- ``reference``: the paper's equations and Algorithm 1 in floating point
- ``pipeline``: the integers a Tofino 2 computes, JIT-compiled; ``hashes``: its flow hashes
- ``program``, ``schema``: tables and registers of the P4 program, and the schema its compiler writes

The names below load on first use: importing this package does not import numba; ``pipeline`` and ``hashes``
do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switch_agent.dataplane.errors import DataPlaneError, LookupTableError, ParameterError
    from switch_agent.dataplane.lookup import LookupTable, TernaryEntry, lookup_tables
    from switch_agent.dataplane.params import PARAM_RANGES, VARIANTS, ParamEntry, SymphonyParams
    from switch_agent.dataplane.pipeline import (
        Lookups,
        Registers,
        install_lookup,
        new_lookups,
        new_registers,
        process_packet,
    )
    from switch_agent.dataplane.reference import JobState, Packet, Verdict

__all__ = [
    "PARAM_RANGES",
    "VARIANTS",
    "DataPlaneError",
    "JobState",
    "LookupTable",
    "LookupTableError",
    "Lookups",
    "Packet",
    "ParamEntry",
    "ParameterError",
    "Registers",
    "SymphonyParams",
    "TernaryEntry",
    "Verdict",
    "install_lookup",
    "lookup_tables",
    "new_lookups",
    "new_registers",
    "process_packet",
]

_HOMES = {
    "errors": ("DataPlaneError", "LookupTableError", "ParameterError"),
    "lookup": ("LookupTable", "TernaryEntry", "lookup_tables"),
    "params": ("PARAM_RANGES", "VARIANTS", "ParamEntry", "SymphonyParams"),
    "pipeline": (
        "Lookups",
        "Registers",
        "install_lookup",
        "new_lookups",
        "new_registers",
        "process_packet",
    ),
    "reference": ("JobState", "Packet", "Verdict"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
