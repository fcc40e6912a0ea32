# SPDX-License-Identifier: Apache-2.0
"""Run as a program: sends real messages between two devices of this machine, over queue pairs made for it.

    python -m ring_bench.doctor.exchange SOURCE=TARGET ...

SOURCE and TARGET are devices, network devices or addresses; equal ones make a loop through the NIC. Prints a JSON
object with an entry per pair. A small write shows that packets pass, one of several packets that the path MTU holds,
a third one after a change of the source port that tags can be changed in RTS.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ring_bench.errors import FabricError, ProviderError
from ring_bench.tag import flow_label_of_sport
from ring_bench.verbs.api import SUCCESS, Context, Opcode, Provider, QpAttributes, connect

__all__ = ["exchange", "main"]

_SMALL = 8
_SPORTS = (0xC123, 0xD321)
_PSN = 0x100
_PATIENCE_NS = 20_000_000_000


def exchange(provider: Provider, source: str, target: str) -> dict[str, Any]:
    """Try a pair.

    Returns:
        "small", "large" and "retag": null where that worked, else what went wrong; "bytes" of the large message;
        "mechanism" of the retag. What comes after a failure is not tried and left out.
    """
    contexts = provider.open_device(source), provider.open_device(target)
    mtu = min(context.attributes.active_mtu for context in contexts)
    large = 3 * mtu + 7
    result: dict[str, Any] = {"bytes": large, "mechanism": provider.retag_mechanism}
    pair = _Pair(provider, contexts, mtu, large)
    for name, length in (("small", _SMALL), ("large", large), ("retag", _SMALL)):
        try:
            if name == "retag":
                pair.sender.modify_udp_sport(_SPORTS[1])
                provider.flush()
            result[name] = pair.write(length)
        except FabricError as refusal:
            result[name] = str(refusal)
            result["code"] = refusal.code
        if result[name] is not None:
            break
    return result


class _Pair:
    """Two connected queue pairs with memory for a message."""

    def __init__(self, provider: Provider, contexts: tuple[Context, Context], mtu: int, size: int) -> None:
        self._provider = provider
        queues = [context.create_cq(8) for context in contexts]
        self._regions = [context.reg_mr(size) for context in contexts]
        ends = [context.create_qp(cq, 2, 2) for context, cq in zip(contexts, queues, strict=True)]
        self.sender, self._receiver = ends
        for near, far in ((0, 1), (1, 0)):
            attributes = QpAttributes(
                dest_gid=contexts[far].attributes.gid,
                dest_qp_num=ends[far].qp_num,
                rq_psn=_PSN,
                sq_psn=_PSN,
                flow_label=flow_label_of_sport(_SPORTS[0]),
                traffic_class=0,
                path_mtu=mtu,
                timeout=16,
                retry_cnt=3,
                rnr_retry=3,
                min_rnr_timer=12,
            )
            connect(ends[near], attributes)
        provider.flush()

    def write(self, length: int) -> str | None:
        """Write so many bytes with an immediate and wait for both ends; give what went wrong."""
        here, there = self._regions
        here.buffer[:length] = 0xA5
        there.buffer[:length] = 0
        self._receiver.post_recv(1)
        self.sender.post_send(
            2, Opcode.RDMA_WRITE_WITH_IMM, here, 0, length, remote_address=there.address, rkey=there.rkey, imm=length
        )
        arrived: set[int] = set()
        while arrived != {1, 2}:
            completions = self._provider.wait(_PATIENCE_NS)
            for completion in completions:
                if completion.status != SUCCESS:
                    return completion.status
                arrived.add(completion.wr_id)
            if not completions:
                return f"no completion within {_PATIENCE_NS / 1e9:g} s"
        return None if (there.buffer[:length] == 0xA5).all() else "wrong data"


def main(arguments: Sequence[str], provider: Provider | None = None) -> dict[str, Any]:
    """Try all pairs; each by itself."""
    answers: dict[str, Any] = {}
    for pair in arguments:
        source, _, target = pair.partition("=")
        try:
            answers[pair] = exchange(provider or _pyverbs(), source, target)
        except ProviderError as problem:
            answers[pair] = {"small": str(problem)}
    return answers


def _pyverbs() -> Provider:
    from ring_bench.verbs.pyverbs_ import PyverbsProvider

    return PyverbsProvider(patience_s=_PATIENCE_NS / 1e9)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
