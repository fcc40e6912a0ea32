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


async def test_reconcile_is_unimplemented_and_strangers_cannot_push(lab: Lab, client: Raw) -> None:
    """RECONCILE_AND_WARM_INIT_END: UNIMPLEMENTED; a push before subscribe: UNAVAILABLE."""
    stranger = await lab.client(9)
    for raw, action, code in (
        (client, Set.RECONCILE_AND_WARM_INIT_END, grpc.StatusCode.UNIMPLEMENTED),
        (stranger, Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END, grpc.StatusCode.UNAVAILABLE),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw.set_config(action, [pushed()])
        assert caught.value.code() == code
