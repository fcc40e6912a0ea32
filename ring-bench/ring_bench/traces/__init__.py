# SPDX-License-Identifier: Apache-2.0
"""Training workloads: shipped models, trace files, Chakra execution traces."""

from __future__ import annotations

import json
from pathlib import Path

from ring_bench.errors import UsageError
from ring_bench.traces.chakra import read_binary, trace_of_nodes
from ring_bench.traces.format import DEFAULT_BUCKET, TraceFile, compile_trace, dump_trace, parse_trace, trace_schema
from ring_bench.traces.models import MODELS
from ring_bench.workload import Trace

__all__ = ["DEFAULT_BUCKET", "MODELS", "dump_trace", "load_workload", "model_trace", "trace_schema"]


def model_trace(name: str, dims: tuple[int, ...] | None) -> TraceFile:
    """Give a shipped model, split over the ranks of the first dimension if it can be.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in MODELS:
        raise UsageError(f"no model {name!r}: {', '.join(MODELS)}")
    return MODELS[name](dims[0] if dims else 1)


def load_workload(
    workload: str,
    *,
    dims: tuple[int, ...] | None = None,
    bucket: int = DEFAULT_BUCKET,
    compute_scale: float = 1.0,
) -> tuple[Trace, str]:
    """Give the training step that a name or a file stands for, and where its figures come from.

    Args:
        workload: A model's name; else a file: a trace, or a Chakra execution trace (``.et``, or its JSON).
        dims: Grid of ranks; a model may be split over the first dimension.
        bucket: Bytes of a bucket of gradients; of no effect on Chakra traces, which have theirs.
        compute_scale: Factor for all times.

    Raises:
        UsageError: No such model or file, or it cannot be used; says where and why.
    """
    if workload in MODELS:
        model = model_trace(workload, dims)
        return compile_trace(model, bucket=bucket, compute_scale=compute_scale), model.source
    path = Path(workload)
    if path.suffix == ".et":
        return trace_of_nodes(read_binary(path), path, compute_scale), f"Chakra execution trace {path.name}"
    documents = _read_json(path)
    if len(documents) == 1 and "layers" in documents[0]:
        trace = parse_trace(documents[0], path)
        return compile_trace(trace, bucket=bucket, compute_scale=compute_scale), trace.source
    return trace_of_nodes(documents, path, compute_scale), f"Chakra execution trace {path.name}"


def _read_json(path: Path) -> list[dict[str, object]]:
    """Read a file of one JSON object, or of several one after the other as Chakra's jsonizer writes them."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; a workload is a file or one of {', '.join(MODELS)}"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file; a binary Chakra trace is named .et") from None
    documents: list[dict[str, object]] = []
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        try:
            document, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}") from None
        except RecursionError:
            raise UsageError(f"{path}: nested too deeply") from None
        if not isinstance(document, dict):
            raise UsageError(f"{path}: a trace is a JSON object, this is {type(document).__name__}")
        documents.append(document)
        while place < len(text) and text[place].isspace():
            place += 1
    if not documents:
        raise UsageError(f"{path}: the file is empty")
    return documents
