# SPDX-License-Identifier: Apache-2.0
"""What doctor is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ring_bench.doctor.machine import Machine, Port

__all__ = ["Examination", "Options"]


@dataclass(frozen=True)
class Options:
    """What a user wants to run, as far as it changes what is right."""

    devices: tuple[str, ...] = ()
    """RDMA or network devices to look at; empty: all."""
    peers: tuple[str, ...] = ()
    """Addresses or names of the ring's hosts in rank order, this one included."""
    memory: int = 256 << 20
    """Bytes that a process will register."""
    traffic_class: int = 106
    """DSCP << 2 | ECN."""
    gid_index: int | None = None
    """An index that another program was told to use (NCCL_IB_GID_INDEX)."""
    switch_mtu: int | None = None
    """L3 MTU of the switch ports, bytes."""
    interval_s: float = 1.0
    """How long to watch counters; 0: only their totals since the driver was loaded."""
    probe: bool = False
    """Exchange real messages over throw-away queue pairs."""

    @property
    def dscp(self) -> int:
        """The data packets' DSCP."""
        return self.traffic_class >> 2


@dataclass(frozen=True)
class Examination:
    """A machine and what is asked about it; what all checks take."""

    machine: Machine
    options: Options

    @cached_property
    def ports(self) -> list[Port]:
        """The ports in question."""
        wanted = self.options.devices
        return [port for port in self.machine.ports if not wanted or port.device in wanted or port.netdev in wanted]

    @cached_property
    def roce(self) -> list[Port]:
        """Those of them that may run RoCE: about one of InfiniBand there is nothing more to say than that."""
        return [port for port in self.ports if port.link_layer != "InfiniBand"]

    @cached_property
    def hardware(self) -> list[Port]:
        """Those of these that are no soft-RoCE."""
        return [port for port in self.roce if not port.software]
