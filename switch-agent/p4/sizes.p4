// SPDX-License-Identifier: Apache-2.0
// Sizes, in entries. Override them on the command line, e.g. -DN_STATE=16384 -DN_JOB=16384.
// switch_agent/dataplane/program.py describes the program with these sizes; a test compares the two.

#ifndef N_STATE
#define N_STATE 1024      /* state blocks: one per job, or one per job and egress port */
#endif
#ifndef N_JOB
#define N_JOB 1024        /* Job_IDs: parameter entries and counters */
#endif
#ifndef FLOW_BITS
#define FLOW_BITS 14      /* bits of a flow slot's index */
#endif
#ifndef N_FLOW
#define N_FLOW 16384      /* flow slots, 1 << FLOW_BITS; 65536 do not fit one stage */
#endif
#ifndef N_CLASS
#define N_CLASS 2048      /* classification entries, IPv4 */
#endif
#ifndef N_CLASS6
#define N_CLASS6 512      /* classification entries, IPv6 */
#endif
#define N_ROUTE    4096   /* IPv4 routes, next hops, ECMP groups */
#define N_NEXTHOP  1024
#define N_ECMP     256
#define N_ROUTE6   512    /* the same for IPv6 */
#define N_NEXTHOP6 256
#define N_ECMP6    64
#define N_LOG2_PSN   1024 /* look-up tables of the marking probability */
#define N_LOG2_ALPHA 512
#define N_EXP2       1024
#define N_RED        1024 /* RED profile: queue depth ranges per port */

#define STEP_SHIFT 22     /* 32 - step bits: a step is kept left-aligned in 32 bits */
#define STEP_ONE   (1 << STEP_SHIFT)
