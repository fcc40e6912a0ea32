# SPDX-License-Identifier: Apache-2.0
"""NIC counters: sampled file by file, exported under node_exporter's names, left out when they cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from metric_names import lint
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from host_agent.metrics import metrics_text
from host_agent.nics.counters import STALE_INTERVALS, NicCounters
from host_agent.nics.exporter import NicCollector
from host_agent.testbed import Testbed

TESTBED: dict[str, Any] = {
    "switches": [{"name": "tor0", "url": "http://tor0"}],
    "hosts": [{"name": "h0", "address": "10.0.0.1", "switch": "tor0"}],
}
HW = "sys/class/infiniband/mlx5_0/ports/1/hw_counters"


def counters_of(files: Any, **options: Any) -> NicCounters:
    """Counters of a made-up machine without a twin."""
    return NicCounters(Testbed.model_validate(TESTBED), sys=files.root / "sys", **options)


def exported(counters: NicCounters) -> dict[tuple[str, ...], float]:
    """What a scrape gives: (name, device, port[, counter]) -> value."""
    registry = CollectorRegistry()
    registry.register(NicCollector(counters))
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(metrics_text(registry).decode()):
        for sample in family.samples:
            key = (
                sample.name,
                *(sample.labels[label] for label in ("device", "port", "counter", "folder") if label in sample.labels),
            )
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


@pytest.fixture
def nic(files: Any) -> Any:
    """A machine with mlx5_0 and some counters."""
    files.rdma_device("mlx5_0", "v0")
    for name, value in (("np_cnp_sent", 3), ("out_of_sequence", 2), ("rp_cnp_ignored", 0), ("lifespan", 10)):
        files.write(f"{HW}/{name}", value)
    files.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", 1000)
    return files


async def test_names_and_units_are_node_exporters(nic: Any) -> None:
    """Bytes, not 4-byte words; a real zero is exported; the cache time is no counter."""
    counters = counters_of(nic)
    await counters.sample()
    found = exported(counters)
    where = ("mlx5_0", "1")
    assert found["node_infiniband_np_cnp_packets_sent_total", *where] == 3
    assert found["node_infiniband_out_of_sequence_packets_received_total", *where] == 2
    assert found["node_infiniband_rp_cnp_ignored_packets_received_total", *where] == 0
    assert found["node_infiniband_port_data_transmitted_bytes_total", *where] == 4000
    assert found["node_infiniband_state_id", *where] == 4
    assert found["node_infiniband_rate_bytes_per_second", *where] == 12.5e9
    assert found["node_infiniband_info", "mlx5_0"] == 1
    assert not any("lifespan" in key for key in found)
    assert counters.status.success is True


async def test_a_file_that_cannot_be_read_leaves_out_that_one_counter(nic: Any) -> None:
    """And is counted; it is never a 0."""
    nic.write(f"{HW}/rx_icrc_encapsulated", "N/A (no PMA)")
    (nic.root / HW / "roce_adp_retrans").mkdir()
    counters = counters_of(nic)
    await counters.sample()
    found = exported(counters)
    assert not any("icrc" in key[0] or "adp" in key[0] for key in found)
    assert found["node_infiniband_np_cnp_packets_sent_total", "mlx5_0", "1"] == 3
    assert found["symphony_nic_counters_unreadable", "mlx5_0", "1", "hw_counters"] == 2
    assert found["symphony_nic_counters_unreadable", "mlx5_0", "1", "counters"] == 0


async def test_what_stays_unreadable_is_a_level_said_once(nic: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Not a count that grows with each sample; an alert on it ends when the file can be read."""
    nic.write(f"{HW}/rx_icrc_encapsulated", "N/A (no PMA)")
    counters = counters_of(nic)
    for _ in range(3):
        await counters.sample()
        assert exported(counters)["symphony_nic_counters_unreadable", "mlx5_0", "1", "hw_counters"] == 1
    (said,) = [record.message for record in caplog.records if "left out" in record.message]
    assert said.startswith("mlx5_0 port 1: ")
    assert "hw_counters/rx_icrc_encapsulated" in said
    nic.write(f"{HW}/rx_icrc_encapsulated", 0)
    await counters.sample()
    assert exported(counters)["symphony_nic_counters_unreadable", "mlx5_0", "1", "hw_counters"] == 0


@pytest.mark.parametrize("value", ["-1", "9" * 400, str(2**64)])
async def test_a_value_that_no_counter_has_leaves_out_that_one_series(nic: Any, value: str) -> None:
    nic.write(f"{HW}/odd", value)
    counters = counters_of(nic)
    await counters.sample()
    found = exported(counters)
    assert found["node_infiniband_np_cnp_packets_sent_total", "mlx5_0", "1"] == 3
    assert not any("odd" in key for key in found)
    assert found["symphony_nic_counters_unreadable", "mlx5_0", "1", "hw_counters"] == 1


async def test_a_name_that_is_no_text_does_not_break_the_exposition(nic: Any) -> None:
    nic.write(f"{HW}/bad\udcff", 1)
    nic.write(f"{HW}/RNR sent", 2)
    nic.rdma_device("bad\udcff", "v1")
    nic.write("sys/class/infiniband/bad\udcff/ports/1/hw_counters/out_of_sequence", 6)
    counters = counters_of(nic)
    await counters.sample()
    found = exported(counters)
    assert found["symphony_nic_statistics_total", "mlx5_0", "1", "RNR sent"] == 2
    assert found["symphony_nic_counters_unreadable", "mlx5_0", "1", "hw_counters"] == 1
    assert found["node_infiniband_out_of_sequence_packets_received_total", "bad\\xff", "1"] == 6


async def test_levels_are_no_counters(nic: Any) -> None:
    """bnxt_re's resources in use."""
    nic.write(f"{HW}/active_qps", 10)
    counters = counters_of(nic)
    await counters.sample()
    found = exported(counters)
    assert found["symphony_nic_resources", "mlx5_0", "1", "active_qps"] == 10
    assert not any(key[0] == "symphony_nic_statistics_total" and "active_qps" in key for key in found)


async def test_soft_roces_counters_share_the_names_and_the_rest_keeps_its_own(files: Any) -> None:
    """A label, not a name that node_exporter might give a meaning."""
    files.rdma_device("rxe0", "v0", soft=True)
    for name, value in (("sent_pkts", 7), ("rcvd_seq_err", 1), ("ack_deferred", 5)):
        files.write(f"sys/class/infiniband/rxe0/ports/1/hw_counters/{name}", value)
    counters = counters_of(files)
    await counters.sample()
    found = exported(counters)
    assert found["node_infiniband_port_packets_transmitted_total", "rxe0", "1"] == 7
    assert found["node_infiniband_packet_sequence_errors_total", "rxe0", "1"] == 1
    assert found["symphony_nic_statistics_total", "rxe0", "1", "ack_deferred"] == 5


async def test_two_counters_of_one_meaning_make_no_duplicate_series(nic: Any) -> None:
    """An exposition with duplicates is refused as a whole."""
    nic.write(f"{HW}/out_of_seq_request", 9)
    counters = counters_of(nic)
    await counters.sample()
    found = exported(counters)
    assert found["node_infiniband_out_of_sequence_packets_received_total", "mlx5_0", "1"] == 9
    assert found["symphony_nic_statistics_total", "mlx5_0", "1", "out_of_sequence"] == 2


async def test_a_device_that_is_gone_takes_its_series_along(nic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three intervals."""
    now = [1000.0]
    monkeypatch.setattr("host_agent.nics.counters.time.monotonic", lambda: now[0])
    counters = counters_of(nic)
    await counters.sample()
    (nic.root / "sys/class/infiniband").rename(nic.root / "unplugged")
    now[0] += (STALE_INTERVALS - 1) * counters.interval_s
    await counters.sample()
    assert len(counters.samples) == 1
    now[0] += counters.interval_s
    assert counters.samples == []
    assert not any(key[0].startswith("node_infiniband") for key in exported(counters))


async def test_a_machine_without_rdma_exports_nothing_and_is_no_failure(files: Any) -> None:
    """A testbed host without NICs, or the twin's."""
    counters = counters_of(files)
    await counters.sample()
    assert counters.status.success is True
    assert exported(counters) == {}


async def test_the_twins_nics_are_exported_the_same_way(files: Any) -> None:
    """Device twin_<host>."""

    async def twin(host: str) -> Mapping[str, int]:
        assert host == "h0"
        return {"tx_packets": 12, "np_cnp_sent": 4, "retransmitted_packets": 1}

    counters = counters_of(files, twin=twin)
    await counters.sample()
    found = exported(counters)
    assert found["node_infiniband_port_packets_transmitted_total", "twin_h0", "1"] == 12
    assert found["node_infiniband_np_cnp_packets_sent_total", "twin_h0", "1"] == 4
    assert found["symphony_nic_statistics_total", "twin_h0", "1", "retransmitted_packets"] == 1


async def test_names_are_conventional(nic: Any) -> None:
    """promtool has nothing to say, neither about node_exporter's names nor about ours."""
    nic.write(f"{HW}/ack_deferred", 5)
    counters = counters_of(nic)
    await counters.sample()
    registry = CollectorRegistry()
    registry.register(NicCollector(counters))
    text = metrics_text(registry)
    assert b"symphony_nic_statistics_total{" in text
    lint(text)


async def test_a_twin_that_does_not_answer_is_told_and_does_not_hide_real_nics(nic: Any) -> None:
    """The collector's status says why."""

    async def twin(_: str) -> Mapping[str, int]:
        raise httpx.ConnectError("refused")

    counters = counters_of(nic, twin=twin)
    await counters.sample()
    assert counters.status.success is False
    assert counters.status.error is not None
    assert "refused" in counters.status.error
    assert [sample.device for sample in counters.samples] == ["mlx5_0"]


async def test_the_service_samples_in_the_background_and_serves_it(nic: Any, make_bench: Any, eventually: Any) -> None:
    """From start to end of the application; with its own entry among the collectors."""
    counters = counters_of(nic, interval_s=0.01)
    bench = make_bench(nic_counters=counters)
    app: FastAPI = bench.client._transport.app
    async with app.router.lifespan_context(app):
        await eventually(lambda: counters.samples)
        nic.write(f"{HW}/np_cnp_sent", 8)
        await eventually(lambda: counters.samples[0].values["np_cnp_sent"] == 8)
        text = (await bench.client.get("/metrics")).text
    assert 'node_infiniband_np_cnp_packets_sent_total{device="mlx5_0",port="1"} 8.0' in text
    assert 'symphony_collector_success{collector="nics"} 1.0' in text
    await bench.client.aclose()
