# SPDX-License-Identifier: Apache-2.0
"""What the paper claims, held against rows of runs: a verdict per claim, with the difference.

A claim is about a *statistic* of one metric over the runs that `of` selects:

``median``
    the median over seeds, against the paper's number or range;
``change``
    the relative change of the median against the runs that `against` selects, paired by seed.

Verdicts:

``reproduced``
    ours lies within `tolerance` of the paper's number (absolute for ``change``, relative for ``median``), or within
    the paper's range.
``in direction only``
    it does not, but it lies on the side of `against` (or, for a change, of zero) that the paper says, and the
    confidence interval excludes the other side.
``not reproduced``
    neither.
``not run``
    there are no rows to judge it by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from symphony_experiments.statistics import Estimate, median, relative_change

__all__ = ["Claim", "Judgement", "Row", "Verdict", "judge", "select"]

Row = Mapping[str, Any]
Verdict = Literal["reproduced", "in direction only", "not reproduced", "not run"]
Selection = dict[str, str | int | float | bool]


class Claim(BaseModel):
    """One statement of the paper as a test on rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    text: str
    """The paper's statement in our words."""
    source: str
    """Where in the paper."""
    metric: str
    statistic: Literal["median", "change"] = "change"
    of: Selection
    against: Selection | None = None
    paper: float | tuple[float, float] | None = None
    """The paper's number, or its range; none: the paper gives a direction only."""
    tolerance: float = Field(default=0.05, gt=0)
    direction: Literal["less", "greater"] = "less"
    """Where ours should lie, seen from `against`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.statistic == "change" and self.against is None:
            raise ValueError(f'claim {self.id}: a "change" needs "against"')
        return self


class Judgement(NamedTuple):
    """A claim with what the runs say of it."""

    claim: Claim
    verdict: Verdict
    ours: Estimate | None
    difference: float | None
    """Ours minus the paper's number or the nearer end of its range: a share for changes, else in the metric's unit."""


def select(rows: Iterable[Row], selection: Mapping[str, Any]) -> list[Row]:
    """The rows whose columns have the selected values, in order of seed."""
    chosen = [row for row in rows if all(row.get(name) == value for name, value in selection.items())]
    return sorted(chosen, key=lambda row: row["seed"])


def judge(claim: Claim, rows: Sequence[Row]) -> Judgement:
    """Hold a claim against rows."""
    ours = [row for row in select(rows, claim.of) if row.get(claim.metric) is not None]
    base = [] if claim.against is None else [r for r in select(rows, claim.against) if r.get(claim.metric) is not None]
    common = {row["seed"] for row in ours} & {row["seed"] for row in base}
    if claim.against is not None:
        ours = [row for row in ours if row["seed"] in common]
        base = [row for row in base if row["seed"] in common]
    if not ours:
        return Judgement(claim, "not run", None, None)
    values, baseline = ([float(row[claim.metric]) for row in chosen] for chosen in (ours, base))
    change = relative_change(values, baseline) if base else None
    estimate = change if claim.statistic == "change" and change is not None else median(values)
    difference = _difference(estimate.value, claim.paper)
    if difference is not None and _close(claim, difference):
        return Judgement(claim, "reproduced", estimate, difference)
    if change is None or not _on_the_right_side(change, claim.direction):
        return Judgement(claim, "not reproduced", estimate, difference)
    return Judgement(claim, "reproduced" if claim.paper is None else "in direction only", estimate, difference)


def _difference(value: float, paper: float | tuple[float, float] | None) -> float | None:
    if paper is None:
        return None
    low, high = paper if isinstance(paper, tuple) else (paper, paper)
    return value - min(max(value, low), high)


def _close(claim: Claim, difference: float) -> bool:
    if isinstance(claim.paper, tuple):
        return difference == 0
    assert claim.paper is not None
    scale = 1.0 if claim.statistic == "change" else abs(claim.paper)
    return abs(difference) <= claim.tolerance * scale


def _on_the_right_side(change: Estimate, direction: str) -> bool:
    """The whole interval lies there; without one (fewer than three seeds) the value has to do."""
    low = change.value if change.low is None else change.low
    high = change.value if change.high is None else change.high
    return high < 0 if direction == "less" else low > 0
