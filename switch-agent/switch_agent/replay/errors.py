# SPDX-License-Identifier: Apache-2.0
"""Exceptions of replay.

::

    ValueError
    └── ReplayError
        ├── CaptureError          the capture cannot be opened or read
        │   ├── NotACaptureError  it is no pcap or pcapng file
        │   └── EmptyCaptureError it holds no packet
        ├── OptionError           a job rule or another option that makes no sense
        └── OutputError           a result cannot be written
"""

from __future__ import annotations

__all__ = ["CaptureError", "EmptyCaptureError", "NotACaptureError", "OptionError", "OutputError", "ReplayError"]


class ReplayError(ValueError):
    """Base of everything replay raises; the text is one line for the user."""


class CaptureError(ReplayError):
    """The capture cannot be opened or read."""


class NotACaptureError(CaptureError):
    """The file is no pcap or pcapng file."""


class EmptyCaptureError(CaptureError):
    """The capture holds no packet."""


class OptionError(ReplayError):
    """An option or a job rule makes no sense."""


class OutputError(ReplayError):
    """A result cannot be written."""
