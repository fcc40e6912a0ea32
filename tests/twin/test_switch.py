# SPDX-License-Identifier: Apache-2.0
"""A ToR as the control plane sees it: it does what its tables say, and its registers say what it has done."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fabric_twin.bfrt_server import InstalledEntry, TableSnapshot
from fabric_twin.engine.state import Port, Qp, Sc
from fabric_twin.switch import TwinSwitch
from switch_agent.agent.entries import DISABLED_LG_K
from switch_agent.dataplane.hashes import flow_slot
from switch_agent.dataplane.lookup import lookup_tables
from switch_agent.dataplane.params import SymphonyParams
from switch_agent.dataplane.reference import JobState, Packet

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

US = 10**6
STEP = 0xC000
ALL = (0, 0)
EAGER = SymphonyParams(k=1.0, n_warmup=4, n_sample=2)
"""Marks every packet that is ahead, after four packets of the slowest step."""


def snapshot(*entries: InstalledEntry, default: tuple[str, Mapping[str, Any]] | None = None) -> TableSnapshot:
    """What the BF-Runtime server hands over after a write."""
    return TableSnapshot(list(entries), default)


def rule(
    job: int | None, *, priority: int = 10, src: Any = ALL, dst: Any = ALL, sport: Any = ALL, state: int = 0
) -> InstalledEntry:
    """An entry of job_classify; without a job it says NoAction."""
    key = {"hdr.ipv4.src": src, "hdr.ipv4.dst": dst, "hdr.udp.sport": sport}
    if job is None:
        return InstalledEntry(key, priority, "NoAction", {})
    return InstalledEntry(key, priority, "Ingress.set_job", {"job": job, "state": state or job})


def params(job: int, symphony: SymphonyParams) -> InstalledEntry:
    """An entry of job_params, raw and unsigned as on the wire."""
    return InstalledEntry({"ig_md.job": job}, 0, "Ingress.set_params", symphony.to_entry().to_data())


def install_lookups(switch: TwinSwitch) -> None:
    """What a switch-agent writes first."""
    for name, table in lookup_tables().items():
        mask = (1 << table.data_bits) - 1
        entries = [
            InstalledEntry({"key": (e.value, e.mask)}, e.priority, "a", {"d": e.data & mask}) for e in table.entries
        ]
        switch.table_changed(name, snapshot(*entries, default=("a", {"d": table.default & mask})))


def start_job(switch: TwinSwitch, symphony: SymphonyParams | None, *, first_step: int = 3) -> None:
    """Job 1 as a switch-agent starts it: everything that the ToR sees belongs to it."""
    install_lookups(switch)
    word = first_step << 22 | 1
    switch.write_register("steps", 1, {"mn": word, "mx": word}, None)
    switch.table_changed("job_classify", snapshot(rule(1)))
    if symphony is not None:
        switch.table_changed("job_params", snapshot(params(1, symphony)))


def overlap(net: Net, tor: int = 0) -> tuple[int, int]:
    """Two flows from rack 0 to rack 1, of step 3 and of step 5, which is ahead. Returns their senders."""
    slow, _ = net.pair(0, 4, sport=STEP + 3)
    fast, _ = net.pair(1, 5, sport=STEP + 5)
    net.send(slow, 100 * 4096)
    net.send(fast, 100 * 4096)
    return slow, fast


def counter(switch: TwinSwitch, name: str, job: int = 1) -> int:
    """Packets over all pipes."""
    return sum(packets for packets, _ in switch.read_counter(name, job))


def test_a_switch_that_nobody_has_programmed_tracks_and_marks_nothing(two_racks: Make) -> None:
    """Fail-safe: plain forwarding."""
    net = two_racks(dcqcn="off", kmin=10**6, kmax=10**7)
    switch = TwinSwitch(net.fabric, 0)
    overlap(net)
    net.run()
    assert len(net.delivered()) == 2
    assert counter(switch, "job_all") == 0
    assert switch.read_register("steps", 1) == {"mn": [0] * 4, "mx": [0] * 4}


def test_without_look_up_entries_packets_are_tracked_and_never_marked(two_racks: Make) -> None:
    """The marking probability comes from what the control plane has installed, and from nowhere else."""
    marked = []
    for programmed in (False, True):
        net = two_racks(dcqcn="off", kmin=10**6, kmax=10**7)
        switch = TwinSwitch(net.fabric, 0)
        start_job(switch, EAGER)
        if not programmed:
            for name in lookup_tables():
                switch.table_changed(name, snapshot(default=("a", {"d": 0})))
        overlap(net)
        net.run()
        assert counter(switch, "job_all") == 200
        assert counter(switch, "job_outpacing") > 50
        marked.append(counter(switch, "job_marked_symphony"))
    assert marked[0] == 0 < marked[1]


def test_a_control_plane_that_empties_the_look_ups_stops_the_marks(two_racks: Make) -> None:
    """After bf_switchd has restarted, say."""
    net = two_racks(dcqcn="off", kmin=10**6, kmax=10**7, uplink_gbps=100.0)
    switch = TwinSwitch(net.fabric, 0)
    start_job(switch, EAGER)
    overlap(net)
    net.run(until=150 * US)
    before = counter(switch, "job_marked_symphony")
    switch.table_changed("exp2", snapshot(default=("a", {"d": 0})))
    net.run(until=155 * US)  # what is between ingress and egress has had its coin tossed
    after = counter(switch, "job_marked_symphony")
    net.run()
    assert 0 < before <= after == counter(switch, "job_marked_symphony")


def test_the_rule_with_the_lowest_priority_number_decides(two_racks: Make) -> None:
    """Source, destination and port are ternary; a matching NoAction entry means no job."""
    net = two_racks()
    switch = TwinSwitch(net.fabric, 0)
    hosts = net.fabric.topology.hosts
    address = [(int(h.address), 0xFFFFFFFF) for h in hosts]
    switch.table_changed("job_params", snapshot(*(params(job, SymphonyParams()) for job in (1, 2, 3))))
    switch.table_changed(
        "job_classify",
        snapshot(
            rule(1, priority=30),
            rule(2, priority=20, sport=(STEP | 1 << 10, 0xFC00)),
            rule(3, priority=10, src=address[0], dst=address[5]),
            rule(None, priority=5, src=address[1]),
        ),
    )
    for src, dst, tag in ((0, 4, 0), (0, 4, 1), (0, 5, 1), (1, 5, 1), (2, 6, 0)):
        net.send(net.pair(src, dst, sport=STEP | tag << 10)[0], 10 * 4096)
    net.run()
    assert [counter(switch, "job_all", job) for job in (1, 2, 3)] == [20, 10, 10]
    assert sum(octets for _, octets in switch.read_counter("job_all", 2)) == 10 * (4096 + 62)


def test_only_writes_of_the_job_are_tracked(two_racks: Make) -> None:
    """Credits are SENDs: they travel as packets, and Symphony does not look at them."""
    net = two_racks()
    switch = TwinSwitch(net.fabric, 0)
    switch.table_changed("job_classify", snapshot(rule(1)))
    switch.table_changed("job_params", snapshot(params(1, SymphonyParams())))
    a, _ = net.pair(0, 4)
    net.send(a, 0, write=False)
    net.send(a, 5000)
    net.run()
    assert counter(switch, "job_all") == 2
    assert net.port("h0->tor0", Port.TX_PACKETS) == 3


def test_parameters_switch_marking_on_and_off_between_two_packets(two_racks: Make) -> None:
    """Enabled, disabled, enabled again in flight: counters move only while the job has parameters."""
    net = two_racks(dcqcn="off", kmin=10**6, kmax=10**7, uplink_gbps=100.0)
    switch = TwinSwitch(net.fabric, 0)
    start_job(switch, None)
    overlap(net)
    net.run(until=50 * US)
    assert counter(switch, "job_all") == 0
    switch.table_changed("job_params", snapshot(params(1, EAGER)))
    net.run(until=150 * US)
    seen, marked = counter(switch, "job_all"), counter(switch, "job_marked_symphony")
    assert seen > 30
    assert marked > 5
    switch.table_changed("job_params", snapshot())
    net.run(until=250 * US)
    assert counter(switch, "job_all") == seen
    switch.table_changed("job_params", snapshot(params(1, replace(EAGER, k=1e-6))))
    net.run()
    assert counter(switch, "job_all") > seen
    assert counter(switch, "job_marked_symphony") < marked + 5


def test_marks_reach_the_sender_as_cnps(two_racks: Make) -> None:
    """A Symphony mark is a CE codepoint like any other: it slows the flow that is ahead, not the one behind."""
    net = two_racks(kmin=10**6, kmax=10**7)
    switch = TwinSwitch(net.fabric, 0)
    start_job(switch, EAGER)
    slow, fast = overlap(net)
    net.run()
    assert net.qp(slow, Qp.CNPS_HANDLED) == 0
    assert net.qp(fast, Qp.CNPS_HANDLED) == counter(switch, "job_marked_symphony") > 0
    assert net.port("tor0->spine0", Port.MARKED) == net.port("tor0->spine1", Port.MARKED) == 0


def congested(make: Make, symphony: SymphonyParams | None, *, marking: bool, coin: int | None = None) -> Net:
    """Several flows of two steps over uplinks whose RED has to toss coins, on ToRs that track them, or none."""
    net = make(kmin=5_000, kmax=200_000, pmax=0.3)
    for tor in (0, 1) if symphony else ():
        switch = TwinSwitch(net.fabric, tor)
        start_job(switch, symphony)
        if not marking:
            entry = replace(symphony.to_entry(), lg_k=DISABLED_LG_K)
            key: dict[str, Any] = {"ig_md.job": 1}
            switch.table_changed("job_params", snapshot(InstalledEntry(key, 0, "Ingress.set_params", entry.to_data())))
    if coin is not None:
        net.fabric.view.sc[Sc.RNG_SYMPHONY] = coin
    for i in range(8):
        net.send(net.pair(i, (i + 4) % 8, sport=STEP + 3 + 2 * (i % 2))[0], 100 * 4096)
    net.run()
    return net


def test_a_job_that_is_tracked_but_not_marked_changes_nothing(two_racks: Make) -> None:
    """Symphony off is Symphony not there, event by event, though RED tosses coins all the time."""
    without = congested(two_racks, None, marking=False)
    off = congested(two_racks, EAGER, marking=False)
    assert sum(without.ports(Port.MARKED)) > 50
    assert counter(TwinSwitch(off.fabric, 0), "job_all") == 800
    assert off.events == without.events
    assert off.fabric.view.sc[Sc.RNG_FABRIC] == without.fabric.view.sc[Sc.RNG_FABRIC]


def test_symphony_tosses_its_own_coin(two_racks: Make) -> None:
    """Another stream of that coin changes a run only where Symphony marks, and RED's stream goes on as it was."""
    rarely = replace(EAGER, k=0.02)
    off = [congested(two_racks, rarely, marking=False, coin=coin) for coin in (1 << 40, 1 << 41)]
    on = [congested(two_racks, rarely, marking=True, coin=coin) for coin in (1 << 40, 1 << 41)]
    assert off[0].events == off[1].events
    assert on[0].events != on[1].events


def test_the_gate_lets_packets_pass_that_leave_no_queue_behind(two_racks: Make) -> None:
    """Variant refined: marked only when the egress queue behind the packet is not empty."""
    marks = {}
    for gate in (False, True):
        net = two_racks(dcqcn="off", kmin=10**6, kmax=10**7, uplink_gbps=100.0)  # no queue at the uplinks
        switch = TwinSwitch(net.fabric, 0)
        start_job(switch, replace(EAGER, gate=gate))
        overlap(net)
        net.run()
        marks[gate] = counter(switch, "job_marked_symphony")
    assert marks[True] == 0 < marks[False]


def test_pipes_have_registers_of_their_own(two_racks: Make) -> None:
    """Host ports belong to pipe 0 and uplinks to pipe 1: each end of a path counts in its own pipe."""
    net = two_racks()
    near, far = TwinSwitch(net.fabric, 0), TwinSwitch(net.fabric, 1)
    for switch in (near, far):
        switch.table_changed("job_classify", snapshot(rule(1)))
        switch.table_changed("job_params", snapshot(params(1, SymphonyParams())))
    net.send(net.pair(0, 4, sport=STEP + 9)[0], 20 * 4096)
    net.run()
    packets = 20 * (4096 + 62)
    assert near.read_counter("job_all", 1) == [(20, packets), (0, 0), (0, 0), (0, 0)]
    assert far.read_counter("job_all", 1) == [(0, 0), (20, packets), (0, 0), (0, 0)]
    step_word = 9 << 22 | 1
    assert near.read_register("steps", 1)["mx"] == [step_word, 0, 0, 0]
    assert far.read_register("steps", 1)["mx"] == [0, step_word, 0, 0]
    assert near.read_register("steps", 1)["mn"] == [step_word + (1 << 22), 0, 0, 0]  # the last packet moved it on


def test_of_pipes_with_different_entries_what_all_have_is_applied(
    two_racks: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the table once, when they begin to differ."""
    net = two_racks()
    switch = TwinSwitch(net.fabric, 0)
    nothing, one = snapshot(), snapshot(rule(1))
    switch.table_changed("job_classify", TableSnapshot((), None, (one, nothing, nothing, nothing)))
    assert "job_classify differs between pipes" in caplog.text
    caplog.clear()
    switch.table_changed("job_classify", TableSnapshot((), None, (one, one, nothing, nothing)))
    assert not caplog.text
    switch.table_changed("job_classify", TableSnapshot(one.entries, None, (one,) * 4))
    assert not caplog.text


def test_a_job_number_beyond_the_tables_is_no_job(two_racks: Make) -> None:
    """The key is wider than the table; a stray number must not count for somebody else."""
    net = two_racks()
    switch = TwinSwitch(net.fabric, 0)
    switch.table_changed("job_params", snapshot(params(5000, SymphonyParams()), params(1, SymphonyParams())))
    switch.table_changed("job_classify", snapshot(rule(5000, priority=1), rule(1, priority=2)))
    net.send(net.pair(0, 4)[0], 5000)
    net.run()
    assert not any(switch.read_counters("job_all").reshape(-1))


def test_a_job_that_is_removed_while_its_packets_wait_in_a_queue(two_racks: Make) -> None:
    """They are still counted for it at the egress, as bridged metadata would have it."""
    net = two_racks(dcqcn="off", kmin=0, kmax=1, spines=1)
    switch = TwinSwitch(net.fabric, 0)
    switch.table_changed("job_classify", snapshot(rule(1)))
    switch.table_changed("job_params", snapshot(params(1, SymphonyParams())))
    overlap(net)
    net.run(until=100 * US)
    before = counter(switch, "job_marked_queue")
    switch.table_changed("job_classify", snapshot())
    net.run()
    assert 10 < before < counter(switch, "job_marked_queue") <= counter(switch, "job_all")
    assert sum(counter(switch, "job_marked_queue", job) for job in range(1024)) == counter(switch, "job_marked_queue")


def test_registers_are_written_per_pipe_cleared_and_read_back(two_racks: Make) -> None:
    """Raw unsigned words; clearing gives the program's initial values."""
    net = two_racks()
    switch = TwinSwitch(net.fabric, 1)
    switch.write_register("steps", 7, {"mn": 0xFFC00001, "mx": 5 << 22 | 1}, pipe=2)
    switch.write_register("alpha", 7, {"f1": 300}, pipe=None)
    assert switch.read_register("steps", 7) == {"mn": [0, 0, 0xFFC00001, 0], "mx": [0, 0, 5 << 22 | 1, 0]}
    assert switch.read_registers("alpha")["f1"][:, 7].tolist() == [300] * 4
    assert TwinSwitch(net.fabric, 0).read_register("alpha", 7) == {"f1": [1] * 4}
    switch.clear_register("alpha")
    switch.clear_register("steps")
    assert switch.read_register("alpha", 7) == {"f1": [1] * 4}
    assert switch.read_register("steps", 7) == {"mn": [0] * 4, "mx": [0] * 4}


def test_a_counter_that_is_written_holds_the_value_in_its_first_pipe(two_racks: Make) -> None:
    """The sum over pipes is what was written."""
    net = two_racks()
    switch = TwinSwitch(net.fabric, 0)
    switch.write_counter("job_all", 3, 10, 1000)
    assert switch.read_counter("job_all", 3) == [(10, 1000), (0, 0), (0, 0), (0, 0)]
    assert switch.read_counters("job_all")[:, 3].sum(axis=0).tolist() == [10, 1000]


@pytest.mark.parametrize("sport_in_hash", [True, False])
def test_the_ecmp_table_decides_unless_the_fabric_has_no_port_in_its_hash(two_racks: Make, sport_in_hash: bool) -> None:
    """The default action's mask reaches the hash; preset `ecmp_sport` off means off."""
    net = two_racks(ecmp_sport=sport_in_hash)
    switch = TwinSwitch(net.fabric, 0)
    switch.table_changed("ecmp_config", snapshot(default=("Ingress.set_hash_sport", {"mask": 0xFFFF})))
    assert net.fabric.topology.switches[0].hash_sport_mask == (0xFFFF if sport_in_hash else 0)
    switch.table_changed("ecmp_config", snapshot(default=("Ingress.set_hash_sport", {"mask": 0})))
    assert net.fabric.topology.switches[0].hash_sport_mask == 0


def test_statistics_equal_those_of_the_reference_for_the_same_packets(two_racks: Make) -> None:
    """Three flows of one job at their source ToR, arrival times worked out by hand, against `JobState`."""
    symphony = SymphonyParams(k=1e-6, n_warmup=4, n_sample=2, window_us=20.0)
    net = two_racks(hosts=4, dcqcn="off", kmin=10**6, kmax=10**7, buffer_bytes=10**8)
    switch = TwinSwitch(net.fabric, 0)
    start_job(switch, symphony, first_step=2)
    busy = net.serial(4096)
    plan = [(0, 2, 0, 60), (1, 4, 50 * US + 300_000, 90), (2, 3, 111 * US + 700_000, 40)]  # host, step, start, packets
    arrivals: list[tuple[int, Packet]] = []
    hosts = net.fabric.topology.hosts
    for host, step, start, count in plan:
        net.run(until=start)
        a, b = net.pair(host, 4 + host, sport=STEP + step)
        net.send(a, count * 4096)
        qp_num = net.fabric._qps[b].qp_num
        slot = flow_slot(int(hosts[host].address), int(hosts[4 + host].address), qp_num)
        for i in range(count):
            at = start + (i + 1) * busy + US
            arrivals.append((at, Packet(step, i, i == count - 1, host, slot, at // 256_000, 1.0)))
    net.run()
    state = JobState(symphony, first_step=2)
    arrivals.sort(key=lambda a: a[0])
    assert len({at for at, _ in arrivals}) == len(arrivals)
    ahead = sum(state.process(packet).ahead for _, packet in arrivals)
    assert counter(switch, "job_all") == 190
    assert counter(switch, "job_outpacing") == ahead > 50
    assert switch.read_register("steps", 1)["mn"][0] == state.step_min << 22 | 1
    assert switch.read_register("steps", 1)["mx"][0] == state.step_max << 22 | 1
    assert switch.read_register("psn_rec", 1)["f1"][0] == state.psn_rec << 8
    assert switch.read_register("alpha", 1)["f1"][0] == state.alpha
    assert switch.read_register("window_start", 1)["f1"][0] == state.window_start
    assert switch.read_register("score", 1)["count"][0] == state.cnt_total


def test_the_share_of_marks_is_the_probability_of_the_reference(two_racks: Make) -> None:
    """A flow ahead with P = k alpha psn / psn_rec: the number of marks is within four sigma of the sum of P."""
    symphony = SymphonyParams(k=0.05, n_warmup=2, n_sample=1, alpha_max=1, window_us=1000.0)
    net = two_racks(hosts=2, dcqcn="off", kmin=10**6, kmax=10**7, buffer_bytes=10**8, seed=11)
    switch = TwinSwitch(net.fabric, 0)
    start_job(switch, symphony, first_step=1)
    state = JobState(symphony, first_step=1)
    busy, hosts = net.serial(4096), net.fabric.topology.hosts
    arrivals = []
    for host, step, start in ((0, 1, 0), (1, 2, 10 * US + 100_000)):
        net.run(until=start)
        a, b = net.pair(host, 2 + host, sport=STEP + step)
        net.send(a, 300 * 4096)
        slot = flow_slot(int(hosts[host].address), int(hosts[2 + host].address), net.fabric._qps[b].qp_num)
        for i in range(300):
            at = start + (i + 1) * busy + US
            arrivals.append((at, Packet(step, i, i == 299, host, slot, at // 256_000, 1.0)))
    net.run()
    chances = [state.process(packet).probability for _, packet in sorted(arrivals, key=lambda a: a[0])]
    expected, variance = sum(chances), sum(p * (1 - p) for p in chances)
    assert expected > 5
    assert abs(counter(switch, "job_marked_symphony") - expected) < 4 * math.sqrt(variance)
