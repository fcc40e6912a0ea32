# SPDX-License-Identifier: Apache-2.0
"""How the engine's functions are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

from switch_agent.dataplane import jit as dataplane

__all__ = ["entry", "inner"]

_F = TypeVar("_F", bound=Callable[..., Any])

# _nrt=False: arrays are borrowed from the caller and nothing is allocated, so their references need no counting;
# counting would cost more than the work.
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}


dataplane.cache_for(Path(__file__).parent, Path(dataplane.__file__).parent)


def inner(function: _F) -> _F:
    """Compile a function that the loop calls."""
    compiled: _F = njit(forceinline=True, **_OPTIONS)(function)
    return compiled


def entry(function: _F) -> _F:
    """Compile a function that Python calls."""
    compiled: _F = njit(nogil=True, **_OPTIONS)(function)
    return compiled
