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

from collections.abc import Iterable, Iterator

from switch_agent.dataplane.program import (
    Action,
    ActionProfile,
    ActionSelector,
    Counter,
    Hash,
    Key,
    Program,
    Register,
    Sizes,
    Table,
    build_program,
)
from switch_agent.dataplane.schema_debug import debug_tables
from switch_agent.dataplane.schema_parts import (
    Json,
    bytes_type,
    container_json,
    field_json,
    key_json,
    object_hash,
    object_id,
    scalar_type,
    single_json,
    table_json,
)

__all__ = ["action_id", "bfrt_json", "object_hash", "program_json", "table_id"]

# First byte of an id, by the kind of object.
ACTION, MATCH_TABLE, ACTION_PROFILE, SELECTOR, COUNTER, REGISTER = 0x01, 0x02, 0x81, 0x82, 0x83, 0x8B
HASH_CONFIGURE, HASH_COMPUTE, HASH_ALGORITHM, GET_MEMBER = 0x95, 0x96, 0x97, 0x9A

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


def table_id(name: str) -> int:
    """Return the id of a match table from its full name, e.g. ``pipe.Ingress.job_params``."""
    return object_id(MATCH_TABLE, name)


def action_id(name: str) -> int:
    """Return the id of an action from its name without pipe prefix, e.g. ``Ingress.set_params``."""
    return object_id(ACTION, name)


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
    yield from debug_tables(program)


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
            _action_data(number, param.name, bytes_type(param.width), mandatory=True)
            for number, param in enumerate(action.params, 1)
        ],
    }


def _action_specs(actions: Iterable[Action]) -> list[Json]:
    return [_action_spec(action) for action in actions]


def _match_keys(keys: Iterable[Key], *, priority: bool) -> list[Json]:
    fields = [
        key_json(number, key.name, bytes_type(key.width), key.match.value, mandatory=False, is_slice=key.is_slice)
        for number, key in enumerate(keys, 1)
    ]
    if priority:
        fields.append(key_json(MATCH_PRIORITY, "$MATCH_PRIORITY", scalar_type("uint32"), mandatory=False))
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
            object_id(SELECTOR, f"{program.pipe}.{selector.name}"),
            object_id(ACTION_PROFILE, f"{program.pipe}.{selector.profile}"),
        ]
        choice = [
            field_json(ACTION_MEMBER, "$ACTION_MEMBER_ID", scalar_type("uint32")),
            field_json(SELECTOR_GROUP, "$SELECTOR_GROUP_ID", scalar_type("uint32")),
        ]
        data = [{"mandatory": True, "read_only": False, "oneof": choice}]
    return table_json(
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
    return table_json(
        name,
        object_id(ACTION_PROFILE, name),
        "Action",
        profile.size,
        key=[key_json(ACTION_MEMBER, "$ACTION_MEMBER_ID", scalar_type("uint32"))],
        data=[],
        extra={"action_specs": _action_specs(profile.actions)},
    )


def _selector(pipe: str, selector: ActionSelector) -> Iterator[Json]:
    name = f"{pipe}.{selector.name}"
    yield table_json(
        name,
        object_id(SELECTOR, name),
        "Selector",
        selector.groups,
        key=[key_json(SELECTOR_GROUP, "$SELECTOR_GROUP_ID", scalar_type("uint32"))],
        data=[
            single_json(field_json(ACTION_MEMBER, "$ACTION_MEMBER_ID", scalar_type("uint32"), repeated=True)),
            single_json(field_json(65564, "$ACTION_MEMBER_STATUS", scalar_type("bool"), repeated=True)),
            single_json(field_json(65565, "$MAX_GROUP_SIZE", scalar_type("uint32", selector.max_group_size))),
            single_json(field_json(65566, "$ADT_OFFSET", scalar_type("uint32", 0xDEADBEEF))),
        ],
        depends_on=[object_id(ACTION_PROFILE, f"{pipe}.{selector.profile}")],
    )
    yield table_json(
        f"{name}_get_member",
        object_id(GET_MEMBER, name),
        "SelectorGetMember",
        1,
        key=[
            key_json(65563, "$SELECTOR_GROUP_ID", scalar_type("uint64")),
            key_json(65583, "hash_value", scalar_type("uint64")),
        ],
        data=[single_json(field_json(65562, "$ACTION_MEMBER_ID", scalar_type("uint64")))],
        depends_on=[object_id(SELECTOR, name)],
    )


# ---------------------------------------------------------------------------------------- hashes


def _hash(pipe: str, hash_: Hash) -> Iterator[Json]:
    name = f"{pipe}.{hash_.name}"
    configure = object_id(HASH_CONFIGURE, name)
    yield table_json(
        f"{name}.algorithm",
        object_id(HASH_ALGORITHM, name),
        "DynHashAlgorithm",
        1,
        key=[],
        data=[
            single_json(field_json(65577, "rotate", scalar_type("uint32", 0))),
            single_json(field_json(65578, "seed", scalar_type("uint32", 0))),
            single_json(field_json(65579, "msb", scalar_type("bool", False))),
            single_json(field_json(65580, "extend", scalar_type("bool", False))),
        ],
        depends_on=[configure],
        extra={"action_specs": _algorithms()},
    )
    yield table_json(
        f"{name}.configure",
        configure,
        "DynHashConfigure",
        1,
        key=[],
        data=[
            single_json(container_json(number, source.name, _hash_input(source.width)))
            for number, source in enumerate(hash_.inputs, 1)
        ],
    )
    compute = table_json(
        f"{name}.compute",
        object_id(HASH_COMPUTE, name),
        "DynHashCompute",
        1,
        key=[
            key_json(number, source.name, bytes_type(source.width), mandatory=False)
            for number, source in enumerate(hash_.inputs, 1)
        ],
        data=[single_json(field_json(65583, "hash_value", bytes_type(hash_.width)), read_only=True)],
        depends_on=[configure],
    )
    yield compute | {"read_only": True}


def _hash_input(width: int) -> list[Json]:
    return [
        single_json(field_json(65584, "start_bit", scalar_type("uint64", 0))),
        single_json(field_json(65585, "length", scalar_type("uint64", width))),
        single_json(field_json(65586, "order", scalar_type("uint64")), mandatory=True),
    ]


def _algorithms() -> list[Json]:
    def spec(id_: int, name: str, data: list[Json]) -> Json:
        return {"id": id_, "name": name, "action_scope": "TableAndDefault", "annotations": [], "data": data}

    named = scalar_type("string", "RANDOM", ALGORITHMS)
    polynomial = (
        ("reverse", scalar_type("bool", False)),
        ("polynomial", scalar_type("uint64")),
        ("init", scalar_type("uint64", 0)),
        ("final_xor", scalar_type("uint64", 0)),
        ("hash_bit_width", scalar_type("uint64")),
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
        singleton = field_json(number, f"{register.name}.{field.name}", bytes_type(field.width))
        singleton["annotations"] = [{"name": "$bfrt_field_class", "value": "register_data"}]
        data.append(single_json(singleton, mandatory=True))
    return table_json(
        name,
        object_id(REGISTER, name),
        "Register",
        register.size,
        key=[key_json(65557, "$REGISTER_INDEX", scalar_type("uint32"))],
        data=data,
        operations=["Sync"],
        annotated=False,
    )


def _counter(pipe: str, counter: Counter) -> Json:
    name = f"{pipe}.{counter.name}"
    return table_json(
        name,
        object_id(COUNTER, name),
        "Counter",
        counter.size,
        key=[key_json(65556, "$COUNTER_INDEX", scalar_type("uint32"))],
        data=[
            single_json(field_json(65553, "$COUNTER_SPEC_BYTES", scalar_type("uint64", 0))),
            single_json(field_json(65554, "$COUNTER_SPEC_PKTS", scalar_type("uint64", 0))),
        ],
        operations=["Sync"],
    )
