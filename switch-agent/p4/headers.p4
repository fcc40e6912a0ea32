// SPDX-License-Identifier: Apache-2.0
// Headers and metadata. Field names are part of the contract with the control plane: keys in bf-rt.json are
// called after them (hdr.ipv4.src, ig_md.job).

typedef bit<16> state_t;  // index of a state block
typedef bit<16> job_t;    // Job_ID

header eth_h {
  bit<48> dst;
  bit<48> src;
  bit<16> etype;
}

header vlan_h {
  bit<3>  pcp;
  bit<1>  dei;
  bit<12> vid;
  bit<16> etype;
}

header ipv4_h {
  bit<4>  version;
  bit<4>  ihl;
  bit<6>  dscp;
  bit<2>  ecn;
  bit<16> len;
  bit<16> id;
  bit<3>  flags;
  bit<13> frag;
  bit<8>  ttl;
  bit<8>  proto;
  bit<16> csum;
  bit<32> src;
  bit<32> dst;
}

header ipv6_h {
  bit<4>   version;
  bit<6>   dscp;
  bit<2>   ecn;
  bit<20>  flow_label;
  bit<16>  len;
  bit<8>   next;
  bit<8>   hops;
  bit<128> src;
  bit<128> dst;
}

header udp_h {
  bit<16> sport;  // RoCEv2: 0xC000 | job tag | step
  bit<16> dport;
  bit<16> len;
  bit<16> csum;
}

// Base transport header of InfiniBand.
header bth_h {
  bit<8>  opcode;
  bit<8>  flags;
  bit<16> pkey;
  bit<8>  rsv;
  bit<24> qpn;
  bit<8>  ackrsv;
  bit<24> psn;
}

// RDMA extended transport header, on the first or only packet of a WRITE. Nothing here reads it.
header reth_h {
  bit<64> va;
  bit<32> rkey;
  bit<32> len;
}

// What ingress tells egress, on every packet. Whole bytes: fields written from different sources must not share
// a byte.
header bridge_h {
  bit<16> job;
  bit<8>  tracked;  // the packet belongs to an enabled job
  bit<8>  gate;     // mark only when the egress queue is not empty
  bit<8>  mark;     // Symphony's coin said "mark"
  bit<8>  pad;
}

struct headers_t {
  bridge_h bridge;
  eth_h    eth;
  vlan_h   vlan;
  ipv4_h   ipv4;
  ipv6_h   ipv6;
  udp_h    udp;
  bth_h    bth;
  reth_h   reth;
}

struct ig_md_t {
  job_t   job;
  state_t state;
  bit<1>  classified;
  bit<1>  data;        // RDMA WRITE data
  bit<1>  last;        // ... and the end of a step: *_WITH_IMMEDIATE last or only
  bit<1>  tracked;
  bit<1>  ahead;       // step > step_min
  bit<1>  expired;     // this packet opens a new window
  bit<1>  up;          // the window that ended had rho >= tau
  int<32> lag;         // the step when it is < step_min, else 0
  int<32> closed;      // packets of the window that ended, 0: none ended or too few
  int<32> raw;         // step << 22
  int<32> step;        // step << 22 | 1
  int<32> step_next;   // (step + 1) << 22 | 1
  bit<32> now;         // 256 ns units
  int<32> late;        // now - window
  int<32> psn;         // PSN << 8
  int<32> base;        // PSN of the step's first packet, << 8
  int<32> sig;         // flow and step, hashed
  bit<32> rel;         // relative PSN << 8
  bit<32> rec;         // psn_rec << 8
  bit<32> warmup;      // N_warmup << 8
  int<32> d_op;        // 256 * (1 - tau)
  int<32> d_oth;       // -256 * tau
  int<32> delta;       // the one of the two that this packet adds to the score
  int<32> n_sample;    // N_sample
  bit<16> alpha;
  bit<16> amax;
  int<16> lg_gain;     // log2 of k * alpha, in 1/256 octave
  int<16> lg_ratio;    // log2 of psn / psn_rec
  int<16> lg_floor;
  int<16> lg;          // log2 of the probability
  bit<32> thr;         // probability * 2^32
  bit<32> rnd;
  bit<32> diff;
  bit<16> hash_sport;  // what ECMP sees of the UDP source port
  bit<16> port_index;  // dense number of the egress port
  bit<16> scope_mask;  // 0: state per job; 0xffff: state per job and egress port
  bit<32> flow_src;    // IPv4 address, or the low 32 bits of the IPv6 address
  bit<32> flow_dst;
}

struct eg_md_t {
  bit<16> prob;
  bit<16> rnd;
  bit<16> diff;
  bit<1>  busy;  // the egress queue is not empty
  bit<1>  red;   // marked for the queue
  bit<1>  sym;   // marked by Symphony
  bit<1>  csum;  // the IPv4 checksum must be updated
  bit<1>  ect;   // ECN-capable and not marked yet
}

// Register entries: at most two fields of equal width.
struct steps_t { int<32> mn; int<32> mx; }
struct flow_t  { int<32> sig; int<32> base; }
struct score_t { int<32> score; int<32> count; }
