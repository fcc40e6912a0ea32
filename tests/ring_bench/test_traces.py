# SPDX-License-Identifier: Apache-2.0
"""Trace files, shipped models and Chakra traces become the calls and actions that their sources describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_bench.errors import UsageError
from ring_bench.schedule import Collective
from ring_bench.traces import MODELS, dump_trace, load_workload, model_trace, trace_schema
from ring_bench.traces.models import BATCH, FLOPS
from ring_bench.workload import Action, Call, Do

PUBLISHED = Path(__file__).parents[2] / "docs" / "ring-bench-trace.schema.json"
LAYER = {"name": "a", "forward_us": 10, "backward_us": 20, "gradient_bytes": 4000}


def document(*layers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "t", "source": "by hand", "layers": list(layers), **more}


def written(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "trace.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("name", "parameters"), [("vgg16", 138_357_544), ("resnet50", 25_557_032)])
def test_a_model_has_the_parameters_of_its_published_architecture(name: str, parameters: int) -> None:
    assert sum(layer.gradient_bytes for layer in model_trace(name, None).layers) == parameters * 4


def test_the_transformer_has_the_published_65_million_parameters_within_a_few_percent() -> None:
    parameters = sum(layer.gradient_bytes for layer in model_trace("transformer", (1,)).layers) / 4
    assert parameters == pytest.approx(65e6, rel=0.05)


@pytest.mark.parametrize(("name", "gflops"), [("vgg16", 30.9), ("resnet50", 8.2)])
def test_forward_times_follow_from_the_published_operations_of_an_image(name: str, gflops: float) -> None:
    """15.5 and 4.1 thousand million multiply-accumulates."""
    forward_us = sum(layer.forward_us for layer in model_trace(name, None).layers)
    assert forward_us * 1e-6 * FLOPS / BATCH / 1e9 == pytest.approx(gflops, rel=0.01)


def test_a_transformer_split_over_more_ranks_has_less_to_do_at_each_and_reduces_activations() -> None:
    whole, split = model_trace("transformer", (1,)), model_trace("transformer", (4, 8))
    assert sum(x.forward_us for x in split.layers) == pytest.approx(sum(x.forward_us for x in whole.layers) / 4)
    assert not any(layer.forward_calls for layer in whole.layers)
    assert sum(len(layer.forward_calls) for layer in split.layers) == 31
    assert {call.along for layer in split.layers for call in layer.backward_calls} == {"model"}


@pytest.mark.parametrize("name", MODELS)
def test_a_printed_model_reads_back_as_the_same_trace(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, dump_trace(model_trace(name, (2, 2))))
    assert load_workload(path, dims=(2, 2)) == load_workload(name, dims=(2, 2))


def test_buckets_are_filled_backward_and_issued_when_they_are_full(tmp_path: Path) -> None:
    layers = [{**LAYER, "name": name} for name in "abcde"]
    trace, source = load_workload(written(tmp_path, document(*layers, update_us=5)), bucket=6000)
    assert source == "by hand"
    assert [(call.name, call.size) for call in trace.calls] == [
        ("gradients e..d", 8000),
        ("gradients c..b", 8000),
        ("gradients a", 4000),
    ]
    assert trace.actions == (
        Action(Do.COMPUTE, 90_000),
        Action(Do.ISSUE, 0),
        Action(Do.COMPUTE, 40_000),
        Action(Do.ISSUE, 1),
        Action(Do.COMPUTE, 20_000),
        Action(Do.ISSUE, 2),
        Action(Do.WAIT, 2),
        Action(Do.COMPUTE, 5_000),
    )


def test_the_first_bucket_is_small_so_that_communication_starts_early(tmp_path: Path) -> None:
    layers = [{**LAYER, "name": name, "gradient_bytes": 1 << 20} for name in "abc"]
    trace, _ = load_workload(written(tmp_path, document(*layers)))
    assert [call.name for call in trace.calls] == ["gradients c", "gradients b..a"]


def test_layers_without_gradients_make_no_bucket(tmp_path: Path) -> None:
    layers = [{**LAYER, "gradient_bytes": 0}, LAYER, {**LAYER, "gradient_bytes": 0}]
    trace, _ = load_workload(written(tmp_path, document(*layers)))
    assert [call.size for call in trace.calls] == [4000]
    none, _ = load_workload(written(tmp_path, document({**LAYER, "gradient_bytes": 0})))
    assert none.calls == ()
    assert none.compute_ns == 30_000


def test_calls_of_model_parallelism_are_waited_for_at_once(tmp_path: Path) -> None:
    call = {"collective": "all_gather", "bytes": 64, "along": "model"}
    layer = {**LAYER, "forward_calls": [call], "backward_calls": [{**call, "collective": "reduce_scatter"}]}
    trace, _ = load_workload(written(tmp_path, document(layer, dimensions=["model", "data"])), compute_scale=0.5)
    assert trace.calls == (
        Call("a forward", Collective.ALL_GATHER, 64, (0,)),
        Call("a backward", Collective.REDUCE_SCATTER, 64, (0,)),
        Call("gradients a", Collective.ALL_REDUCE, 4000, (1,)),
    )
    assert [do for do, _ in trace.actions] == [
        *(Do.COMPUTE, Do.ISSUE, Do.WAIT),
        *(Do.COMPUTE, Do.ISSUE, Do.WAIT),
        Do.ISSUE,
    ]
    assert trace.compute_ns == 15_000


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=12), st.integers(1, 9000))
def test_every_gradient_is_reduced_once_whatever_the_buckets(sizes: list[int], bucket: int) -> None:
    from ring_bench.traces.format import Layer, TraceFile, compile_trace

    layers = [Layer(name=str(i), forward_us=1, backward_us=1, gradient_bytes=size) for i, size in enumerate(sizes)]
    trace = compile_trace(TraceFile(name="t", source="", layers=layers), bucket=bucket)
    assert sum(call.size for call in trace.calls) == sum(sizes)
    assert all(call.size > 0 for call in trace.calls)
    assert trace.compute_ns == 2000 * len(sizes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"trace.json: the file is empty"),
        ('{"name": "t",\n "layers": [}', r"trace.json: line 2, column 13: "),
        ("[1]", r"trace.json: a trace is a JSON object, this is list"),
        ("[" * 100_000, r"trace.json: nested too deeply"),
        (document(), r"trace.json: layers: List should have at least 1 item"),
        (document(LAYER, {**LAYER, "gradient_bytes": -1}), r"trace.json: layers\[1\]\.gradient_bytes: .*greater than"),
        (document({**LAYER, "forward_us": "fast"}), r"layers\[0\]\.forward_us: .*valid number"),
        (document({**LAYER, "weight": 1}), r"layers\[0\]\.weight: Extra inputs"),
        (
            document({**LAYER, "forward_calls": [{"bytes": 0, "along": "data"}]}),
            r"layers\[0\]\.forward_calls\[0\]\.bytes: .*greater than 0",
        ),
        (
            document({**LAYER, "forward_calls": [{"bytes": 8, "along": "model"}]}),
            r"layers\[0\]\.forward_calls\[0\]\.along: no dimension 'model' among data",
        ),
        (document(LAYER, gradients_along="x"), r"gradients_along: no dimension 'x' among data"),
        (document(LAYER, dimensions=["data", "data"]), r"dimensions: a name is there twice"),
        ({"rows": 1}, r"neither a trace with layers nor nodes of a Chakra"),
    ],
)
def test_a_bad_trace_is_refused_with_file_place_and_reason(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_workload(written(tmp_path, content))


def test_a_workload_that_is_not_there_names_the_models() -> None:
    with pytest.raises(UsageError, match=r"alexnet: No such file.*vgg16, resnet50, transformer"):
        load_workload("alexnet")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"not a text file; a binary Chakra trace is named \.et"):
        load_workload(str(path))


def test_the_published_trace_schema_is_the_one_of_the_models() -> None:
    assert json.loads(PUBLISHED.read_text()) == trace_schema(), "ring-bench train --print-trace-schema > docs/..."


# ------------------------------------------------------------------------------------------------ Chakra


def node(number: int, kind: str, needs: tuple[int, ...] = (), duration: int = 0, **attributes: Any) -> dict[str, Any]:
    """Give a node as chakra_jsonizer writes it: proto3 JSON, 64-bit numbers as text, zeros left out."""
    entries = [
        {
            "name": name,
            "boolVal" if isinstance(value, bool) else "int64Val" if isinstance(value, int) else "stringVal": value,
        }
        for name, value in attributes.items()
    ]
    for entry in entries:
        if "int64Val" in entry:
            entry["int64Val"] = str(entry["int64Val"])
    found = {
        "id": str(number),
        "name": f"n{number}",
        "type": kind,
        "dataDeps": [str(n) for n in needs],
        "attr": entries,
    }
    return {**found, "durationMicros": str(duration)} if duration else found


def chakra(tmp_path: Path, *nodes: dict[str, Any]) -> str:
    """Write nodes one after the other, after the global metadata, without a separator, as chakra_jsonizer does."""
    text = "".join(json.dumps(document, indent=2) for document in ({"version": "0.0.4"}, *nodes))
    return written(tmp_path, text)


def test_a_chakra_trace_overlaps_collectives_with_the_computation_that_does_not_need_them(tmp_path: Path) -> None:
    path = chakra(
        tmp_path,
        node(1, "COMP_NODE", (), 10),
        node(2, "COMM_COLL_NODE", (1,), comm_type=0, comm_size=4096),
        node(3, "COMP_NODE", (2,), 30),
        node(4, "COMP_NODE", (1,), 20),
        node(5, "COMP_NODE", (4,), 7, is_cpu_op=True),
        node(6, "METADATA_NODE", (2,)),
        node(7, "COMM_COLL_NODE", (5,), comm_type=7, comm_size=64),
    )
    trace, source = load_workload(path, compute_scale=2)
    assert "Chakra" in source
    assert trace.calls == (
        Call("n2", Collective.ALL_REDUCE, 4096, (0,)),
        Call("n7", Collective.REDUCE_SCATTER, 64, (0,)),
    )
    assert trace.actions == (
        Action(Do.COMPUTE, 20_000),
        Action(Do.ISSUE, 0),
        Action(Do.COMPUTE, 40_000),
        Action(Do.ISSUE, 1),
        Action(Do.WAIT, 0),
        Action(Do.COMPUTE, 60_000),
    )


def test_process_groups_of_a_chakra_trace_are_dimensions(tmp_path: Path) -> None:
    path = chakra(
        tmp_path,
        node(1, "COMM_COLL_NODE", comm_type=2, comm_size=64, pg_name="7"),
        node(2, "COMM_COLL_NODE", comm_type=0, comm_size=64, pg_name="3"),
    )
    trace, _ = load_workload(path)
    assert trace.dimensions == ("7", "3")
    assert [call.along for call in trace.calls] == [(0,), (1,)]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_any_chakra_graph_without_a_circle_runs_every_node_after_what_it_needs(data: st.DataObject) -> None:
    from ring_bench.traces.chakra import trace_of_nodes

    nodes, comm = [], {}
    for number in range(data.draw(st.integers(1, 12))):
        needs = tuple(data.draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else ()
        if data.draw(st.booleans()):
            comm[f"n{number}"] = number
            nodes.append(node(number, "COMM_COLL_NODE", needs, comm_type=0, comm_size=8))
        else:
            nodes.append(node(number, "COMP_NODE", needs, 1 << number))
    trace = trace_of_nodes(nodes, Path("t"), 1.0)
    order = [comm[call.name] for call in trace.calls]
    done: set[int] = set()
    for do, value in trace.actions:
        if do is Do.WAIT:
            done |= set(order[: value + 1])
            continue
        number = order[value] if do is Do.ISSUE else (value // 1000).bit_length() - 1
        for need in map(int, nodes[number]["dataDeps"]):
            issued_before = do is Do.ISSUE and need in order[:value]
            assert need in done or issued_before
        if do is Do.COMPUTE:
            done.add(number)
    assert len(order) + sum(do is Do.COMPUTE for do, _ in trace.actions) == len(nodes)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(1, "COMP_NODE", (9,))], r"node 1 \(n1\) depends on node 9, which is not there"),
        ([node(1, "COMP_NODE", (2,)), node(2, "COMP_NODE", (1,))], r"in a circle: 1, 2"),
        ([node(1, "COMP_NODE"), node(1, "COMP_NODE")], r"node 1 is there twice"),
        ([node(1, "COMM_SEND_NODE")], r"node 1 \(n1\): COMM_SEND_NODE is no collective"),
        ([node(1, "COMM_COLL_NODE", comm_type=6, comm_size=8)], r"no ring for ALL_TO_ALL"),
        ([node(1, "COMM_COLL_NODE", comm_type=0)], r"node 1 \(n1\): comm_size is a whole number"),
        ([node(1, "COMM_COLL_NODE", comm_type=0, comm_size=0)], r"a collective of 0 bytes"),
        ([node(1, "COMP_NODE", num_ops=5)], r"has operations \(num_ops\) but no duration"),
        ([{"id": "x", "type": "COMP_NODE"}], r"a node's id is a whole number"),
    ],
)
def test_a_chakra_trace_that_cannot_be_replayed_names_the_node(
    tmp_path: Path, nodes: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load_workload(chakra(tmp_path, *nodes))


def test_a_binary_chakra_trace_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "trace.et"
    path.write_bytes(b"\x05junk")
    with pytest.raises(UsageError, match=r"trace\.et: (a binary Chakra trace needs|after 0 nodes: not a Chakra)"):
        load_workload(str(path))
