# SPDX-License-Identifier: Apache-2.0
"""The testbed's Grafana dashboards: built in Python, committed as JSON, checked against a real Prometheus.

`catalogue` (and what it imports to build dashboards) needs the extra `dashboards`; `queries` and `prometheus`,
which read the committed JSON, do not.
"""

from __future__ import annotations

__all__: list[str] = []
