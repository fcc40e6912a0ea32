# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in the twin.

::

    TwinError
    ├── ConfigError          a preset, option or file that cannot be used
    ├── FabricError          the fabric cannot do what was asked
    │   └── UnknownNameError it has no host, link or switch of that name
    └── VerbsError           a verbs call failed; carries an errno name for the client
"""

from __future__ import annotations

__all__ = ["ConfigError", "FabricError", "TwinError", "UnknownNameError", "VerbsError"]


class TwinError(Exception):
    """Base of everything the twin raises on purpose."""


class ConfigError(TwinError):
    """A preset, option or file that cannot be used."""


class FabricError(TwinError):
    """The fabric cannot do what was asked."""


class UnknownNameError(FabricError):
    """The fabric has no host, link or switch of that name."""


class VerbsError(TwinError):
    """A verbs call failed.

    Attributes:
        code: errno name (``EINVAL``, ``ENOMEM``...) or a word of ours (``STALLED``, ``VERSION``).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
