# SPDX-License-Identifier: Apache-2.0
"""How the loops of replay are compiled: as the data plane's functions are, kept under a hash of both sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

from switch_agent.dataplane import jit as dataplane

__all__ = ["inlined", "loop"]

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}  # _nrt: see the data plane's
inlined = dataplane.inlined


def loop(function: _F) -> _F:
    """Compile a function that Python calls. Its arrays are borrowed; it must not allocate or return one."""
    compiled: _F = njit(**_OPTIONS)(function)
    return compiled


dataplane.cache_for(Path(__file__).parent, Path(__file__).parent / "steps", Path(dataplane.__file__).parent)
