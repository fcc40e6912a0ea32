# SPDX-License-Identifier: Apache-2.0
"""The client of the twin's verbs service, against a stand-in that speaks the wire protocol of the contract."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from ring_bench.config import Config
from ring_bench.errors import (
    FabricError,
    FabricGoneError,
    NoProgressError,
    ProviderUnavailableError,
    StalledError,
)
from ring_bench.rendezvous import LocalRendezvous
from ring_bench.run import run_ranks
from ring_bench.setup import World, set_up
from ring_bench.verbs import ProviderOptions, open_provider
from ring_bench.verbs.api import QpState
from ring_bench.verbs.twin import TwinProvider

if TYPE_CHECKING:
    from conftest import FakeTwin


def attach(twin: FakeTwin, **options: Any) -> TwinProvider:
    return TwinProvider(str(twin.path), job="test", rank=0, seed=1, **options)


def run(twin: FakeTwin, config: Config) -> World:
    provider, rendezvous = attach(twin), LocalRendezvous()
    world = set_up(config, provider, rendezvous, local_ranks=range(config.world), hosts=range(config.world))
    run_ranks(world, provider, rendezvous)
    return world


@pytest.mark.parametrize("tagging", ["per-step", "retag"])
def test_an_allreduce_over_the_socket_gives_exact_sums_in_shared_memory(fake_twin: FakeTwin, tagging: Any) -> None:
    config = Config(world=5, minbytes=5000, maxbytes=5000, iters=3, rings=2, segment=600, tagging=tagging)
    world = run(fake_twin, config)
    assert {count for rank in world.ranks.values() for count in rank.record.wrong} == {0}


def test_computing_takes_virtual_time_of_the_twin_by_waits_that_time_out(fake_twin: FakeTwin) -> None:
    config = Config(world=3, minbytes=5000, maxbytes=5000, iters=2, collective="all_gather", compute_ns=1_000_000)
    world = run(fake_twin, config)
    for rank in world.ranks.values():
        assert set(rank.record.wrong) == {0}
        assert rank.record.issue_ns[0] == 1_000_000
        assert rank.record.issue_ns[1] == rank.record.complete_ns[0] + 1_000_000


def test_a_turn_of_all_ranks_is_one_round_trip(fake_twin: FakeTwin) -> None:
    """All ranks start at once: their first posts leave in the same frame as the wait."""
    frames: list[int] = []
    take = fake_twin._take

    def counting(client: Any, request: dict[str, Any]) -> None:
        if request["wait"] is not None:
            frames.append(sum(name == "post_send" for name, _ in request["calls"]))
        take(client, request)

    fake_twin._take = counting  # type: ignore[method-assign]
    run(fake_twin, Config(world=8, minbytes=4000, maxbytes=4000, iters=1, warmup_iters=0))
    assert frames[0] == 8


def test_what_the_twin_says_about_itself_is_kept(fake_twin: FakeTwin) -> None:
    provider = attach(fake_twin)
    assert provider.fabric == {"preset": "fake", "description": {"hosts": 32}}
    device = provider.open_device(3).attributes
    assert (device.address, device.active_mtu) == ("h3", 4096)
    provider.close()
    assert [name for name, _ in fake_twin.calls] == ["attach", "open_device", "detach"]
    assert fake_twin.calls[0][1]["version"] == 1


def test_attributes_go_only_into_the_transition_that_takes_them(fake_twin: FakeTwin) -> None:
    run(fake_twin, Config(world=2, minbytes=4000, maxbytes=4000, iters=1, warmup_iters=0))
    attrs = {
        state: next(args["attrs"] for name, args in fake_twin.calls if name == "modify_qp" and args["state"] == state)
        for state in ("INIT", "RTR", "RTS")
    }
    assert attrs["INIT"] == {}
    assert "flow_label" in attrs["RTR"]
    assert "timeout" not in attrs["RTR"]
    assert "timeout" in attrs["RTS"]
    assert "dest_gid" not in attrs["RTS"]


def test_the_scaled_length_travels_beside_the_real_one(fake_twin: FakeTwin) -> None:
    run(
        fake_twin,
        Config(world=2, minbytes=6400, maxbytes=6400, iters=1, warmup_iters=0, payload_scale=16, segment=1600),
    )
    writes = [args for name, args in fake_twin.calls if name == "post_send" and args["opcode"].startswith("RDMA")]
    assert {args["length"] for args in writes} == {100}
    assert {args["wire_length"] for args in writes} == {1600}


def test_a_refused_call_names_call_and_reason(fake_twin: FakeTwin) -> None:
    provider = attach(fake_twin)
    with pytest.raises(FabricError, match=r"refused open_device: ENODEV: no host nowhere") as caught:
        provider.open_device("nowhere")
    assert caught.value.code == "ENODEV"
    provider.close()


def test_a_batched_call_that_is_refused_shows_at_the_next_wait(fake_twin: FakeTwin) -> None:
    provider = attach(fake_twin)
    device = provider.open_device(0)
    qp = device.create_qp(device.create_cq(10), 1, 1)
    qp.modify(QpState.SQD)
    with pytest.raises(FabricError, match="refused modify_qp: EINVAL"):
        provider.wait(0)
    provider.close()


def test_when_nothing_can_happen_the_wait_says_so(fake_twin: FakeTwin) -> None:
    provider = attach(fake_twin)
    with pytest.raises(StalledError, match="nothing is on its way"):
        provider.wait(None)
    provider.close()


def test_a_wait_with_time_out_lets_virtual_time_pass(fake_twin: FakeTwin) -> None:
    provider = attach(fake_twin)
    assert provider.wait(5_000) == []
    assert provider.clock_ns() == 5_000
    provider.close()


def test_no_twin_is_an_error_that_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailableError, match="fabric-twin run --verbs"):
        TwinProvider(str(tmp_path / "none.sock"), job="test", rank=0, seed=1)


def test_another_protocol_version_is_an_error(fake_twin: FakeTwin) -> None:
    fake_twin.version = 2
    with pytest.raises(ProviderUnavailableError, match="speaks version 2"):
        attach(fake_twin)


def test_a_twin_that_dies_is_an_error_and_close_stays_quiet(fake_twin: FakeTwin) -> None:
    fake_twin.silent = True
    provider = attach(fake_twin)

    def kill() -> None:
        fake_twin.waiting.wait()
        fake_twin.close()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(FabricGoneError, match="did fabric-twin end"):
        provider.wait(None)
    killer.join()
    provider.close()
    provider.close()


def test_a_wait_can_be_interrupted_from_another_thread(fake_twin: FakeTwin) -> None:
    fake_twin.silent = True
    provider = attach(fake_twin)

    def interrupt() -> None:
        fake_twin.waiting.wait()
        provider.interrupt()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(FabricGoneError):
        provider.wait(None)
    interrupter.join()
    provider.close()


def test_a_wait_that_a_signal_broke_off_is_not_mistaken_for_an_answer_later(fake_twin: FakeTwin) -> None:
    """The reply to the broken-off wait would be read as the reply to detach."""
    fake_twin.silent = True
    provider = attach(fake_twin)

    def alarm(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            provider.wait(None)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(FabricGoneError):
        provider.wait(None)
    provider.close()
    assert "detach" not in [name for name, _ in fake_twin.calls]


def test_patience_has_an_end(fake_twin: FakeTwin) -> None:
    fake_twin.silent = True
    provider = attach(fake_twin, patience_s=0.05)
    with pytest.raises(NoProgressError, match=r"no completion for 0\.05 s"):
        provider.wait(None)
    provider.close()


def test_garbage_from_the_socket_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "garbage.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                body = msgpack.packb({}) + b"\xc1"
                connection.sendall(struct.pack(">I", len(body)) + body)
                connection.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(FabricGoneError, match="unreadable"):
            TwinProvider(str(path), job="test", rank=0, seed=1)
        thread.join()


OPTIONS = ProviderOptions(socket=None, job="test", rank=0, world=2, local_ranks=1, seed=1, patience_s=None)


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ProviderUnavailableError, match="no provider 'mlx5'; there are twin, loopback, pyverbs"):
        open_provider("mlx5", OPTIONS)


def test_loopback_refuses_one_process_per_rank() -> None:
    with pytest.raises(ProviderUnavailableError, match="inside one process"):
        open_provider("loopback", OPTIONS)


def test_the_twin_needs_a_socket() -> None:
    with pytest.raises(ProviderUnavailableError, match="--verbs SOCKET"):
        open_provider("twin", OPTIONS)
