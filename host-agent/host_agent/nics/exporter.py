# SPDX-License-Identifier: Apache-2.0
"""NIC counters as Prometheus metrics, under the names that node_exporter gives them (``node_infiniband_...``).

Drivers other than mlx5, and the twin, count the same things under other names: they share the metric where the meaning
is the same. What node_exporter has no name for is ``symphony_nic_statistics_total``, with the kernel's name as label.
Levels among the counters (bnxt_re's resources in use) are the gauge ``symphony_nic_resources``; a file that cannot be
read, or holds no counter's value, has no series and is counted in ``symphony_nic_counters_unreadable``.
``port_data_*_bytes_total`` are bytes; the kernel counts 4-byte words. Do not run node_exporter's infiniband collector
on the same target: the series would be there twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from host_agent.nics.counters import NicCounters
from ring_bench.counters import is_gauge

__all__ = ["NAMES", "Name", "NicCollector"]

_PREFIX: Final = "node_infiniband_"


class Name(NamedTuple):
    """How a counter of the kernel is exported."""

    metric: str
    """Without prefix and ``_total``."""
    help: str
    factor: int = 1


_DATA = "Bytes of RDMA and other traffic"
NAMES: Final[dict[str, Name]] = {
    # counters/
    "port_xmit_data": Name("port_data_transmitted_bytes", f"{_DATA} sent by the port.", 4),
    "port_rcv_data": Name("port_data_received_bytes", f"{_DATA} received by the port.", 4),
    "port_xmit_packets": Name("port_packets_transmitted", "Packets sent by the port."),
    "port_rcv_packets": Name("port_packets_received", "Packets received by the port."),
    "unicast_xmit_packets": Name("unicast_packets_transmitted", "Unicast packets sent."),
    "unicast_rcv_packets": Name("unicast_packets_received", "Unicast packets received."),
    "multicast_xmit_packets": Name("multicast_packets_transmitted", "Multicast packets sent."),
    "multicast_rcv_packets": Name("multicast_packets_received", "Multicast packets received."),
    "port_xmit_wait": Name("port_transmit_wait", "Ticks in which data waited and nothing could be sent."),
    "port_xmit_discards": Name("port_discards_transmitted", "Outbound packets discarded: port down or congested."),
    "port_rcv_errors": Name("port_errors_received", "Packets received with an error."),
    "port_xmit_constraint_errors": Name("port_constraint_errors_transmitted", "Outbound packets refused by policy."),
    "port_rcv_constraint_errors": Name("port_constraint_errors_received", "Inbound packets refused by policy."),
    "link_downed": Name("link_downed", "How often the link went down."),
    "link_error_recovery": Name("link_error_recovery", "How often the link recovered from an error."),
    "symbol_error": Name("symbol_error", "Symbol errors on the lanes."),
    "local_link_integrity_errors": Name("local_link_integrity_errors", "Local physical errors beyond the threshold."),
    "excessive_buffer_overrun_errors": Name("excessive_buffer_overrun_errors", "Repeated buffer overruns."),
    "VL15_dropped": Name("vl15_dropped", "Management packets dropped."),
    # hw_counters/ of mlx5
    "np_ecn_marked_roce_packets": Name(
        "np_ecn_marked_roce_packets_received", "Packets received with a congestion mark (notification point)."
    ),
    "np_cnp_sent": Name("np_cnp_packets_sent", "CNPs sent in answer to marks (notification point)."),
    "rp_cnp_handled": Name("rp_cnp_packets_handled", "CNPs that slowed a sender down (reaction point)."),
    "rp_cnp_ignored": Name("rp_cnp_ignored_packets_received", "CNPs received and ignored: RP off on that priority."),
    "out_of_sequence": Name("out_of_sequence_packets_received", "Packets received out of sequence."),
    "packet_seq_err": Name("packet_sequence_errors", "NAKs for a sequence error received."),
    "implied_nak_seq_err": Name("implied_nak_seq_errors", "Acknowledgements beyond the expected PSN."),
    "local_ack_timeout_err": Name("local_ack_timeout_errors", "Acknowledgements that did not come in time."),
    "duplicate_request": Name("duplicate_requests_packets", "Requests received a second time."),
    "out_of_buffer": Name("out_of_buffer_drops", "Drops for want of a posted receive."),
    "rnr_nak_retry_err": Name("rnr_nak_retry_packets_received", "Receiver-not-ready NAKs received."),
    "roce_adp_retrans": Name("roce_adp_retransmits", "Adaptive retransmissions."),
    "roce_adp_retrans_to": Name("roce_adp_retransmits_timeout", "Adaptive retransmissions that timed out."),
    "roce_slow_restart": Name("roce_slow_restart_used", "How often slow restart was used."),
    "roce_slow_restart_cnps": Name("roce_slow_restart_cnps", "CNPs made by slow restart."),
    "roce_slow_restart_trans": Name("roce_slow_restart", "Changes into slow restart."),
    "rx_icrc_encapsulated": Name("rx_icrc_encapsulated_errors", "RoCE packets received with a wrong ICRC."),
    "rx_write_requests": Name("rx_write_requests", "Write requests received."),
    "rx_read_requests": Name("rx_read_requests", "Read requests received."),
    "rx_atomic_requests": Name("rx_atomic_requests", "Atomic requests received."),
    "req_cqe_error": Name("req_cqes_errors", "Requester completions with an error."),
    "req_cqe_flush_error": Name("req_cqes_flush_errors", "Requester completions that were flushed."),
    "req_remote_access_errors": Name("req_remote_access_errors", "Remote access errors seen by the requester."),
    "req_remote_invalid_request": Name("req_remote_invalid_request_errors", "Invalid requests seen by the requester."),
    "resp_cqe_error": Name("resp_cqes_errors", "Responder completions with an error."),
    "resp_cqe_flush_error": Name("resp_cqes_flush_errors", "Responder completions that were flushed."),
    "resp_local_length_error": Name("resp_local_length_errors", "Local length errors seen by the responder."),
    "resp_remote_access_errors": Name("resp_remote_access_errors", "Remote access errors seen by the responder."),
    # the same things, as soft-RoCE counts them
    "sent_pkts": Name("port_packets_transmitted", "Packets sent by the port."),
    "rcvd_pkts": Name("port_packets_received", "Packets received by the port."),
    "out_of_seq_request": Name("out_of_sequence_packets_received", "Packets received out of sequence."),
    "rcvd_seq_err": Name("packet_sequence_errors", "NAKs for a sequence error received."),
    "rcvd_rnr_err": Name("rnr_nak_retry_packets_received", "Receiver-not-ready NAKs received."),
    # and as the twin does
    "tx_packets": Name("port_packets_transmitted", "Packets sent by the port."),
    "rx_packets": Name("port_packets_received", "Packets received by the port."),
}
"""By the kernel's name."""


class NicCollector(Collector):
    """Turns the newest samples into metrics; does no I/O."""

    def __init__(self, counters: NicCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """All families that have a sample."""
        families: dict[str, CounterMetricFamily] = {}
        labels = ["device", "port"]
        other_labels = [*labels, "counter"]
        other = CounterMetricFamily(
            "symphony_nic_statistics", "Counters that node_exporter has no name for.", labels=other_labels
        )
        state = GaugeMetricFamily(f"{_PREFIX}state_id", "State of the port; 4: active, 1: down.", labels=labels)
        rate = GaugeMetricFamily(f"{_PREFIX}rate_bytes_per_second", "Speed of the port.", labels=labels)
        info = InfoMetricFamily("node_infiniband", "The device.", labels=["device"])
        levels = GaugeMetricFamily(
            "symphony_nic_resources", "Resources of the device in use, and their high-water marks.", labels=other_labels
        )
        closed = GaugeMetricFamily(
            "symphony_nic_counters_unreadable",
            "Counter files that cannot be read now, or hold no counter's value.",
            labels=[*labels, "folder"],
        )
        known_devices: set[str] = set()
        for sample in self._counters.samples:
            device = os.fsencode(sample.device).decode("utf-8", "backslashreplace")
            where = [device, sample.port]
            given: set[str] = set()
            for kernel_name, value in sorted(sample.values.items()):
                if is_gauge(kernel_name):
                    levels.add_metric([*where, kernel_name], value)
                    continue
                name = NAMES.get(kernel_name)
                if name is None or name.metric in given:  # never the same series twice
                    other.add_metric([*where, kernel_name], value)
                    continue
                family = families.get(name.metric)
                if family is None:
                    family = families[name.metric] = CounterMetricFamily(
                        _PREFIX + name.metric, name.help, labels=labels
                    )
                given.add(name.metric)
                family.add_metric(where, value * name.factor)
            for folder, number in sorted(sample.unreadable.items()):
                closed.add_metric([*where, folder], number)
            if sample.state is not None:
                state.add_metric(where, sample.state)
            if sample.gbps is not None:
                rate.add_metric(where, sample.gbps * 1e9 / 8)
            if sample.board is not None and sample.device not in known_devices:
                known_devices.add(sample.device)
                board, firmware, kind = sample.board
                info.add_metric([device], {"board_id": board, "firmware_version": firmware, "hca_type": kind})
        yield from (family for _, family in sorted(families.items()))
        yield from (family for family in (other, levels, state, rate, info, closed) if family.samples)
