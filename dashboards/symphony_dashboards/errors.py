# SPDX-License-Identifier: Apache-2.0
"""Everything that the dashboard tools can raise.

::

    DashboardError
    ├── DashboardFileError      a dashboard's JSON is missing, unreadable or not what the Python builds
    ├── QueryTextError          a query uses a variable that nobody gives a value
    └── PrometheusError         the server does not answer, or not as Prometheus does
"""

from __future__ import annotations

__all__ = ["DashboardError", "DashboardFileError", "PrometheusError", "QueryTextError"]


class DashboardError(Exception):
    """Base of all; its text is one line for the user."""


class DashboardFileError(DashboardError):
    """A dashboard file cannot be used."""


class QueryTextError(DashboardError):
    """A query cannot be made ready for Prometheus."""


class PrometheusError(DashboardError):
    """Prometheus cannot be asked."""
