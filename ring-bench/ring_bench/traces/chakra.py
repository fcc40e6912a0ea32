# SPDX-License-Identifier: Apache-2.0
"""Import of Chakra execution traces (MLCommons, schema/protobuf/et_def.proto): a rank's graph of operations.

The graph becomes one stream of computation and one of collectives. Computation nodes run one after the other, a node
that depends on a collective waits for it; among nodes whose dependencies are met, collectives are issued first, then
come computations that wait for nothing, then those that do, each by their number. Nodes without a time of their own
(metadata, and operations of the CPU, which runs ahead of the accelerator) only pass dependencies on. Collectives of
different process groups go along different dimensions, in the order in which the groups appear.

A binary trace is read with MLCommons' own library (``mlc-chakra``), the JSON of its ``chakra_jsonizer`` without.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ring_bench.errors import UsageError
from ring_bench.schedule import Collective
from ring_bench.workload import Action, Call, Do, Trace

__all__ = ["read_binary", "trace_of_nodes"]

_COLLECTIVES = {
    "ALL_REDUCE": Collective.ALL_REDUCE,
    "ALL_GATHER": Collective.ALL_GATHER,
    "BROADCAST": Collective.BROADCAST,
    "REDUCE_SCATTER": Collective.REDUCE_SCATTER,
    "REDUCE_SCATTER_BLOCK": Collective.REDUCE_SCATTER,
}
_COMM_TYPES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
"""``CollectiveCommType`` of et_def.proto, by value."""
_GROUP_ATTRIBUTES = ("pg_name", "comm_group")


def read_binary(path: Path) -> list[dict[str, Any]]:
    """Read the nodes of a ``.et`` file with MLCommons' library.

    Raises:
        UsageError: The library or the file is not there, or it does not read.
    """
    try:
        from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
        from chakra.src.third_party.utils.protolib import decodeMessage
    except ImportError as error:
        raise UsageError(
            f"{path}: a binary Chakra trace needs MLCommons' library ({error}): pip install mlc-chakra, "
            "or convert it with chakra_jsonizer"
        ) from None
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    nodes: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:  # the library's own way to open ends the process when there is no file
            decodeMessage(file, GlobalMetadata())
            node = Node()
            while decodeMessage(file, node):
                nodes.append(MessageToDict(node))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (DecodeError, EOFError, ValueError) as error:
        raise UsageError(f"{path}: after {len(nodes)} nodes: not a Chakra execution trace ({error})") from None
    return nodes


@dataclass
class _Node:
    """What matters of a node."""

    number: int
    name: str
    needs: list[int]
    compute_ns: int = 0
    collective: Collective | None = None
    size: int = 0
    group: str = ""
    followers: list[int] = field(default_factory=list)
    call: int = -1
    """The last collective that this node, or what it only passes on, has to wait for."""


def trace_of_nodes(documents: Sequence[Mapping[str, Any]], path: Path, compute_scale: float) -> Trace:
    """Turn the nodes of an execution trace into a training step.

    Args:
        documents: Nodes as proto3 JSON; others (the global metadata) are passed over.
        path: For messages.
        compute_scale: Factor for all times.

    Raises:
        UsageError: The graph is broken or asks for what ring-bench cannot do; names the node.
    """
    nodes: dict[int, _Node] = {}
    for document in documents:
        if "id" not in document and "type" not in document:
            continue
        node = _read(document, path, compute_scale)
        if node.number in nodes:
            raise UsageError(f"{path}: node {node.number} is there twice")
        nodes[node.number] = node
    if not nodes:
        raise UsageError(f"{path}: neither a trace with layers nor nodes of a Chakra execution trace")
    for node in nodes.values():
        for need in node.needs:
            if need not in nodes:
                raise UsageError(f"{path}: node {node.number} ({node.name}) depends on node {need}, which is not there")
            nodes[need].followers.append(node.number)
    groups = list(dict.fromkeys(n.group for n in nodes.values() if n.collective)) or ["data"]
    calls: list[Call] = []
    actions: list[Action] = []
    waited = -1
    for node in _ordered(nodes, path):
        node.call = max((nodes[need].call for need in node.needs), default=-1)
        if node.collective is not None:
            node.call = len(calls)
            actions.append(Action(Do.ISSUE, node.call))
            calls.append(Call(node.name, node.collective, node.size, (groups.index(node.group),)))
        elif node.compute_ns:
            if node.call > waited:
                waited = node.call
                actions.append(Action(Do.WAIT, waited))
            actions.append(Action(Do.COMPUTE, node.compute_ns))
    return Trace(path.name, tuple(groups), tuple(calls), tuple(actions))


def _ordered(nodes: Mapping[int, _Node], path: Path) -> list[_Node]:
    """Give the nodes in the order in which they run."""
    left = {number: len(node.needs) for number, node in nodes.items()}
    blocked = dict.fromkeys(nodes, False)

    def rank(number: int) -> tuple[int, int]:
        node = nodes[number]
        return (0 if node.collective or not node.compute_ns else 2 if blocked[number] else 1), number

    ready = [rank(number) for number, count in left.items() if not count]
    heapq.heapify(ready)
    ordered: list[_Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)[1]]
        ordered.append(node)
        waits = node.collective is not None or (blocked[node.number] and not node.compute_ns)
        for follower in node.followers:
            blocked[follower] = blocked[follower] or waits
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, rank(follower))
    if len(ordered) < len(nodes):
        stuck = sorted(number for number, count in left.items() if count)
        raise UsageError(f"{path}: nodes depend on each other in a circle: {', '.join(map(str, stuck[:5]))}")
    return ordered


def _read(document: Mapping[str, Any], path: Path, compute_scale: float) -> _Node:
    number = _whole(document.get("id", 0), path, "a node's id")
    name, kind = str(document.get("name", "")), str(document.get("type", "INVALID_NODE"))
    place = f"node {number} ({name})"
    attributes = {str(entry.get("name")): _value(entry) for entry in document.get("attr", [])}
    needs = [
        _whole(need, path, f"{place}: a dependency")
        for key in ("ctrlDeps", "dataDeps")
        for need in document.get(key, [])
    ]
    node = _Node(number, name, list(dict.fromkeys(needs)))
    if kind == "COMM_COLL_NODE":
        code = _whole(attributes.get("comm_type"), path, f"{place}: comm_type")
        called = _COMM_TYPES[code] if code < len(_COMM_TYPES) else str(code)
        if called not in _COLLECTIVES:
            raise UsageError(
                f"{path}: {place}: ring-bench has no ring for {called}; it knows {', '.join(_COLLECTIVES)}"
            )
        node.collective = _COLLECTIVES[called]
        node.size = _whole(attributes.get("comm_size"), path, f"{place}: comm_size")
        if not node.size:
            raise UsageError(f"{path}: {place}: a collective of 0 bytes")
        node.group = str(next((attributes[key] for key in _GROUP_ATTRIBUTES if key in attributes), "data"))
    elif kind in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
        raise UsageError(f"{path}: {place}: {kind} is no collective; ring-bench replays collectives only")
    elif kind == "COMP_NODE" and not attributes.get("is_cpu_op", False):
        if "durationMicros" not in document and _whole(attributes.get("num_ops", 0), path, f"{place}: num_ops"):
            raise UsageError(
                f"{path}: {place}: has operations (num_ops) but no duration; run it through a roofline first"
            )
        node.compute_ns = round(
            _whole(document.get("durationMicros", 0), path, f"{place}: duration") * 1000 * compute_scale
        )
    return node


def _value(entry: Mapping[str, Any]) -> Any:
    """Give the value of an attribute, whatever its type."""
    return next((value for key, value in entry.items() if key.endswith(("Val", "List"))), None)


def _whole(value: Any, path: Path, what: str) -> int:
    """Read a whole number; proto3 JSON writes those of 64 bits as text."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or isinstance(value, bool | float):
        raise UsageError(f"{path}: {what} is a whole number from 0 up, not {value!r}")
    return number
