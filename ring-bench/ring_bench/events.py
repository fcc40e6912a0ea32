# SPDX-License-Identifier: Apache-2.0
"""Step events to a host-agent, without ever blocking a rank.

Ranks append to a bounded buffer; a thread posts what has gathered every `PERIOD_S`. What does not fit, or what
the host-agent does not take, is counted as dropped and the count is sent along: a receiver can tell a gap from
silence. An unreachable host-agent costs a warning, never the run.

Body of a POST (contract between ring-bench and host-agent)::

    {"run": str, "clock": "twin" | "monotonic", "host": str, "dropped": int,
     "events": [[rank, group, ring, iteration, step, "post" | "done", t_ns], ...],
     "collectives": [[group, iteration, start_ns, end_ns, busbw_gbps], ...],
     "result": {...} | absent}

The bearer token comes from the environment variable SYMPHONY_EVENTS_TOKEN.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

__all__ = ["PERIOD_S", "EventSender"]

PERIOD_S = 0.05
_CAPACITY = 200_000
_BATCH = 20_000
_POST_TIMEOUT_S = 5.0

Event = tuple[int, int, int, int, int, str, int]
Collective = tuple[int, int, int, int, float | None]


class EventSender:
    """Take events from the ranks and send them on.

    Args:
        url: ``http://.../api/v1/jobs/{id}/events``.
        run: Name of the run.
        clock: Which clock the times come from.
        host: Name of this host.
        group_of: Group of a world rank.
        token: Bearer token, or None.
        warn: Takes one line when the host-agent does not answer; called at most once.
        capacity: Most events that wait to be sent.
        shift_ns: Added to all times: brings them onto rank 0's clock, so that events of all hosts share an axis.
    """

    def __init__(
        self,
        url: str,
        *,
        run: str,
        clock: str,
        host: str,
        group_of: dict[int, int],
        token: str | None,
        warn: Callable[[str], None],
        capacity: int = _CAPACITY,
        shift_ns: int = 0,
    ) -> None:
        self._url = url
        self._head = {"run": run, "clock": clock, "host": host}
        self._group_of = group_of
        self._token = token
        self._warn: Callable[[str], None] | None = warn
        self._capacity = capacity
        self._shift_ns = shift_ns
        self._events: list[Event] = []
        self._collectives: list[Collective] = []
        self._dropped = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    def step(self, rank: int, ring: int, iteration: int, step: int, kind: str, t_ns: int) -> None:
        """Take a step event (see `ring_bench.rank.Observer`)."""
        with self._lock:
            if len(self._events) < self._capacity:
                self._events.append((rank, self._group_of[rank], ring, iteration, step, kind, t_ns + self._shift_ns))
            else:
                self._dropped += 1

    def collective(self, record: Collective) -> None:
        """Take the times of a finished iteration of a group: (group, iteration, start, end, busbw in GB/s)."""
        group, iteration, start_ns, end_ns, busbw_gbps = record
        with self._lock:
            self._collectives.append((group, iteration, start_ns + self._shift_ns, end_ns + self._shift_ns, busbw_gbps))

    def close(self, result: dict[str, Any] | None) -> int:
        """Send what is left and the result; give the number of dropped events."""
        self._stop.set()
        self._thread.join()
        while self._events or self._collectives:
            if not self._send():
                break
        if result is not None:
            self._post({"events": [], "collectives": [], "result": result})
        return self._dropped

    def _work(self) -> None:
        while not self._stop.wait(PERIOD_S):
            if self._events or self._collectives:
                self._send()

    def _send(self) -> bool:
        with self._lock:
            events, self._events = self._events[:_BATCH], self._events[_BATCH:]
            collectives, self._collectives = self._collectives, []
        sent = self._post({"events": events, "collectives": collectives})
        if not sent:
            with self._lock:
                self._dropped += len(events)
        return sent

    def _post(self, body: dict[str, Any]) -> bool:
        data = json.dumps({**self._head, "dropped": self._dropped, **body}).encode()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, data=data, headers=headers, method="POST")  # noqa: S310 (the CLI admits http and https only)
        try:
            with urllib.request.urlopen(request, timeout=_POST_TIMEOUT_S):  # noqa: S310
                return True
        except urllib.error.HTTPError as error:
            self._complain(f"it answers {error.code} {error.reason}")
            error.close()
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ) as error:  # it speaks no HTTP, or sends us on to nowhere
            self._complain(str(getattr(error, "reason", error)) or type(error).__name__)
        return False

    def _complain(self, reason: str) -> None:
        warn, self._warn = self._warn, None
        if warn is not None:
            warn(f"events do not reach {self._url} ({reason}); the run goes on, dropped events are counted")
