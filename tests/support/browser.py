# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a window, driven over its debugging pipe (Chrome DevTools Protocol)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from programs import find

__all__ = ["Page", "browser"]

ANSWER_S = 30.0


class Page:
    """A tab; `show` opens an address in a window of the given width."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._unread = b""
        self._last = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def show(self, url: str, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Open an address; `scheme` is what the user prefers: light or dark."""
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=media)
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """The expression's first true value; fails when it takes too long."""
        deadline = time.monotonic() + ANSWER_S
        while not (value := self.value(script)):
            assert time.monotonic() < deadline, f"not within {ANSWER_S:.0f} s: {script}"
            time.sleep(0.05)
        return value

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._last:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium does not answer within {ANSWER_S:.0f} s"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium has ended"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with its profile in `folder`, for as long as the block runs."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    arguments = [
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
    ]
    # The pipe's ends are the file descriptors 3 and 4, by Chromium's definition.
    command = ["bash", "-c", f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}', find("chromium"), *arguments]
    process = subprocess.Popen(
        command,
        pass_fds=(their_in, their_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Page(our_out, our_in)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(our_out)
        os.close(our_in)
