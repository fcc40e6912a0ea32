// SPDX-License-Identifier: Apache-2.0
// psn_i of eq. 1 and Algorithm 1: the packet's place in its step. Included in control Ingress.
//
// A QP's PSN runs on from step to step, so the PSN of the step's first packet is subtracted. It is kept in a
// slot found by flow, with a signature that names flow and step: a new step takes the slot over, and so does a
// foreign flow (which then counts from its own next packet; no flow gets another flow's base). An older PSN of
// the same step is a retransmission of a first packet lost before this switch: it becomes the base.

// The addresses are copied per family first: fields of the header that a packet does not have may share
// containers with the other family's fields, and must not be hashed.
action flow_of_ipv4() {
  ig_md.flow_src = hdr.ipv4.src;
  ig_md.flow_dst = hdr.ipv4.dst;
}
action flow_of_ipv6() {
  ig_md.flow_src = hdr.ipv6.src[31:0];
  ig_md.flow_dst = hdr.ipv6.dst[31:0];
}

Hash<bit<32>>(HashAlgorithm_t.CRC32) sig_hash;
Hash<bit<FLOW_BITS>>(HashAlgorithm_t.CRC16) slot_hash;
Register<flow_t, bit<FLOW_BITS>>(N_FLOW) flow_base;
RegisterAction<flow_t, bit<FLOW_BITS>, int<32>>(flow_base) flow_base_get = {
  void apply(inout flow_t v, out int<32> rv) {
    if (v.sig != ig_md.sig || ig_md.psn - v.base < 0) { v.sig = ig_md.sig; v.base = ig_md.psn; }
    rv = v.base;
  }
};
action relative() { ig_md.rel = (bit<32>)(ig_md.psn - ig_md.base); }
