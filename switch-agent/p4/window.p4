// SPDX-License-Identifier: Apache-2.0
// The time window T_win of paper 3.4.2 (psn_rec) and 3.4.3 (rho). Included in control Ingress.
//
// Lazy: the first packet at or after the window's end closes it and opens the next one, which starts at this
// packet's time. late = now - T_win comes with the parameters: a register comparison takes one packet word.

Register<int<32>, state_t>(N_STATE) window_start;
RegisterAction<int<32>, state_t, bit<1>>(window_start) window_check = {
  void apply(inout int<32> v, out bit<1> rv) {
    rv = 0;
    if (ig_md.late - v >= 0) { v = (int<32>)ig_md.now; rv = 1; }
  }
};
