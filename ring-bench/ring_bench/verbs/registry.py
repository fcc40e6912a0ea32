# SPDX-License-Identifier: Apache-2.0
"""Choosing a provider by name. There is no fallback: who asks for one gets that one or an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ring_bench.errors import ProviderUnavailableError
from ring_bench.verbs.api import Provider

__all__ = ["PROVIDERS", "ProviderOptions", "open_provider"]


@dataclass(frozen=True)
class ProviderOptions:
    """What a provider may need to know before it opens a device."""

    socket: str | None
    """Path of the twin's verbs socket."""
    job: str
    rank: int
    """Lowest rank of this process."""
    world: int
    local_ranks: int
    """Ranks in this process."""
    seed: int
    patience_s: float | None
    """Longest wall-clock time without an answer; None: for ever."""


def _open_twin(options: ProviderOptions) -> Provider:
    from ring_bench.verbs.twin import TwinProvider

    if options.socket is None:
        raise ProviderUnavailableError(
            "the twin's provider needs the path of its verbs socket: "
            "give --verbs SOCKET, as printed by 'fabric-twin run --verbs SOCKET'"
        )
    return TwinProvider(
        options.socket,
        job=options.job,
        rank=options.rank,
        seed=options.seed,
        patience_s=options.patience_s,
    )


def _open_loopback(options: ProviderOptions) -> Provider:
    from ring_bench.verbs.loopback import LoopbackProvider

    if options.local_ranks != options.world:
        raise ProviderUnavailableError(
            "the loopback provider lives inside one process: start the whole world there, "
            "with --world and without --rank"
        )
    return LoopbackProvider(seed=options.seed)


def _open_pyverbs(options: ProviderOptions) -> Provider:
    from ring_bench.verbs.pyverbs_ import PyverbsProvider

    return PyverbsProvider(patience_s=options.patience_s)


PROVIDERS: dict[str, Callable[[ProviderOptions], Provider]] = {
    "twin": _open_twin,
    "loopback": _open_loopback,
    "pyverbs": _open_pyverbs,
}


def open_provider(name: str, options: ProviderOptions) -> Provider:
    """Open a provider.

    Raises:
        ProviderUnavailableError: Unknown name, or its package, socket or device is not there.
    """
    try:
        factory = PROVIDERS[name]
    except KeyError:
        raise ProviderUnavailableError(f"no provider {name!r}; there are {', '.join(PROVIDERS)}") from None
    return factory(options)
