# SPDX-License-Identifier: Apache-2.0
"""An assembly as the compiler writes it, reduced to what assembly_check looks at."""

from __future__ import annotations

import pytest

_RESULTS = """      - set W16(0..31), tbl_57$salu.Ingress.steps
      - set H0(13..13), tbl_57$salu.Ingress.steps(64..64)
      - set W7(0..31), tbl_54$salu.Ingress.flow_base
      - set W2(0..31), psn_rec_update_0$salu.Ingress.psn_rec
      - set W14(0..31), tbl_63$salu.Ingress.score
      - set H0(14..14), tbl_63$salu.Ingress.score(64..64)
      - set W1(0..15), alpha_update_0$salu.Ingress.alpha
"""

_REGISTERS = """  stateful tbl_57$salu.Ingress.steps:
    p4: { name: Ingress.steps, size: 1024 }
    actions:
      steps_packet_0:
      - lss.uus cmp1, phv_lo, -lo
      - alu_a cmp1, lo, phv_lo
    pred_shift: 28
  stateful tbl_54$salu.Ingress.flow_base:
    actions:
      flow_base_get_0:
      - neq cmp0, lo, -phv_lo
      - lss.uus cmp1, phv_hi, -hi
  stateful tbl_55$salu.Ingress.window_start:
    actions:
      window_check_0:
      - geq.uus cmp0, phv_lo, -lo
  stateful psn_rec_update_0$salu.Ingress.psn_rec:
    actions:
      rec_max_0:
      - grt.u cmp0, phv_lo, -lo
"""

_ETHERNET = """    $entry_point.start:
      match: [ byte0, byte1 ]
      0x8100:
        next: vlan
      0x0800:
        next: ipv4
      0x86dd:
        next: ipv6
      0x****:
        next: end
"""

_ROCE = """    udp:
      match: [ byte0, byte1 ]
      0x12b7:
        next: bth
    bth:
      match: [ byte0 ]
      0x06:
        next: data_reth
      0x07:
        next: end
      0x08:
        next: end
      0x09:
        next: last
      0x0a:
        next: data_reth
      0x0b:
        next: last_reth
"""

_GOOD = (
    f"parser ingress:\n  states:\n{_ETHERNET}{_ROCE}deparser ingress:\n  dictionary: {{}}\n"
    f"parser egress:\n  states:\n{_ETHERNET}deparser egress:\n"
    f"stage 5 ingress:\n  hash_action tbl_57 2:\n    actions:\n{_RESULTS}{_REGISTERS}"
)


@pytest.fixture
def assembly() -> str:
    """The assembly of a compiler that gets everything right."""
    return _GOOD
