# SPDX-License-Identifier: Apache-2.0
"""What the BF-Runtime server raises towards its Python user (clients get gRPC statuses instead).

::

    TwinError
    └── BfRtServerError
        ├── SchemaError    a bf-rt.json that cannot be served (also a ValueError)
        └── BindError      the listening address cannot or must not be used (also an OSError)
"""

from __future__ import annotations

from fabric_twin.errors import TwinError

__all__ = ["BfRtServerError", "BindError", "SchemaError"]


class BfRtServerError(TwinError):
    """Base of this package's exceptions."""


class SchemaError(BfRtServerError, ValueError):
    """The bf-rt.json lacks something or contradicts itself; the text names table and field."""


class BindError(BfRtServerError, OSError):
    """The server cannot listen where it was told to; the text says why and what to do."""
