// SPDX-License-Identifier: Apache-2.0
// Adaptive aggressiveness alpha (paper 3.3, 3.4.3): eq. 2, 3, 5 and line 2 of Algorithm 1.
// Included in control Ingress.
//
// Cnt_op >= tau * Cnt_total without a multiplication: an outpacing packet adds 256 (1 - tau) to a signed score,
// any other one -256 tau, and the condition is score >= 0 (tau = n / 256). The packet that closes a window
// belongs to the next one, and alpha is updated before this packet's own probability.

action pick_op()  { ig_md.delta = ig_md.d_op; }
action pick_oth() { ig_md.delta = ig_md.d_oth; }

Register<score_t, state_t>(N_STATE) score;
RegisterAction2<score_t, state_t, int<32>, bit<1>>(score) score_add = {   // line 2: UpdateTrafficStats
  void apply(inout score_t v, out int<32> closed, out bit<1> up) {
    closed = 0; up = 0;
    v.score = v.score + ig_md.delta;
    v.count = v.count + 1;
  }
};
RegisterAction2<score_t, state_t, int<32>, bit<1>>(score) score_close = {
  void apply(inout score_t v, out int<32> closed, out bit<1> up) {
    closed = 0; up = 0;
    if (v.score >= 0 && v.count > ig_md.n_sample) { up = 1; }             // eq. 5
    if (v.count > ig_md.n_sample) { closed = v.count; }                   // sample guard: Cnt_total > N_sample
    v.score = ig_md.delta; v.count = 1;
  }
};

// Starts at 1. Bounded by amax (65535: the paper's unbounded alpha) and, eq. 2, by 1 from below.
Register<bit<16>, state_t>(N_STATE, 1) alpha;
RegisterAction<bit<16>, state_t, bit<16>>(alpha) alpha_up = {
  void apply(inout bit<16> v, out bit<16> rv) { if (v < ig_md.amax) { v = v + 1; } rv = v; }
};
RegisterAction<bit<16>, state_t, bit<16>>(alpha) alpha_down = {
  void apply(inout bit<16> v, out bit<16> rv) { if (v > 1) { v = v - 1; } rv = v; }
};
RegisterAction<bit<16>, state_t, bit<16>>(alpha) alpha_read = {
  void apply(inout bit<16> v, out bit<16> rv) { rv = v; }
};
action a_alpha_up()   { ig_md.alpha = alpha_up.execute(ig_md.state); }
action a_alpha_down() { ig_md.alpha = alpha_down.execute(ig_md.state); }
action a_alpha_read() { ig_md.alpha = alpha_read.execute(ig_md.state); }
table alpha_update {                                                      // eq. 3
  key = {
    ig_md.up     : ternary;
    ig_md.closed : ternary;
  }
  actions = { a_alpha_up; a_alpha_down; a_alpha_read; }
  const entries = {
    (1, _) : a_alpha_up();
    (0, 0) : a_alpha_read();
    (0, _) : a_alpha_down();
  }
  size = 4;
}
