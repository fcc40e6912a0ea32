# SPDX-License-Identifier: Apache-2.0
"""The three tables of a Hash: which inputs, which algorithm, and what comes out."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program, SwitchBackend
from fabric_twin.bfrt_server.crc import PREDEFINED, Crc
from switch_agent import bfrt_proto as p
from switch_agent.dataplane.hashes import flow_signature, flow_slot

if TYPE_CHECKING:
    from conftest import Lab, Raw

SRC, DST, QPN, SPORT = "ig_md.flow_src", "ig_md.flow_dst", "hdr.bth.qpn", "hdr.udp.sport"
FLOW = {SRC: 0x0A000001, DST: 0x0A000102, QPN: 0x1234, SPORT: 0xC007}
CHECK = {
    "CRC_8": 0xF4,
    "CRC_16": 0xBB3D,
    "CRC_32": 0xCBF43926,
    "CRC_32C": 0xE3069283,
    "CRC_64_GO_ISO": 0xB90956C775A41001,
}


async def refused(lab: Lab, call: Any) -> list[int]:
    """Canonical codes of a failing batch."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return lab.failure(caught.value).codes


async def computed(raw: Raw, name: str = "sig_hash", more: Mapping[str, int] | None = None) -> int:
    """hash_value of the flow, with some inputs changed."""
    table = f"{name}.compute"
    wanted = {node["name"] for node in raw.n.table(table)["key"]}
    key = raw.n.fields(table, {field: v for field, v in {**FLOW, **(more or {})}.items() if field in wanted})
    answer = raw.n.show((await raw.read(raw.n.entry(table, key)))[0])
    value: int = answer["hash_value"][0]
    return value


def default_of(raw: Raw, table: str, data: p.TableData | None = None) -> p.TableEntry:
    """The default entry of a table."""
    entry = raw.n.entry(table, None, data)
    entry.is_default_entry = True
    return entry


def slices(raw: Raw, inputs: Mapping[str, Sequence[Mapping[str, int]]]) -> p.Update:
    """The update that sets these slices of ``sig_hash``."""
    table = "sig_hash.configure"
    nodes = {node["name"]: node for node in raw.n.data_nodes(table)}
    data = p.TableData()
    for name, records in inputs.items():
        inner = {field["singleton"]["name"]: field["singleton"]["id"] for field in nodes[name]["container"]}
        field = data.fields.add(field_id=nodes[name]["id"])
        field.container_arr_val.SetInParent()
        for record in records:
            container = field.container_arr_val.container.add()
            for key, value in record.items():
                container.val.add(field_id=inner[key], stream=value.to_bytes(8, "big"))
    return p.Update(type=p.Update.MODIFY, entity=p.Entity(table_entry=default_of(raw, table, data)))


def algorithm(raw: Raw, action: str, **values: Any) -> p.Update:
    """The update that sets the algorithm of ``sig_hash``."""
    entry = default_of(raw, "sig_hash.algorithm", raw.n.data("sig_hash.algorithm", action, **values))
    return p.Update(type=p.Update.MODIFY, entity=p.Entity(table_entry=entry))


async def shown_slices(raw: Raw) -> dict[str, list[tuple[int, int, int]]]:
    """Input -> (start_bit, length, order) of its slices, as a read shows them."""
    table = "sig_hash.configure"
    entry = (await raw.read(default_of(raw, table)))[0].table_entry
    names = {node["id"]: node["name"] for node in raw.n.data_nodes(table)}
    return {
        names[field.field_id]: [
            tuple(int.from_bytes(inner.stream, "big") for inner in container.val)  # type: ignore[misc]
            for container in field.container_arr_val.container
        ]
        for field in entry.data.fields
    }


@pytest.mark.parametrize(("name", "check"), CHECK.items())
def test_the_check_values_of_the_crc_catalogue_come_out(name: str, check: int) -> None:
    """The CRC of "123456789"."""
    assert PREDEFINED[name].of(b"123456789") == check


def test_a_crc_of_odd_width() -> None:
    """CRC-5/USB, by its parameters."""
    assert Crc(5, 0x05, True, 0x1F, 0x1F).of(b"123456789") == 0x19


async def test_the_program_s_hashes_are_those_of_the_data_plane(client: Raw) -> None:
    """Signature and slot of a flow; the slot has 14 bits; absent inputs are 0."""
    assert await computed(client) == flow_signature(FLOW[SRC], FLOW[DST], FLOW[QPN], FLOW[SPORT])
    assert await computed(client, "slot_hash") == flow_slot(FLOW[SRC], FLOW[DST], FLOW[QPN])
    empty = client.n.entry("sig_hash.compute", p.TableKey())
    assert client.n.show((await client.read(empty))[0])["hash_value"] == [zlib.crc32(bytes(13))]


async def test_after_a_start_all_inputs_enter_in_the_program_s_order(client: Raw) -> None:
    """And the algorithm is the one of the P4 text, whose seed is the hash of zeros."""
    assert await shown_slices(client) == {SRC: [(0, 32, 1)], DST: [(0, 32, 2)], QPN: [(0, 24, 3)], SPORT: [(0, 16, 4)]}
    entity = (await client.read(default_of(client, "sig_hash.algorithm")))[0]
    expected = {
        "algorithm_name": "CRC_32",
        "rotate": [0],
        "seed": [zlib.crc32(bytes(13))],
        "msb": False,
        "extend": False,
    }
    assert client.n.show(entity) == expected


async def test_chosen_slices_enter_in_their_order_and_the_rest_does_not(client: Raw, lab: Lab) -> None:
    """Length is cut at the end of the input, start is 0 and length all of it unless given."""
    await client.write(slices(client, {QPN: [{"order": 1}], SRC: [{"start_bit": 24, "length": 99, "order": 2}]}))
    assert await shown_slices(client) == {QPN: [(0, 24, 1)], SRC: [(24, 8, 2)], DST: [(0, 32, 0)], SPORT: [(0, 16, 0)]}
    assert await computed(client) == zlib.crc32(bytes([0x00, 0x12, 0x34, 0x0A]))
    assert await computed(client, more={DST: 1, SPORT: 2}) == await computed(client)
    assert [part.order for part in lab.backend.hashes["sig_hash"].slices] == [1, 2]
    await client.write(lab.put(client.n.entry("sig_hash.configure"), p.Update.DELETE))
    assert await computed(client) == flow_signature(FLOW[SRC], FLOW[DST], FLOW[QPN], FLOW[SPORT])


@pytest.mark.parametrize(
    "wrong",
    [
        {SRC: [{"start_bit": 32, "order": 1}]},
        {SRC: [{"length": 9, "order": 1}, {"start_bit": 8, "length": 4, "order": 2}]},
        {SRC: [{"length": 8, "order": 1}], DST: [{"length": 9, "order": 1}]},
        {SRC: [{"length": 8, "order": 1}, {"start_bit": 8, "length": 8, "order": 1}], DST: [{"length": 8, "order": 1}]},
        {SRC: [{"length": 8}]},
    ],
    ids=["start-beyond-input", "overlap", "order-with-two-lengths", "three-of-one-order", "no-order"],
)
async def test_slices_that_make_no_sense_are_refused(client: Raw, lab: Lab, wrong: Any) -> None:
    """INVALID_ARGUMENT, and the hash stays."""
    assert await refused(lab, client.write(slices(client, wrong))) == [3]
    assert (await shown_slices(client))[SRC] == [(0, 32, 1)]


async def test_a_seed_is_xored_to_the_linear_part(client: Raw) -> None:
    """Alone it leaves the algorithm; a new algorithm brings its own."""
    before = await computed(client)
    await client.write(algorithm(client, "pre_defined", seed=zlib.crc32(bytes(13)) ^ 0xFF))
    assert await computed(client) == before ^ 0xFF
    await client.write(algorithm(client, "pre_defined", algorithm_name="CRC_32"))
    assert await computed(client) == before


async def test_algorithms_by_name_and_by_polynomial(client: Raw, lab: Lab) -> None:
    """CRC-32 given by its parameters is CRC_32; DELETE goes back to the program's."""
    before = await computed(client)
    await client.write(algorithm(client, "pre_defined", algorithm_name="CRC_32_MPEG"))
    assert await computed(client) != before
    ones = 0xFFFFFFFF
    user = algorithm(client, "user_defined", polynomial=0x04C11DB7, reverse=True, init=ones, final_xor=ones)
    await client.write(user)
    assert await computed(client) == before
    shown = client.n.show((await client.read(default_of(client, "sig_hash.algorithm")))[0])
    assert (shown["polynomial"], shown["hash_bit_width"]) == ([0x04C11DB7], [32])
    await client.write(lab.put(default_of(client, "sig_hash.algorithm"), p.Update.DELETE))
    assert lab.backend.hashes["sig_hash"].algorithm["algorithm_name"] == "CRC_32"


async def test_algorithms_that_do_not_exist_are_refused(client: Raw, lab: Lab) -> None:
    """An unknown name, an even polynomial, one wider than the hash: INVALID_ARGUMENT."""
    assert await refused(lab, client.write(algorithm(client, "pre_defined", algorithm_name="CRC_77"))) == [3]
    for values in ({"polynomial": 4}, {"polynomial": 0x107, "hash_bit_width": 8}):
        assert await refused(lab, client.write(algorithm(client, "user_defined", **values))) == [3]


async def test_what_cannot_be_calculated_says_so(client: Raw, lab: Lab) -> None:
    """RANDOM can be set, but not computed here: UNIMPLEMENTED, and no seed is shown; msb takes the top bits."""
    await client.write(algorithm(client, "pre_defined", algorithm_name="RANDOM"))
    assert await refused(lab, computed(client)) == [12]
    assert "seed" not in client.n.show((await client.read(default_of(client, "sig_hash.algorithm")))[0])
    await client.write(algorithm(client, "pre_defined", algorithm_name="CRC_64", msb=True))
    await client.write(slices(client, {QPN: [{"order": 1}]}))
    crc = PREDEFINED["CRC_64"].of(bytes([0x00, 0x12, 0x34]))
    assert await computed(client) == crc >> 32


async def test_the_tables_have_no_entries(client: Raw, lab: Lab) -> None:
    """INSERT, keys and usage: UNIMPLEMENTED; compute cannot be written."""
    for table in ("sig_hash.algorithm", "sig_hash.configure", "sig_hash.compute"):
        assert await refused(lab, client.insert(client.n.entry(table))) == [12]
        assert await refused(lab, client.read(client.n.entry(table))) == [12]
        usage = p.Entity(table_usage=p.TableUsage(table_id=client.n.id(table)))
        assert await refused(lab, client.read(usage)) == [12]


async def test_a_rolled_back_batch_leaves_the_hash(client: Raw, lab: Lab) -> None:
    """Server and data plane."""
    before = await computed(client)
    wrong = slices(client, {SRC: [{"start_bit": 32, "order": 1}]})
    batch = (algorithm(client, "pre_defined", algorithm_name="CRC_32C"), wrong)
    assert await refused(lab, client.write(*batch, atomicity=p.WriteRequest.ROLLBACK_ON_ERROR)) == [0, 3]
    assert await computed(client) == before
    assert lab.backend.hashes["sig_hash"].algorithm["algorithm_name"] == "CRC_32"


class _Fixed:
    """A data plane with hashes that cannot change: all of a MemoryBackend but ``hash_changed``."""

    def __init__(self, program: P4Program) -> None:
        self._memory = MemoryBackend(program)

    def __getattr__(self, name: str) -> Any:
        if name == "hash_changed":
            raise AttributeError(name)
        return getattr(self._memory, name)


async def test_a_data_plane_with_fixed_hashes_refuses_other_ones(lab: Lab) -> None:
    """UNIMPLEMENTED; setting what is there, resetting and computing work."""
    program = P4Program.from_description()
    fixed: SwitchBackend = _Fixed(program)
    async with BfRtServer(fixed, program, port=0) as server:
        lab.server = server
        raw = await lab.client(p4_name="symphony")
        assert await refused(lab, raw.write(algorithm(raw, "pre_defined", algorithm_name="CRC_32C"))) == [12]
        await raw.write(algorithm(raw, "pre_defined", algorithm_name="CRC_32"))
        await raw.write(lab.put(raw.n.entry("sig_hash.configure"), p.Update.DELETE))
        assert await computed(raw) == flow_signature(FLOW[SRC], FLOW[DST], FLOW[QPN], FLOW[SPORT])
