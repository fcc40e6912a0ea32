# SPDX-License-Identifier: Apache-2.0
"""The five RPCs of bfrt_proto.BfRuntime on grpc.aio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Never, cast

import grpc

from fabric_twin.bfrt_server.batch import CallOptions, Outcome, run_read, run_write
from fabric_twin.bfrt_server.device import Device
from fabric_twin.bfrt_server.errors import SchemaError
from fabric_twin.bfrt_server.faults import Faults
from fabric_twin.bfrt_server.program import P4Program
from fabric_twin.bfrt_server.schema import Info
from fabric_twin.bfrt_server.session import Session, Sessions
from fabric_twin.bfrt_server.status import DETAILS_KEY, BfError, BfStatus
from switch_agent import bfrt_proto as p

__all__ = ["BfRuntimeService"]

Context = grpc.aio.ServicerContext[Any, Any]
Set = p.SetForwardingPipelineConfigRequest
WARM_INIT_BEGIN = (Set.VERIFY_AND_WARM_INIT_BEGIN, Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END)


async def _refuse(context: Context, error: BfError) -> Never:
    """End the RPC with the driver's status."""
    await context.abort(error.grpc_code, str(error))


async def _fail_batch(context: Context, message: str, details: bytes) -> Never:
    """End the RPC with UNKNOWN; what failed is in the trailing metadata."""
    await context.abort(grpc.StatusCode.UNKNOWN, message, trailing_metadata=((DETAILS_KEY, details),))


class BfRuntimeService:
    """Handlers for one switch. ``handlers()`` is what a grpc.aio server needs."""

    def __init__(self, device: Device, sessions: Sessions, faults: Faults) -> None:
        self._device = device
        self._sessions = sessions
        self._faults = faults
        self._warm_init = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """The generic handler with all five methods."""
        rpcs = {
            "Write": grpc.unary_unary_rpc_method_handler(self.write, p.WriteRequest.FromString),
            "Read": grpc.unary_stream_rpc_method_handler(self.read, p.ReadRequest.FromString),
            "SetForwardingPipelineConfig": grpc.unary_unary_rpc_method_handler(
                self.set_pipeline, Set.FromString, p.SetForwardingPipelineConfigResponse.SerializeToString
            ),
            "GetForwardingPipelineConfig": grpc.unary_unary_rpc_method_handler(
                self.get_pipeline,
                p.GetForwardingPipelineConfigRequest.FromString,
                p.GetForwardingPipelineConfigResponse.SerializeToString,
            ),
            "StreamChannel": grpc.stream_stream_rpc_method_handler(
                self.stream,
                p.StreamMessageRequest.FromString,
                p.StreamMessageResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(p.SERVICE, cast("dict[str, grpc.RpcMethodHandler[Any, Any]]", rpcs))

    # ----------------------------------------------------------------------------------- Write and Read

    async def write(self, request: p.WriteRequest, context: Context) -> bytes:
        """Apply a batch; the response is serialized already."""
        try:
            options = self._admit(request, context)
            outcome = run_write(self._device, request, options)
        except BfError as error:
            await _refuse(context, error)
        if outcome.details is not None:
            await _fail_batch(context, "Write Error Status", outcome.details)
        return outcome.response

    async def read(self, request: p.ReadRequest, context: Context) -> AsyncIterator[bytes]:
        """One serialized ReadResponse, then the status."""
        try:
            options = self._admit(request, context)
            if self._faults.read_delay_s:
                await asyncio.sleep(self._faults.read_delay_s)
            outcome: Outcome = run_read(self._device, request, options)
        except BfError as error:
            await _refuse(context, error)
        yield outcome.response
        if outcome.details is not None:
            await _fail_batch(context, "Read Error Status", outcome.details)

    def _admit(self, request: p.WriteRequest | p.ReadRequest, context: Context) -> CallOptions:
        """Check lock and program of a call; its options."""
        self._check_lock()
        name = request.p4_name or self._sessions.bound_program(request.client_id)
        if name != self._device.program.p4_name:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"Unable to obtain BF_RT info for ({name}).")
        metadata = context.invocation_metadata() or ()
        return CallOptions.from_metadata(cast("Iterable[tuple[str, str | bytes]]", metadata))

    def _check_lock(self) -> None:
        if self._faults.locked:
            raise BfError(BfStatus.IN_USE, "Failed to acquire read lock.")

    # ---------------------------------------------------------------------------------- pipeline config

    async def get_pipeline(
        self, request: p.GetForwardingPipelineConfigRequest, context: Context
    ) -> p.GetForwardingPipelineConfigResponse:
        """The loaded program and the fixed tables; anybody may ask."""
        try:
            self._check_lock()
        except BfError as error:
            await _refuse(context, error)
        program = self._device.program
        answer = p.GetForwardingPipelineConfigResponse()
        config = answer.config.add(p4_name=program.p4_name, bfruntime_info=program.info.json_bytes)
        pipes = range(self._device.backend.num_pipes)
        config.profiles.add(profile_name="pipe", context=program.context, binary=program.binary, pipe_scope=pipes)
        answer.non_p4_config.bfruntime_info = self._device.fixed.info.json_bytes
        return answer

    async def set_pipeline(
        self, request: p.SetForwardingPipelineConfigRequest, context: Context
    ) -> p.SetForwardingPipelineConfigResponse:
        """BIND a client, or load a program."""
        try:
            self._configure(request)
        except BfError as error:
            await _refuse(context, error)
        return p.SetForwardingPipelineConfigResponse()

    def _configure(self, request: p.SetForwardingPipelineConfigRequest) -> None:
        if request.action == Set.RECONCILE_AND_WARM_INIT_END:
            raise BfError(BfStatus.NOT_SUPPORTED, "RECONCILE_AND_WARM_INIT_END is not possible.")
        if request.action == Set.BIND:
            self._bind(request)
            return
        if request.action == Set.WARM_INIT_END:
            self._end_warm_init(request)
            return
        program = _verified(request)
        if request.action in WARM_INIT_BEGIN:
            self._begin_warm_init(program)
        if request.action == Set.VERIFY_AND_WARM_INIT_BEGIN_AND_END:
            self._finish_warm_init()

    def _bind(self, request: p.SetForwardingPipelineConfigRequest) -> None:
        if len(request.config) != 1:
            raise BfError(BfStatus.INVALID_ARG, f"BIND takes one config, {len(request.config)} given.")
        config = request.config[0]
        if config.bfruntime_info or config.profiles or not config.p4_name:
            raise BfError(BfStatus.INVALID_ARG, "BIND takes a config with p4_name and nothing else.")
        self._sessions.bind(request.client_id, config.p4_name, self._device.program.p4_name)

    def _begin_warm_init(self, program: P4Program) -> None:
        self._device.load(program)
        self._warm_init = True
        self._sessions.end_all_but(program.p4_name)
        self._announce(p.SetForwardingPipelineConfigResponseType.WARM_INIT_STARTED)

    def _end_warm_init(self, request: p.SetForwardingPipelineConfigRequest) -> None:
        if request.config:
            raise BfError(BfStatus.INVALID_ARG, "WARM_INIT_END takes no config.")
        if not self._warm_init:
            raise BfError(BfStatus.INVALID_ARG, "WARM_INIT_END without VERIFY_AND_WARM_INIT_BEGIN.")
        self._finish_warm_init()

    def _finish_warm_init(self) -> None:
        self._warm_init = False
        self._announce(p.SetForwardingPipelineConfigResponseType.WARM_INIT_FINISHED)

    def _announce(self, what: p.SetForwardingPipelineConfigResponseType) -> None:
        response = p.SetForwardingPipelineConfigResponse(set_forwarding_pipeline_config_response_type=what)
        self._sessions.broadcast(p.StreamMessageResponse(set_forwarding_pipeline_config_response=response))

    # ------------------------------------------------------------------------------------ StreamChannel

    async def stream(self, _requests: AsyncIterator[p.StreamMessageRequest], context: Context) -> None:
        """A client's session: from its first subscribe to the end of the stream."""
        try:
            await self._converse(context)
        except BfError as error:
            await _refuse(context, error)

    async def _converse(self, context: Context) -> None:
        session: Session | None = None
        with contextlib.ExitStack() as cleanup:
            while (message := await _next_message(context, session)) is not None:
                word = message.WhichOneof("update")
                if word == "digest_ack":
                    raise BfError(BfStatus.NOT_SUPPORTED, "Digests need no acknowledgement.")
                if word == "subscribe" and session is None:
                    session = self._sessions.open(message.client_id, message.subscribe)
                    cleanup.callback(self._sessions.close, session)
                    cleanup.enter_context(_running(_send_all(context, session)))


async def _next_message(context: Context, session: Session | None) -> p.StreamMessageRequest | None:
    """The client's next message; None when its stream is over.

    Raises the reason (BfError) when the session is ended from this side.
    """
    read = asyncio.ensure_future(context.read())
    ended = asyncio.ensure_future((session.ended if session else asyncio.Event()).wait())
    try:
        await asyncio.wait({read, ended}, return_when=asyncio.FIRST_COMPLETED)
        if session is not None and session.reason is not None:
            raise session.reason
        message = read.result()
        return None if message is grpc.aio.EOF else message
    finally:
        read.cancel()
        ended.cancel()


async def _send_all(context: Context, session: Session) -> None:
    while True:
        await context.write(await session.outbox.get())


@contextlib.contextmanager
def _running(work: Any) -> Iterator[None]:
    """Run a coroutine beside the block and stop it with the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


def _verified(request: p.SetForwardingPipelineConfigRequest) -> P4Program:
    """The program of a push; INVALID_ARG when a part is missing or its bf-rt.json is unusable."""
    if len(request.config) != 1:
        raise BfError(BfStatus.INVALID_ARG, f"This switch runs one program, {len(request.config)} given.")
    config = request.config[0]
    if not config.p4_name or not config.profiles:
        raise BfError(BfStatus.INVALID_ARG, "The config needs p4_name, bfruntime_info and a profile.")
    if any(not profile.context or not profile.binary for profile in config.profiles):
        raise BfError(BfStatus.INVALID_ARG, "A profile needs context and binary.")
    try:
        info = Info.from_bytes(config.bfruntime_info)
    except (SchemaError, KeyError, TypeError) as error:
        raise BfError(BfStatus.INVALID_ARG, f"bfruntime_info: {error}.") from error
    profile = config.profiles[0]
    return P4Program(config.p4_name, info, context=profile.context, binary=profile.binary)
