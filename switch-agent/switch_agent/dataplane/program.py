# SPDX-License-Identifier: Apache-2.0
"""What the switch program ``switch-agent/p4/symphony.p4`` shows to its control plane.

One typed description: match tables with their keys, actions and sizes, registers, counters, hashes,
the ECMP selectors, and the headers and metadata that snapshots can trigger on. ``schema.py`` turns it into
the ``bf-rt.json`` that the Tofino compiler writes for the same program; a test reads the P4 text and
fails when the two differ.

Names are P4 names without the pipe prefix (``Ingress.job_classify``); BF-Runtime shows tables as
``pipe.Ingress.job_classify`` and actions and register fields without prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from switch_agent.dataplane.constants import N_CLASS, N_FLOW, N_JOB, N_STATE
from switch_agent.dataplane.program_model import (
    Action,
    ActionProfile,
    ActionSelector,
    ConstEntry,
    Counter,
    Field,
    Hash,
    Header,
    Key,
    MatchKind,
    Program,
    Register,
    Table,
)

__all__ = [
    "P4_NAME",
    "PIPE",
    "PROGRAM",
    "Action",
    "ActionProfile",
    "ActionSelector",
    "ConstEntry",
    "Counter",
    "Field",
    "Hash",
    "Header",
    "Key",
    "MatchKind",
    "Program",
    "Register",
    "Sizes",
    "Table",
    "build_program",
]

P4_NAME = "symphony"
PIPE = "pipe"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of arrays and tables, in entries. The defaults are those of the P4 text.

    ``n_state`` counts state blocks (jobs, or jobs x egress ports), ``n_job`` Job_IDs, ``n_flow`` the slots of
    the first-PSN register (a power of two: a hash indexes them), ``n_class`` and ``n_class6``
    classification entries for IPv4 and IPv6.
    """

    n_state: int = N_STATE
    n_job: int = N_JOB
    n_flow: int = N_FLOW
    n_class: int = N_CLASS
    n_class6: int = 512
    n_route: int = 4096
    n_route6: int = 512
    n_nexthop: int = 1024
    n_nexthop6: int = 256
    n_ecmp: int = 256
    n_ecmp6: int = 64
    n_log2_psn: int = 1024
    n_log2_alpha: int = 512
    n_exp2: int = 1024
    n_red: int = 1024

    def __post_init__(self) -> None:
        if self.n_flow < 2 or self.n_flow & (self.n_flow - 1):
            raise ValueError(
                f"n_flow is {self.n_flow}, but a hash indexes the flow slots: use a power of two, e.g. 16384"
            )

    @property
    def flow_bits(self) -> int:
        """Bits of a flow slot index, 14 for 16384 slots."""
        return self.n_flow.bit_length() - 1


NO_ACTION = Action("NoAction")

FORWARD = Action("Ingress.forward", (Field("port", 9), Field("port_index", 16), Field("smac", 48), Field("dmac", 48)))
DROP = Action("Ingress.drop")
SET_JOB = Action("Ingress.set_job", (Field("job", 16), Field("state", 16)))
SET_PARAMS = Action(
    "Ingress.set_params",
    (
        Field("scope_mask", 16),
        Field("gate", 8),
        Field("lg_k", 16, signed=True),
        Field("lg_floor", 16, signed=True),
        Field("d_op", 32, signed=True),
        Field("d_oth", 32, signed=True),
        Field("n_sample", 32, signed=True),
        Field("neg_window", 32, signed=True),
        Field("warmup", 32),
        Field("amax", 16),
    ),
)
REC_CLEAR, REC_SET, REC_MAX, REC_READ = (Action(f"Ingress.a_rec_{what}") for what in ("clear", "set", "max", "read"))
ALPHA_UP, ALPHA_DOWN, ALPHA_READ = (Action(f"Ingress.a_alpha_{what}") for what in ("up", "down", "read"))


def _forwarding(sizes: Sizes) -> tuple[Table, ...]:
    set_hash_sport = Action("Ingress.set_hash_sport", (Field("mask", 16),))
    return (
        Table(
            "Ingress.ecmp_config",
            1,
            (),
            (set_hash_sport,),
            default_action=set_hash_sport.name,
            default_data=MappingProxyType({"mask": 0xFFFF}),
            const_default=False,
        ),
        Table(
            "Ingress.ipv4_lpm",
            sizes.n_route,
            (Key("hdr.ipv4.dst", 32, MatchKind.LPM),),
            (FORWARD, DROP),
            default_action=DROP.name,
            selector="Ingress.ecmp",
        ),
        Table(
            "Ingress.ipv6_lpm",
            sizes.n_route6,
            (Key("hdr.ipv6.dst", 128, MatchKind.LPM),),
            (FORWARD, DROP),
            default_action=DROP.name,
            selector="Ingress.ecmp6",
        ),
    )


def _classification(sizes: Sizes) -> tuple[Table, ...]:
    def classify(name: str, family: str, width: int, size: int) -> Table:
        return Table(
            name,
            size,
            (
                Key(f"hdr.{family}.src", width, MatchKind.TERNARY),
                Key(f"hdr.{family}.dst", width, MatchKind.TERNARY),
                Key("hdr.udp.sport", 16, MatchKind.TERNARY),
            ),
            (SET_JOB, NO_ACTION),
            default_action=NO_ACTION.name,
        )

    return (
        classify("Ingress.job_classify", "ipv4", 32, sizes.n_class),
        classify("Ingress.job_classify6", "ipv6", 128, sizes.n_class6),
        Table(
            "Ingress.job_params",
            sizes.n_job,
            (Key("ig_md.job", 16, MatchKind.EXACT),),
            (SET_PARAMS, NO_ACTION),
            default_action=NO_ACTION.name,
        ),
        Table("Ingress.time_stamp", 1, (), (Action("Ingress.stamp"),), default_action="Ingress.stamp"),
    )


def _updates() -> tuple[Table, ...]:
    """Build the two constant tables that pick what a packet does to psn_rec and alpha."""
    return (
        Table(
            "Ingress.psn_rec_update",
            16,
            (
                Key("ig_md.last", 1, MatchKind.EXACT),
                Key("ig_md.lag[0:0]", 1, MatchKind.EXACT),
                Key("ig_md.ahead", 1, MatchKind.EXACT),
                Key("ig_md.expired", 1, MatchKind.EXACT),
            ),
            (REC_CLEAR, REC_SET, REC_MAX, REC_READ),
            default_action=NO_ACTION.name,
            const_default=False,
            const_entries=(
                ConstEntry((1, 0, 0, 0), REC_CLEAR.name),
                ConstEntry((1, 0, 0, 1), REC_CLEAR.name),
                ConstEntry((1, 0, 1, 0), REC_CLEAR.name),
                ConstEntry((1, 0, 1, 1), REC_CLEAR.name),
                ConstEntry((0, 1, 0, 0), REC_SET.name),
                ConstEntry((0, 1, 0, 1), REC_SET.name),
                ConstEntry((0, 0, 0, 1), REC_SET.name),
                ConstEntry((0, 0, 0, 0), REC_MAX.name),
                ConstEntry((0, 0, 1, 0), REC_READ.name),
                ConstEntry((0, 0, 1, 1), REC_CLEAR.name),
            ),
        ),
        Table(
            "Ingress.alpha_update",
            4,
            (Key("ig_md.up", 1, MatchKind.TERNARY), Key("ig_md.closed", 32, MatchKind.TERNARY)),
            (ALPHA_UP, ALPHA_DOWN, ALPHA_READ),
            default_action=NO_ACTION.name,
            const_default=False,
            const_entries=(
                ConstEntry((1, None), ALPHA_UP.name),
                ConstEntry((0, 0), ALPHA_READ.name),
                ConstEntry((0, None), ALPHA_DOWN.name),
            ),
        ),
    )


def _lookup(name: str, key: str, width: int, action: str, value: Field, size: int) -> Table:
    return Table(
        f"Ingress.{name}",
        size,
        (Key(f"ig_md.{key}", width, MatchKind.TERNARY),),
        (Action(f"Ingress.{action}", (value,)),),
        default_action=f"Ingress.{action}",
        default_data=MappingProxyType({value.name: 0}),
    )


def _lookups(sizes: Sizes) -> tuple[Table, ...]:
    """Build the ternary log2 and exp2 tables whose entries come from ``lookup.py``."""
    lg = Field("lg", 16, signed=True)
    neg_lg = Field("neg_lg", 16, signed=True)
    return (
        _lookup("log2_psn", "rel", 32, "add_psn", lg, sizes.n_log2_psn),
        _lookup("log2_psn_rec", "rec", 32, "add_rec", neg_lg, sizes.n_log2_psn),
        _lookup("log2_alpha", "alpha", 16, "add_alpha", lg, sizes.n_log2_alpha),
        _lookup("exp2", "lg", 16, "set_threshold", Field("thr", 32), sizes.n_exp2),
    )


def _egress(sizes: Sizes) -> tuple[Table, ...]:
    set_red = Action("Egress.set_red", (Field("prob", 16), Field("busy", 1)))
    return (
        Table(
            "Egress.red_profile",
            sizes.n_red,
            (
                Key("eg_intr_md.egress_port", 9, MatchKind.TERNARY),
                Key("eg_intr_md.deq_qdepth", 19, MatchKind.RANGE),
            ),
            (set_red,),
            default_action=set_red.name,
            default_data=MappingProxyType({"prob": 0, "busy": 0}),
        ),
    )


def _registers(sizes: Sizes) -> tuple[Register, ...]:
    def int32(name: str) -> Field:
        return Field(name, 32, signed=True)

    return (
        Register("Ingress.flow_base", sizes.n_flow, (int32("sig"), int32("base"))),
        Register("Ingress.window_start", sizes.n_state, (int32("f1"),)),
        Register("Ingress.steps", sizes.n_state, (int32("mn"), int32("mx"))),
        Register("Ingress.psn_rec", sizes.n_state, (Field("f1", 32),)),
        Register("Ingress.score", sizes.n_state, (int32("score"), int32("count"))),
        Register("Ingress.alpha", sizes.n_state, (Field("f1", 16),), initial=1),
    )


HEADERS = (
    Header.of("bridge", "job:16 tracked:8 gate:8 mark:8 pad:8"),
    Header.of("eth", "dst:48 src:48 etype:16"),
    Header.of("vlan", "pcp:3 dei:1 vid:12 etype:16"),
    Header.of(
        "ipv4",
        "version:4 ihl:4 dscp:6 ecn:2 len:16 id:16 flags:3 frag:13 ttl:8 proto:8 csum:16 src:32 dst:32",
    ),
    Header.of("ipv6", "version:4 dscp:6 ecn:2 flow_label:20 len:16 next:8 hops:8 src:128 dst:128"),
    Header.of("udp", "sport:16 dport:16 len:16 csum:16"),
    Header.of("bth", "opcode:8 flags:8 pkey:16 rsv:8 qpn:24 ackrsv:8 psn:24"),
    Header.of("reth", "va:64 rkey:32 len:32"),
)

INGRESS_METADATA = Header.of(
    "ig_md",
    "job:16 state:16 classified:1 data:1 last:1 tracked:1 ahead:1 expired:1 up:1 lag:i32 closed:i32 "
    "raw:i32 step:i32 step_next:i32 now:32 late:i32 psn:i32 base:i32 sig:i32 rel:32 rec:32 warmup:32 "
    "d_op:i32 d_oth:i32 delta:i32 n_sample:i32 alpha:16 amax:16 lg_gain:i16 lg_ratio:i16 lg_floor:i16 lg:i16 "
    "thr:32 rnd:32 diff:32 hash_sport:16 port_index:16 scope_mask:16 flow_src:32 flow_dst:32",
)

EGRESS_METADATA = Header.of("eg_md", "prob:16 rnd:16 diff:16 busy:1 red:1 sym:1 csum:1 ect:1")

_FLOW = (Field("ig_md.flow_src", 32), Field("ig_md.flow_dst", 32), Field("hdr.bth.qpn", 24))


def build_program(sizes: Sizes | None = None) -> Program:
    """Return the description of the program compiled with these sizes (default: those of the P4 text)."""
    n = sizes or Sizes()
    next_hop = (FORWARD, DROP)
    return Program(
        name=P4_NAME,
        pipe=PIPE,
        tables=(*_forwarding(n), *_classification(n), *_updates(), *_lookups(n), *_egress(n)),
        profiles=(
            ActionProfile("Ingress.nexthop", n.n_nexthop, next_hop),
            ActionProfile("Ingress.nexthop6", n.n_nexthop6, next_hop),
        ),
        selectors=(
            ActionSelector("Ingress.ecmp", "Ingress.nexthop", n.n_ecmp, max_group_size=64),
            ActionSelector("Ingress.ecmp6", "Ingress.nexthop6", n.n_ecmp6, max_group_size=64),
        ),
        hashes=(
            Hash("Ingress.sig_hash", 32, (*_FLOW, Field("hdr.udp.sport", 16)), "CRC_32"),
            Hash("Ingress.slot_hash", n.flow_bits, _FLOW, "CRC_16"),
        ),
        registers=_registers(n),
        counters=(
            Counter("Ingress.job_all", n.n_job),
            Counter("Ingress.job_outpacing", n.n_job),
            Counter("Egress.job_marked_symphony", n.n_job),
            Counter("Egress.job_marked_queue", n.n_job),
        ),
        headers=HEADERS,
        ingress_metadata=INGRESS_METADATA,
        egress_metadata=EGRESS_METADATA,
    )


PROGRAM = build_program()
