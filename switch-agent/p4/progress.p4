// SPDX-License-Identifier: Apache-2.0
// Progress tracking (paper 3.4.1, 3.4.2): step_min, step_max, psn_rec. Algorithm 1, lines 3-11.
// Included in control Ingress.
//
// Every comparison of steps is written a - b < 0 (or > 0) on int<32>: only this form wraps. Two steps half the
// circle apart count as "behind". The relation is taken against step_min before this packet changes it.

// mn = step_min, mx = step_max (for the degree of overlap; the agent lowers it again), both step << 22 | 1. A
// RegisterAction may have one conditional flag, so "lag" returns the step itself, whose bit 0 is always 1. The
// widest result comes first: the compiler cuts all results to the width of the first, without a word.
Register<steps_t, state_t>(N_STATE) steps;
RegisterAction2<steps_t, state_t, int<32>, bit<1>>(steps) steps_packet = {
  void apply(inout steps_t v, out int<32> lag, out bit<1> ahead) {
    lag = 0; ahead = 0;
    if (ig_md.step - v.mn > 0) { ahead = 1; }                             // line 11: outpacing
    if (ig_md.step - v.mn < 0) { lag = ig_md.step; v.mn = ig_md.step; }   // lines 6-7: lazy correction
    if (ig_md.step - v.mx > 0) { v.mx = ig_md.step; }
  }
};
RegisterAction2<steps_t, state_t, int<32>, bit<1>>(steps) steps_last = {
  void apply(inout steps_t v, out int<32> lag, out bit<1> ahead) {
    lag = 0; ahead = 0;
    if (ig_md.step - v.mn > 0) { ahead = 1; }
    v.mn = ig_md.step_next;                                               // lines 3-4: optimistic advance
    if (ig_md.step - v.mx > 0) { v.mx = ig_md.step; }
  }
};

// psn_rec << 8. The packet's relation to step_min picks one of four actions:
//   last           clear   line 5
//   lag            set     line 7
//   equal          max     line 9
//   equal, expired set     line 9 on the cleared register (3.4.2, time-windowed max)
//   ahead          read    lines 11 and 14
//   ahead, expired clear   the window's reset; the packet sees 0, so it is not marked (line 11)
Register<bit<32>, state_t>(N_STATE) psn_rec;
RegisterAction<bit<32>, state_t, bit<32>>(psn_rec) rec_clear = {
  void apply(inout bit<32> v, out bit<32> rv) { v = 0; rv = 0; }
};
RegisterAction<bit<32>, state_t, bit<32>>(psn_rec) rec_set = {
  void apply(inout bit<32> v, out bit<32> rv) { v = ig_md.rel; rv = 0; }
};
RegisterAction<bit<32>, state_t, bit<32>>(psn_rec) rec_max = {
  void apply(inout bit<32> v, out bit<32> rv) { if (ig_md.rel > v) { v = ig_md.rel; } rv = 0; }
};
RegisterAction<bit<32>, state_t, bit<32>>(psn_rec) rec_read = {
  void apply(inout bit<32> v, out bit<32> rv, out bit<32> warm) {
    rv = v; warm = 0;
    if (v > ig_md.warmup) { warm = 1; }                                   // line 11: psn_rec > N_warmup
  }
};
bit<32> warm32 = 0;
action a_rec_clear() { rec_clear.execute(ig_md.state); }
action a_rec_set()   { rec_set.execute(ig_md.state); }
action a_rec_max()   { rec_max.execute(ig_md.state); }
action a_rec_read()  { ig_md.rec = rec_read.execute(ig_md.state, warm32); }
table psn_rec_update {
  key = {
    ig_md.last     : exact;
    ig_md.lag[0:0] : exact;
    ig_md.ahead    : exact;
    ig_md.expired  : exact;
  }
  actions = { a_rec_clear; a_rec_set; a_rec_max; a_rec_read; }
  const entries = {
    (1, 0, 0, 0) : a_rec_clear();
    (1, 0, 0, 1) : a_rec_clear();
    (1, 0, 1, 0) : a_rec_clear();
    (1, 0, 1, 1) : a_rec_clear();
    (0, 1, 0, 0) : a_rec_set();
    (0, 1, 0, 1) : a_rec_set();
    (0, 0, 0, 1) : a_rec_set();
    (0, 0, 0, 0) : a_rec_max();
    (0, 0, 1, 0) : a_rec_read();
    (0, 0, 1, 1) : a_rec_clear();
  }
  size = 16;
}
