# SPDX-License-Identifier: Apache-2.0
"""In which form a packet came: bits of ``Packets.form``, counted in the report by name."""

from __future__ import annotations

__all__ = ["FORMS", "SWITCH_READS"]

FORMS = (
    ("roce_v1", "RoCE v1 (ethertype 0x8915): no UDP source port, so no step tag"),
    ("infiniband", "InfiniBand: no UDP source port, so no step tag; no ECN field"),
    ("vlan", "behind VLAN tags"),
    ("mpls", "behind MPLS labels"),
    ("pppoe", "in PPPoE"),
    ("ip_in_ip", "IP in IP"),
    ("gre", "in GRE (NVGRE too)"),
    ("erspan_1", "mirrored by ERSPAN type I"),
    ("erspan_2", "mirrored by ERSPAN type II"),
    ("erspan_3", "mirrored by ERSPAN type III"),
    ("vxlan", "in VXLAN"),
    ("geneve", "in GENEVE"),
    ("ip_options", "with IPv4 options"),
    ("ipv6_extension", "with IPv6 extension headers"),
    ("outer_ce", "with CE in an outer IP header and not in the inner one"),
    ("fecn", "with FECN in the base transport header"),
    ("becn", "with BECN in the base transport header"),
)
"""Name and meaning of each bit, from bit 0 on."""

(
    ROCE_V1,
    INFINIBAND,
    VLAN,
    MPLS,
    PPPOE,
    IP_IN_IP,
    GRE,
    ERSPAN_1,
    ERSPAN_2,
    ERSPAN_3,
    VXLAN,
    GENEVE,
    IP_OPTIONS,
    IPV6_EXTENSION,
    OUTER_CE,
    FECN,
    BECN,
) = (1 << i for i in range(len(FORMS)))

_MIRRORED = ERSPAN_1 | ERSPAN_2 | ERSPAN_3
SWITCH_READS = VLAN | _MIRRORED | OUTER_CE | FECN | BECN
"""Forms whose packets the switch program parses too: it saw a mirrored packet without its mirror header."""
