// SPDX-License-Identifier: Apache-2.0
// Ethernet, one 802.1Q tag, IPv4 without options or IPv6 without extension headers, UDP port 4791, BTH, RETH.
// Anything else is forwarded by what was parsed of it and never tracked.

parser IgParser(packet_in pkt, out headers_t hdr, out ig_md_t ig_md,
                out ingress_intrinsic_metadata_t ig_intr_md) {
  state start {
    pkt.extract(ig_intr_md);
    pkt.advance(PORT_METADATA_SIZE);
    ig_md.data = 0;
    ig_md.last = 0;
    ig_md.classified = 0;
    ig_md.tracked = 0;
    ig_md.port_index = 0;
    transition eth;
  }
  state eth {
    pkt.extract(hdr.eth);
    transition select(hdr.eth.etype) { 0x8100: vlan; 0x0800: ipv4; 0x86dd: ipv6; default: accept; }
  }
  state vlan {
    pkt.extract(hdr.vlan);
    transition select(hdr.vlan.etype) { 0x0800: ipv4; 0x86dd: ipv6; default: accept; }
  }
  state ipv4 {
    pkt.extract(hdr.ipv4);
    transition select(hdr.ipv4.ihl, hdr.ipv4.frag, hdr.ipv4.proto) { (5, 0, 17): udp; default: accept; }
  }
  state ipv6 {
    pkt.extract(hdr.ipv6);
    transition select(hdr.ipv6.next) { 17: udp; default: accept; }
  }
  state udp {
    pkt.extract(hdr.udp);
    transition select(hdr.udp.dport) { 4791: bth; default: accept; }
  }
  state bth {
    pkt.extract(hdr.bth);
    // RDMA WRITE first, middle, last, only; last and only WITH IMMEDIATE end a step. ACKs and CNPs are no data.
    transition select(hdr.bth.opcode) {
      6: data_reth; 10: data_reth; 7: data; 8: data;
      11: last_reth; 9: last;
      default: accept;
    }
  }
  state data_reth { pkt.extract(hdr.reth); transition data; }
  state last_reth { pkt.extract(hdr.reth); transition last; }
  state data { ig_md.data = 1; transition accept; }
  state last { ig_md.data = 1; ig_md.last = 1; transition accept; }
}

parser EgParser(packet_in pkt, out headers_t hdr, out eg_md_t eg_md,
                out egress_intrinsic_metadata_t eg_intr_md) {
  state start {
    pkt.extract(eg_intr_md);
    eg_md = {0, 0, 0, 0, 0, 0, 0, 0};
    pkt.extract(hdr.bridge);
    transition eth;
  }
  state eth {
    pkt.extract(hdr.eth);
    transition select(hdr.eth.etype) { 0x8100: vlan; 0x0800: ipv4; 0x86dd: ipv6; default: accept; }
  }
  state vlan {
    pkt.extract(hdr.vlan);
    transition select(hdr.vlan.etype) { 0x0800: ipv4; 0x86dd: ipv6; default: accept; }
  }
  // ECT(1) = 1, ECT(0) = 2 (RFC 3168). IPv4 options would belong into the checksum: such packets are not marked.
  state ipv4 {
    pkt.extract(hdr.ipv4);
    transition select(hdr.ipv4.ihl, hdr.ipv4.ecn) { (5, 1): ect; (5, 2): ect; default: accept; }
  }
  state ipv6 {
    pkt.extract(hdr.ipv6);
    transition select(hdr.ipv6.ecn) { 1: ect; 2: ect; default: accept; }
  }
  state ect { eg_md.ect = 1; transition accept; }
}
