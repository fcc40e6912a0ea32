# SPDX-License-Identifier: Apache-2.0
"""The provider for the twin: verbs over the Unix socket that ``fabric-twin run --verbs SOCKET`` serves.

Frames are a 4-byte big-endian length and a msgpack map. Calls without an answer of their own (modify, post)
are collected and go out with the next `TwinProvider.wait`, so a turn of the rank loop costs one round trip,
however many ranks it serves. Memory is a memfd that the twin maps: payloads never cross the socket.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from typing import Any, Literal, cast

import msgpack
import numpy as np

from ring_bench.counters import Snapshot
from ring_bench.dtypes import Array
from ring_bench.errors import (
    FabricError,
    FabricGoneError,
    NoProgressError,
    ProviderUnavailableError,
    StalledError,
)
from ring_bench.verbs.api import (
    TRANSITION_ATTRIBUTES,
    Completion,
    CompletionQueue,
    DeviceAttributes,
    MemoryRegion,
    Opcode,
    QpAttributes,
    QpState,
)

__all__ = ["PROTOCOL_VERSION", "TwinProvider"]

PROTOCOL_VERSION = 1

_LENGTH = struct.Struct(">I")
_CALL_TIMEOUT_S = 60.0  # for an answer that needs no virtual time to pass


class _Queue:
    def __init__(self, handle: int) -> None:
        self.handle = handle


class _Region:
    def __init__(self, buffer: Array, lkey: int, rkey: int) -> None:
        self.buffer = buffer
        self.address = 0  # remote addresses are offsets in the region
        self.lkey = lkey
        self.rkey = rkey


class _QueuePair:
    def __init__(self, provider: TwinProvider, handle: int, qp_num: int) -> None:
        self._queue_call = provider.queue_call
        self._handle = handle
        self.qp_num = qp_num

    def modify(self, state: QpState, attributes: QpAttributes | None = None) -> None:
        attrs = {name: getattr(attributes, name) for name in TRANSITION_ATTRIBUTES[state]}
        self._queue_call("modify_qp", {"qp": self._handle, "state": state, "attrs": attrs})

    def modify_udp_sport(self, sport: int) -> None:
        self._queue_call("modify_qp_udp_sport", {"qp": self._handle, "sport": sport})

    def post_recv(self, wr_id: int) -> None:
        self._queue_call("post_recv", {"qp": self._handle, "wr_id": wr_id})

    def post_send(
        self,
        wr_id: int,
        opcode: Opcode,
        region: MemoryRegion,
        offset: int,
        length: int,
        *,
        remote_address: int = 0,
        rkey: int = 0,
        imm: int | None = None,
        signaled: bool = True,
        wire_length: int | None = None,
    ) -> None:
        self._queue_call(
            "post_send",
            {
                "qp": self._handle,
                "wr_id": wr_id,
                "opcode": opcode,
                "lkey": region.lkey,
                "offset": offset,
                "length": length,
                "remote_rkey": rkey,
                "remote_offset": remote_address,
                "imm": imm,
                "signaled": signaled,
                "wire_length": wire_length,
            },
        )


class _Context:
    def __init__(self, provider: TwinProvider, device: int, attributes: DeviceAttributes) -> None:
        self._provider = provider
        self._device = device
        self.attributes = attributes

    def create_cq(self, entries: int) -> _Queue:
        answer = self._provider.call("create_cq", {"device": self._device, "cqe": entries})
        return _Queue(int(answer["cq"]))

    def reg_mr(self, length: int) -> _Region:
        size = max(length, 1)
        descriptor = os.memfd_create("ring-bench", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
            answer = self._provider.call(
                "reg_mr",
                {
                    "device": self._device,
                    "pid": os.getpid(),
                    "fd": descriptor,
                    "length": size,
                    "access": ["LOCAL_WRITE", "REMOTE_WRITE"],
                },
            )
        finally:
            os.close(descriptor)
        buffer = np.frombuffer(memory, dtype=np.uint8)[:length]
        return _Region(buffer, int(answer["lkey"]), int(answer["rkey"]))

    def create_qp(self, cq: CompletionQueue, max_send_wr: int, max_recv_wr: int) -> _QueuePair:
        answer = self._provider.call(
            "create_qp",
            {
                "device": self._device,
                "send_cq": cq.handle,
                "recv_cq": cq.handle,
                "max_send_wr": max_send_wr,
                "max_recv_wr": max_recv_wr,
            },
        )
        return _QueuePair(self._provider, int(answer["qp"]), int(answer["qp_num"]))


class TwinProvider:
    """Connection of one process to a twin; every rank of the process opens its device here.

    Args:
        path: The verbs socket.
        job: Name of the job, for the twin's logs.
        rank: Lowest rank of this process.
        seed: Seed of the run.
        patience_s: Longest wall-clock wait for a completion; None waits for ever.

    Raises:
        ProviderUnavailableError: No twin listens there, or it speaks another version.
    """

    name = "twin"
    clock: Literal["twin", "monotonic"] = "twin"
    scales_payload = True
    retag_mechanism = "modify_qp_udp_sport in RTS"

    def __init__(self, path: str, *, job: str, rank: int, seed: int, patience_s: float | None = None) -> None:
        self._path = path
        self._patience_s = patience_s
        self._devices: dict[tuple[str, int], int] = {}
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self._arrived: list[Completion] = []
        self._serial = 0
        self._now_ns = 0
        self._interrupted = False
        self._broken_off = False
        """A signal or error came between a request and its reply: the stream is out of step."""
        self._packer = msgpack.Packer()
        self._received = bytearray()
        self._socket: socket.socket | None = self._dial(path)
        hello = {"version": PROTOCOL_VERSION, "job": job, "rank": rank, "seed": seed, "pid": os.getpid()}
        try:
            answer = self.call("attach", hello)
        except BaseException:
            self._drop()
            raise
        if answer.get("version") != PROTOCOL_VERSION:
            self._drop()
            raise ProviderUnavailableError(
                f"the twin at {path} speaks version {answer.get('version')} of the verbs protocol, "
                f"this ring-bench version {PROTOCOL_VERSION}: install both from the same release"
            )
        self._now_ns = int(answer["now_ns"])
        self.fabric: dict[str, Any] = {
            "preset": answer.get("preset"),
            "description": dict(answer.get("description", {})),
        }

    @staticmethod
    def _dial(path: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_CALL_TIMEOUT_S)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            reason = error.strerror or str(error)
            raise ProviderUnavailableError(
                f"no twin answers at {path} ({reason}): start one with 'fabric-twin run --verbs {path}'"
            ) from error
        return connection

    def open_device(self, host: str | int) -> _Context:
        """Open the NIC of a host, by name or index.

        Raises:
            FabricError: The twin has no such host.
        """
        answer = self.call("open_device", {"host": host})
        attributes = DeviceAttributes(
            name=str(answer["name"]),
            address=str(answer["address"]),
            gid=str(answer["gid"]),
            active_mtu=int(answer["active_mtu"]),
            max_msg_sz=int(answer["max_msg_sz"]),
            rate_gbps=float(answer["rate_gbps"]),
            max_qp_wr=int(answer["max_qp_wr"]),
            max_cqe=int(answer["max_cqe"]),
        )
        self._devices[attributes.name, 1] = int(answer["device"])
        return _Context(self, int(answer["device"]), attributes)

    def clock_ns(self) -> int:
        """Give the virtual time of the twin's last answer; it stands while this process computes."""
        return self._now_ns

    def queue_call(self, name: str, args: dict[str, Any]) -> None:
        """Add a call to the batch that goes out with the next round trip."""
        self._calls.append((name, args))

    def call(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Make a call, after everything queued before it, and give its answer."""
        self._calls.append((name, args))
        return cast("dict[str, Any]", self._round_trip(None, _CALL_TIMEOUT_S)[-1])

    def wait(self, timeout_ns: int | None) -> list[Completion]:
        """Hand over the batch, let virtual time run, return the completions (see `Provider.wait`).

        Raises:
            StalledError, FabricError, FabricGoneError: See `Provider.wait`.
            NoProgressError: No answer within the patience given.
        """
        if self._arrived:
            self.flush()
        else:
            self._round_trip({"timeout_ns": timeout_ns}, self._patience_s)
        arrived, self._arrived = self._arrived, []
        return arrived

    def flush(self) -> None:
        """Hand over the batch; virtual time stands still (see `Provider.flush`)."""
        if self._calls:
            self._round_trip(None, _CALL_TIMEOUT_S)

    def counters(self) -> Snapshot:
        """Read the counters of the opened NICs, under the names of mlx5's (see `Provider.counters`).

        What has happened to the fabric in this run is read with them, for `fabric`.
        """
        self.fabric["description"]["events"] = self.call("query_events", {})["events"]
        read = {key: self.call("query_counters", {"device": device}) for key, device in self._devices.items()}
        return Snapshot(read, dict.fromkeys(read, ()), {key: key[0] for key in read})

    def interrupt(self) -> None:
        """Break the connection from another thread, so that a wait in progress ends."""
        self._interrupted = True
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # gone already, which is what was wanted

    def close(self) -> None:
        """Detach, or just hang up in the middle of a call; the twin destroys what this process created."""
        if self._socket is None:
            return
        self._calls.clear()
        try:
            if not (self._interrupted or self._broken_off):
                self.call("detach", {})
        except (FabricError, FabricGoneError, NoProgressError, StalledError):
            pass
        finally:
            self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _round_trip(self, wait: dict[str, Any] | None, timeout_s: float | None) -> list[Any]:
        calls, self._calls = self._calls, []
        self._serial += 1
        body = self._packer.pack({"id": self._serial, "calls": calls, "wait": wait})
        connection = self._socket
        if connection is None or self._interrupted or self._broken_off:
            raise FabricGoneError(f"the connection to the twin at {self._path} is closed")
        self._broken_off = True
        try:
            connection.settimeout(_CALL_TIMEOUT_S)
            connection.sendall(_LENGTH.pack(len(body)) + body)
            connection.settimeout(timeout_s)
            reply = msgpack.unpackb(self._read_frame(connection))
            self._broken_off = False
        except TimeoutError:
            raise NoProgressError(
                f"the twin at {self._path} gave no completion for {timeout_s:g} s: is its clock on hold "
                "or its pace very slow? (--timeout 0 waits for ever)"
            ) from None
        except OSError as error:
            raise FabricGoneError(
                f"the connection to the twin at {self._path} broke ({error.strerror or error}): "
                "did fabric-twin end? Start it again and repeat the run"
            ) from error
        except ValueError as error:
            raise FabricGoneError(f"the twin at {self._path} sent something unreadable: {error}") from error
        if "error" in reply:
            raise self._refusal(reply["error"], calls)
        self._now_ns = reply["now_ns"]
        arrived = reply["wc"]
        if arrived:
            self._arrived.extend([Completion(*fields) for fields in arrived])
        return cast("list[Any]", reply["results"])

    def _read_frame(self, connection: socket.socket) -> bytes:
        (length,) = _LENGTH.unpack(self._read(connection, _LENGTH.size))
        return self._read(connection, length)

    def _read(self, connection: socket.socket, count: int) -> bytes:
        received = self._received
        while len(received) < count:
            piece = connection.recv(1 << 18)
            if not piece:
                raise FabricGoneError(
                    f"the twin at {self._path} closed the connection: did fabric-twin end? "
                    "Start it again and repeat the run"
                )
            received += piece
        taken = bytes(received[:count])
        del received[:count]
        return taken

    def _refusal(self, error: dict[str, Any], calls: list[tuple[str, dict[str, Any]]]) -> Exception:
        code, message = str(error.get("code")), str(error.get("message"))
        if code == "STALLED":
            return StalledError(f"the twin says that nothing can happen any more: {message}")
        index = error.get("call")
        name = calls[index][0] if isinstance(index, int) and 0 <= index < len(calls) else "request"
        return FabricError(code, f"the twin refused {name}: {code}: {message}")
