# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the data plane's definition.

::

    ValueError
    └── DataPlaneError
        ├── ParameterError    a parameter or a parameter entry out of range
        └── LookupTableError  entries that do not fit a look-up table
"""

from __future__ import annotations

__all__ = ["DataPlaneError", "LookupTableError", "ParameterError"]


class DataPlaneError(ValueError):
    """Base of everything this package raises on bad input."""


class ParameterError(DataPlaneError):
    """A Symphony parameter, or an entry of the parameter table, is out of its range."""


class LookupTableError(DataPlaneError):
    """Entries of a look-up table do not fit its key or data width, or there is no such table."""
