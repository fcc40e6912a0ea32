# SPDX-License-Identifier: Apache-2.0
"""Everything that can go wrong in symphony-experiments.

::

    ExperimentError
    ├── ScenarioError           a scenario file or an override that cannot work; nothing was started
    ├── ResultsError            a results folder that cannot be read or written
    ├── RunFailedError          runs ended without a result; those that finished are kept
    └── InterruptedSweepError   Ctrl-C; what finished is kept
"""

from __future__ import annotations

__all__ = ["ExperimentError", "InterruptedSweepError", "ResultsError", "RunFailedError", "ScenarioError"]


class ExperimentError(Exception):
    """Base of all errors of this package; its text is fit for the user."""


class ScenarioError(ExperimentError):
    """A scenario file or an override that cannot work: says where and why. Nothing was started."""


class ResultsError(ExperimentError):
    """A folder of results cannot be read or written, or belongs to something else."""


class RunFailedError(ExperimentError):
    """Some runs ended without a result. Those that finished are kept; running again does the others."""


class InterruptedSweepError(ExperimentError):
    """The user stopped the sweep. Those that finished are kept; running again does the others."""
