# SPDX-License-Identifier: Apache-2.0
"""The debug tables that ``bf-rt.json`` has for every program: snapshots, port metadata, table counters.

A snapshot captures the headers and metadata of one packet in each stage. Its field ids run on over the whole
program: headers first, then the ingress metadata, then the egress metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from switch_agent.dataplane.program import Field, Header, Program
from switch_agent.dataplane.schema_parts import (
    Json,
    bytes_type,
    container_json,
    field_json,
    key_json,
    object_id,
    scalar_type,
    single_json,
    table_json,
)

__all__ = ["debug_tables"]

STAGES = 20  # match-action stages of a Tofino2 pipe
TABLES_PER_STAGE = 16
PORTS_PER_PIPE = 72
PIPES = 4

# First byte of an id, by the kind of object.
PORT_METADATA, SNAPSHOT_CFG, SNAPSHOT_TRIGGER, SNAPSHOT_DATA, SNAPSHOT_LIVENESS = 0x90, 0x91, 0x92, 0x93, 0x94
DEBUG_COUNTER = 0x99

# Intrinsic metadata of the t2na architecture, which snapshots can trigger on.
_MIRROR = (
    "mirror_type:4 {} mirror_io_select:1 mirror_hash:13 mirror_ingress_cos:3 mirror_deflect_on_drop:1 "
    "mirror_multicast_ctrl:1 mirror_egress_port:9 mirror_qid:7 mirror_coalesce_length:8 adv_flow_ctl:32 "
    "mtu_trunc_len:14 mtu_trunc_err_f:1"
)
_FROM_PARSER = "global_tstamp:48 global_ver:32 parser_err:16"
INGRESS_INTRINSICS = (
    Header.of(
        "ig_intr_md",
        "resubmit_flag:1 _pad1:1 packet_version:2 _pad2:3 ingress_port:9 ingress_mac_tstamp:48",
    ),
    Header.of("ig_prsr_md", _FROM_PARSER),
    Header.of(
        "ig_dprsr_md",
        f"drop_ctl:3 digest_type:3 resubmit_type:3 {_MIRROR.format('')} pktgen:1 pktgen_address:14 pktgen_length:10",
    ),
    Header.of(
        "ig_tm_md",
        "ucast_egress_port:9 bypass_egress:1 deflect_on_drop:1 ingress_cos:3 qid:7 icos_for_copy_to_cpu:3 "
        "copy_to_cpu:1 packet_color:2 disable_ucast_cutthru:1 enable_mcast_cutthru:1 "
        "mcast_grp_a:16 mcast_grp_b:16 level1_mcast_hash:13 level2_mcast_hash:13 "
        "level1_exclusion_id:16 level2_exclusion_id:9 rid:16",
    ),
)
EGRESS_INTRINSICS = (
    Header.of(
        "eg_intr_md",
        "_pad0:7 egress_port:9 _pad1:5 enq_qdepth:19 _pad2:6 enq_congest_stat:2 enq_tstamp:32 "
        "_pad3:5 deq_qdepth:19 _pad4:6 deq_congest_stat:2 app_pool_congest_stat:8 deq_timedelta:32 "
        "egress_rid:16 _pad5:7 egress_rid_first:1 _pad6:1 egress_qid:7 _pad7:5 egress_cos:3 "
        "_pad8:7 deflection_flag:1 pkt_length:16 _pad9:8",
    ),
    Header.of("eg_prsr_md", _FROM_PARSER),
    Header.of("eg_dprsr_md", f"drop_ctl:3 {_MIRROR.format('coalesce_flush:1 coalesce_length:7')}"),
    Header.of("eg_oport_md", "capture_tstamp_on_tx:1 update_delay_on_tx:1"),
)


def debug_tables(program: Program) -> Iterator[Json]:
    """Yield the tables that every program has, for this one's headers and metadata."""
    yield from _snapshots(program)
    yield _port_metadata(program.pipe)
    yield _debug_counters()


def _snapshots(program: Program) -> Iterator[Json]:
    """Yield the snapshot tables; field ids run on: headers, then ingress, then egress."""
    headers = [
        Field(f"hdr.{header.name}.{field.name}", field.width)
        for header in program.headers
        for field in (Field("$valid", 1), *header.fields)
    ]

    def numbered(start: int, structs: Iterable[Header]) -> list[tuple[int, Field]]:
        fields = [Field(f"{s.name}.{field.name}", field.width) for s in structs for field in s.fields]
        return list(enumerate(fields, start))

    ingress = numbered(len(headers) + 1, (program.ingress_metadata, *INGRESS_INTRINSICS))
    egress = numbered(ingress[-1][0] + 1, (program.egress_metadata, *EGRESS_INTRINSICS))
    shared = list(enumerate(headers, 1))
    name = f"{program.pipe}.snapshot"
    gresses = {
        "egress": (f"{program.pipe}.Egress.Egress", shared + egress),
        "ingress": (f"{program.pipe}.Ingress.Ingress", shared + ingress),
    }
    yield _snapshot_cfg(name, {gress: hashed for gress, (hashed, _) in gresses.items()})
    for gress, (hashed, fields) in gresses.items():
        yield from _snapshot(f"{name}.{gress}", hashed, fields)


def _snapshot_cfg(name: str, hashed: Mapping[str, str]) -> Json:
    thread = scalar_type("string", choices=("INGRESS", "EGRESS", "ALL"))
    mode = scalar_type("string", "INGRESS", ("INGRESS", "GHOST", "INGRESS_GHOST", "ANY"))
    return table_json(
        f"{name}.cfg",
        object_id(SNAPSHOT_CFG, hashed["egress"]),
        "SnapshotCfg",
        STAGES,
        key=[
            key_json(65587, "start_stage", scalar_type("uint32", 0), mandatory=False),
            key_json(65588, "end_stage", scalar_type("uint32", STAGES - 1), mandatory=False),
        ],
        data=[
            single_json(field_json(65591, "timer_enable", scalar_type("bool", False))),
            single_json(field_json(65593, "timer_value_usecs", scalar_type("uint32"))),
            single_json(field_json(65600, "ingress_trigger_mode", mode)),
            single_json(field_json(65620, "thread", thread), mandatory=True),
            *(
                single_json(field_json(id_, f"{gress}_capture", scalar_type("uint32"), repeated=True), read_only=True)
                for id_, gress in ((65621, "ingress"), (65622, "egress"), (65623, "ghost"))
            ),
        ],
        depends_on=[object_id(SNAPSHOT_TRIGGER, full_name) for full_name in hashed.values()],
        annotated=False,
    )


def _snapshot(name: str, hashed: str, fields: list[tuple[int, Field]]) -> Iterator[Json]:
    stage = key_json(65587, "stage", scalar_type("uint32", 0))
    state = scalar_type("string", choices=("PASSIVE", "ARMED", "FULL"))
    trigger = [
        single_json(field_json(65589, "enable", scalar_type("bool", False))),
        single_json(field_json(65590, "trigger_state", state, repeated=True), read_only=True),
    ]
    for number, field in fields:
        trigger.append(single_json(field_json(number, f"trig.{field.name}", bytes_type(field.width))))
        trigger.append(single_json(field_json(0x8000 | number, f"trig.{field.name}_mask", bytes_type(field.width))))
    captured = [
        single_json(field_json(number, field.name, bytes_type(field.width)), read_only=True) for number, field in fields
    ]
    live = single_json(field_json(65619, "valid_stages", scalar_type("uint32"), repeated=True), read_only=True)

    def table(suffix: str, prefix: int, kind: str, size: int, key: Json, data: list[Json]) -> Json:
        return table_json(
            f"{name}_{suffix}", object_id(prefix, hashed), kind, size, key=[key], data=data, annotated=False
        )

    yield table("trigger", SNAPSHOT_TRIGGER, "SnapshotTrigger", STAGES, stage, trigger)
    yield table("data", SNAPSHOT_DATA, "SnapshotData", STAGES, stage, _snapshot_status() + captured)
    field_name = key_json(65618, "field_name", scalar_type("string"))
    yield table("liveness", SNAPSHOT_LIVENESS, "SnapshotLiveness", 0, field_name, [live])


def _snapshot_status() -> list[Json]:
    def entry(id_: int, name: str, kind: str, default: bool | None = None, *, repeated: bool = False) -> Json:
        return single_json(field_json(id_, name, scalar_type(kind, default), repeated=repeated), read_only=True)

    table_info = [
        entry(65611, "table_name", "string"),
        entry(65614, "match_hit_handle", "uint32"),
        entry(65615, "table_hit", "bool"),
        entry(65616, "table_inhibited", "bool"),
        entry(65617, "table_executed", "bool"),
    ]
    alu_info = [entry(65612, "table_name", "string"), entry(65613, "meter_alu_operation_type", "string")]
    return [
        entry(65599, "prev_stage_trigger", "bool", False),
        entry(65592, "timer_trigger", "bool", False),
        entry(65601, "local_stage_trigger", "bool", False),
        entry(65603, "next_table_name", "string"),
        single_json(container_json(65596, "table_info", table_info), read_only=True),
        entry(65604, "enabled_next_tables", "string", repeated=True),
        entry(65605, "global_execute_tables", "string", repeated=True),
        entry(65606, "enabled_global_execute_tables", "string", repeated=True),
        entry(65607, "long_branch_tables", "string", repeated=True),
        entry(65608, "enabled_long_branch_tables", "string", repeated=True),
        entry(65609, "deparser_error", "bool"),
        single_json(container_json(65597, "meter_alu_info", alu_info), read_only=True),
    ]


def _port_metadata(pipe: str) -> Json:
    name = f"{pipe}.IgParser.$PORT_METADATA"
    return table_json(
        name,
        object_id(PORT_METADATA, name),
        "PortMetadata",
        PIPES * PORTS_PER_PIPE,
        key=[key_json(65575, "ig_intr_md.ingress_port", bytes_type(9))],
        data=[single_json(field_json(65576, "$DEFAULT_FIELD", bytes_type(128)))],
    )


def _debug_counters() -> Json:
    kinds = ("DISABLED", "TBL_MISS", "TBL_HIT", "GW_TBL_MISS", "GW_TBL_HIT", "GW_TBL_INHIBIT")
    return table_json(
        "tbl_dbg_counter",
        DEBUG_COUNTER << 24,
        "TblDbgCnt",
        STAGES * TABLES_PER_STAGE,
        key=[key_json(65626, "tbl_name", scalar_type("string"))],
        data=[
            single_json(field_json(65627, "type", scalar_type("string", "TBL_HIT", kinds))),
            single_json(field_json(65628, "value", scalar_type("uint64", 0))),
        ],
        annotated=False,
    )
