# SPDX-License-Identifier: Apache-2.0
"""NIC counters around a run: read file by file, judged, and in the result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ring_bench import ethtool, report
from ring_bench.cli import main
from ring_bench.counters import Snapshot, combine, counter_value, judge, port_values, snapshot
from ring_bench.results import PortCounters

KEY = ("mlx5_0", 1)
QUIET = {"out_of_sequence": 5, "rnr_nak_retry_err": 1, "carrier_changes": 2, "rx_prio3_pause": 7}


def taken(**values: int) -> Snapshot:
    """Make a snapshot of one port."""
    return Snapshot({KEY: values}, {KEY: ()}, {KEY: "eth0"})


def judged(before: dict[str, int], after: dict[str, int], traffic_class: int = 106) -> PortCounters:
    """Judge one port."""
    (port,) = judge("h0", taken(**before), taken(**after), traffic_class)
    return port


def test_each_file_is_read_for_itself(tmp_path: Path) -> None:
    """One that cannot be read or holds no number is named, never taken for 0; the cache time is no counter."""
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    for folder, name, text in (
        ("counters", "port_xmit_data", "12"),
        ("counters", "VL15_dropped", "N/A (no PMA)"),
        ("hw_counters", "out_of_sequence", "3"),
        ("hw_counters", "lifespan", "10"),
    ):
        (port / folder).mkdir(parents=True, exist_ok=True)
        (port / folder / name).write_text(text + "\n")
    (port / "hw_counters" / "broken").mkdir()
    assert port_values("mlx5_0", 1, tmp_path) == (
        {"port_xmit_data": 12, "out_of_sequence": 3},
        ["counters/VL15_dropped", "hw_counters/broken"],
    )
    assert port_values("mlx5_9", 1, tmp_path) == ({}, [])
    (tmp_path / "class/net/nosuchdev").mkdir(parents=True)
    (tmp_path / "class/net/nosuchdev/carrier_changes").write_text("4\n")
    seen = snapshot([("mlx5_0", 1, "nosuchdev")], tmp_path)
    assert seen.ports[KEY]["carrier_changes"] == 4
    assert seen.unreadable[KEY] == ("counters/VL15_dropped", "hw_counters/broken", "ethtool statistics")


def test_counters_that_stand_still_make_a_valid_run() -> None:
    """What was counted before the run does not matter."""
    port = judged(QUIET, QUIET)
    assert port.deltas == {}
    verdicts = port.verdicts
    assert (verdicts.flap, verdicts.rnr, verdicts.loss, verdicts.pause) == (False, False, False, False)
    assert verdicts.wrong_priority is None
    whole = combine([port])
    assert whole is not None
    assert whole.valid is True
    assert report.counters(whole) == ""


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("carrier_changes", "flap"),
        ("rnr_nak_retry_err", "rnr"),
        ("out_of_sequence", "loss"),
        ("rx_prio3_pause", "pause"),
    ],
)
def test_each_flag_is_raised_by_its_counters_alone(name: str, flag: str) -> None:
    """Pause is normal where PFC is on; the others make the times doubtful."""
    port = judged(QUIET, {**QUIET, name: QUIET[name] + 3})
    raised = {key for key, value in port.verdicts.model_dump().items() if value}
    assert raised == {flag}
    assert port.deltas == {name: 3}
    assert f"{name} +3" in port.remarks[0]
    whole = combine([port])
    assert whole is not None
    assert whole.valid is (flag == "pause")
    assert ("NOT CLEAN" in report.counters(whole)) is (flag != "pause")


def test_what_a_nic_does_not_count_is_null_not_false() -> None:
    """Missing is not zero."""
    verdicts = judged({"port_xmit_data": 1}, {"port_xmit_data": 2}).verdicts
    assert set(verdicts.model_dump().values()) == {None}


def test_counters_that_go_backwards_together_are_a_reloaded_driver() -> None:
    """The run cannot be valid then, and what was lost before the reload is not known."""
    port = judged(QUIET, {**QUIET, "out_of_sequence": 0, "rnr_nak_retry_err": 0})
    assert (port.verdicts.flap, port.verdicts.loss, port.verdicts.rnr) == (True, None, None)
    assert "the driver was reloaded" in port.remarks[0]


def test_one_counter_that_goes_backwards_alone_is_left_out_and_named() -> None:
    """It may be no counter at all; what it would have told is not known."""
    port = judged(QUIET, {**QUIET, "out_of_sequence": 0})
    assert (port.verdicts.flap, port.verdicts.loss, port.verdicts.rnr) == (False, None, False)
    assert port.remarks[0] == "out_of_sequence -5 alone went backwards: it is left out"


@pytest.mark.parametrize("name", ["active_qps", "active_rc_qps", "watermark_mrs", "max_pd", "qp_watermark"])
def test_a_level_may_fall(name: str) -> None:
    """Another program's queue pairs ended: neither a reset nor a flap."""
    port = judged({**QUIET, name: 10}, {**QUIET, name: 2})
    assert port.verdicts.flap is False
    assert port.remarks == []
    assert port.deltas == {name: -8}


def test_a_counter_that_stands_at_its_last_value_tells_nothing() -> None:
    """link_downed has 8 bits."""
    assert judged({"link_downed": 255}, {"link_downed": 255}).verdicts.flap is None
    assert judged({"link_downed": 254}, {"link_downed": 254}).verdicts.flap is False


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        (" 7\n", 7),
        (str(2**64 - 1), 2**64 - 1),
        (str(2**64), None),
        ("-1", None),
        ("1_0", None),
        ("²", None),
        ("", None),
        ("N/A (no PMA)", None),
        ("9" * 400, None),
        ("9" * 5000, None),
    ],
)
def test_a_counter_holds_a_number_of_64_bits_or_nothing(text: str, value: int | None) -> None:
    assert counter_value(text) == value


def test_a_file_whose_name_is_no_text_is_left_out_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "class/infiniband/x/ports/1/hw_counters"
    folder.mkdir(parents=True)
    (folder / "a,b c").write_text("4\n")
    (folder / "bad\udcff").write_text("5\n")
    assert port_values("x", 1, tmp_path) == ({"a,b c": 4}, ["hw_counters/bad\\xff"])


BNXT = {"to_retransmits": 5, "seq_err_naks_rcvd": 1, "rnr_naks_rcvd": 0, "carrier_changes": 2, "rx_roce_discards": 0}
IRDMA = {"RNR sent": 0, "RNR received": 0, "Nak Sequence Error": 0, "RTO": 0, "RetransSegs": 1}
EFA = {"retrans_pkts": 0, "retrans_timeout_events": 0, "rx_drops": 0}
RXE = {"out_of_seq_request": 0, "rcvd_seq_err": 0, "completer_retry_err": 0, "rcvd_rnr_err": 0, "send_rnr_err": 0}


@pytest.mark.parametrize(("driver", "rnr"), [(BNXT, False), (IRDMA, False), (EFA, None), (RXE, False)])
def test_the_names_of_other_drivers_are_looked_at(driver: dict[str, int], rnr: bool | None) -> None:
    """False where they stand still; each of them moving is a loss or a receiver that was not ready."""
    verdicts = judged(driver, driver).verdicts
    assert (verdicts.loss, verdicts.rnr) == (False, rnr)
    for name in driver.keys() - {"carrier_changes"}:
        moved = judged(driver, {**driver, name: driver[name] + 77})
        assert (moved.verdicts.loss is True) != (moved.verdicts.rnr is True)
        assert f"{name} +77" in moved.remarks[0]


@pytest.mark.parametrize(
    "names", [{"rx_err_pkt": 0, "tx_err_pkt": 0}, {"tx_pps_limit_drop_cnt": 0}, {"tcpRetransSegs": 0}, {"rx_bytes": 5}]
)
def test_what_only_hints_at_loss_tells_nothing_by_standing_still(names: dict[str, int]) -> None:
    """hns, erdma and old irdma count neither repeats nor gaps: null, with the reason, and not valid."""
    port = judged({**names, "carrier_changes": 1}, {**names, "carrier_changes": 1})
    assert port.verdicts.loss is None
    assert "whether packets were lost is not known: none of" in port.remarks[0]
    whole = combine([port])
    assert whole is not None
    assert whole.valid is None
    assert report.counters(whole).startswith("# NIC counters:")


@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_counter_that_can_be_read_at_one_end_only_leaves_the_question_open(at_the_end: bool) -> None:
    short = {name: value for name, value in QUIET.items() if name != "out_of_sequence"}
    port = judged(short, QUIET) if at_the_end else judged(QUIET, short)
    assert port.verdicts.loss is None
    assert "out_of_sequence cannot be read" in port.remarks[0]
    assert port.unreadable == ["out_of_sequence"]


def gids_of(root: Path, rows: dict[int, str]) -> None:
    """Write the GID table of mlx5_0, all of eth0; what was there goes."""
    port = root / "class/infiniband/mlx5_0/ports/1"
    shutil.rmtree(port, ignore_errors=True)
    for index, gid in rows.items():
        for path, text in (("gids", gid), ("gid_attrs/types", "RoCE v2"), ("gid_attrs/ndevs", "eth0")):
            (port / path).mkdir(parents=True, exist_ok=True)
            (port / path / str(index)).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({0: "fe80::1", 3: "::ffff:10.0.0.1"}, None),
        ({0: "fe80::1"}, "3: 10.0.0.1 RoCE v2 -> empty"),
        ({0: "fe80::1", 3: "::ffff:10.0.0.2"}, "3: 10.0.0.1 RoCE v2 -> 10.0.0.2 RoCE v2"),
        ({0: "::ffff:10.0.0.1", 3: "fe80::1"}, "0: fe80::1 RoCE v2 -> 10.0.0.1 RoCE v2"),
    ],
)
def test_a_gid_that_goes_or_moves_during_the_run_makes_it_doubtful(
    tmp_path: Path, after: dict[int, str], words: str | None
) -> None:
    """Though no counter moved: its index is what a QP was connected with."""
    gids_of(tmp_path, {0: "fe80::1", 3: "::ffff:10.0.0.1"})
    first = snapshot([("mlx5_0", 1, "eth0")], tmp_path)
    gids_of(tmp_path, after)
    (port,) = judge("h0", first, snapshot([("mlx5_0", 1, "eth0")], tmp_path), 106)
    assert port.verdicts.gid_changed is (words is not None)
    assert words is None or any(words in remark for remark in port.remarks)
    whole = combine([port])
    assert whole is not None
    assert whole.valid is (None if words is None else False)


@pytest.mark.parametrize(
    ("bytes_3", "bytes_0", "verdict"), [(9 << 20, 1 << 10, False), (1 << 10, 9 << 20, True), (1, 1, None)]
)
def test_bytes_on_another_priority_than_the_datas_are_noticed(bytes_3: int, bytes_0: int, verdict: bool | None) -> None:
    """DSCP 26 is priority 3; little traffic says nothing."""
    before = {"tx_prio0_bytes": 0, "tx_prio3_bytes": 0}
    port = judged(before, {"tx_prio0_bytes": bytes_0, "tx_prio3_bytes": bytes_3})
    assert port.verdicts.wrong_priority is verdict
    assert any("of the bytes went out on" in remark for remark in port.remarks) is (verdict is True)


def test_a_port_that_several_processes_used_is_kept_once_and_ports_add_up() -> None:
    """One lossy port spoils the run; a verdict nobody can give stays null."""
    good = judged({"out_of_sequence": 0}, {"out_of_sequence": 0})
    (bad,) = judge("h1", taken(out_of_sequence=0), taken(out_of_sequence=2), 106)
    whole = combine([good, good, bad])
    assert whole is not None
    assert len(whole.ports) == 2
    assert whole.verdicts.loss is True
    assert whole.verdicts.pause is None
    (blind,) = judge("h2", taken(rx_bytes=0), taken(rx_bytes=2), 106)
    partly = combine([good, blind])
    assert partly is not None
    assert (partly.verdicts.loss, partly.valid) == (None, None)
    assert combine([]) is None


def test_many_bad_ports_are_not_all_printed() -> None:
    """The file has them."""
    ports = [judge(f"h{i}", taken(out_of_sequence=0), taken(out_of_sequence=1), 106)[0] for i in range(20)]
    whole = combine(ports)
    assert whole is not None
    assert report.counters(whole).endswith("and 12 more ports (the -J file has all)")


def run(fake_twin: Any, tmp_path: Path) -> dict[str, Any]:
    """Run four ranks on the fake twin."""
    with pytest.raises(SystemExit) as left:
        main(["--verbs", str(fake_twin.path), "--world", "4", "-b", "4K", "-n", "2", "-J", str(tmp_path / "r.json")])
    assert left.value.code == 0
    return dict(json.loads((tmp_path / "r.json").read_text()))


def test_the_twins_counters_are_in_the_result(fake_twin: Any, tmp_path: Path) -> None:
    """Per NIC, as it changed over the run."""
    counters = run(fake_twin, tmp_path)["counters"]
    assert counters["verdicts"]["loss"] is False
    assert counters["valid"] is None  # a flap is not among its counters
    assert [port["device"] for port in counters["ports"]] == ["twin_h0", "twin_h1", "twin_h2", "twin_h3"]
    assert all(port["deltas"] == {"tx_packets": 40} for port in counters["ports"])


def test_loss_on_the_twin_makes_the_run_doubtful_and_says_so(
    fake_twin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss begins after the first reading."""
    first = fake_twin.do_query_counters

    def lossy(client: Any, args: Any) -> Any:
        fake_twin.lost = 0 if fake_twin.queries < 4 else 9
        return first(client, args)

    fake_twin.do_query_counters = lossy
    counters = run(fake_twin, tmp_path)["counters"]
    assert counters["valid"] is False
    assert counters["verdicts"]["loss"] is True
    assert "# NOT CLEAN" in capsys.readouterr().out


def test_the_loopback_fabric_has_no_counters(tmp_path: Path) -> None:
    """Null, not an empty list of good ports."""
    with pytest.raises(SystemExit):
        main(["--provider", "loopback", "--world", "2", "-b", "1K", "-n", "1", "-J", str(tmp_path / "r.json")])
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["counters"] is None
    assert data["clocks"] == []


def test_the_kernel_answers_ethtools_questions() -> None:
    """The loopback device has no statistics and no FEC; a device that is not there is an error."""
    assert ethtool.statistics("lo") == {}
    for question in (ethtool.fec_modes, ethtool.pause_frames):
        with pytest.raises(OSError, match="not supported"):
            question("lo")
    with pytest.raises(OSError, match="No such device"):
        ethtool.statistics("nosuchdev0")
