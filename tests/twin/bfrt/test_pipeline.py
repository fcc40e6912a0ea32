# SPDX-License-Identifier: Apache-2.0
"""Get and set the forwarding pipeline: what a client learns, and loading programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fabric_twin.bfrt_server import BfRtServer, Info, MemoryBackend, P4Program
from switch_agent import bfrt_proto as p
from switch_agent.dataplane.schema import bfrt_json

if TYPE_CHECKING:
    from conftest import Lab, Raw

Set = p.SetForwardingPipelineConfigRequest
STARTED = p.SetForwardingPipelineConfigResponseType.WARM_INIT_STARTED
FINISHED = p.SetForwardingPipelineConfigResponseType.WARM_INIT_FINISHED
CLEARABLE = (
    *("MatchAction_Direct", "MatchAction_Indirect_Selector", "Action", "Selector", "Register", "Counter"),
    *("DynHashConfigure", "DynHashAlgorithm"),
)
PROTOTYPE = Path(__file__).parents[2] / "data" / "symphony-prototype.bf-rt.json"


def pushed(name: str = "symphony", document: Any = None) -> p.ForwardingPipelineConfig:
    """A complete config to push."""
    info = json.dumps(document or bfrt_json()).encode()
    config = p.ForwardingPipelineConfig(p4_name=name, bfruntime_info=info)
    config.profiles.add(profile_name="pipe", context=b"{}", binary=b"tofino2.bin", pipe_scope=[0, 1, 2, 3])
    return config


async def notice(raw: Raw) -> p.SetForwardingPipelineConfigResponseType:
    """The type of the next message of the stream, which must be a pipeline notice."""
    message = await raw.next_message()
    assert message.WhichOneof("update") == "set_forwarding_pipeline_config_response"
    return message.set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type


async def test_a_client_learns_program_and_fixed_tables_without_subscribing(lab: Lab) -> None:
    """bf-rt.json of the program, one profile over all pipes, and the fixed tables apart."""
    answer = await (await lab.client(3)).config()
    assert [config.p4_name for config in answer.config] == ["symphony"]
    assert json.loads(answer.config[0].bfruntime_info) == bfrt_json()
    assert list(answer.config[0].profiles[0].pipe_scope) == [0, 1, 2, 3]
    names = {table["name"] for table in json.loads(answer.non_p4_config.bfruntime_info)["tables"]}
    assert names == {"$PORT", "$PORT_STAT", "tf2.dev.device_configuration", "tf2.tm.counter.queue"}


async def test_any_program_s_json_can_be_served(lab: Lab) -> None:
    """The compiler's own output for the prototype, without knowing defaults."""
    program = P4Program("prototype", Info.from_bytes(PROTOTYPE.read_bytes()))
    backend = MemoryBackend(program)
    async with BfRtServer(backend, program, port=0) as server:
        lab.server = server
        raw = await lab.client(p4_name="prototype")
        await raw.insert(raw.n.index("steps", 1, mn=4, mx=5))
        assert await raw.register("steps", 1) == {"Ingress.steps.mn": [4] * 4, "Ingress.steps.mx": [5] * 4}
        assert await raw.read(raw.n.entry("job_params")) == []


async def test_begin_and_end_resets_the_device_and_tells_every_client(client: Raw, lab: Lab) -> None:
    """STARTED, then FINISHED, also to clients that are not bound; entries and registers are gone."""
    other = await lab.client(8)
    await other.subscribe()
    await client.insert(client.n.index("alpha", 7, f1=70))
    hop = client.n.entry("nexthop", client.n.key("nexthop", S_ACTION_MEMBER_ID=1), client.n.data("nexthop", "drop"))
    await client.insert(hop)
    await client.set_config(Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END, [pushed()])
    for raw in (client, other):
        assert [await notice(raw), await notice(raw)] == [STARTED, FINISHED]
    assert (await client.register("alpha", 7))["Ingress.alpha.f1"] == [0] * 4
    assert lab.server.snapshot("nexthop").entries == ()
    assert lab.backend.tables["nexthop"].entries == ()


async def test_begin_and_end_in_two_steps(client: Raw) -> None:
    """WARM_INIT_END carries no config and needs a begin."""
    for config in ([], [pushed()]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.set_config(Set.WARM_INIT_END, config)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await client.set_config(Set.VERIFY_AND_WARM_INIT_BEGIN, [pushed()])
    assert await notice(client) == STARTED
    await client.set_config(Set.WARM_INIT_END, [])
    assert await notice(client) == FINISHED


async def test_a_client_whose_program_vanished_is_cancelled(client: Raw, lab: Lab) -> None:
    """Another program is loaded: the bound client's stream ends, the pusher owns nothing yet."""
    pusher = await lab.client(8)
    await pusher.subscribe()
    prototype = json.loads(PROTOTYPE.read_bytes())
    await pusher.set_config(Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END, [pushed("prototype", prototype)])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [await client.next_message() for _ in range(3)]
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    await pusher.bind("prototype")
    await pusher.learn()
    assert len(await pusher.read(pusher.n.entry("steps"))) == 1024


class OneProgram:
    """The memory backend without ``load``, as the twin's switches are."""

    def __init__(self, memory: MemoryBackend) -> None:
        self.name, self.num_pipes = memory.name, memory.num_pipes
        self.read_register, self.write_register = memory.read_register, memory.write_register
        self.clear_register, self.read_registers = memory.clear_register, memory.read_registers
        self.read_counter, self.write_counter = memory.read_counter, memory.write_counter
        self.read_counters, self.table_changed = memory.read_counters, memory.table_changed


async def test_a_backend_for_one_program_refuses_another(lab: Lab) -> None:
    """The twin's data plane cannot become another program; pushing its own again resets it."""
    program = P4Program.from_description()
    async with BfRtServer(OneProgram(MemoryBackend(program)), program, port=0) as server:
        lab.server = server
        raw = await lab.client(0, bound=True)
        other = pushed("other", json.loads(PROTOTYPE.read_bytes()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw.set_config(Set.VERIFY_AND_WARM_INIT_BEGIN, [other])
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "can run symphony" in (caught.value.details() or "")
        await raw.insert(raw.n.index("alpha", 7, f1=70))
        await raw.set_config(Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END, [pushed()])
        assert (await raw.register("alpha", 7))["Ingress.alpha.f1"] == [1] * 4


@pytest.mark.parametrize(
    "spoil",
    [
        lambda config: config.ClearField("p4_name"),
        lambda config: config.ClearField("profiles"),
        lambda config: config.profiles[0].ClearField("binary"),
        lambda config: setattr(config, "bfruntime_info", b"{"),
        lambda config: setattr(config, "bfruntime_info", b"[]"),
        lambda config: setattr(config, "bfruntime_info", b'{"tables": [{"name": "x"}]}'),
    ],
    ids=["no-name", "no-profile", "no-binary", "no-json", "no-object", "no-table"],
)
async def test_verify_refuses_incomplete_configs_and_changes_nothing(client: Raw, spoil: Any) -> None:
    """INVALID_ARGUMENT; the good one passes."""
    await client.insert(client.n.index("alpha", 7, f1=70))
    await client.set_config(Set.VERIFY, [pushed()])
    config = pushed()
    spoil(config)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.set_config(Set.VERIFY, [config])
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (await client.register("alpha", 7))["Ingress.alpha.f1"] == [70] * 4


async def test_reconcile_is_unimplemented(client: Raw) -> None:
    """RECONCILE_AND_WARM_INIT_END."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.set_config(Set.RECONCILE_AND_WARM_INIT_END, [pushed()])
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_without_a_stream_may_push(lab: Lab, client: Raw) -> None:
    """An independent client; the subscribed ones are told."""
    stranger = await lab.client(9)
    await stranger.set_config(Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END, [pushed()])
    assert [await notice(client), await notice(client)] == [STARTED, FINISHED]


async def test_pushing_back_what_get_shows_clears_the_switch(lab: Lab, client: Raw) -> None:
    """clear_all_tables() of the SDE's client: same config back, all tables, registers and scopes as after a start."""
    await client.insert(client.n.index("steps", 1, mn=4, mx=5))
    single = p.TableAttribute(table_id=client.n.id("job_params"))
    single.entry_scope.pipe_scope.predef = p.Mode.SINGLE
    await client.write(p.Update(type=p.Update.INSERT, entity=p.Entity(table_attribute=single)))
    route = client.n.key("ipv4_lpm", hdr__ipv4__dst=("lpm", 0x0A000000, 8))
    member = client.n.key("nexthop", S_ACTION_MEMBER_ID=1)
    forward = dict.fromkeys(("port", "smac", "dmac", "port_index"), 1)
    await client.insert(
        client.n.entry("nexthop", member, client.n.data("nexthop", "forward", **forward)),
        client.n.entry("ipv4_lpm", route, client.n.data("ipv4_lpm", S_ACTION_MEMBER_ID=1)),
    )
    await client.set_config(Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END, list((await client.config()).config))
    assert [await notice(client), await notice(client)] == [STARTED, FINISHED]
    assert await client.register("steps", 1) == {"Ingress.steps.mn": [0] * 4, "Ingress.steps.mx": [0] * 4}
    for table in ("nexthop", "ipv4_lpm"):
        assert not lab.backend.tables[table].entries
    assert lab.backend.tables["job_params"].pipes == ()
    ask = p.TableAttribute(table_id=client.n.id("job_params"), entry_scope=p.EntryScope())
    shown = (await client.read(p.Entity(table_attribute=ask)))[0].table_attribute.entry_scope
    assert shown.pipe_scope.predef == p.Mode.ALL


async def test_a_client_can_empty_all_tables_one_by_one(client: Raw, lab: Lab) -> None:
    """What users do instead, in the order of the tables' dependencies: users first, then groups, then members."""
    route = client.n.key("ipv4_lpm", hdr__ipv4__dst=("lpm", 0x0A000000, 8))
    member = client.n.key("nexthop", S_ACTION_MEMBER_ID=1)
    group = client.n.data("ecmp", S_ACTION_MEMBER_ID=[1], S_ACTION_MEMBER_STATUS=[True])
    forward = dict.fromkeys(("port", "smac", "dmac", "port_index"), 1)
    await client.insert(
        client.n.entry("nexthop", member, client.n.data("nexthop", "forward", **forward)),
        client.n.entry("ecmp", client.n.key("ecmp", S_SELECTOR_GROUP_ID=1), group),
        client.n.entry("ipv4_lpm", route, client.n.data("ipv4_lpm", S_SELECTOR_GROUP_ID=1)),
    )
    tables = [
        t for n, t in client.n.tables.items() if t["table_type"] in CLEARABLE and "ConstTable" not in t["attributes"]
    ]
    order: list[int] = []

    def visit(table: Any) -> None:
        for user in tables:
            if table["id"] in user["depends_on"]:
                visit(user)
        if table["id"] not in order:
            order.append(table["id"])

    for table in tables:
        visit(table)
    for table_id in order:
        await client.write(lab.put(p.TableEntry(table_id=table_id), p.Update.DELETE))
    for table in ("nexthop", "ecmp", "ipv4_lpm"):
        assert not lab.backend.tables[table].entries
