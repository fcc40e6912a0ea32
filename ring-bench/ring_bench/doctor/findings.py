# SPDX-License-Identifier: Apache-2.0
"""What doctor finds: plain data, with an exit status."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["SCHEMA_VERSION", "Finding", "Report", "Severity", "error", "fine", "unknown", "warning"]

SCHEMA_VERSION = 1


class Severity(StrEnum):
    """How bad a finding is; from good to bad."""

    OK = "ok"
    UNKNOWN = "unknown"
    """This machine does not tell; not the same as off or missing."""
    WARNING = "warning"
    """Runs, but slower, less certain or not as the paper assumes."""
    ERROR = "error"
    """A run will fail or measure something else."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of one check."""

    id: str
    """Stable name of what was checked, such as "memlock"."""
    severity: Severity
    subject: str
    """What it is about: a device and port, a ring edge; empty: the whole machine."""
    evidence: str
    """What was seen, and where."""
    fix: str = ""
    """What to do; empty where nothing is wrong."""


def fine(check: str, subject: str, evidence: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check, Severity.OK, subject, evidence)


def unknown(check: str, subject: str, evidence: str, fix: str = "") -> Finding:
    """The machine does not tell; ``fix`` says how it could."""
    return Finding(check, Severity.UNKNOWN, subject, evidence, fix)


def warning(check: str, subject: str, evidence: str, fix: str) -> Finding:
    """Something to know or to better."""
    return Finding(check, Severity.WARNING, subject, evidence, fix)


def error(check: str, subject: str, evidence: str, fix: str) -> Finding:
    """Something to mend before a run."""
    return Finding(check, Severity.ERROR, subject, evidence, fix)


@dataclass(frozen=True)
class Report:
    """All findings about a machine."""

    host: str
    findings: Sequence[Finding]

    def of(self, severity: Severity) -> list[Finding]:
        """Give the findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]

    def exit_status(self, *, strict: bool = False) -> int:
        """Give 1 if there is an error (with ``strict``: or a warning), else 0."""
        bad = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
        return int(any(finding.severity in bad for finding in self.findings))

    def as_data(self) -> dict[str, Any]:
        """Give the report as JSON holds it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "host": self.host,
            "summary": {severity.value: len(self.of(severity)) for severity in Severity},
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }
