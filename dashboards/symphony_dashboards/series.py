# SPDX-License-Identifier: Apache-2.0
"""Words that the dashboards' queries share.

Both agents export `symphony_job_enabled` and `symphony_step_overlap`: host-agent's series have no label
`switch` and speak for a whole job, a switch agent's have one and speak for that switch.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HOST", "JOB", "RATE", "SCRAPED", "SCRAPE_INTERVAL_S", "SHORT_JOBS", "SWITCH"]

JOB: Final = 'job=~"$job"'
HOST: Final = 'job=~"$job", switch=""'
"""Series of host-agent."""
SWITCH: Final = 'job=~"$job", switch=~"$switch"'
"""Series of the switch agents."""
SCRAPE_INTERVAL_S: Final = 2
"""Scrape interval of deploy/prometheus/prometheus.yml and of Grafana's data source (a test compares them)."""
RATE: Final = "[$__rate_interval]"

SCRAPED: Final = "what happened between two scrapes: Prometheus sees one value per scrape"
SHORT_JOBS: Final = "A rate shows nothing for jobs shorter than four scrapes; the table of jobs does."
