# SPDX-License-Identifier: Apache-2.0
"""The trace file: one step of a training as JSON, layer by layer, and what ranks do with it.

Times and bytes are those of one rank. Forward, the layers follow each other as in the file; backward, the other way.
Gradients are collected in buckets in backward order, as PyTorch's DistributedDataParallel does: a bucket is reduced as
soon as it holds ``bucket`` bytes (the first one 1 MiB, if that is less), and the computation goes on. A layer's own
calls, those of model parallelism, are waited for at once. In the end all buckets are waited for, then the weights are
updated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ring_bench.errors import UsageError
from ring_bench.schedule import Collective
from ring_bench.workload import Action, Call, Do, Trace

__all__ = ["DEFAULT_BUCKET", "Layer", "LayerCall", "TraceFile", "compile_trace", "parse_trace", "trace_schema"]

DEFAULT_BUCKET = 25 << 20
"""Bytes; as DistributedDataParallel's ``bucket_cap_mb``."""
_FIRST_BUCKET = 1 << 20
"""Bytes; as DistributedDataParallel's first bucket, small so that communication starts early."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LayerCall(_Model):
    """A collective that the computation waits for."""

    collective: Collective = Collective.ALL_REDUCE
    bytes: int = Field(gt=0, description="of the whole buffer, as nccl-tests' size")
    along: str = Field(description="name of the dimension")


class Layer(_Model):
    """A layer, as one rank computes it."""

    name: str
    forward_us: float = Field(ge=0, lt=1e12, description="time to compute the layer forward")
    backward_us: float = Field(ge=0, lt=1e12, description="time to compute its gradients")
    gradient_bytes: int = Field(ge=0, description="of the gradients of its weights; 0: it has none")
    forward_calls: list[LayerCall] = Field(default=[], description="after forward_us, one after the other")
    backward_calls: list[LayerCall] = Field(default=[], description="after backward_us, one after the other")


class TraceFile(_Model):
    """One step of a training."""

    schema_version: Literal[1] = 1
    name: str
    source: str = Field(description="where layers, bytes and times come from")
    dimensions: list[str] = Field(default=["data"], min_length=1, description="of the grid of ranks, fastest first")
    gradients_along: str = Field(default="data", description="dimension over which gradients are reduced")
    update_us: float = Field(default=0, ge=0, lt=1e12, description="time to update the weights")
    layers: list[Layer] = Field(min_length=1, description="in forward order")


def trace_schema() -> dict[str, Any]:
    """Give the JSON schema (draft 2020-12) of the trace file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "ring-bench-trace.schema.json",
        **TraceFile.model_json_schema(),
    }


def parse_trace(document: Any, path: Path) -> TraceFile:
    """Read a trace file's document.

    Raises:
        UsageError: It is none; says where and why.
    """
    try:
        trace = TraceFile.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise UsageError(f"{path}: {place or 'the document'}: {first['msg']}{more}") from None
    for place, along in _dimensions_used(trace):
        if along not in trace.dimensions:
            raise UsageError(f"{path}: {place}: no dimension {along!r} among {', '.join(trace.dimensions)}")
    if len(set(trace.dimensions)) < len(trace.dimensions):
        raise UsageError(f"{path}: dimensions: a name is there twice: {', '.join(trace.dimensions)}")
    return trace


def _dimensions_used(trace: TraceFile) -> list[tuple[str, str]]:
    used = [("gradients_along", trace.gradients_along)] if any(x.gradient_bytes for x in trace.layers) else []
    for number, layer in enumerate(trace.layers):
        for way, calls in (("forward_calls", layer.forward_calls), ("backward_calls", layer.backward_calls)):
            used += [(f"layers[{number}].{way}[{i}].along", call.along) for i, call in enumerate(calls)]
    return used


def dump_trace(trace: TraceFile) -> str:
    """Write a trace as JSON."""
    return json.dumps(trace.model_dump(mode="json"), indent=1)


class _Step:
    """Calls and actions as they come."""

    def __init__(self, compute_scale: float) -> None:
        self.calls: list[Call] = []
        self.actions: list[Action] = []
        self._scale = compute_scale
        self._computed_us = 0.0

    def compute(self, time_us: float) -> None:
        self._computed_us += time_us

    def call(self, call: Call, *, wait: bool) -> None:
        self._flush()
        self.actions.append(Action(Do.ISSUE, len(self.calls)))
        self.calls.append(call)
        if wait:
            self.wait()

    def wait(self) -> None:
        self._flush()
        if self.calls:
            self.actions.append(Action(Do.WAIT, len(self.calls) - 1))

    def _flush(self) -> None:
        """Note what was computed since the last call as one stretch."""
        time_ns = round(self._computed_us * 1000 * self._scale)
        self._computed_us = 0.0
        if time_ns:
            self.actions.append(Action(Do.COMPUTE, time_ns))

    def trace(self, name: str, dimensions: list[str]) -> Trace:
        self._flush()
        return Trace(name, tuple(dimensions), tuple(self.calls), tuple(self.actions))


def compile_trace(trace: TraceFile, *, bucket: int = DEFAULT_BUCKET, compute_scale: float = 1.0) -> Trace:
    """Lay out the calls and actions of a training step.

    Args:
        trace: The layers.
        bucket: A bucket of gradients is reduced as soon as it holds so many bytes.
        compute_scale: Factor for all times.
    """
    step = _Step(compute_scale)
    along = {name: (number,) for number, name in enumerate(trace.dimensions)}

    def own_calls(layer: Layer, way: str, calls: list[LayerCall]) -> None:
        for number, call in enumerate(calls, start=1):
            name = f"{layer.name} {way}" + (f" {number}" if len(calls) > 1 else "")
            step.call(Call(name, call.collective, call.bytes, along[call.along]), wait=True)

    for layer in trace.layers:
        step.compute(layer.forward_us)
        own_calls(layer, "forward", layer.forward_calls)
    waiting: list[Layer] = []
    limit = min(bucket, _FIRST_BUCKET)
    for number, layer in enumerate(reversed(trace.layers)):
        step.compute(layer.backward_us)
        own_calls(layer, "backward", layer.backward_calls)
        if layer.gradient_bytes:
            waiting.append(layer)
        size = sum(one.gradient_bytes for one in waiting)
        if size >= limit or (size and number == len(trace.layers) - 1):
            first, last = waiting[0].name, waiting[-1].name
            name = f"gradients {first}" + (f"..{last}" if last != first else "")
            step.call(Call(name, Collective.ALL_REDUCE, size, along[trace.gradients_along]), wait=False)
            waiting, limit = [], bucket
    if trace.update_us:
        step.wait()
        step.compute(trace.update_us)
    return step.trace(trace.name, trace.dimensions)
