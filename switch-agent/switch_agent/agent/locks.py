# SPDX-License-Identifier: Apache-2.0
"""Who may change what, when: one change per job at a time, and none while everything is reconciled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["JobLocks"]


class JobLocks:
    """A lock per job and one over all.

    A job's lock covers writing to the switch, reading back and saving, so that two fast toggles end in the
    second one's state on the switch, on disk and in the answer. The lock over all waits for running changes
    to end and holds back new ones.
    """

    def __init__(self) -> None:
        self._busy: set[int] = set()
        self._exclusive = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def job(self, job_id: int) -> AsyncIterator[None]:
        """Hold the lock of one job."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._exclusive and job_id not in self._busy)
            self._busy.add(job_id)
        try:
            yield
        finally:
            self._busy.discard(job_id)
            await self._wake()

    @asynccontextmanager
    async def all(self) -> AsyncIterator[None]:
        """Hold the lock over all jobs."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._exclusive)
            self._exclusive = True
            try:
                await self._changed.wait_for(lambda: not self._busy)
            except BaseException:
                self._exclusive = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            self._exclusive = False
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
