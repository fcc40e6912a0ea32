// SPDX-License-Identifier: Apache-2.0
// Which job, which step, with which parameters (paper 3.5 and 4.7). Included in control Ingress.
//
// No entry: the packet passes untouched. An entry in job_classify but none in job_params: Symphony is off
// for the job and its state stands still.

action set_job(job_t job, state_t state) {
  ig_md.job = job;
  ig_md.state = state;
  ig_md.classified = 1;
}
table job_classify {
  key = {
    hdr.ipv4.src  : ternary;
    hdr.ipv4.dst  : ternary;
    hdr.udp.sport : ternary;
  }
  actions = { set_job; NoAction; }
  const default_action = NoAction;
  size = N_CLASS;
}
table job_classify6 {
  key = {
    hdr.ipv6.src  : ternary;
    hdr.ipv6.dst  : ternary;
    hdr.udp.sport : ternary;
  }
  actions = { set_job; NoAction; }
  const default_action = NoAction;
  size = N_CLASS6;
}

// Negative numbers are stored, not subtracted: an ALU cannot subtract action data.
action set_params(bit<16> scope_mask, bit<8> gate, int<16> lg_k, int<16> lg_floor, int<32> d_op, int<32> d_oth,
                  int<32> n_sample, int<32> neg_window, bit<32> warmup, bit<16> amax) {
  ig_md.tracked = 1;
  hdr.bridge.tracked = 1;
  ig_md.scope_mask = scope_mask;
  hdr.bridge.gate = gate;
  ig_md.lg_gain = lg_k;
  ig_md.lg_floor = lg_floor;
  ig_md.d_op = d_op;
  ig_md.d_oth = d_oth;
  ig_md.n_sample = n_sample;
  ig_md.late = (int<32>)ig_md.now + neg_window;
  ig_md.warmup = warmup;
  ig_md.amax = amax;
}
table job_params {
  key = { ig_md.job : exact; }
  actions = { set_params; NoAction; }
  const default_action = NoAction;
  size = N_JOB;
}

// The step's ten bits move to the top of a 32-bit word, the PSN's 24 bits too: 32-bit subtraction then wraps
// where they wrap (RFC 1982), and its sign bit is the comparison. Shift first, OR the constant a stage later:
// a concatenation that is not byte aligned would turn into a hash.
action prepare() {
  ig_md.raw = (int<32>)(hdr.udp.sport ++ 16w0) << (STEP_SHIFT - 16);
  ig_md.psn = (int<32>)(hdr.bth.psn ++ 8w0);
}
action prepare2() {
  ig_md.step = ig_md.raw | 1;
  ig_md.step_next = ig_md.raw + (STEP_ONE | 1);
}

// A table of its own: as a plain statement the copy would be merged into its uses, and a slice of the time stamp
// cannot take part in arithmetic. Units of 256 ns; byte aligned.
action stamp() { ig_md.now = ig_prsr_md.global_tstamp[39:8]; }
table time_stamp {
  actions = { stamp; }
  const default_action = stamp();
  size = 1;
}

// State per job, or per job and egress port: state += port_index & scope_mask.
action scope1() { ig_md.port_index = ig_md.port_index & ig_md.scope_mask; }
action scope2() { ig_md.state = ig_md.state + ig_md.port_index; }
