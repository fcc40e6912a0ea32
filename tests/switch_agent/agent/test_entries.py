# SPDX-License-Identifier: Apache-2.0
"""A job as table entries: tag match, parameters, and the gain of a disabled job."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from switch_agent.agent.entries import DISABLED_LG_K, params_entry, step_word
from switch_agent.agent.models import Job, JobSpec
from switch_agent.dataplane.lookup import dense_array, lookup_tables
from switch_agent.dataplane.params import ParamEntry


def job(**settings: object) -> Job:
    """A job with these Symphony settings."""
    spec = JobSpec.model_validate({"name": "ring", "job_tag": 3, "flows": [{"src": "10.0.0.1"}], "symphony": settings})
    return Job(job_id=7, spec=spec, state=0, n_states=1)


def test_disabled_gain_never_marks_and_never_wraps() -> None:
    """With the gain of a disabled job no PSN, psn_rec, alpha or floor gives a threshold above 0."""
    logs = {
        name: np.unique(dense_array(name, table.entries, table.default).astype(int))
        for name, table in lookup_tables().items()
        if name != "exp2"
    }
    exp2 = lookup_tables()["exp2"]
    threshold = dense_array("exp2", exp2.entries, exp2.default)
    for psn, rec, alpha in itertools.product(
        *((int(logs[name].min()), int(logs[name].max())) for name in ("log2_psn", "log2_psn_rec", "log2_alpha"))
    ):
        for floor in (-32768, -2560, 0, 2560):
            total = DISABLED_LG_K + alpha + max(psn + rec, floor)
            assert -32768 <= total <= 32767, "the sum must not wrap in int16"
            assert threshold[total & 0xFFFF] == 0
    # Every sum in between, too: the range is contiguous.
    sums = np.arange(DISABLED_LG_K - 6200, DISABLED_LG_K + 4096 + 6200)
    assert not threshold[sums & 0xFFFF].any()


def test_enabled_job_gets_the_parameters_as_they_are() -> None:
    """The entry holds the ten integers of its parameters, in the words of the P4 action."""
    entry = params_entry(job(enabled=True, variant="refined", k=0.02))
    assert entry.key == {"ig_md.job": 7}
    read = ParamEntry(**entry.data).to_params()  # type: ignore[arg-type]
    assert (read.k, read.gate, read.alpha_max, read.ratio_floor) == (0.02, True, 128, 1.0)


def test_disabled_job_keeps_everything_but_the_gain() -> None:
    """Tracking needs window, tau and the rest; only lg_k differs."""
    on, off = dict(params_entry(job(enabled=True)).data), dict(params_entry(job(enabled=False)).data)
    assert off.pop("lg_k") == DISABLED_LG_K
    assert on.pop("lg_k") != DISABLED_LG_K
    assert on == off


@pytest.mark.parametrize(("step", "word"), [(0, 1), (1, 0x400001), (1023, 0xFFC00001), (1024, 1), (1030, 0x1800001)])
def test_step_words(step: int, word: int) -> None:
    """Steps are left-aligned modulo 1024 with bit 0 set."""
    assert step_word(step) == word
