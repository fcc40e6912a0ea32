# SPDX-License-Identifier: Apache-2.0

"""DCQCN's legs, PFC, trust, tags on the wire, counters, CPUs: planted faults of hardware NICs."""

from __future__ import annotations

import pytest

from ring_bench.doctor import Severity

from .conftest import V4, FakeHost

ONE = {"devices": ("mlx5_0",)}
HW = "sys/class/infiniband/mlx5_0/ports/1/hw_counters"


def test_np_is_one_switch_of_the_port_so_any_view_of_it_counts(host: FakeHost) -> None:
    for priority in range(8):
        host.write(f"sys/class/net/eth0/ecn/roce_np/enable/{priority}", int(priority == 7))
    finding = host.one("ecn-np", Severity.OK, **ONE)
    assert "enabled for 7" in finding.evidence
    assert "one switch for the port" in finding.evidence


def test_np_off_is_an_error(host: FakeHost) -> None:
    for priority in range(8):
        host.write(f"sys/class/net/eth0/ecn/roce_np/enable/{priority}", 0)
    assert "enabled for no priority" in host.one("ecn-np", Severity.ERROR, **ONE).evidence


def test_rp_must_be_on_for_the_data_priority(host: FakeHost) -> None:
    host.write("sys/class/net/eth0/ecn/roce_rp/enable/3", 0)
    finding = host.one("ecn-rp", Severity.ERROR, **ONE)
    assert "data priority 3" in finding.evidence
    assert "ecn/roce_rp/enable/3" in finding.fix
    host.one("ecn-rp", Severity.OK, traffic_class=40 << 2 | 2, **ONE)  # another priority, which is on


def test_what_runs_and_what_the_next_boot_brings_are_told_apart(host: FakeHost) -> None:
    host.answer("mlxconfig -d 0000:03:00.0 q ROCE_CC_PRIO_MASK_P1", "ROCE_CC_PRIO_MASK_P1   8(0x8)\n")
    evidence = host.one("ecn-rp", Severity.OK, **ONE).evidence
    assert "running: enabled for all priorities; next boot: enabled for 3" in evidence


def test_what_the_next_boot_takes_away_is_a_warning(host: FakeHost) -> None:
    host.answer("mlxconfig", "", status=None)
    host.answer("mstconfig -d 0000:03:00.0 q ROCE_CC_PRIO_MASK_P1", "ROCE_CC_PRIO_MASK_P1   0x10\n")
    for leg in ("ecn-np", "ecn-rp"):
        finding = host.one(leg, Severity.WARNING, **ONE)
        assert "next boot: enabled for 4" in finding.evidence
        assert finding.fix == "mlxconfig -d 0000:03:00.0 set ROCE_CC_PRIO_MASK_P1=255"


def test_the_second_function_of_a_card_is_its_second_port(host: FakeHost) -> None:
    (host.root / "sys/devices/0000:03:00.1").mkdir()
    (host.root / "sys/class/infiniband/mlx5_0/device").unlink()
    host.link("sys/class/infiniband/mlx5_0/device", host.root / "sys/devices/0000:03:00.1")
    host.link("sys/devices/0000:03:00.1/driver", host.root / "sys/drivers/mlx5_core")
    host.answer("mlxconfig -d 0000:03:00.1 q ROCE_CC_PRIO_MASK_P2", "ROCE_CC_PRIO_MASK_P2   8\n")
    assert "next boot: enabled for 3" in host.one("ecn-rp", Severity.OK, **ONE).evidence


def test_a_missing_tree_is_unknown_not_off(host: FakeHost) -> None:
    host.remove("sys/class/net/eth0/ecn")
    del host.commands["mlxconfig"]
    for check in ("ecn-np", "ecn-rp", "cnp-class"):
        host.one(check, Severity.UNKNOWN, **ONE)
    assert "next boot: unknown" in host.one("ecn-np", Severity.UNKNOWN, **ONE).evidence


def test_without_the_tree_debugfs_may_know_the_class_of_cnps(host: FakeHost) -> None:
    host.remove("sys/class/net/eth0/ecn")
    host.write("sys/kernel/debug/mlx5/0000:03:00.0/cc_params/np_cnp_prio", 6)
    host.write("sys/kernel/debug/mlx5/0000:03:00.0/cc_params/np_cnp_dscp", 48)
    host.one("cnp-class", Severity.OK, **ONE)


@pytest.mark.parametrize(("file", "value"), [("cnp_802p_prio", 3), ("cnp_dscp", 26)])
def test_cnps_in_the_class_of_the_data_are_an_error(host: FakeHost, file: str, value: int) -> None:
    host.write(f"sys/class/net/eth0/ecn/roce_np/{file}", value)
    assert "queue behind the data" in host.one("cnp-class", Severity.ERROR, **ONE).evidence


def test_cnps_that_a_pause_can_hold_back_are_a_warning(host: FakeHost) -> None:
    host.answer("dcb -j pfc show dev eth0", {"prio-pfc": [n in (3, 6) for n in range(8)]})
    assert "PFC is on for priority 6" in host.one("cnp-class", Severity.WARNING, **ONE).evidence


def test_trust_pcp_loses_the_dscp(host: FakeHost) -> None:
    host.write("sys/class/net/eth0/qos/trust", "Trust mode: pcp")
    finding = host.one("trust", Severity.ERROR, **ONE)
    assert "dscp-prio 26:3" in finding.fix


def test_without_the_sysfs_file_dcb_tells_the_trust(host: FakeHost) -> None:
    host.remove("sys/class/net/eth0/qos")
    host.one("trust", Severity.OK, **ONE)
    host.answer("dcb -N -j app show dev eth0", {})
    host.one("trust", Severity.ERROR, **ONE)
    host.answer("dcb -N -j app show dev eth0", "", status=1)
    host.one("trust", Severity.UNKNOWN, **ONE)


@pytest.mark.parametrize(
    ("lossless", "meaning"), [((), "the data class is lossy"), ((3, 4), "other classes can be paused too")]
)
def test_pfc_belongs_on_the_data_priority_only(host: FakeHost, lossless: tuple[int, ...], meaning: str) -> None:
    host.answer("dcb -j pfc show dev eth0", {"prio-pfc": [n in lossless for n in range(8)]})
    finding = host.one("pfc", Severity.WARNING, **ONE)
    assert meaning in finding.evidence
    assert "3:on" in finding.fix


def test_global_pause_beside_pfc_is_a_warning(host: FakeHost) -> None:
    host.global_pause = (True, False)
    assert "ethtool -A eth0 rx off tx off" in host.one("pause", Severity.WARNING, **ONE).fix


def test_global_pause_is_seen_also_where_dcb_tells_nothing(host: FakeHost) -> None:
    host.answer("dcb -j pfc show dev eth0", "", status=None)
    host.one("pause", Severity.OK, **ONE)
    host.global_pause = (True, True)
    host.one("pause", Severity.WARNING, **ONE)


def test_a_forced_traffic_class_is_an_error(host: FakeHost) -> None:
    host.write("sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=96")
    finding = host.one("traffic-class", Severity.ERROR)
    assert "forces traffic class 96 on every QP; 106 is wanted" in finding.evidence
    host.one("traffic-class", Severity.OK, traffic_class=98, devices=("mlx5_1",))


def test_a_traffic_class_that_no_switch_can_mark_is_an_error(host: FakeHost) -> None:
    finding = host.one("traffic-class", Severity.ERROR, traffic_class=104)
    assert "use 106" in finding.fix


def test_a_bonded_port_is_a_warning(host: FakeHost) -> None:
    host.write("sys/class/net/bond0/bonding/mode", "802.3ad 4")
    host.write("sys/class/net/bond0/bonding/xmit_hash_policy", "layer3+4 1")
    host.link("sys/class/net/eth0/master", host.root / "sys/class/net/bond0")
    host.write("sys/kernel/debug/mlx5/0000:03:00.0/lag/port_sel_mode", "queue_affinity")
    finding = host.one("lag", Severity.WARNING, **ONE)
    assert "bond0 (mode 802.3ad, hash layer3+4)" in finding.evidence
    assert "firmware: queue_affinity" in finding.evidence


def test_a_vlan_of_a_bond_is_a_bond_whatever_the_device_is_called(host: FakeHost) -> None:
    for index in range(4):
        host.gid("mlx5_0", index, V4.format(0, 1), "RoCE v2", "bond0.100")
    host.write("sys/class/net/bond0/bonding/mode", "802.3ad 4")
    host.link("sys/class/net/bond0.100/lower_bond0", host.root / "sys/class/net/bond0")
    assert "part of bond0 (mode 802.3ad" in host.one("lag", Severity.WARNING, **ONE).evidence


def test_a_member_of_a_bridge_is_not_a_member_of_the_bridges_bond(host: FakeHost) -> None:
    host.write("sys/class/net/bond0/bonding/mode", "802.3ad 4")
    host.write("sys/class/net/br0/bridge/stp_state", 0)
    for name in ("bond0", "eth0"):
        host.link(f"sys/class/net/br0/lower_{name}", host.root / "sys/class/net" / name)
    host.link("sys/class/net/eth0/master", host.root / "sys/class/net/br0")
    host.one("lag", Severity.OK, **ONE)


def test_a_group_that_only_the_firmware_knows_of_is_a_warning(host: FakeHost) -> None:
    host.write("sys/kernel/debug/mlx5/0000:03:00.0/lag/state", "active")
    host.write("sys/kernel/debug/mlx5/0000:03:00.0/lag/port_sel_mode", "hash")
    assert "firmware: hash" in host.one("lag", Severity.WARNING, **ONE).evidence


def test_a_driver_whose_source_port_is_unknown_is_a_warning(bare: FakeHost) -> None:
    bare.device("bnxt_re0", "eth0", "10.0.0.1", driver="bnxt_en")
    assert "--probe" in bare.one("sport", Severity.WARNING).fix


def test_a_pyverbs_without_its_mlx5_part_cannot_change_tags(host: FakeHost) -> None:
    host.library(mlx5=False)
    assert "no mlx5 part" in host.one("sport", Severity.WARNING, **ONE).evidence


def test_a_scalable_function_of_a_connectx_is_one_too(bare: FakeHost) -> None:
    bare.device("mlx5_2", "eth0", "10.0.0.1", driver="mlx5_core.sf")
    assert "mlx5dv_modify_qp_udp_sport" in bare.one("sport", Severity.OK).evidence


def test_fec_off_at_speed_is_a_warning_and_unknown_where_the_driver_is_silent(host: FakeHost) -> None:
    host.fec["eth0"] = ["off"]
    assert "encoding rs" in host.one("fec", Severity.WARNING, **ONE).fix
    del host.fec["eth0"]
    host.one("fec", Severity.UNKNOWN, **ONE)


def test_marks_that_are_not_answered_mean_np_off(host: FakeHost) -> None:
    host.write(f"{HW}/np_cnp_sent", 0)
    assert "10 marked packets in, 0 CNPs out" in host.one("dcqcn", Severity.ERROR, **ONE).evidence


def test_ignored_cnps_mean_rp_off_somewhere(host: FakeHost) -> None:
    host.write(f"{HW}/rp_cnp_ignored", 4)
    assert "RP is off on some priority" in host.one("dcqcn", Severity.WARNING, **ONE).evidence


def test_error_counters_that_move_while_watched_are_found(host: FakeHost) -> None:
    host.while_waiting = lambda: host.write(f"{HW}/local_ack_timeout_err", 7)
    assert "local_ack_timeout_err +7" in host.one("counters", Severity.WARNING, **ONE).evidence


def test_loss_that_no_known_counter_shows_is_unknown_not_ok(host: FakeHost) -> None:
    for name in ("out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err"):
        host.remove(f"{HW}/{name}")
    host.write(f"{HW}/sent_frames", 7)
    found = host.found("counters", Severity.UNKNOWN, **ONE)
    assert [finding.evidence.partition(":")[0] for finding in found] == [
        "not known whether packets were lost, damaged or late",
        "not known whether receiver not ready",
    ]
    assert "no movement within 1 s of carrier_changes" in host.one("counters", Severity.OK, **ONE).evidence


def test_a_counter_of_loss_that_cannot_be_read_leaves_it_unknown(host: FakeHost) -> None:
    host.write(f"{HW}/out_of_sequence", "N/A (no PMA)")
    assert "out_of_sequence cannot be read" in host.one("counters", Severity.UNKNOWN, **ONE).evidence


def test_a_counter_that_goes_backwards_while_watched_is_no_loss(host: FakeHost) -> None:
    host.write(f"{HW}/out_of_sequence", 9)
    host.while_waiting = lambda: host.write(f"{HW}/out_of_sequence", 2)
    assert "out_of_sequence cannot be read" in host.one("counters", Severity.UNKNOWN, **ONE).evidence


def test_bnxt_res_names_are_known(host: FakeHost) -> None:
    for name in ("out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err"):
        host.remove(f"{HW}/{name}")
    for name in ("to_retransmits", "seq_err_naks_rcvd", "rnr_naks_rcvd"):
        host.write(f"{HW}/{name}", 5)
    host.one("counters", Severity.OK, **ONE)
    host.while_waiting = lambda: host.write(f"{HW}/to_retransmits", 9)
    assert "to_retransmits +4" in host.one("counters", Severity.WARNING, **ONE).evidence


def test_a_queue_that_nobody_counts_is_not_said_to_drop_nothing(host: FakeHost) -> None:
    host.statistics["eth0"] = {"rx_prio3_pause": 1, "tx_prio3_pause": 1}
    host.while_waiting = lambda: host.statistics["eth0"].update(rx_prio3_pause=5)
    assert "does not count what queues drop" in host.one("pfc-drops", Severity.UNKNOWN, **ONE).evidence


def test_totals_are_no_watch(host: FakeHost) -> None:
    host.statistics["eth0"]["rx_discards_phy"] = 7
    evidence = host.one("pfc-drops", Severity.OK, **ONE, interval_s=0.0).evidence
    assert evidence == "queue drops; since the driver was loaded: rx_discards_phy 7"


def test_a_loop_that_no_mark_has_tried_is_not_known_to_close(host: FakeHost) -> None:
    for name in ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"):
        host.write(f"{HW}/{name}", 0)
    assert "no mark has come yet" in host.one("dcqcn", Severity.UNKNOWN, **ONE).evidence


def test_a_port_of_unknown_speed_without_fec_is_not_judged(host: FakeHost) -> None:
    host.fec["eth0"] = ["off"]
    host.remove("sys/class/infiniband/mlx5_0/ports/1/rate")
    assert "a speed that is not known" in host.one("fec", Severity.UNKNOWN, **ONE).evidence


def test_a_group_that_the_firmware_may_have_made_is_unknown_where_debugfs_is_closed(host: FakeHost) -> None:
    host.remove("sys/kernel/debug")
    assert "lag/state cannot be read" in host.one("lag", Severity.UNKNOWN, **ONE).evidence


def test_a_traffic_class_that_cannot_be_read_is_not_taken_for_none(host: FakeHost) -> None:
    (host.root / "sys/class/infiniband/mlx5_0/tc/1/traffic_class").mkdir(parents=True)
    assert "cannot be read" in host.one("traffic-class", Severity.UNKNOWN, **ONE).evidence


def test_a_cnp_class_of_which_half_is_told_is_unknown(host: FakeHost) -> None:
    host.remove("sys/class/net/eth0/ecn/roce_np/cnp_dscp")
    assert host.one("cnp-class", Severity.UNKNOWN, **ONE).evidence.startswith("CNPs have priority 6; data has")


def test_cnps_are_not_said_to_be_free_of_pauses_where_pfc_is_not_known(host: FakeHost) -> None:
    host.answer("dcb -j pfc show dev eth0", "", status=1)
    assert "whether PFC can pause them is not known" in host.one("cnp-class", Severity.UNKNOWN, **ONE).evidence


def test_a_priority_whose_switch_cannot_be_read_is_not_taken_for_off(host: FakeHost) -> None:
    host.write("sys/class/net/eth0/ecn/roce_rp/enable/3", "?")
    assert "running: unknown" in host.one("ecn-rp", Severity.UNKNOWN, **ONE).evidence


def test_what_listens_is_unknown_where_the_kernel_does_not_tell(host: FakeHost) -> None:
    host.remove("proc/self/net/tcp")
    assert "not known" in host.one("bfrt-exposed", Severity.UNKNOWN).evidence


def test_a_chrony_whose_words_are_no_figures_breaks_nothing(host: FakeHost) -> None:
    host.answer("chronyc -c tracking", "A29FC87B,ntp1,3,1.0,?,0,0,0,0,0,0.001,?,64.0,Normal\n")
    host.one("clock", Severity.OK)  # systemd's word counts then


def test_receivers_that_are_not_ready_are_found(host: FakeHost) -> None:
    host.while_waiting = lambda: host.write(f"{HW}/rnr_nak_retry_err", 47)
    assert "min_rnr_timer" in host.one("counters", Severity.WARNING, **ONE).fix


def test_a_wrong_icrc_is_its_own_finding(host: FakeHost) -> None:
    host.write(f"{HW}/rx_icrc_encapsulated", 0)
    host.while_waiting = lambda: host.write(f"{HW}/rx_icrc_encapsulated", 3)
    assert "rewrites" in host.one("icrc", Severity.ERROR, **ONE).fix


def test_drops_without_pause_are_a_named_finding(host: FakeHost) -> None:
    host.while_waiting = lambda: host.statistics["eth0"].update(rx_discards_phy=5)
    assert "no PFC pause comes in" in host.one("pfc-drops", Severity.WARNING, **ONE).evidence


def test_pause_without_drops_is_pfc_at_work(host: FakeHost) -> None:
    host.while_waiting = lambda: host.statistics["eth0"].update(rx_prio3_pause=5)
    assert "PFC at work" in host.one("pfc-drops", Severity.OK, **ONE).evidence


def test_a_counter_file_that_cannot_be_read_is_left_out(host: FakeHost) -> None:
    host.write(f"{HW}/vl15_dropped", "N/A (no PMA)")
    host.one("counters", Severity.OK, **ONE)


def test_counters_are_not_watched_when_the_interval_is_zero(host: FakeHost) -> None:
    host.while_waiting = lambda: pytest.fail("waited")
    host.one("counters", Severity.UNKNOWN, interval_s=0.0)
    assert "counters" not in {finding.id for finding in host.report(interval_s=0.0).findings}


def test_a_process_on_the_far_numa_node_is_warned(host: FakeHost) -> None:
    host.write("proc/self/status", "Cpus_allowed_list:\t8-15\n")
    assert "--cpunodebind=0" in host.one("numa", Severity.WARNING, **ONE).fix


def test_a_process_on_one_cpu_is_warned(host: FakeHost) -> None:
    host.write("proc/self/status", "Cpus_allowed_list:\t7\n")
    assert "bound to CPU 7 alone" in host.one("affinity", Severity.WARNING).evidence


def test_a_slow_governor_is_warned(host: FakeHost) -> None:
    host.write("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave")
    assert "powersave" in host.one("governor", Severity.WARNING).evidence


def test_a_wall_clock_that_nobody_keeps_is_warned(host: FakeHost) -> None:
    host.answer("timedatectl show", "no\n")
    assert "chrony" in host.one("clock", Severity.WARNING).fix
    host.answer("chronyc -c tracking", "A29FC87B,ntp1,3,1.0,0.000012,0,0,0,0,0,0.001,0.000040,64.0,Normal\n")
    assert "12 us off ntp1, root dispersion 40 us" in host.one("clock", Severity.OK).evidence


@pytest.mark.parametrize(("address", "exposed"), [("00000000", True), ("0100007F", False)])
def test_a_bfrt_server_that_others_can_reach_is_warned(host: FakeHost, address: str, exposed: bool) -> None:
    line = f"   0: {address}:C384 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1"
    host.write("proc/self/net/tcp", f"  sl  local_address rem_address   st\n{line}")
    host.one("bfrt-exposed", Severity.WARNING if exposed else Severity.OK)


def test_a_link_that_flaps_while_watched_is_found(host: FakeHost) -> None:
    host.while_waiting = lambda: host.write("sys/class/net/eth0/carrier_changes", 3)
    assert "the link flapped within 1 s: carrier_changes +2" in host.one("counters", Severity.WARNING, **ONE).evidence


def test_loss_does_not_hide_receivers_that_are_not_ready(host: FakeHost) -> None:
    def both() -> None:
        host.write(f"{HW}/out_of_sequence", 7)
        host.write(f"{HW}/rnr_nak_retry_err", 7)

    host.while_waiting = both
    assert len(host.found("counters", Severity.WARNING, **ONE)) == 2


def test_what_was_counted_before_is_shown(host: FakeHost) -> None:
    host.write(f"{HW}/local_ack_timeout_err", 2705)
    assert (
        "since the driver was loaded: local_ack_timeout_err 2705" in host.one("counters", Severity.OK, **ONE).evidence
    )


def test_counters_are_watched_for_longer_than_the_kernel_repeats_them(host: FakeHost) -> None:
    host.write(f"{HW}/lifespan", 4000)
    assert "within 4 s" in host.one("counters", Severity.OK, **ONE).evidence


def test_a_wrong_icrc_of_the_past_is_a_warning_without_any_watching(host: FakeHost) -> None:
    host.write(f"{HW}/rx_icrc_encapsulated", 3)
    assert "rx_icrc_encapsulated 3" in host.one("icrc", Severity.WARNING, interval_s=0.0, **ONE).evidence
    host.write(f"{HW}/rx_icrc_encapsulated", 0)
    host.one("icrc", Severity.OK, interval_s=0.0, **ONE)


def test_drops_beside_pause_frames_are_not_called_pfc_at_work(host: FakeHost) -> None:
    host.while_waiting = lambda: host.statistics["eth0"].update(rx_prio3_pause=5, rx_discards_phy=9)
    assert "although PFC pauses pass" in host.one("pfc-drops", Severity.WARNING, **ONE).evidence


def test_past_drops_of_a_data_priority_that_was_never_paused_are_a_warning(host: FakeHost) -> None:
    host.statistics["eth0"].update(rx_prio3_buf_discard=9, tx_prio3_pause=0)
    finding = host.one("pfc-drops", Severity.WARNING, interval_s=0.0, **ONE)
    assert "priority 3 dropped (rx_prio3_buf_discard 9) and was never paused" in finding.evidence
    host.statistics["eth0"].update(tx_prio3_pause=4)
    host.one("pfc-drops", Severity.OK, interval_s=0.0, **ONE)


@pytest.mark.parametrize(
    ("tracking", "severity", "evidence"),
    [
        ("00000000,,0,0.0,0.000000000,0,0,0,0,0,1.0,1.0,0.0,Not synchronised", Severity.WARNING, "no source"),
        ("A29FC87B,ntp1,3,1.0,0.031000000,0,0,0,0,0,0.1,0.000040,64.0,Normal", Severity.WARNING, "31000 us off ntp1"),
    ],
)
def test_a_chrony_that_does_not_keep_the_time_is_a_warning(
    host: FakeHost, tracking: str, severity: Severity, evidence: str
) -> None:
    host.answer("chronyc -c tracking", f"{tracking}\n")
    assert evidence in host.one("clock", severity).evidence


def test_a_machine_of_one_numa_node_needs_no_node_from_the_kernel(host: FakeHost) -> None:
    host.write("sys/devices/0000:03:00.0/numa_node", -1)
    host.one("numa", Severity.UNKNOWN, **ONE)
    host.write("sys/devices/system/node/node0/cpulist", "0-7")
    host.one("numa", Severity.OK, **ONE)
