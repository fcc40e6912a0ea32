# SPDX-License-Identifier: Apache-2.0
"""Symphony's entries without a switch-agent: the state that an agent brings about through BF-Runtime, written directly.

A ToR classifies the job's flows whose source is below it, a switch above all flows that leave their ToR (as host-agent
places them). All hold the job's parameters, and begin with fresh state blocks. With Symphony off a job stays tracked,
with a gain that never marks (`switch_agent.dataplane.params.DISABLED_LG_K`), as the agent has it. Look-up entries are
there from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fabric_twin.errors import ConfigError
from fabric_twin.fabric import Fabric
from fabric_twin.topology import NUM_PIPES, Host, Switch
from switch_agent.dataplane.constants import N_JOB, N_STATE
from switch_agent.dataplane.params import DISABLED_LG_K, SymphonyParams

__all__ = ["JobEntries"]

_DEFAULT = SymphonyParams()
_STEP_0 = 1
"""What a step register holds for step 0: the tag left-aligned, bit 0 set."""
KINDS = ("all", "outpacing", "symphony", "queue")


@dataclass(frozen=True)
class _Classifier:
    """job_classify of one switch: (source, destination, UDP source port) -> (Job_ID, state block)."""

    flows: frozenset[tuple[int, int]]
    sport: int
    mask: int
    target: tuple[int, int]

    def __call__(self, src: int, dst: int, sport: int) -> tuple[int, int] | None:
        return self.target if sport & self.mask == self.sport and (src, dst) in self.flows else None


@dataclass(frozen=True)
class _Classifiers:
    """Those of several jobs on a switch; no flow belongs to two."""

    each: tuple[_Classifier, ...]

    def __call__(self, src: int, dst: int, sport: int) -> tuple[int, int] | None:
        return next((found for one in self.each if (found := one(src, dst, sport)) is not None), None)


class JobEntries:
    """The entries of jobs on all switches of a fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._jobs: dict[str, tuple[int, int, int, SymphonyParams | None]] = {}
        """Name -> Job_ID, first state block, number of blocks, parameters."""
        self._classifiers: dict[int, list[_Classifier]] = {}
        self._ranked: set[str] = set()

    def add(
        self,
        name: str,
        flows: set[tuple[Host, Host]],
        tag: tuple[int, int],
        params: SymphonyParams | None,
        *,
        ranked: bool = False,
    ) -> None:
        """Register a job.

        Args:
            name: of the job.
            flows: source and destination of what it sends.
            tag: value and mask of its UDP source ports.
            params: None: Symphony is off for it.
            ranked: packets of its lagging step go first.

        Raises:
            ConfigError: the switches have no room for it.
        """
        fabric = self._fabric
        number = 1 + len(self._jobs)
        state = max((first + n for _, first, n, _ in self._jobs.values()), default=0)
        ports = max((len(switch.ports) for switch in fabric.topology.symphony_switches), default=1)
        blocks = ports if (params or _DEFAULT).scope == "port" else 1
        if number >= N_JOB or state + blocks > N_STATE:
            raise ConfigError(f"job {name!r}: the switches hold {N_JOB - 1} jobs and {N_STATE} state blocks; use fewer")
        self._jobs[name] = number, state, blocks, params
        regs = fabric.planes.regs
        for switch in fabric.topology.symphony_switches:
            rows = slice(switch.pipeline * NUM_PIPES, (switch.pipeline + 1) * NUM_PIPES)
            place = slice(state, state + blocks)
            regs.steps_mn[rows, place] = regs.steps_mx[rows, place] = _STEP_0
            for register in (regs.psn_rec, regs.window_start, regs.score, regs.count):
                register[rows, place] = 0
            regs.alpha[rows, place] = 1
            self._counts(switch)[:, number] = 0
            local = frozenset(
                (int(src.address), int(dst.address))
                for src, dst in flows
                if (src.tor != dst.tor if switch.tier > 0 else src.tor == switch.index)
            )
            self._classifiers.setdefault(switch.index, []).append(_Classifier(local, *tag, (number, state)))
            fabric.set_classifier(switch.index, _Classifiers(tuple(self._classifiers[switch.index])))
        if ranked:
            self._ranked.add(name)
        self._write(name, params)

    def set_params(self, name: str, params: SymphonyParams | None) -> None:
        """Change Symphony's parameters of a job, or stop it (None). Starting it again starts score and alpha afresh.

        Raises:
            ConfigError: no such job, or a scope for which it has no state blocks.
        """
        if name not in self._jobs:
            raise ConfigError(
                f"no job {name!r} has entries in the switches; there are {', '.join(self._jobs) or 'none'}"
            )
        number, state, blocks, before = self._jobs[name]
        if params is not None and params.scope == "port" and blocks == 1:
            raise ConfigError(f"job {name!r} was registered with scope job; scope port needs a state block per port")
        self._jobs[name] = number, state, blocks, params
        if params is not None and before is None:
            regs = self._fabric.planes.regs
            place = slice(state, state + blocks)
            regs.score[:, place], regs.count[:, place], regs.alpha[:, place] = 0, 0, 1
        self._write(name, params)

    def _write(self, name: str, params: SymphonyParams | None) -> None:
        number = self._jobs[name][0]
        entry = (params or _DEFAULT).to_entry()
        if params is None:
            entry = replace(entry, lg_k=DISABLED_LG_K)
        for switch in self._fabric.topology.symphony_switches:
            self._fabric.set_params(switch.index, number, entry.values(), ranked=name in self._ranked)

    def counts(self, name: str) -> dict[str, int]:
        """Packets of a job over all switches by `KINDS`: seen, outpacing, marked by Symphony or the queue; or empty."""
        if name not in self._jobs:
            return {}
        number = self._jobs[name][0]
        packets = [
            self._counts(switch)[:, number, :, 0].sum(axis=0) for switch in self._fabric.topology.symphony_switches
        ]
        return dict(zip(KINDS, np.sum(packets, axis=0).tolist(), strict=True)) if packets else {}

    def _counts(self, switch: Switch) -> npt.NDArray[np.int64]:
        counts = self._fabric.view.counts.reshape(-1, NUM_PIPES, N_JOB, 4, 2)
        of_switch: npt.NDArray[np.int64] = counts[switch.pipeline]
        return of_switch
