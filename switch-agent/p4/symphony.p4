// SPDX-License-Identifier: Apache-2.0
// Symphony (arXiv 2604.16880) for Tofino 2: step-aware ECN marking for ring AllReduce over RoCEv2.
//
// Ingress forwards every IP packet; for the data packets of an enabled job it tracks the ring's progress, adapts
// alpha and tosses the coin. Egress sets the mark, together with the queue's RED mark. Each file is one concern;
// docs/p4.md maps tables and registers to the paper and lists what must be checked on hardware.

#include <core.p4>
#include <t2na.p4>

#include "sizes.p4"
#include "headers.p4"
#include "parsers.p4"

control Ingress(inout headers_t hdr, inout ig_md_t ig_md, in ingress_intrinsic_metadata_t ig_intr_md,
                in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
// Parts of this one control, so that names stay Ingress.job_params and so on.
#include "forwarding.p4"
#include "classification.p4"
#include "relative_psn.p4"
#include "window.p4"
#include "progress.p4"
#include "alpha.p4"
#include "probability.p4"

  Counter<bit<64>, job_t>(N_JOB, CounterType_t.PACKETS_AND_BYTES) job_all;
  Counter<bit<64>, job_t>(N_JOB, CounterType_t.PACKETS_AND_BYTES) job_outpacing;

  apply {
    hdr.bridge.setValid();
    hdr.bridge.job = 0;
    hdr.bridge.tracked = 0;
    hdr.bridge.mark = 0;
    hdr.bridge.gate = 0;
    hdr.bridge.pad = 0;

    ecmp_config.apply();
    if (hdr.ipv4.isValid()) { ipv4_lpm.apply(); } else if (hdr.ipv6.isValid()) { ipv6_lpm.apply(); }

    if (ig_md.data == 1) {
      prepare();
      time_stamp.apply();
      if (hdr.ipv4.isValid()) { flow_of_ipv4(); job_classify.apply(); }
      else { flow_of_ipv6(); job_classify6.apply(); }
      ig_md.sig = (int<32>)sig_hash.get({ig_md.flow_src, ig_md.flow_dst, hdr.bth.qpn, hdr.udp.sport});
      if (ig_md.classified == 1) { job_params.apply(); }

      if (ig_md.tracked == 1) {
        scope1();
        scope2();
        prepare2();
        ig_md.base = flow_base_get.execute(slot_hash.get({ig_md.flow_src, ig_md.flow_dst, hdr.bth.qpn}));
        ig_md.expired = window_check.execute(ig_md.state);
        if (ig_md.last == 1) { ig_md.lag = steps_last.execute(ig_md.state, ig_md.ahead); }
        else { ig_md.lag = steps_packet.execute(ig_md.state, ig_md.ahead); }
        relative();
        if (ig_md.ahead == 1) { pick_op(); job_outpacing.count(ig_md.job); } else { pick_oth(); }
        job_all.count(ig_md.job);
        psn_rec_update.apply();
        if (ig_md.expired == 1) { ig_md.closed = score_close.execute(ig_md.state, ig_md.up); }
        else { ig_md.closed = score_add.execute(ig_md.state, ig_md.up); }
        alpha_update.apply();
        log2_psn.apply();
        log2_psn_rec.apply();
        log2_alpha.apply();
        floor_ratio();
        sum_log();
        draw();
        exp2.apply();
        compare();
        hdr.bridge.job = ig_md.job;
        // Lines 11-16; a 32-bit condition stands alone in its if.
        if (ig_md.ahead == 1 && ig_md.last == 0 && warm32 == 1) { if (ig_md.diff != 0) { set_mark(); } }
      }
    }
  }
}

control IgDeparser(packet_out pkt, inout headers_t hdr, in ig_md_t ig_md,
                   in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
  apply { pkt.emit(hdr); }
}

#include "egress.p4"

Pipeline(IgParser(), Ingress(), IgDeparser(), EgParser(), Egress(), EgDeparser()) pipe;
Switch(pipe) main;
