# SPDX-License-Identifier: Apache-2.0
"""The ``bf-rt.json`` of the switch program, as the Tofino compiler writes it.

``bfrt_json()`` gives the JSON document of the program in ``program.py``; the twin's BF-Runtime server shows
it, so a client sees the same tables, fields and ids on the twin and on a Tofino2. A test compares it
with what the compiler wrote for the prototype, value for value.

Ids: objects of the program get ``prefix << 24 | jenkins_one_at_a_time(name) & 0xffffff``, where the name has
the ``pipe.`` prefix for everything but actions; the tables derived from a selector or a hash share its hash
and differ in the prefix. Fields of the program count from 1; the generic ``$`` fields have fixed ids from
65537 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from switch_agent.dataplane.program import (
    Action,
    ActionProfile,
    ActionSelector,
    Counter,
    Field,
    Hash,
    Header,
    Key,
    Program,
    Register,
    Sizes,
    Table,
    build_program,
)

__all__ = ["action_id", "bfrt_json", "object_hash", "program_json", "table_id"]

Json = dict[str, Any]

STAGES = 20  # match-action stages of a Tofino2 pipe
TABLES_PER_STAGE = 16
PORTS_PER_PIPE = 72

# First byte of an id, by the kind of object.
ACTION, MATCH_TABLE, ACTION_PROFILE, SELECTOR, COUNTER, REGISTER = 0x01, 0x02, 0x81, 0x82, 0x83, 0x8B
PORT_METADATA, SNAPSHOT_CFG, SNAPSHOT_TRIGGER, SNAPSHOT_DATA, SNAPSHOT_LIVENESS = 0x90, 0x91, 0x92, 0x93, 0x94
HASH_CONFIGURE, HASH_COMPUTE, HASH_ALGORITHM, DEBUG_COUNTER, GET_MEMBER = 0x95, 0x96, 0x97, 0x99, 0x9A

MATCH_PRIORITY, ACTION_MEMBER, SELECTOR_GROUP = 65537, 65539, 65540  # ids of generic fields used twice

ALGORITHMS = (
    "IDENTITY",
    "RANDOM",
    "XOR",
    *("CRC_8", "CRC_8_DARC", "CRC_8_I_CODE", "CRC_8_ITU", "CRC_8_MAXIM", "CRC_8_ROHC", "CRC_8_WCDMA"),
    *("CRC_16", "CRC_16_BYPASS", "CRC_16_DDS_110", "CRC_16_DECT", "CRC_16_DECT_R", "CRC_16_DECT_X"),
    *("CRC_16_DNP", "CRC_16_EN_13757", "CRC_16_GENIBUS", "CRC_16_MAXIM", "CRC_16_MCRF4XX", "CRC_16_RIELLO"),
    *("CRC_16_T10_DIF", "CRC_16_TELEDISK", "CRC_16_USB", "X_25", "XMODEM", "MODBUS", "KERMIT"),
    *("CRC_CCITT_FALSE", "CRC_AUG_CCITT", "CRC_32", "CRC_32_BZIP2", "CRC_32C", "CRC_32D", "CRC_32_MPEG"),
    *("POSIX", "CRC_32Q", "JAMCRC", "XFER", "CRC_64", "CRC_64_GO_ISO", "CRC_64_WE", "CRC_64_JONES"),
)

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
        f"drop_ctl:3 digest_type:3 resubmit_type:3 {_MIRROR.format('')} "
        "pktgen:1 pktgen_address:14 pktgen_length:10",
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


def object_hash(name: str) -> int:
    """Return the low 24 bits of Bob Jenkins' one-at-a-time hash of a name, the tail of BF-Runtime ids."""
    value = 0
    for byte in name.encode():
        value = (value + byte) * 1025 & 0xFFFFFFFF  # value += byte; value += value << 10
        value ^= value >> 6
    value = value * 9 & 0xFFFFFFFF
    value ^= value >> 11
    return value * 32769 & 0xFFFFFF


def _id(prefix: int, name: str) -> int:
    return prefix << 24 | object_hash(name)


def table_id(name: str) -> int:
    """Return the id of a match table from its full name, e.g. ``pipe.Ingress.job_params``."""
    return _id(MATCH_TABLE, name)


def action_id(name: str) -> int:
    """Return the id of an action from its name without pipe prefix, e.g. ``Ingress.set_params``."""
    return _id(ACTION, name)


def bfrt_json(sizes: Sizes | None = None) -> Json:
    """Return the bf-rt.json of the program compiled with these sizes (default: those of the P4 text)."""
    return program_json(build_program(sizes))


def program_json(program: Program) -> Json:
    """Return the bf-rt.json document of any program description, tables in the compiler's order."""
    return {"schema_version": "1.0.0", "tables": list(_tables(program)), "learn_filters": []}


def _tables(program: Program) -> Iterator[Json]:
    pipe = program.pipe
    for table in program.tables:
        yield _match_table(program, table)
    for profile in program.profiles:
        yield _action_profile(pipe, profile)
    for selector in program.selectors:
        yield from _selector(pipe, selector)
    for hash_ in program.hashes:
        yield from _hash(pipe, hash_)
    for register in program.registers:
        yield _register(pipe, register)
    for counter in program.counters:
        yield _counter(pipe, counter)
    yield from _snapshots(program)
    yield _port_metadata(pipe)
    yield _debug_counters()


# ---------------------------------------------------------------------------------------- building blocks


def _bytes(width: int) -> Json:
    return {"type": "bytes", "width": width}


def _value(kind: str, default: bool | int | str | None = None, choices: Iterable[str] = ()) -> Json:
    value: Json = {"type": kind}
    if chosen := list(choices):
        value["choices"] = chosen
    if default is not None:
        value["default_value"] = default
    return value


def _table(
    name: str,
    id_: int,
    kind: str,
    size: int,
    *,
    key: list[Json],
    data: list[Json],
    depends_on: Iterable[int] = (),
    operations: Iterable[str] = (),
    attributes: Iterable[str] = (),
    annotated: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> Json:
    table: Json = {"name": name, "id": id_, "table_type": kind, "size": size}
    if annotated:
        table["annotations"] = []
    table |= {"depends_on": list(depends_on)}
    table |= extra or {}
    table |= {"key": key, "data": data}
    return table | {"supported_operations": list(operations), "attributes": list(attributes)}


def _key(
    id_: int, name: str, type_: Json, match: str = "Exact", *, mandatory: bool = True, is_slice: bool = False
) -> Json:
    return {
        "id": id_,
        "name": name,
        "repeated": False,
        "annotations": [{"name": "isFieldSlice", "value": "true"}] if is_slice else [],
        "mandatory": mandatory,
        "match_type": match,
        "type": type_,
    }


def _field(id_: int, name: str, type_: Json, *, repeated: bool = False) -> Json:
    return {"id": id_, "name": name, "repeated": repeated, "annotations": [], "type": type_}


def _container(id_: int, name: str, fields: list[Json]) -> Json:
    return {"id": id_, "name": name, "repeated": True, "annotations": [], "container": fields}


def _single(field: Json, *, mandatory: bool = False, read_only: bool = False) -> Json:
    return {"mandatory": mandatory, "read_only": read_only, "singleton": field}


# ---------------------------------------------------------------------------------------- match tables


def _action_data(id_: int, name: str, type_: Json, *, mandatory: bool) -> Json:
    return {
        "id": id_,
        "name": name,
        "repeated": False,
        "mandatory": mandatory,
        "read_only": False,
        "annotations": [],
        "type": type_,
    }


def _action_spec(action: Action, *, default_only: bool = False) -> Json:
    return {
        "id": action_id(action.name),
        "name": action.name,
        "action_scope": "DefaultOnly" if default_only else "TableAndDefault",
        "annotations": [{"name": "@defaultonly"}] if default_only else [],
        "data": [
            _action_data(number, param.name, _bytes(param.width), mandatory=True)
            for number, param in enumerate(action.params, 1)
        ],
    }


def _action_specs(actions: Iterable[Action]) -> list[Json]:
    return [_action_spec(action) for action in actions]


def _match_keys(keys: Iterable[Key], *, priority: bool) -> list[Json]:
    fields = [
        _key(number, key.name, _bytes(key.width), key.match.value, mandatory=False, is_slice=key.is_slice)
        for number, key in enumerate(keys, 1)
    ]
    if priority:
        fields.append(_key(MATCH_PRIORITY, "$MATCH_PRIORITY", _value("uint32"), mandatory=False))
    return fields


def _match_table(program: Program, table: Table) -> Json:
    name = f"{program.pipe}.{table.name}"
    extra: Json = {"has_const_default_action": table.const_default}
    data: list[Json] = []
    depends_on: list[int] = []
    kind = "MatchAction_Direct"
    if table.selector is None:
        specs = _action_specs(table.actions)
        if all(action.name != table.default_action for action in table.actions):
            # The front end adds NoAction where a table names no default.
            specs.append(_action_spec(Action(table.default_action), default_only=True))
        extra["action_specs"] = specs
    else:
        kind = "MatchAction_Indirect_Selector"
        selector = program.selector(table.selector)
        depends_on = [
            _id(SELECTOR, f"{program.pipe}.{selector.name}"),
            _id(ACTION_PROFILE, f"{program.pipe}.{selector.profile}"),
        ]
        choice = [
            _field(ACTION_MEMBER, "$ACTION_MEMBER_ID", _value("uint32")),
            _field(SELECTOR_GROUP, "$SELECTOR_GROUP_ID", _value("uint32")),
        ]
        data = [{"mandatory": True, "read_only": False, "oneof": choice}]
    return _table(
        name,
        table_id(name),
        kind,
        table.size,
        key=_match_keys(table.keys, priority=table.has_priority),
        data=data,
        depends_on=depends_on,
        attributes=["EntryScope", "ConstTable"] if table.const_entries else ["EntryScope"],
        extra=extra,
    )


# ---------------------------------------------------------------------------------------- ECMP


def _action_profile(pipe: str, profile: ActionProfile) -> Json:
    name = f"{pipe}.{profile.name}"
    return _table(
        name,
        _id(ACTION_PROFILE, name),
        "Action",
        profile.size,
        key=[_key(ACTION_MEMBER, "$ACTION_MEMBER_ID", _value("uint32"))],
        data=[],
        extra={"action_specs": _action_specs(profile.actions)},
    )


def _selector(pipe: str, selector: ActionSelector) -> Iterator[Json]:
    name = f"{pipe}.{selector.name}"
    yield _table(
        name,
        _id(SELECTOR, name),
        "Selector",
        selector.groups,
        key=[_key(SELECTOR_GROUP, "$SELECTOR_GROUP_ID", _value("uint32"))],
        data=[
            _single(_field(ACTION_MEMBER, "$ACTION_MEMBER_ID", _value("uint32"), repeated=True)),
            _single(_field(65564, "$ACTION_MEMBER_STATUS", _value("bool"), repeated=True)),
            _single(_field(65565, "$MAX_GROUP_SIZE", _value("uint32", selector.max_group_size))),
            _single(_field(65566, "$ADT_OFFSET", _value("uint32", 0xDEADBEEF))),
        ],
        depends_on=[_id(ACTION_PROFILE, f"{pipe}.{selector.profile}")],
    )
    yield _table(
        f"{name}_get_member",
        _id(GET_MEMBER, name),
        "SelectorGetMember",
        1,
        key=[
            _key(65563, "$SELECTOR_GROUP_ID", _value("uint64")),
            _key(65583, "hash_value", _value("uint64")),
        ],
        data=[_single(_field(65562, "$ACTION_MEMBER_ID", _value("uint64")))],
        depends_on=[_id(SELECTOR, name)],
    )


# ---------------------------------------------------------------------------------------- hashes


def _hash(pipe: str, hash_: Hash) -> Iterator[Json]:
    name = f"{pipe}.{hash_.name}"
    configure = _id(HASH_CONFIGURE, name)
    yield _table(
        f"{name}.algorithm",
        _id(HASH_ALGORITHM, name),
        "DynHashAlgorithm",
        1,
        key=[],
        data=[
            _single(_field(65577, "rotate", _value("uint32", 0))),
            _single(_field(65578, "seed", _value("uint32", 0))),
            _single(_field(65579, "msb", _value("bool", False))),
            _single(_field(65580, "extend", _value("bool", False))),
        ],
        depends_on=[configure],
        extra={"action_specs": _algorithms()},
    )
    yield _table(
        f"{name}.configure",
        configure,
        "DynHashConfigure",
        1,
        key=[],
        data=[
            _single(_container(number, source.name, _hash_input(source.width)))
            for number, source in enumerate(hash_.inputs, 1)
        ],
    )
    compute = _table(
        f"{name}.compute",
        _id(HASH_COMPUTE, name),
        "DynHashCompute",
        1,
        key=[
            _key(number, source.name, _bytes(source.width), mandatory=False)
            for number, source in enumerate(hash_.inputs, 1)
        ],
        data=[_single(_field(65583, "hash_value", _bytes(hash_.width)), read_only=True)],
        depends_on=[configure],
    )
    yield compute | {"read_only": True}


def _hash_input(width: int) -> list[Json]:
    return [
        _single(_field(65584, "start_bit", _value("uint64", 0))),
        _single(_field(65585, "length", _value("uint64", width))),
        _single(_field(65586, "order", _value("uint64")), mandatory=True),
    ]


def _algorithms() -> list[Json]:
    def spec(id_: int, name: str, data: list[Json]) -> Json:
        return {"id": id_, "name": name, "action_scope": "TableAndDefault", "annotations": [], "data": data}

    named = _value("string", "RANDOM", ALGORITHMS)
    polynomial = (
        ("reverse", _value("bool", False)),
        ("polynomial", _value("uint64")),
        ("init", _value("uint64", 0)),
        ("final_xor", _value("uint64", 0)),
        ("hash_bit_width", _value("uint64")),
    )
    return [
        spec(65581, "pre_defined", [_action_data(1, "algorithm_name", named, mandatory=False)]),
        spec(
            65582,
            "user_defined",
            [
                _action_data(number, name, type_, mandatory=name == "polynomial")
                for number, (name, type_) in enumerate(polynomial, 1)
            ],
        ),
    ]


# ---------------------------------------------------------------------------------------- registers, counters


def _register(pipe: str, register: Register) -> Json:
    name = f"{pipe}.{register.name}"
    data = []
    for number, field in enumerate(register.fields, 1):
        singleton = _field(number, f"{register.name}.{field.name}", _bytes(field.width))
        singleton["annotations"] = [{"name": "$bfrt_field_class", "value": "register_data"}]
        data.append(_single(singleton, mandatory=True))
    return _table(
        name,
        _id(REGISTER, name),
        "Register",
        register.size,
        key=[_key(65557, "$REGISTER_INDEX", _value("uint32"))],
        data=data,
        operations=["Sync"],
        annotated=False,
    )


def _counter(pipe: str, counter: Counter) -> Json:
    name = f"{pipe}.{counter.name}"
    return _table(
        name,
        _id(COUNTER, name),
        "Counter",
        counter.size,
        key=[_key(65556, "$COUNTER_INDEX", _value("uint32"))],
        data=[
            _single(_field(65553, "$COUNTER_SPEC_BYTES", _value("uint64", 0))),
            _single(_field(65554, "$COUNTER_SPEC_PKTS", _value("uint64", 0))),
        ],
        operations=["Sync"],
    )


# ---------------------------------------------------------------------------------------- debug tables


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
    thread = _value("string", choices=("INGRESS", "EGRESS", "ALL"))
    mode = _value("string", "INGRESS", ("INGRESS", "GHOST", "INGRESS_GHOST", "ANY"))
    return _table(
        f"{name}.cfg",
        _id(SNAPSHOT_CFG, hashed["egress"]),
        "SnapshotCfg",
        STAGES,
        key=[
            _key(65587, "start_stage", _value("uint32", 0), mandatory=False),
            _key(65588, "end_stage", _value("uint32", STAGES - 1), mandatory=False),
        ],
        data=[
            _single(_field(65591, "timer_enable", _value("bool", False))),
            _single(_field(65593, "timer_value_usecs", _value("uint32"))),
            _single(_field(65600, "ingress_trigger_mode", mode)),
            _single(_field(65620, "thread", thread), mandatory=True),
            *(
                _single(_field(id_, f"{gress}_capture", _value("uint32"), repeated=True), read_only=True)
                for id_, gress in ((65621, "ingress"), (65622, "egress"), (65623, "ghost"))
            ),
        ],
        depends_on=[_id(SNAPSHOT_TRIGGER, full_name) for full_name in hashed.values()],
        annotated=False,
    )


def _snapshot(name: str, hashed: str, fields: list[tuple[int, Field]]) -> Iterator[Json]:
    stage = _key(65587, "stage", _value("uint32", 0))
    state = _value("string", choices=("PASSIVE", "ARMED", "FULL"))
    trigger = [
        _single(_field(65589, "enable", _value("bool", False))),
        _single(_field(65590, "trigger_state", state, repeated=True), read_only=True),
    ]
    for number, field in fields:
        trigger.append(_single(_field(number, f"trig.{field.name}", _bytes(field.width))))
        trigger.append(_single(_field(0x8000 | number, f"trig.{field.name}_mask", _bytes(field.width))))
    captured = [
        _single(_field(number, field.name, _bytes(field.width)), read_only=True) for number, field in fields
    ]
    live = _single(_field(65619, "valid_stages", _value("uint32"), repeated=True), read_only=True)

    def table(suffix: str, prefix: int, kind: str, size: int, key: Json, data: list[Json]) -> Json:
        return _table(
            f"{name}_{suffix}", _id(prefix, hashed), kind, size, key=[key], data=data, annotated=False
        )

    yield table("trigger", SNAPSHOT_TRIGGER, "SnapshotTrigger", STAGES, stage, trigger)
    yield table("data", SNAPSHOT_DATA, "SnapshotData", STAGES, stage, _snapshot_status() + captured)
    field_name = _key(65618, "field_name", _value("string"))
    yield table("liveness", SNAPSHOT_LIVENESS, "SnapshotLiveness", 0, field_name, [live])


def _snapshot_status() -> list[Json]:
    def entry(id_: int, name: str, kind: str, default: bool | None = None, *, repeated: bool = False) -> Json:
        return _single(_field(id_, name, _value(kind, default), repeated=repeated), read_only=True)

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
        _single(_container(65596, "table_info", table_info), read_only=True),
        entry(65604, "enabled_next_tables", "string", repeated=True),
        entry(65605, "global_execute_tables", "string", repeated=True),
        entry(65606, "enabled_global_execute_tables", "string", repeated=True),
        entry(65607, "long_branch_tables", "string", repeated=True),
        entry(65608, "enabled_long_branch_tables", "string", repeated=True),
        entry(65609, "deparser_error", "bool"),
        _single(_container(65597, "meter_alu_info", alu_info), read_only=True),
    ]


def _port_metadata(pipe: str) -> Json:
    name = f"{pipe}.IgParser.$PORT_METADATA"
    return _table(
        name,
        _id(PORT_METADATA, name),
        "PortMetadata",
        4 * PORTS_PER_PIPE,
        key=[_key(65575, "ig_intr_md.ingress_port", _bytes(9))],
        data=[_single(_field(65576, "$DEFAULT_FIELD", _bytes(128)))],
    )


def _debug_counters() -> Json:
    kinds = ("DISABLED", "TBL_MISS", "TBL_HIT", "GW_TBL_MISS", "GW_TBL_HIT", "GW_TBL_INHIBIT")
    return _table(
        "tbl_dbg_counter",
        DEBUG_COUNTER << 24,
        "TblDbgCnt",
        STAGES * TABLES_PER_STAGE,
        key=[_key(65626, "tbl_name", _value("string"))],
        data=[
            _single(_field(65627, "type", _value("string", "TBL_HIT", kinds))),
            _single(_field(65628, "value", _value("uint64", 0))),
        ],
        annotated=False,
    )
