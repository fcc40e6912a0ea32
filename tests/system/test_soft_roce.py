# SPDX-License-Identifier: Apache-2.0
"""ring-bench on real soft-RoCE in the VM, four ranks: sums, tags on the wire, errors, deaths, mpirun."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from roce_pcap import FIRST, WRITES, Packet, packets
from soft_roce_vm import VirtualMachine

from ring_bench.tag import TagLayout
from switch_agent.replay.replayer import ReplayOptions, replay

pytestmark = pytest.mark.system

GUEST = "python tests/system/soft_roce_guest.py"
JOB_TAG = 5
ECT0 = 2
MPIRUN = "mpirun --allow-run-as-root --oversubscribe"
CAPTURE = "python deploy/vm/capture_roce.py"

Case = dict[str, Any]


def succeed(vm: VirtualMachine, command: str, timeout_s: float = 400) -> str:
    """Run a command in the guest that must succeed; give its output."""
    status, output = vm.run(command, timeout_s=timeout_s)
    assert status == 0, output
    return output


@pytest.fixture(scope="session")
def guest(vm: VirtualMachine) -> Path:
    """Folder with what all cases of soft_roce_guest.py left behind."""
    folder = vm.share / "guest"
    folder.mkdir()
    succeed(vm, f"{GUEST} /share/guest")
    return folder


def case(guest: Path, name: str) -> Case:
    """What one case left behind."""
    loaded: Case = json.loads((guest / f"{name}.json").read_text())
    return loaded


def good(guest: Path, name: str) -> Case:
    """The result of a case that must have gone well, every element right."""
    left = case(guest, name)
    assert left["status"] == 0, left["err"] + left["out"]
    result: Case = left["result"]
    assert result["complete"]
    assert result["totals"]["wrong"] == 0
    assert [row["wrong"] for row in result["results"]] == [0] * len(result["results"])
    return result


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("float-1-ring", [4, 128, 4 << 10, 128 << 10, 4 << 20]),
        ("int32-4-rings", [0, 2 << 10, 4 << 20]),  # 1 byte holds no element: every chunk is empty
        ("float-2-rings", [4 << 20]),
        ("int32-3-rings", [4 << 20]),
    ],
)
def test_every_sum_is_exact(guest: Path, name: str, sizes: list[int]) -> None:
    """1 B to 4 MiB, 1 to 4 rings, both types, all tagging modes, one or many writes per step."""
    result = good(guest, name)
    assert [row["size_bytes"] for row in result["results"]] == sizes
    assert (result["provider"], result["clock"]) == ("pyverbs", "monotonic")


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("per-step", "flow label at RTR"),
        ("retag", "flow label in SQD (RTS -> SQD -> RTS)"),
        ("static", "flow label at RTR"),
    ],
)
def test_every_data_packet_carries_the_tag_of_its_step(guest: Path, name: str, mechanism: str) -> None:
    """And ECT(0); the PSNs of a step begin where the flow's step before ended; a replay sees the run's overlap."""
    result = good(guest, name)
    assert result["tagging_mechanism"] == mechanism
    layout = TagLayout(result["parameters"]["step_bits"])
    flows: dict[tuple[str, str, int], dict[int, Packet]] = defaultdict(dict)
    steps = set()
    for packet in packets(guest / f"{name}.pcap"):
        if packet.opcode not in WRITES:
            continue
        assert packet.tos == result["parameters"]["traffic_class"]
        assert packet.tos & 3 == ECT0
        known = flows[packet.source, packet.destination, packet.qp].setdefault(packet.psn, packet)
        assert packet == known, "a retransmission differs"
    # 4 ranks, 2 rings; each edge has a QP per slot
    assert len(flows) == 4 * 2 * result["parameters"]["slots"]
    for flow in flows.values():
        first = min(flow)
        assert sorted(flow) == list(range(first, first + len(flow)))
        step_packets: list[Packet] = []
        for psn in sorted(flow):
            step_packets.append(flow[psn])
            if (step := flow[psn].immediate) is not None:
                assert step_packets[0].opcode in FIRST
                assert {layout.decode(packet.sport) for packet in step_packets} == {(JOB_TAG, step % layout.modulus)}
                assert len(step_packets) > 1
                steps.add(step)
                step_packets = []
        assert not step_packets, "packets after the last end of a step"
    assert steps == set(range(result["steps_total"]))
    (job,) = replay(str(guest / f"{name}.pcap"), ReplayOptions(step_bits=layout.step_bits, window_ms=50)).jobs
    assert job.packets >= sum(map(len, flows.values()))  # some may have been sent twice
    assert abs(job.max_overlap - result["totals"]["step_overlap_max"]) <= 1


def test_hosts_may_be_named_by_address_in_any_order(guest: Path) -> None:
    """Rank 0 on 10.77.0.4 and so on."""
    result = good(guest, "hosts-by-address")
    assert [device["device"] for device in result["fabric"]["devices"]] == ["rxe3", "rxe2", "rxe1", "rxe0"]


def test_the_result_says_which_device_and_gid_were_used(guest: Path) -> None:
    """Chosen by what they are: index 1 is the IPv4 RoCE v2 entry."""
    device = good(guest, "float-1-ring")["fabric"]["devices"][2]
    assert (device["device"], device["driver"], device["netdev"]) == ("rxe2", "rxe", "h2")
    assert (device["gid_index"], device["address"], device["active_mtu"]) == (1, "10.77.0.3", 4096)


def test_the_smallest_mtu_is_used_by_all(guest: Path) -> None:
    """One link of 1500 bytes; asking for more is refused and names the rank."""
    assert good(guest, "small-mtu")["parameters"]["mtu"] == 1024
    refused = case(guest, "mtu-too-large")
    assert refused["status"] == 2
    assert "the active MTU of rank 1" in refused["err"]


def test_a_device_without_usable_gid_is_refused_with_the_reasons(guest: Path) -> None:
    """Only the link-local entry was left; with its address back the device works again."""
    refused = case(guest, "no-address")
    assert refused["status"] == 1
    assert "rxe1 GID 0 fe80::77:ff:fe00:2: link-local address" in refused["err"]
    good(guest, "address-is-back")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no such device", "no RDMA device of this machine: there are rxe0, rxe1, rxe2, rxe3"),
        ("cq full", "ENOSPC: the completion queue has"),
        ("rts too early", "cannot go from RESET to RTS"),
        ("sport too early", "a source port can be changed in RTS only"),
        ("no neighbour", "ETIMEDOUT: QP"),
        ("no neighbour", "the kernel found no MAC address of the peer"),
        ("sport out of range", "outside 49152-65535"),
        ("sq full", "ENOMEM: the send queue of QP"),
        ("sport while sending", "EBUSY: QP"),
        ("nothing comes", "no completion for 0.2 s"),
        ("rq full", "ENOMEM: the receive queue of QP"),
        ("too long", "EMSGSIZE: 1073741824 bytes"),
        ("gid changed", "the GID table changed ("),
        ("gid changed", "empty -> 10.77.9.9 RoCE v2"),
        ("after close", "broken off"),
        ("status", "3 REM_ACCESS_ERR"),
    ],
)
def test_what_the_device_refuses_is_said_in_words(guest: Path, what: str, words: str) -> None:
    """Code, object, values and what to do."""
    assert words in case(guest, "objects")[what]


def test_too_little_lockable_memory_names_the_limits(vm: VirtualMachine) -> None:
    """Without CAP_IPC_LOCK the limit counts; the soft limit is raised to the hard one first."""
    limited = "setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit --memlock=65536:2097152"
    status, output = vm.run(f"{limited} ring-bench --provider pyverbs --world 2 -b 4M -n 1")
    assert status == 1
    assert "ENOMEM" in output
    assert "may lock 2.0 MiB (hard limit 2.0 MiB)" in output
    assert "LimitMEMLOCK" in output


def test_a_killed_rank_ends_the_others(vm: VirtualMachine) -> None:
    """Within 5 s, though three share one emulated CPU; each names who died, and so does its partial result."""
    folder = vm.share / "killed"
    folder.mkdir()
    gone = json.loads(succeed(vm, "python tests/system/soft_roce_kill.py /share/killed 2"))
    assert [status for status, _ in gone] == [1, 1, -9, 1]
    assert max(seconds for _, seconds in gone) < 5
    for rank, name in ((0, "killed.json"), (1, "killed.rank1.json"), (3, "killed.rank3.json")):
        assert "rank 2 (host soft-roce" in (folder / f"killed-{rank}.err").read_text()
        result = json.loads((folder / name).read_text())
        assert not result["complete"]
        failure = result["failure"]
        assert (failure["kind"], failure["rank"], failure["host"]) == ("died", 2, "soft-roce")
        assert 0 < failure["step"] < result["steps_total"]


def test_ranks_whose_clocks_differ_are_timed_on_one_clock(vm: VirtualMachine) -> None:
    """Two have a CLOCK_MONOTONIC 1,000 s ahead and 5 s behind (time namespaces): the offsets are as exact as said."""
    bench = "ring-bench --provider pyverbs --world 4 --master 127.0.0.1:29601 -b 1M -n 3 -J /share/clocks.json --rank"
    ahead, behind = (f"unshare --time --fork --monotonic {offset} {bench}" for offset in (1000, -5))
    succeed(vm, f"{bench} 1 & {ahead} 2 & {behind} 3 & {bench} 0 && wait")
    result = json.loads((vm.share / "clocks.json").read_text())
    assert result["totals"]["wrong"] == 0
    assert [clock["ranks"] for clock in result["clocks"]] == [[2], [3]]
    for clock, offset_s in zip(result["clocks"], (-1000, 5), strict=True):
        assert abs(clock["offset_ns"] - offset_s * 10**9) <= clock["uncertainty_ns"] < 10**8
    (row,) = result["results"]
    uncertainty_us = sum(clock["uncertainty_ns"] for clock in result["clocks"]) / 1000
    assert row["uncertainty_us"] == uncertainty_us
    assert 0 < row["step_us"]["p50"] < row["step_us"]["max"] < row["time_us"] + uncertainty_us


def test_mpirun_starts_the_ranks_and_a_replay_of_the_packets_sees_their_overlap(vm: VirtualMachine) -> None:
    """Four processes; the switch's view of the capture agrees with the ranks' own events within one step."""
    bench = "ring-bench --provider pyverbs -b 4M -n 3 -w 0 --rings 2 --tagging retag -J /share/mpirun.json"
    output = succeed(vm, f"{CAPTURE} /share/mpirun.pcap {MPIRUN} -np 4 {bench}")
    assert "4 ranks, 2 ring(s)" in output
    result = json.loads((vm.share / "mpirun.json").read_text())
    assert result["ranks_covered"] == [0, 1, 2, 3]
    assert result["totals"]["wrong"] == 0
    (job,) = replay(str(vm.share / "mpirun.pcap"), ReplayOptions(window_ms=50)).jobs  # as often as an agent samples
    assert job.packets >= 4 * result["steps_total"] * (1 << 20) // 4096
    assert job.registers.step_max == result["steps_total"] - 1
    assert abs(job.max_overlap - result["totals"]["step_overlap_max"]) <= 1


def test_flows_of_three_processes_share_the_port(vm: VirtualMachine) -> None:
    """Started by mpirun: each flow has the tag of its step, all bytes arrive, both take longer than one alone."""
    bench = "ring-bench flows --provider pyverbs --size 4M --delays 0,2000 --start-b 0 --step 30 -J /share/flows.json"
    succeed(vm, f"{CAPTURE} /share/flows.pcap {MPIRUN} -np 3 {bench}")
    result = json.loads((vm.share / "flows.json").read_text())
    together, apart = result["runs"]
    assert together["concurrent_ns"] > 0
    assert apart["concurrent_ns"] == 0
    sent: dict[tuple[str, int], set[int]] = defaultdict(set)
    for packet in packets(vm.share / "flows.pcap"):
        if packet.opcode in WRITES:
            assert packet.destination == "10.77.0.3"
            sent[packet.source, TagLayout().decode(packet.sport).step].add(packet.psn)
    assert {flow: len(psns) for flow, psns in sent.items()} == {
        ("10.77.0.1", 30): 1024,
        ("10.77.0.2", 31): 1024,
        ("10.77.0.1", 32): 1024,
        ("10.77.0.2", 33): 1024,
    }
