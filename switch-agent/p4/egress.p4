// SPDX-License-Identifier: Apache-2.0
// Where a mark is set: Symphony's OR the queue's (paper 3.3, "logical OR"), on ECN-capable packets only.

control Egress(inout headers_t hdr, inout eg_md_t eg_md, in egress_intrinsic_metadata_t eg_intr_md,
               in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
               inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
               inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
  // RED (Kmin, Kmax, Pmax) as ranges of queue depth in cells; "busy" is the gate's non-empty queue. The default
  // is no RED mark and a closed gate.
  action set_red(bit<16> prob, bit<1> busy) { eg_md.prob = prob; eg_md.busy = busy; }
  table red_profile {
    key = {
      eg_intr_md.egress_port : ternary;
      eg_intr_md.deq_qdepth  : range;
    }
    actions = { set_red; }
    const default_action = set_red(0, 0);
    size = N_RED;
  }
  Random<bit<16>>() rng;
  action draw() { eg_md.rnd = rng.get(); }
  action compare() { eg_md.diff = eg_md.prob |-| eg_md.rnd; }

  // Marks set here, by reason; a packet with both reasons counts in both.
  Counter<bit<64>, job_t>(N_JOB, CounterType_t.PACKETS_AND_BYTES) job_marked_symphony;
  Counter<bit<64>, job_t>(N_JOB, CounterType_t.PACKETS_AND_BYTES) job_marked_queue;

  apply {
    if (eg_md.ect == 1) {
      draw();
      red_profile.apply();
      compare();
      if (eg_md.diff != 0) { eg_md.red = 1; }
      if (hdr.bridge.mark == 1 && (hdr.bridge.gate == 0 || eg_md.busy == 1)) { eg_md.sym = 1; }
      if (eg_md.red == 1 || eg_md.sym == 1) {
        if (hdr.ipv4.isValid()) { hdr.ipv4.ecn = 3; eg_md.csum = 1; } else { hdr.ipv6.ecn = 3; }
      }
      if (eg_md.sym == 1) { job_marked_symphony.count(hdr.bridge.job); }
      if (eg_md.red == 1 && hdr.bridge.tracked == 1) { job_marked_queue.count(hdr.bridge.job); }
    }
    hdr.bridge.setInvalid();
  }
}

// IPv6 has no checksum, and ECN is in no pseudo header. RoCEv2's ICRC masks the ECN field.
control EgDeparser(packet_out pkt, inout headers_t hdr, in eg_md_t eg_md,
                   in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
  Checksum() ip_csum;
  apply {
    if (eg_md.csum == 1) {
      hdr.ipv4.csum = ip_csum.update({
        hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.len, hdr.ipv4.id, hdr.ipv4.flags,
        hdr.ipv4.frag, hdr.ipv4.ttl, hdr.ipv4.proto, hdr.ipv4.src, hdr.ipv4.dst});
    }
    pkt.emit(hdr);
  }
}
