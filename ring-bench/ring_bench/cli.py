# SPDX-License-Identifier: Apache-2.0
"""The command ``ring-bench``: nccl-tests' flags and table, for ring collectives with step tags, and training."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from ring_bench import report
from ring_bench.config import Config, Release, Tagging
from ring_bench.dtypes import DATATYPES, REDUCTIONS
from ring_bench.errors import RingBenchError, UsageError
from ring_bench.hosts import parse_hosts
from ring_bench.launch import place
from ring_bench.output import check_writable, say
from ring_bench.results import json_schema
from ring_bench.schedule import Collective
from ring_bench.session import Options, Session
from ring_bench.traces import DEFAULT_BUCKET, MODELS, dump_trace, load_workload, model_trace, trace_schema
from ring_bench.units import parse_size
from ring_bench.verbs import PROVIDERS
from symphony_common.addresses import checked_url, whole
from symphony_common.output import with_any_text
from symphony_common.version import version

__all__ = ["main"]

_TRAIN = "train"
_DEFAULT_SIZE = 32 << 20
_DEFAULT_SOCKET = "/tmp/fabric-twin/verbs.sock"  # noqa: S108 (where fabric-twin listens by default)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; leaves with 0, 1 (failed or wrong values), 2 (usage) or 128 + signal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with_any_text()
    if arguments[:1] == ["doctor"]:
        from ring_bench.doctor.cli import main as examine

        sys.exit(examine(arguments[1:]))
    if arguments[:1] == ["flows"]:
        from ring_bench.flows import main as run_flows

        run_flows(arguments[1:])
        return
    command = arguments[0] if arguments and arguments[0] in (*Collective, _TRAIN) else None
    given = _parser(command).parse_args(arguments[1:] if command else arguments)
    status = 0
    try:
        if given.print_schema:
            say(json.dumps(json_schema(), indent=2, sort_keys=True))
        elif command == _TRAIN and given.print_trace_schema:
            say(json.dumps(trace_schema(), indent=2, sort_keys=True))
        elif command == _TRAIN and given.print_trace:
            say(dump_trace(model_trace(given.workload or "", given.dims)))
        else:
            session = _session(given, command)
            gc.freeze()  # the modules stay: no collection, neither in a timed step nor at exit, need look through them
            status = session.execute()
    except RingBenchError as error:
        if given.debug:
            traceback.print_exc()
        print(f"ring-bench: {error}", file=sys.stderr)
        status = 2 if isinstance(error, UsageError) else 1
    sys.exit(status)


def _session(given: argparse.Namespace, command: str | None) -> Session:
    placement = place(given.world, given.rank, given.master, os.environ)
    slots, step_bits = _slots_and_bits(given)
    shape = _training(given) if command == _TRAIN else _sweep(given, command)
    config = Config(
        world=placement.world,
        split=given.split,
        rings=given.rings,
        dims=given.dims,
        iters=given.iters,
        warmup_iters=given.warmup_iters,
        compute_jitter=given.compute_jitter,
        jitter_seed=given.jitter_seed,
        check=given.check,
        datatype=given.datatype,
        op=given.op,
        tagging=given.tagging,
        release=given.release,
        slots=slots,
        job_tag=given.job_tag,
        step_bits=step_bits,
        segment=given.segment,
        mtu=given.mtu,
        traffic_class=given.traffic_class,
        payload_scale=given.payload_scale,
        seed=given.seed,
        **shape,
    )
    if given.events is not None:
        try:
            checked_url(given.events)
        except ValueError as error:
            raise UsageError(f"--events: {error}") from None
    options = Options(
        provider=given.provider,
        socket=given.verbs,
        hosts=_hosts(given.hosts, config.world),
        job=given.job,
        timeout_s=given.timeout or None,
        output=given.output_file,
        events_url=given.events,
        debug=given.debug,
    )
    if given.output_file is not None and 0 in placement.ranks:  # the folder may be of rank 0's host only
        check_writable(given.output_file)
    return Session(config, placement, options, out=say)


def _sweep(given: argparse.Namespace, command: str | None) -> dict[str, Any]:
    """Give the options of a sweep of sizes of one collective."""
    minbytes = next(size for size in (given.minbytes, given.maxbytes, _DEFAULT_SIZE) if size is not None)
    return {
        "collective": command or Collective.ALL_REDUCE,
        "root": getattr(given, "root", 0),
        "minbytes": minbytes,
        "maxbytes": minbytes if given.maxbytes is None else given.maxbytes,
        "stepbytes": given.stepbytes,
        "stepfactor": given.stepfactor,
        "run_cycles": given.run_cycles,
        "compute_ns": round(given.compute * 1000),
    }


def _training(given: argparse.Namespace) -> dict[str, Any]:
    """Give the options of a training."""
    if given.workload is None:
        raise UsageError(f"say which workload: {', '.join(MODELS)}, or a file")
    trace, source = load_workload(
        given.workload, dims=given.dims, bucket=given.bucket, compute_scale=given.compute_scale
    )
    return {"trace": trace, "trace_source": source}


def _slots_and_bits(given: argparse.Namespace) -> tuple[int, int]:
    """Static tagging has one QP per tag, so either option gives the other; else the defaults are 4 and 10."""
    slots, bits = given.slots, given.step_bits
    if given.tagging != "static":
        return slots or 4, bits or 10
    if slots is None and bits is None:
        return 4, 2
    if bits is None:
        return slots, max(2, slots.bit_length() - 1)
    return slots or 1 << bits, bits


def _hosts(text: str | None, world: int) -> tuple[str | int, ...]:
    if text is None:
        return tuple(range(world))
    hosts = parse_hosts(text)
    if len(hosts) != world:
        raise UsageError(f"--hosts names {len(hosts)} hosts, the world has {world} ranks")
    return hosts


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size_from_1(text: str) -> int:
    size = _size(text)
    if size < 1:
        raise argparse.ArgumentTypeError("a bucket holds at least 1 byte")
    return size


def _dims(text: str) -> tuple[int, ...]:
    lengths = text.lower().split("x")
    numbers = [whole(length) for length in lengths]
    if not all(numbers):
        raise argparse.ArgumentTypeError(f"lengths from 1 up, such as 8x4, not {text!r}")
    return tuple(number for number in numbers if number)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor < 1e6:
        raise argparse.ArgumentTypeError(f"a factor from 0 up, not {text!r}")
    return factor


def _positive(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = whole(text)
        if number is None or number < 1:
            raise argparse.ArgumentTypeError(f"{name} is a whole number from 1 up, not {text!r}")
        return number

    return parse


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number, not {text!r}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"seconds from 0 up, not {text!r}")
    return seconds


def _parser(command: str | None) -> argparse.ArgumentParser:
    title = "Training steps" if command == _TRAIN else f"Ring {report.title(Collective(command or 'all_reduce'))}"
    parser = argparse.ArgumentParser(
        prog="ring-bench" + (f" {command}" if command else ""),
        usage=None
        if command
        else f"%(prog)s [{' | '.join(Collective)} | {_TRAIN} WORKLOAD | doctor | flows] [options]",
        description=f"{title} over RDMA writes whose UDP source port carries job and step. "
        "'ring-bench doctor' finds out what on this machine stands against it, 'ring-bench flows' sends two flows.",
        epilog=None if command == _TRAIN else report.column_help(),
        allow_abbrev=False,
    )
    if command == _TRAIN:
        _add_training(parser)
    else:
        _add_sweep(parser, command)
    add = parser.add_argument_group("iterations").add_argument
    add("-n", "--iters", type=_number, default=20, metavar="N", help="timed iterations (default 20)")
    add("-w", "--warmup_iters", type=_number, default=1, metavar="N", help="untimed first (default 1)")
    add("-c", "--check", type=_number, default=1, metavar="0|1", help="verify every iteration (default 1)")
    add("-d", "--datatype", default="float", metavar="TYPE", help=f"{', '.join(DATATYPES)} (default float)")
    add("-o", "--op", default="sum", metavar="OP", help=f"{', '.join(REDUCTIONS)} (default sum)")
    add("-J", "--output_file", type=Path, metavar="FILE", help="write the result as JSON")
    add(
        "-T",
        "--timeout",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="give up after S seconds without any completion; 0: never (default 120)",
    )
    add(
        "--compute-jitter",
        default="none",
        metavar="KIND:SPREAD",
        help="how much computing times vary: normal, lognormal or exponential, such as normal:0.05 (default none)",
    )
    add("--jitter-seed", type=_number, default=0, metavar="N", help="of the jitter (default 0)")

    add = parser.add_argument_group("ranks").add_argument
    add("--world", type=_positive("--world"), metavar="N", help="ranks in all")
    add("--rank", type=_number, metavar="R", help="run this one rank here (needs --world and --master)")
    add("--master", metavar="HOST:PORT", help="where rank 0 is met; found out under launchers")
    add(
        "--hosts",
        metavar="H0,H1,..",
        help="host of each rank, by name or index; node[1-4] too (default: rank r on host r)",
    )
    add("--split", metavar="'MOD N'|'DIV N'", help="groups that each run their own collective")
    add(
        "--dims",
        type=_dims,
        metavar="AxB..",
        help="grid of a group's ranks, fastest dimension first: AllReduce goes through rows, then columns",
    )
    add("--rings", type=_number, default=1, metavar="N", help="rings (channels) per group (default 1)")

    add = parser.add_argument_group("steps and tags").add_argument
    add(
        "--tagging",
        choices=get_args(Tagging),
        default="per-step",
        help="a fresh QP per step, a persistent QP whose port is changed when drained, or one QP per tag",
    )
    add(
        "--release",
        choices=get_args(Release),
        default="in-order",
        help="step k+1 is sent when: all steps <= k are reduced; step k is reduced; any k+1 steps are here "
        "(count: sums are wrong, needs -c 0)",
    )
    add("--slots", type=_positive("--slots"), metavar="W", help="QPs per ring edge (default 4)")
    add("--job-tag", type=_number, default=0, metavar="J", help="job tag in the source port (default 0)")
    add("--step-bits", type=_positive("--step-bits"), metavar="B", help="bits of the step (default 10)")
    add("--segment", type=_size, default=1 << 30, metavar="SIZE", help="largest RDMA write (default 1G)")
    add("--mtu", type=_size, metavar="BYTES", help="path MTU (default: the smallest active MTU)")
    add(
        "--traffic-class",
        type=_number,
        default=106,
        metavar="TC",
        help="GRH traffic class, DSCP << 2 | ECN (default 106: DSCP 26, ECT(0))",
    )

    add = parser.add_argument_group("fabric").add_argument
    add("--provider", choices=tuple(PROVIDERS), default="twin", help="way to the fabric (default twin)")
    add("--verbs", default=_DEFAULT_SOCKET, metavar="SOCKET", help=f"the twin's (default {_DEFAULT_SOCKET})")
    add("--seed", type=_number, default=1, metavar="N", help="of the data and of the twin (default 1)")
    add(
        "--payload-scale",
        type=_number,
        default=1,
        metavar="S",
        help="move one element for every S on the wire (not on real NICs; default 1)",
    )
    add("--job", default="ring-bench", metavar="NAME", help="name of the job")
    add("--events", metavar="URL", help="send step events to a host-agent: .../api/v1/jobs/ID/events")

    add = parser.add_argument_group("other").add_argument
    add("--debug", action="store_true", help="show tracebacks")
    add("--print-schema", action="store_true", help="print the JSON schema of -J and leave")
    add("--version", action="version", version=f"ring-bench {version()}")
    return parser


def _add_sweep(parser: argparse.ArgumentParser, command: str | None) -> None:
    add = parser.add_argument_group("sizes (as nccl-tests)").add_argument
    add("-b", "--minbytes", type=_size, metavar="SIZE", help="smallest size (default 32M)")
    add("-e", "--maxbytes", type=_size, metavar="SIZE", help="largest size (default: the smallest)")
    add("-i", "--stepbytes", type=_size, metavar="SIZE", help="sweep by adding (default 1M)")
    add("-f", "--stepfactor", type=_number, metavar="N", help="sweep by multiplying")
    add("-N", "--run_cycles", type=_number, default=1, metavar="N", help="repeat the sweep (default 1)")
    add("--compute", type=_seconds, default=0.0, metavar="US", help="compute before each iteration (default 0)")
    if command == Collective.BROADCAST:
        add("-r", "--root", type=_number, default=0, metavar="R", help="rank within the group (default 0)")


def _add_training(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("workload", nargs="?", metavar="WORKLOAD", help=f"{', '.join(MODELS)}, a trace file, or a Chakra trace")
    add(
        "--bucket",
        type=_size_from_1,
        default=DEFAULT_BUCKET,
        metavar="SIZE",
        help="gradients are reduced in buckets that hold SIZE (default 25M; 1: every layer on its own)",
    )
    add("--compute-scale", type=_factor, default=1.0, metavar="F", help="factor for computing times (default 1)")
    add("--print-trace", action="store_true", help="print a model's trace file and leave")
    add("--print-trace-schema", action="store_true", help="print the JSON schema of trace files and leave")
