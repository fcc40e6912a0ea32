# SPDX-License-Identifier: Apache-2.0
"""Client of the switch agents' REST interface: retries what may be retried, names the switch in every
error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import httpx

from host_agent.auth import load_token
from host_agent.errors import SwitchError, SwitchRefusedError, SwitchUnreachableError
from host_agent.testbed import SwitchEntry

__all__ = ["SwitchClient", "each"]

ATTEMPTS: Final = 3
BACKOFF_S: Final = 0.1
ANSWER_S: Final = 5.0
"""Longest time that a switch agent has for an answer, all attempts together."""
INSTALL_S: Final = 20.0
"""The same for taking a new job: that is an entry per flow."""
TIMEOUT: Final = httpx.Timeout(INSTALL_S, connect=2.0)

T = TypeVar("T")


class SwitchClient:
    """One switch agent. Every call may be repeated safely, so transport errors are retried twice."""

    def __init__(self, entry: SwitchEntry, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.name = entry.name
        self.url = entry.url.rstrip("/")
        headers = {}
        token = load_token(entry.token_file, "SWITCH_AGENT_TOKEN")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=TIMEOUT, transport=transport)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def jobs(self) -> list[dict[str, Any]]:
        """All jobs that the switch holds."""
        answer = await self._call("GET", "/api/v1/jobs")
        return list(answer["jobs"] if isinstance(answer, dict) else answer)

    async def put_job(self, job_id: int, spec: dict[str, Any]) -> dict[str, Any]:
        """Install or replace a job; returns its state as read back from the switch."""
        return dict(await self._call("PUT", f"/api/v1/jobs/{job_id}", spec, limit_s=INSTALL_S))

    async def patch_job(self, job_id: int, symphony: dict[str, Any]) -> dict[str, Any]:
        """Change a job's Symphony settings; returns its state as read back from the switch."""
        return dict(await self._call("PATCH", f"/api/v1/jobs/{job_id}", symphony))

    async def delete_job(self, job_id: int) -> None:
        """Remove a job; one that is gone already is no error."""
        await self._call("DELETE", f"/api/v1/jobs/{job_id}", missing_ok=True)

    async def samples(self, job_id: int, since: int, limit: int = 1000) -> list[dict[str, Any]]:
        """Register samples of a job with seq > `since`, oldest first, one attempt only (the next poll is
        near).
        """
        path = f"/api/v1/samples?job={job_id}&since={since}&limit={limit}"
        answer = await self._call("GET", path, attempts=1)
        return list(answer["samples"] if isinstance(answer, dict) else answer)

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        attempts: int = ATTEMPTS,
        limit_s: float | None = None,
        missing_ok: bool = False,
    ) -> Any:
        where = f"switch {self.name} ({self.url})"
        limit_s = ANSWER_S if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s):
                response = await self._send(method, path, body, attempts)
        except (TimeoutError, httpx.TransportError) as error:
            reason = f"nothing within {limit_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise SwitchUnreachableError(
                f"{where} does not answer: {reason or type(error).__name__}; is its switch-agent running?",
                switch=self.name,
            ) from error
        if missing_ok and response.status_code == 404:
            return None
        if response.is_success:
            try:
                return response.json() if response.content else None
            except ValueError as error:
                raise SwitchRefusedError(
                    f"{where} answered {method} {path} with something that is no JSON", switch=self.name
                ) from error
        detail = _detail(response)
        if response.status_code == 503:
            raise SwitchUnreachableError(f"{where} is not ready: {detail}", switch=self.name)
        raise SwitchRefusedError(f"{where} refused with {response.status_code}: {detail}", switch=self.name)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, attempts: int) -> httpx.Response:
        for attempt in range(attempts - 1):
            try:
                return await self._http.request(method, path, json=body)
            except httpx.TransportError:
                await asyncio.sleep(BACKOFF_S * 3**attempt)
        return await self._http.request(method, path, json=body)


async def each(
    clients: Iterable[SwitchClient], call: Callable[[SwitchClient], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, SwitchError]]:
    """Do the same on several switches in parallel: (results, errors), both by switch name."""
    chosen = list(clients)
    outcomes = await asyncio.gather(*(call(client) for client in chosen), return_exceptions=True)
    done: dict[str, T] = {}
    failed: dict[str, SwitchError] = {}
    for client, outcome in zip(chosen, outcomes, strict=True):
        if isinstance(outcome, SwitchError):
            failed[client.name] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            done[client.name] = outcome
    return done, failed


def _detail(response: httpx.Response) -> str:
    try:
        body = response.json()
        return str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200] or response.reason_phrase
