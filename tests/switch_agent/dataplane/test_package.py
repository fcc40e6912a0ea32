# SPDX-License-Identifier: Apache-2.0
"""The package as others import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import switch_agent.dataplane as dataplane


@pytest.mark.parametrize("name", dataplane.__all__)
def test_every_exported_name_loads(name: str) -> None:
    """No export without a home."""
    assert getattr(dataplane, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    """Lazy loading keeps the usual error."""
    with pytest.raises(AttributeError, match="no attribute 'process_packets'"):
        _ = dataplane.process_packets


def test_numba_loads_only_with_the_pipeline_or_the_hashes() -> None:
    """An agent that needs parameters and table entries alone starts fast."""
    code = (
        "import sys; from switch_agent.dataplane import SymphonyParams, lookup_tables, JobState;"
        "lookup_tables(); assert 'numba' not in sys.modules;"
        "from switch_agent.dataplane import process_packet; assert 'numba' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
