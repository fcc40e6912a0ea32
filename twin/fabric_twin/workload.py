# SPDX-License-Identifier: Apache-2.0
"""What scripted ranks do: jobs of collectives, placed on hosts, without processes, sockets or data.

A `Job` is what a ring-bench run is, and its steps are laid out by ring-bench's own plan: sizes, chunks, segments,
rings and groups mean the same. `Job.config` takes ring-bench's options; placement, start and Symphony are the twin's.
Jobs are plain data: they can be pickled and sent to other processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric_twin.errors import ConfigError
from ring_bench.config import Config
from switch_agent.dataplane.params import SymphonyParams

__all__ = ["Job"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of ring-bench as the twin plays it.

    Attributes:
        config: what its ranks agree on (`ring_bench.config.Config`): world, rings, sizes, iterations, release rule,
            tagging, slots, job tag... No data move: `check` and `op` have no effect. The run's seed is `simulate`'s.
        hosts: name, index or address of the host of each rank; None: rank r is on host r.
        name: orders jobs that act at the same virtual time, as the twin orders attached processes.
        start_ns: when its ranks start, virtual time from the run's start.
        symphony: parameters of the job in the switches; None: Symphony marks nothing for it.
        ranked: in the switches' queues packets of its lagging step go before its others.
        tracked: it has entries in the switches, so that they count its packets, even when `symphony` is None.

    Raises:
        ConfigError: hosts and ranks differ in number, or a negative time.
    """

    config: Config
    hosts: tuple[str | int, ...] | None = None
    name: str = "job"
    start_ns: int = 0
    symphony: SymphonyParams | None = None
    tracked: bool = True
    ranked: bool = False

    def __post_init__(self) -> None:
        if self.hosts is not None and len(self.hosts) != self.config.world:
            raise ConfigError(
                f"job {self.name!r} has {self.config.world} ranks and {len(self.hosts)} hosts; give one each"
            )
        if self.start_ns < 0:
            raise ConfigError(f"job {self.name!r} starts at {self.start_ns} ns; a run begins at 0")
