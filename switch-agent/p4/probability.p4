// SPDX-License-Identifier: Apache-2.0
// Marking probability: eq. 1 and 4, lines 14-16 of Algorithm 1. Included in control Ingress.
//
//   log2 P = log2 k + log2 alpha + max(log2 psn - log2 psn_rec, floor)     in 1/256 octave
//   mark   = 2^32 * min(1, P) > random 32 bits
//
// The entries of the four tables come from switch_agent/dataplane/lookup.py; the agent installs them. Without
// them every threshold is 0 and nothing is marked.

action add_psn(int<16> lg) { ig_md.lg_ratio = lg; }                       // psn_i of eq. 1
table log2_psn {
  key = { ig_md.rel : ternary; }
  actions = { add_psn; }
  const default_action = add_psn(0);
  size = N_LOG2_PSN;
}
action add_rec(int<16> neg_lg) { ig_md.lg_ratio = ig_md.lg_ratio + neg_lg; }   // ... / psn_rec
table log2_psn_rec {
  key = { ig_md.rec : ternary; }
  actions = { add_rec; }
  const default_action = add_rec(0);
  size = N_LOG2_PSN;
}
action add_alpha(int<16> lg) { ig_md.lg_gain = ig_md.lg_gain + lg; }      // k * alpha
table log2_alpha {
  key = { ig_md.alpha : ternary; }
  actions = { add_alpha; }
  const default_action = add_alpha(0);
  size = N_LOG2_ALPHA;
}
action floor_ratio() { ig_md.lg_ratio = max(ig_md.lg_ratio, ig_md.lg_floor); }   // not in the paper; -32768: off
action sum_log() { ig_md.lg = ig_md.lg_gain + ig_md.lg_ratio; }           // line 14 and k * Delta
action set_threshold(bit<32> thr) { ig_md.thr = thr; }
table exp2 {                                                              // eq. 4, line 15: min(1, .)
  key = { ig_md.lg : ternary; }
  actions = { set_threshold; }
  const default_action = set_threshold(0);
  size = N_EXP2;
}

// Line 16: TossCoin. Two fields are compared by saturating subtraction and a test for zero.
Random<bit<32>>() rng;
action draw() { ig_md.rnd = rng.get(); }
action compare() { ig_md.diff = ig_md.thr |-| ig_md.rnd; }
action set_mark() { hdr.bridge.mark = 1; }
