// SPDX-License-Identifier: Apache-2.0
// Routing with ECMP. Included in control Ingress.
//
// The step is in the UDP source port, so hashing the port gives each step a path of its own. The mask is the
// operator's choice: 0xffff the whole port, 0 none of it, 0xfc00 without the ten step bits.

action drop() { ig_dprsr_md.drop_ctl = 1; }
action forward(PortId_t port, bit<16> port_index, bit<48> smac, bit<48> dmac) {
  ig_md.port_index = port_index;
  ig_tm_md.ucast_egress_port = port;
  hdr.eth.src = smac;
  hdr.eth.dst = dmac;
}

action set_hash_sport(bit<16> mask) { ig_md.hash_sport = hdr.udp.sport & mask; }
table ecmp_config {
  actions = { set_hash_sport; }
  default_action = set_hash_sport(0xffff);
  size = 1;
}

Hash<bit<16>>(HashAlgorithm_t.CRC16) ecmp_hash;
ActionProfile(N_NEXTHOP) nexthop;
ActionSelector(nexthop, ecmp_hash, SelectorMode_t.FAIR, 64, N_ECMP) ecmp;
table ipv4_lpm {
  key = {
    hdr.ipv4.dst     : lpm;
    hdr.ipv4.src     : selector;
    hdr.ipv4.dst     : selector;
    hdr.ipv4.proto   : selector;
    ig_md.hash_sport : selector;
    hdr.udp.dport    : selector;
  }
  actions = { forward; drop; }
  implementation = ecmp;
  const default_action = drop();
  size = N_ROUTE;
}

// A selector's inputs must be the same in all its tables: IPv6 has its own.
Hash<bit<16>>(HashAlgorithm_t.CRC16) ecmp_hash6;
ActionProfile(N_NEXTHOP6) nexthop6;
ActionSelector(nexthop6, ecmp_hash6, SelectorMode_t.FAIR, 64, N_ECMP6) ecmp6;
table ipv6_lpm {
  key = {
    hdr.ipv6.dst     : lpm;
    hdr.ipv6.src     : selector;
    hdr.ipv6.dst     : selector;
    hdr.ipv6.next    : selector;
    ig_md.hash_sport : selector;
    hdr.udp.dport    : selector;
  }
  actions = { forward; drop; }
  implementation = ecmp6;
  const default_action = drop();
  size = N_ROUTE6;
}
