# SPDX-License-Identifier: Apache-2.0
"""What happened to the twin's fabric while a job ran: links that went down, background traffic, slow hosts.

The twin keeps a numbered log of what its events did; it is asked for what is new. Times are those of its clock, which
is that of jobs on the twin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

import httpx

__all__ = ["MOST", "FabricEvent", "FabricLog", "spans"]

MOST: Final = 1024
"""Events kept per job, the newest."""

log = logging.getLogger("host_agent")


@dataclass(frozen=True)
class FabricEvent:
    """The begin or end of something (`phase`; "failed": it could not begin), for people in `what`."""

    t_ns: int
    event: int
    kind: str
    phase: str
    what: str

    def view(self) -> dict[str, Any]:
        """As REST shows it."""
        return asdict(self)


class FabricLog:
    """The twin's log, read from where the last reading ended."""

    def __init__(self, twin: httpx.AsyncClient) -> None:
        self._twin = twin
        self._since = 0
        self._complained = False

    async def new(self) -> list[FabricEvent] | None:
        """What is new; None when the twin does not tell. Later it may: nothing is skipped."""
        try:
            answer = await self._read()
            if answer["newest"] < self._since:  # another twin, which counts from 1
                self._since = 0
                answer = await self._read()
            fresh = [
                FabricEvent(int(row["t_ns"]), int(row["event"]), str(row["kind"]), str(row["phase"]), str(row["what"]))
                for row in answer["log"]
            ]
            self._since = int(answer["newest"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            if not self._complained:
                log.warning("the twin does not tell what happens to its fabric: %s", error or type(error).__name__)
            self._complained = True
            return None
        self._complained = False
        return fresh

    async def _read(self) -> Any:
        answer = await self._twin.get("/api/v1/events", params={"since": self._since})
        return answer.raise_for_status().json()


def spans(events: Iterable[FabricEvent]) -> list[tuple[FabricEvent, int | None]]:
    """Each begin with the time of its end; None: it goes on."""
    out: list[tuple[FabricEvent, int | None]] = []
    begun: dict[int, int] = {}
    for event in events:
        if event.phase == "begin":
            begun[event.event] = len(out)
            out.append((event, None))
        elif event.phase == "end" and event.event in begun:
            place = begun.pop(event.event)
            out[place] = (out[place][0], event.t_ns)
    return out
