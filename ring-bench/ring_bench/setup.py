# SPDX-License-Identifier: Apache-2.0
"""From options to connected ranks: devices, memory, queue pairs, and what neighbours tell each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ring_bench.config import Config
from ring_bench.dtypes import DATATYPES, Array, pattern
from ring_bench.errors import UsageError
from ring_bench.link import LinkQueuePairs, Neighbour
from ring_bench.plan import Plan
from ring_bench.rank import Observer, Rank
from ring_bench.rendezvous import Rendezvous
from ring_bench.ring_end import RingEnd
from ring_bench.schedule import Schedule
from ring_bench.verbs.api import CompletionQueue, Context, DeviceAttributes, MemoryRegion, Provider
from ring_bench.wanted import Wanted, wanted_by

__all__ = ["World", "set_up"]


@dataclass(frozen=True)
class World:
    """The ranks of this process, connected, and what is known of the others."""

    plan: Plan
    ranks: dict[int, Rank]
    """By world rank."""
    by_cq: dict[int, Rank]
    """By `CompletionQueue.handle`."""
    hosts: list[str]
    """Address of each world rank's device."""


def set_up(
    config: Config,
    provider: Provider,
    rendezvous: Rendezvous,
    *,
    local_ranks: Sequence[int],
    hosts: Sequence[str | int],
    observer: Observer | None = None,
) -> World:
    """Open devices, register memory, connect all rings; returns when all ranks of the world are ready.

    Args:
        config: The options.
        provider: The fabric.
        rendezvous: The other processes.
        local_ranks: World ranks of this process.
        hosts: Name or index of each world rank's host.
        observer: Hears of steps.

    Raises:
        UsageError: The fabric or this machine cannot do what is asked for.
        ProviderError: The fabric refused something.
        PeerFailedError: Another rank failed.
    """
    if config.payload_scale > 1 and not provider.scales_payload:
        raise UsageError(f"provider {provider.name} moves real bytes: --payload-scale is for the twin")
    devices = {rank: provider.open_device(hosts[rank]) for rank in local_ranks}
    known = rendezvous.exchange(
        {rank: _introduction(device.attributes, hosts[rank]) for rank, device in devices.items()}
    )
    plan = Plan(
        config,
        mtu=_agree_on_mtu(config, known),
        max_message=min(device["max_msg_sz"] for device in known.values()),
    )
    _check_memory(plan, len(local_ranks))
    _check_limits(plan, [device.attributes for device in devices.values()])
    regions = {rank: device.reg_mr(plan.layout.total) for rank, device in devices.items()}
    wanted = _fill_patterns(plan, regions)
    queues: dict[int, CompletionQueue] = {}
    pairs: dict[int, list[dict[int, LinkQueuePairs]]] = {}
    rings = config.rings if plan.axes else 0
    for rank, device in devices.items():
        queues[rank] = device.create_cq(_cq_entries(plan))
        pairs[rank] = [{axis: _create_pairs(plan, device, queues[rank]) for axis in plan.axes} for _ in range(rings)]
    peers = rendezvous.exchange(
        {
            rank: {
                "address": regions[rank].address,
                "rkey": regions[rank].rkey,
                "rings": [[links[axis].numbers() for axis in plan.axes] for links in pairs[rank]],
            }
            for rank in local_ranks
        }
    )
    ranks: dict[int, Rank] = {}
    grid = Schedule(0, config.grid)
    for group in config.groups:
        for position, number in enumerate(group):
            if number not in devices:
                continue
            ranks[number] = Rank(
                plan=plan,
                number=number,
                position=position,
                host=known[number]["host"],
                provider=provider,
                region=regions[number],
                wanted=wanted.get(number),
                observer=observer,
            )
            for ring, links in enumerate(pairs[number]):
                ends = {}
                for index, axis in enumerate(plan.axes):
                    before, behind = group[grid.prev_rank(position, axis)], group[grid.next_rank(position, axis)]
                    ends[axis] = (
                        links[axis],
                        _neighbour(before, ring, index, known, peers),
                        _neighbour(behind, ring, index, known, peers),
                    )
                end = RingEnd(ranks[number], ring, ends)
                end.connect()
                ranks[number].ends.append(end)
    provider.flush()  # all receives are posted before anybody starts
    rendezvous.exchange(dict.fromkeys(local_ranks))
    return World(
        plan=plan,
        ranks=ranks,
        by_cq={queues[number].handle: rank for number, rank in ranks.items()},
        hosts=[known[rank]["host"] for rank in range(config.world)],
    )


def _introduction(attributes: DeviceAttributes, host: str | int) -> dict[str, Any]:
    return {
        "host": host if isinstance(host, str) else f"h{host}",
        "gid": attributes.gid,
        "mtu": attributes.active_mtu,
        "max_msg_sz": attributes.max_msg_sz,
    }


def _agree_on_mtu(config: Config, known: Mapping[int, Mapping[str, Any]]) -> int:
    smallest = min(int(device["mtu"]) for device in known.values())
    if config.mtu is None:
        return smallest
    if config.mtu > smallest:
        rank = next(rank for rank, device in known.items() if device["mtu"] == smallest)
        raise UsageError(
            f"--mtu {config.mtu} is more than {smallest}, the active MTU of rank {rank} "
            f"({known[rank]['host']}): leave --mtu out, or raise the MTU of the link"
        )
    return config.mtu


def _check_memory(plan: Plan, local_ranks: int) -> None:
    needed = local_ranks * plan.rank_bytes
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return
    if needed > available:
        raise UsageError(
            f"{local_ranks} ranks need {needed >> 20} MiB of memory, {available >> 20} MiB are available: "
            "smaller sizes, fewer ranks or iterations, or --payload-scale"
        )


def _check_limits(plan: Plan, devices: Sequence[DeviceAttributes]) -> None:
    for device in devices:
        if plan.max_segments > device.max_qp_wr:
            raise UsageError(
                f"a step has {plan.max_segments} segments, the send queue of {device.name} ({device.address}) "
                f"holds {device.max_qp_wr}: give a larger --segment"
            )
        if _cq_entries(plan) > device.max_cqe:
            raise UsageError(
                f"{plan.config.rings} rings of {plan.config.slots} slots need {_cq_entries(plan)} completion "
                f"queue entries, {device.name} ({device.address}) has {device.max_cqe}: "
                "fewer --rings or --slots, or a larger --segment"
            )


def _cq_entries(plan: Plan) -> int:
    """Sum of all queue depths on the CQ, so that it cannot overrun even when everything is flushed."""
    slots = plan.config.slots
    data = slots * (plan.max_segments + 1) + slots * 2
    control = (1 + slots) + (2 * slots + 1)
    return max(1, plan.config.rings * len(plan.axes) * (data + control))


def _create_pairs(plan: Plan, device: Context, cq: CompletionQueue) -> LinkQueuePairs:
    slots = plan.config.slots
    return LinkQueuePairs(
        send=[device.create_qp(cq, plan.max_segments, 1) for _ in range(slots)],
        credit=device.create_qp(cq, 1, slots),
        recv=[device.create_qp(cq, 1, 1) for _ in range(slots)],
        grant=device.create_qp(cq, 2 * slots, 1),
    )


def _neighbour(
    rank: int, ring: int, link: int, known: Mapping[int, Mapping[str, Any]], peers: Mapping[int, Mapping[str, Any]]
) -> Neighbour:
    peer = peers[rank]
    return Neighbour(rank, known[rank]["gid"], peer["rings"][ring][link], peer["address"], peer["rkey"])


def _fill_patterns(plan: Plan, regions: Mapping[int, MemoryRegion]) -> dict[int, list[Wanted]]:
    """Write each local rank's send data; with verification, give what each local rank must arrive at."""
    config = plan.config
    size = plan.pattern_length * plan.item_size

    def make(rank: int) -> Array:
        if rank in filled:
            begin = plan.layout.pattern
            return regions[rank].buffer[begin : begin + size].view(DATATYPES[config.datatype])
        return pattern(config.datatype, config.op, rank, plan.pattern_length, config.seed)

    filled: set[int] = set()
    for rank, region in regions.items():
        region.buffer[plan.layout.pattern : plan.layout.pattern + size] = make(rank).view("u1")
        filled.add(rank)
    wanted: dict[int, list[Wanted]] = {}
    if config.check:
        for group in config.groups:
            wanted.update(wanted_by(plan, group, [rank for rank in group if rank in regions], make))
    return wanted
