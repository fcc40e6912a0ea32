# SPDX-License-Identifier: Apache-2.0
"""The rows of "job overview" that say why: switches, NICs, and whether the figures are complete."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries

from symphony_dashboards.series import HOST, RATE, SCRAPED, SWITCH
from symphony_dashboards.style import Query, graph, note, words

__all__ = ["collection_panels", "nic_panels", "switch_panels"]


def switch_panels() -> list[timeseries.Panel]:
    """What the switches measured and marked."""

    def rate(metric: str, by: str, more: str = "") -> str:
        return f"sum by ({by}) (rate({metric}{{{SWITCH}{more}}}{RATE}))"

    packets = "symphony_packets_total"
    marked = "symphony_ecn_marked_packets_total"
    outpacing = rate(packets, "job, switch", ', kind="outpacing"')
    tracked = rate(packets, "job, switch", ', kind="all"')
    return [
        graph(
            "Step overlap by switch",
            note(
                "each switch's own figure: step_max - step_min + 1 within its last sampling window.",
                read="the ToR with the highest figure has the fastest and the slowest ranks behind it.",
                is_not="the job's overlap: steps of ranks behind other switches are not in it.",
            ),
            Query(f"max by (job, switch) (symphony_step_overlap{{{SWITCH}}})", "{{job}}: {{switch}}"),
            unit="none",
            steps=True,
        ),
        graph(
            "Alpha",
            note(
                "the gain multiplier alpha of the marking probability (paper eq. 3), per job and switch.",
                read="one up with each window whose share of outpacing packets reaches tau, one down (not below 1) "
                "with each other window. A steady climb: the marks do not slow anybody down.",
                is_not="a probability. With state per port it is the highest of all ports.",
            ),
            Query(f"max by (job, switch) (symphony_alpha{{{SWITCH}}})", "{{job}}: {{switch}}"),
            unit="none",
            steps=True,
        ),
        graph(
            "Marked packets",
            note(
                "packets per second marked CE by the switches, by reason: Symphony, or the queue's RED.",
                read="Symphony's marks replace the queue's when it works: steps come into line before queues fill.",
                is_not="CE packets that arrived marked: only marks of these switches count. A packet marked for both "
                "reasons counts in both.",
            ),
            Query(rate(marked, "job, reason"), "{{job}}: {{reason}}"),
            unit="pps",
        ),
        graph(
            "Marked share",
            note(
                "marked packets over tracked packets, by reason.",
                read="with Symphony a few per cent suffice; far more slows down steps that are not ahead, too.",
                is_not="the marking probability of a single packet, which depends on how far it is ahead.",
            ),
            Query(
                f"{rate(marked, 'job, reason')} / on (job) group_left () " + rate(packets, "job", ', kind="all"'),
                "{{job}}: {{reason}}",
            ),
            unit="percentunit",
        ),
        graph(
            "Outpacing share",
            note(
                "packets of steps ahead of the slowest one, over all tracked packets of the job.",
                read="windows above tau (0.25 in the paper) raise alpha; near 0 the ring is in lockstep.",
                is_not="marked packets, and not the switch's own share per window: it is averaged over the rate "
                "interval.",
            ),
            Query(f"{outpacing} / {tracked}", "{{job}}: {{switch}}"),
            unit="percentunit",
        ),
        graph(
            "Tracked packets",
            note(
                "data packets per second that the switch recognised as the job's.",
                read="0 while the job sends: its classification entries do not match (tag, addresses, source port).",
                is_not="all packets of the port: ACKs, CNPs and other traffic pass untracked.",
            ),
            Query(tracked, "{{job}}: {{switch}}"),
            unit="pps",
        ),
        graph(
            "Progress of the slowest step",
            note(
                "the highest PSN seen in the slowest step, in packets from that step's first (psn_rec).",
                read="a saw tooth: it climbs to the packets of a chunk, then the next step begins. Flat: a stall.",
                is_not=f"a position in the collective; see 'step numbers'. Nor {SCRAPED}.",
            ),
            Query(f"max by (job, switch) (symphony_psn_recorded{{{SWITCH}}})", "{{job}}: {{switch}}"),
            unit="none",
            steps=True,
        ),
        graph(
            "Step numbers",
            note(
                "smallest step in flight and largest step seen, per switch, modulo 1024.",
                read="they climb together and start again at 0 after 1023; their distance is the overlap.",
                is_not="running step numbers: the packet carries ten bits of them.",
            ),
            Query(f"max by (job, switch) (symphony_step_min{{{SWITCH}}})", "{{job}}: {{switch}} smallest"),
            Query(f"max by (job, switch) (symphony_step_max{{{SWITCH}}})", "{{job}}: {{switch}} largest"),
            unit="none",
            steps=True,
        ),
    ]


def nic_panels() -> list[timeseries.Panel]:
    """Congestion control, loss and pauses at the NICs, from node_exporter."""

    def rate(counter: str) -> str:
        return f"sum by (instance, device) (rate(node_{counter}{RATE}))"

    def line(counter: str, text: str) -> Query:
        return Query(rate(counter), "{{instance}} {{device}}: " + text)

    whole_port = "the job's alone: NIC counters are per port, whoever sent the packets."
    pause = "ethtool_{}_prio${{priority}}_pause"
    return [
        graph(
            "ECN marks and CNPs",
            note(
                "CE-marked RoCE packets received and CNPs sent (this NIC is the receiver), CNPs handled and ignored "
                "(this NIC is the sender); from node_exporter on each host.",
                read="marks but no CNPs sent: the notification point is off. CNPs sent but none handled at the "
                "sender: CNPs get lost, or its reaction point is off. Ignored: it is off on that priority.",
                is_not=whole_port,
            ),
            line("infiniband_np_ecn_marked_roce_packets_received_total", "marked received"),
            line("infiniband_np_cnp_packets_sent_total", "CNPs sent"),
            line("infiniband_rp_cnp_packets_handled_total", "CNPs handled"),
            line("infiniband_rp_cnp_ignored_packets_received_total", "CNPs ignored"),
            unit="pps",
        ),
        graph(
            "Loss and retransmission",
            note(
                "packets received out of sequence, sequence errors (NAKs received), ACK timeouts, and slow restarts "
                "after adaptive retransmission.",
                read="0 on a lossless fabric. Out of sequence at a receiver: packets were lost or reordered before it.",
                is_not=f"a place: the drop itself may be anywhere on the path. Nor {whole_port}",
            ),
            line("infiniband_out_of_sequence_packets_received_total", "out of sequence"),
            line("infiniband_packet_sequence_errors_total", "sequence errors"),
            line("infiniband_local_ack_timeout_errors_total", "ACK timeouts"),
            line("infiniband_roce_slow_restart_total", "slow restarts"),
            unit="pps",
        ),
        graph(
            "Paused share of time",
            note(
                "share of time in which PFC pauses were in force on the priority chosen above.",
                read="received: the switch holds this NIC back. Sent: this NIC holds its switch port back (slow host).",
                is_not="a cause: pauses spread from where the congestion is. Needs node_exporter's ethtool collector.",
            ),
            Query(rate(pause.format("received") + "_duration") + " / 1e6", "{{instance}} {{device}}: received"),
            Query(rate(pause.format("transmitted") + "_duration") + " / 1e6", "{{instance}} {{device}}: sent"),
            unit="percentunit",
        ),
        graph(
            "Pause frames",
            note(
                "PFC pause frames per second on the priority chosen above.",
                read="any steady rate means that queues fill up to XOFF: ECN reacts too late or too weakly.",
                is_not="paused time: one frame may pause for long or for an instant.",
            ),
            line(pause.format("received"), "received"),
            line(pause.format("transmitted"), "sent"),
            unit="pps",
        ),
        graph(
            "Port data rate",
            note(
                "bytes per second that the RDMA port sent and received.",
                read="in a ring every NIC sends as much as it receives; the others wait for a NIC that lags.",
                is_not="bus bandwidth: headers and retransmissions are in it. And not " + whole_port,
            ),
            line("infiniband_port_data_transmitted_bytes_total", "sent"),
            line("infiniband_port_data_received_bytes_total", "received"),
            unit="Bps",
            size=(24, 8),
        ),
    ]


def collection_panels() -> list[timeseries.Panel]:
    """How far the other panels can be believed."""
    by_switch = 'sum by (switch) (rate({}{{switch=~"$switch"}}' + RATE + "))"
    return [
        graph(
            "Agents and collectors",
            note(
                "1 where a scrape, or the last round of a collector (polls of switch agents, register samples, "
                "reconcile), worked.",
                read="all lines at 1. A switch agent's 'registers' at 0: its switch does not answer; the text is in "
                "its /api/v1/switch.",
                is_not="a record of short failures between two scrapes.",
            ),
            Query('min by (job, instance) (up{job=~"host-agent|switch-agent"})', "{{job}} {{instance}}"),
            Query(
                "min by (instance, switch, collector) (symphony_collector_success)",
                "{{switch}} {{collector}} ({{instance}})",
            ),
            unit="none",
            steps=True,
        ).mappings(words({0: ("failing", "red"), 1: ("ok", "green")})),
        graph(
            "Events received and dropped",
            note(
                "step events per second that host-agent received from ranks, and those lost on the way or refused; "
                "samples that slow readers of a switch agent's stream lost.",
                read="dropped above 0: the hosts' overlap may be too low, step durations lack steps.",
                is_not="packets: nothing here slows down the job itself.",
            ),
            Query(f"sum by (job) (rate(symphony_events_total{{{HOST}}}{RATE}))", "{{job}}: received"),
            Query(f"sum by (job) (rate(symphony_events_dropped_total{{{HOST}}}{RATE}))", "{{job}}: dropped"),
            Query(by_switch.format("symphony_events_dropped_total"), "{{switch}}: samples dropped"),
            unit="ops",
        ),
        graph(
            "Age and duration of register samples",
            note(
                "time since each switch's last good register sample, and how long a sample takes.",
                read="the age stays below a scrape interval plus a sampling interval. Duration near the sampling "
                "interval (50 ms by default): ticks get skipped.",
                is_not="a clock comparison to rely on: the age is Prometheus' clock against the agent's.",
            ),
            Query(
                'time() - max by (switch) (symphony_last_sample_timestamp_seconds{switch=~"$switch"})',
                "{{switch}}: age",
            ),
            Query(
                'max by (switch) (symphony_sample_duration_seconds{switch=~"$switch"})',
                "{{switch}}: duration",
            ),
            unit="s",
        ),
        graph(
            "Trouble with sampling",
            note(
                "failed samples, ticks that came too late to count, rounds that could not lower step_max, stuck "
                "windows moved on.",
                read="all 0. step_max not lowered: the switch's overlap is too high. Skipped ticks: the agent's "
                "machine is busy.",
                is_not="loss of counts: packet and mark counters stay right when samples fail.",
            ),
            Query(by_switch.format("symphony_sample_failures_total"), "{{switch}}: failed"),
            Query(by_switch.format("symphony_sample_ticks_skipped_total"), "{{switch}}: skipped"),
            Query(by_switch.format("symphony_upkeep_failures_total"), "{{switch}}: upkeep failed"),
            Query(by_switch.format("symphony_windows_refreshed_total"), "{{switch}}: windows moved"),
            unit="ops",
        ),
        graph(
            "Switch sessions",
            note(
                "BF-Runtime sessions lost (per second), and entries that differed from the desired state at the last "
                "comparison.",
                read="drift above 0 once after a restart of the switch is repair at work; again and again it is "
                "somebody else writing to the same tables.",
                is_not="the session's state now: see 'agents and collectors'.",
            ),
            Query(by_switch.format("symphony_switch_reconnects_total"), "{{switch}}: sessions lost"),
            Query('max by (switch) (symphony_reconcile_drift{switch=~"$switch"})', "{{switch}}: entries differed"),
            unit="short",
            size=(24, 7),
        ),
    ]
