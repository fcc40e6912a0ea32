# SPDX-License-Identifier: Apache-2.0
"""The table on the terminal, in nccl-tests' shape: lines that are no rows begin with "#".

People and their scripts read the footer lines ``# Out of bounds values`` and ``# Avg bus bandwidth``.
"""

from __future__ import annotations

from ring_bench.config import Config
from ring_bench.results import Overlap, Percentiles, RunCounters, SizeResult, Totals, TrainingResult, percentiles
from ring_bench.schedule import Collective
from ring_bench.units import format_size
from ring_bench.verbs.api import Provider

__all__ = ["column_help", "counters", "footer", "preamble", "row", "row_details", "table_head", "title", "training"]

_MOST_REMARKS = 8
_HEAD = """\
#
#       size         count      type   redop    root       time   algbw   busbw  #wrong
#        (B)    (elements)                                 (us)  (GB/s)  (GB/s)"""


def column_help() -> str:
    """Explain the columns, for ``--help``."""
    return (
        "columns: time = one iteration, first post to last completion over all timed iterations of a group "
        "divided by their number; algbw = size / time; busbw = algbw x 2(N-1)/N for AllReduce, (N-1)/N for all-gather "
        "and reduce-scatter, 1 for broadcast, N = ranks of a group; "
        "GB/s = 10^9 bytes per second; #wrong = elements with a wrong value over all ranks and "
        "iterations, warm-up included. Sizes: K, M, G are binary."
    )


def title(collective: Collective) -> str:
    """Give a collective's name as nccl-tests writes it."""
    return "".join(word.capitalize() for word in collective.split("_"))


def preamble(config: Config, provider: Provider, hosts: list[str], mtu: int, segment: int) -> str:
    """Say what is about to run and what the figures will assume."""
    groups = config.groups
    shape = f"{config.world} ranks" + (f" in {len(groups)} groups of {len(groups[0])}" if len(groups) > 1 else "")
    preset = provider.fabric.get("preset")
    grid = " " + "x".join(map(str, config.grid)) if len(config.grid) > 1 else ""
    what = title(Collective(config.collective)) if config.trace is None else f"training {config.trace.name}"
    if config.collective == Collective.BROADCAST:
        grid = f" from root {config.root}"
    lines = [
        f"# ring-bench {what}{grid} on provider {provider.name}" + (f", preset {preset}" if preset else ""),
        f"# {shape}, {config.rings} ring(s), hosts {_shorten(hosts)}, path MTU {mtu}, "
        f"segments up to {format_size(segment)}",
        f"# tagging {config.tagging} (qp mode {config.qp_mode}), {config.slots} slots, job tag "
        f"{config.job_tag}, {config.step_bits} step bits; release rule {config.release}; seed {config.seed}",
        f"# {config.warmup_iters} warm-up + {config.iters} timed iterations, verification "
        + ("of every iteration" if config.check else "OFF (-c 0)"),
    ]
    if config.trace is not None:
        lines.append(f"# {config.trace.compute_ns / 1000:.1f} us of computation per step; {config.trace_source}")
    elif config.compute_ns:
        lines.append(
            f"# {config.compute_ns / 1000:.1f} us of computation before each iteration: part of time, not of CCT"
        )
    if config.compute_jitter != "none":
        lines.append(f"# compute jitter {config.compute_jitter}, seed {config.jitter_seed}")
    if config.payload_scale > 1:
        lines.append(
            f"# payload scale {config.payload_scale}: a sample of 1/{config.payload_scale} of the data is moved "
            "and verified; sizes and times are those of all of it"
        )
    if config.traffic_class & 3 not in (1, 2):
        lines.append(f"# traffic class {config.traffic_class} is not ECN-capable: no packet will be marked")
    return "\n".join(lines)


def table_head() -> str:
    """Give the table's column heads."""
    return _HEAD


def row(result: SizeResult) -> str:
    """Give a row of the table."""
    return (
        f"{result.size_bytes:>12}  {result.count:>12}  {result.type:>8}  {result.redop:>6}  {result.root:>6}"
        f"  {_number(result.time_us, 1):>9}  {_number(result.algbw_gbps, 3):>6}  "
        f"{_number(result.busbw_gbps, 3):>6}  {'N/A' if result.wrong is None else result.wrong:>6}"
    )


def row_details(result: SizeResult) -> str:
    """Give the comment line below a row: percentiles and overlap; empty for a single rank."""
    parts = []
    if result.cct_us is not None:
        parts.append(f"CCT us {_percentiles(result.cct_us)}")
    if result.step_us is not None:
        parts.append(f"step us {_percentiles(result.step_us)}")
    if result.step_overlap is not None:
        parts.append(_overlap(result.step_overlap))
    if result.uncertainty_us:
        parts.append(f"times between hosts +-{result.uncertainty_us:.1f} us")
    return "#   " + "; ".join(parts) if parts else ""


_CALLS_HEAD = (
    f"#\n#{'size':>11}  {'call':<36}  {'collective':>14}  {'ranks':>5}  {'CCT p50':>9}  {'p95':>9}  {'max':>9}"
    f"  {'busbw':>6}  #wrong\n#{'(B)':>11}  {'':36}  {'':14}  {'':5}  {'(us)':>9}  {'(us)':>9}  {'(us)':>9}  (GB/s)"
)


def training(result: TrainingResult) -> str:
    """Give the table of a training: a row for each collective of a step, then the times of the steps."""
    lines = [_CALLS_HEAD]
    for call in result.calls:
        cct = call.cct_us
        times = "  ".join(_number(value, 1).rjust(9) for value in ((cct.p50, cct.p95, cct.max) if cct else (None,) * 3))
        wrong = "N/A" if call.wrong is None else call.wrong
        lines.append(
            f"{call.size_bytes:>12}  {call.name:<36}  {call.collective:>14}  {call.ranks:>5}  {times}"
            f"  {_number(call.busbw_gbps, 3):>6}  {wrong:>6}"
        )
    share = result.exposed_us * result.steps / result.jct_us if result.jct_us else 0.0
    steps = percentiles([time / 1000 for time in result.step_ns])
    lines += [
        "#",
        f"# JCT us {result.jct_us:.1f} for {result.steps} steps; step us {_percentiles(steps)}" if steps else "#",
        f"# computation us {result.compute_us:.1f} per step; exposed communication us {result.exposed_us:.1f} per step "
        f"({share:.1%} of the JCT)",
    ]
    if result.step_overlap is not None:
        lines.append(f"# {_overlap(result.step_overlap)}")
    if result.uncertainty_us:
        lines.append(f"# times between hosts +-{result.uncertainty_us:.1f} us")
    return "\n".join(lines)


def counters(result: RunCounters) -> str:
    """Give comment lines on what NIC counters say against the figures; empty when they say nothing."""
    seen = [f"{port.host} {port.device}: {'; '.join(port.remarks)}" for port in result.ports if port.remarks]
    lines = [f"#   {line}" for line in seen[:_MOST_REMARKS]]
    if len(seen) > _MOST_REMARKS:
        lines.append(f"#   and {len(seen) - _MOST_REMARKS} more ports (the -J file has all)")
    if result.valid is False:
        lines.insert(0, "# NOT CLEAN: NIC counters moved that should stand still; the times include their cost")
    elif lines:
        lines.insert(0, "# NIC counters:")
    return "\n".join(lines)


def footer(totals: Totals) -> str:
    """Give the two lines that scripts look for."""
    if totals.wrong is None:
        values = "N/A (verification off)"
    else:
        values = f"{totals.wrong} {'OK' if totals.wrong == 0 else 'FAILED'}"
    bandwidth = "N/A" if totals.avg_busbw_gbps is None else f"{totals.avg_busbw_gbps:.6g}"
    return f"# Out of bounds values : {values}\n# Avg bus bandwidth    : {bandwidth}\n#"


def _overlap(overlap: Overlap) -> str:
    largest = "indeterminate" if overlap.max is None else overlap.max
    text = f"step overlap max {largest} mean {overlap.mean:.2f}"
    if overlap.seen != overlap.max:
        text += f"; overlap {overlap.seen} was seen too briefly for the clocks"
    return text


def _percentiles(values: Percentiles) -> str:
    return f"p50 {values.p50:.1f} p95 {values.p95:.1f} p99 {values.p99:.1f} max {values.max:.1f}"


def _number(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _shorten(names: list[str]) -> str:
    return ",".join(names) if len(names) <= 4 else f"{names[0]},{names[1]}..{names[-1]}"
