# SPDX-License-Identifier: Apache-2.0
"""Preparing NICs: a plan, its application, and the way back.

A plan holds only what is not yet as it should be, so applying twice changes nothing the second time. Each value is
written down before it is changed, in ``journal.json`` of the state folder; what is there is what `restore` puts back,
in reverse order. Applying is all or nothing: after a failure what was done is undone. A value that somebody else has
changed since is left alone, unless forced.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from host_agent.errors import BadInputError, ConflictError, HostAgentError, NicError, StorageError, UnknownNicError
from host_agent.nics.knobs import Unsupported, Workbench, wanted
from host_agent.nics.models import Change, Outcome, Plan, Wishes
from symphony_common.output import write_file

__all__ = ["Journal", "Preparation"]

VERSION: Final = 1


class Journal:
    """The original values of everything that is changed now, on disk; gone with the boot that it is of.

    Args:
        folder: Where it lies.
        boot: Names the boot: what is set on NICs does not outlive it.
    """

    def __init__(self, folder: Path, boot: str) -> None:
        self._folder = folder
        self._path = folder / "journal.json"
        self._boot = boot

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes and threads from changing NICs meanwhile. Raises ConflictError, StorageError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"cannot write below {self._folder}: {error.strerror}; choose another --state-dir"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise ConflictError("somebody else is preparing NICs of this machine right now; try again") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def read(self) -> list[Change]:
        """What is changed, in the order in which it was; `before` is the original."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {self._path}: {error}; it holds the original NIC settings") from error
        if content.get("boot") != self._boot:
            return []  # the kernel has started afresh, with its own values
        return [Change.model_validate(entry) for entry in content["changes"]]

    def write(self, changes: Sequence[Change]) -> None:
        """Replace the file at once. Raises StorageError."""
        content = {"version": VERSION, "boot": self._boot, "changes": [change.model_dump() for change in changes]}
        try:
            write_file(self._path, json.dumps(content, indent=1).encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}; nothing was changed") from error


class Preparation:
    """Plans, applies and restores on one machine."""

    def __init__(self, bench: Workbench, journal: Journal) -> None:
        self._bench = bench
        self._journal = journal

    def plan(self, wishes: Wishes) -> Plan:
        """What has to change. Raises UnknownNicError for a device that is not there."""
        changes, obstacles = [], []
        for wish in wishes.nics:
            self._bench.netlink.link(wish.netdev)
            for what, detail, value in wanted(wish):
                knob = self._bench.knob(wish.netdev, what, detail)
                try:
                    now = knob.read()
                except Unsupported as reason:
                    obstacles.append(str(reason))
                    continue
                if now != value:
                    changes.append(
                        Change(netdev=wish.netdev, what=what, detail=detail, before=now, after=value, note=knob.note)
                    )
        return Plan(changes=changes, obstacles=list(dict.fromkeys(obstacles)))

    def apply(self, wishes: Wishes) -> Outcome:
        """Make the NICs as wished; all or nothing.

        Raises:
            BadInputError: This machine cannot do all of it; the obstacles are named.
            HostAgentError: A change failed; what was done before it has been undone.
        """
        with self._journal.locked():
            plan = self.plan(wishes)
            if plan.obstacles:
                raise BadInputError(f"nothing was changed: {'; '.join(plan.obstacles)}", obstacles=plan.obstacles)
            journal = self._journal.read()
            done: list[Change] = []
            try:
                for change in plan.changes:
                    journal = _with(journal, change)
                    self._journal.write(journal)
                    self._set(change, change.after)
                    done.append(change)
            except HostAgentError as error:
                self._undo(plan.changes[: len(done) + 1], error)
                raise
            return Outcome(done=done)

    def restore(self, *, force: bool = False) -> Outcome:
        """Put back the original values, last change first.

        Raises:
            HostAgentError: A value could not be put back; it and those before it are still in the journal.
        """
        with self._journal.locked():
            journal = self._journal.read()
            done: list[Change] = []
            left: list[str] = []
            kept: list[Change] = []
            while journal:
                change = journal[-1]
                try:
                    now = self._bench.knob(*change.key).read()
                except (UnknownNicError, Unsupported):
                    now = change.before  # the device is gone, and its settings with it
                if now == change.after or (force and now != change.before):
                    self._set(change, change.before)
                    done.append(change.model_copy(update={"before": now, "after": change.before}))
                elif now != change.before:
                    left.append(f"{change.name} is {now!r} now, not {change.after!r} as set here: left alone")
                    kept.insert(0, change)
                journal = journal[:-1]
                self._journal.write([*journal, *kept])
            return Outcome(done=done, left=left)

    def changed(self) -> list[Change]:
        """What is set here and could be restored."""
        return self._journal.read()

    def _set(self, change: Change, value: Any) -> None:
        knob = self._bench.knob(*change.key)
        knob.write(value)
        now = knob.read()
        if now != value:
            raise NicError(f"{change.name}: {value!r} was written, {now!r} is there now; the driver did not take it")

    def _undo(self, changes: Sequence[Change], cause: HostAgentError) -> None:
        """Take back a failed apply; the last of the changes may or may not have been made."""
        originals = {entry.key: entry for entry in self._journal.read()}
        for change in reversed(changes):
            try:
                knob = self._bench.knob(*change.key)
                if knob.read() != change.before:
                    knob.write(change.before)
            except (HostAgentError, Unsupported) as error:
                cause.detail += f"; and {change.name} could not be put back to {change.before!r}: {error}"
                continue
            entry = originals.pop(change.key, None)
            if entry is not None and entry.before != change.before:  # an earlier apply had changed it already
                originals[change.key] = entry.model_copy(update={"after": change.before})
        self._journal.write(list(originals.values()))


def _with(journal: Sequence[Change], change: Change) -> list[Change]:
    """Add a change: of a value that was changed before, the first original counts."""
    first = next((entry for entry in journal if entry.key == change.key), None)
    others = [entry for entry in journal if entry.key != change.key]
    if first is None:
        return [*others, change]
    return [*others, change.model_copy(update={"before": first.before})]
