# SPDX-License-Identifier: Apache-2.0
"""The programs as processes, as a user starts them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def run(*args: str, **environment: str) -> Process:
    """Start switch-agent."""
    env = {name: value for name, value in os.environ.items() if name != "SWITCH_AGENT_TOKEN"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "switch_agent.cli", *args, stdout=PIPE, stderr=PIPE, env=env | environment
    )


async def output(*args: str) -> tuple[int, str, str]:
    """Run to the end: exit code, stdout, stderr."""
    process = await run(*args, COLUMNS="200")
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def served(bfrt: str, folder: Path, *args: str) -> AsyncIterator[tuple[Process, str]]:
    """A running ``switch-agent serve`` that answers; killed at the end if it still runs."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = await run(
        "serve",
        *("--bfrt", bfrt, "--listen", f"127.0.0.1:{port}", "--name", "tor0", "--state-dir", str(folder)),
        *args,
    )
    try:
        async with asyncio.timeout(60), httpx.AsyncClient() as http:
            while True:
                try:
                    await http.get(f"{url}/healthz")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.02)
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_ready(url: str) -> None:
    """Wait until the agent owns the switch."""
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while (await http.get(f"{url}/api/v1/switch")).json()["state"] != "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def twin(folder: Path, *args: str) -> AsyncIterator[dict[str, Any]]:
    """A running ``fabric-twin run``; gives what its testbed file says."""
    testbed = folder / "testbed.yaml"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from fabric_twin.cli import main; main()"),
        *("run", "--bfrt-port", "0", "--http-port", "0"),
        *("--verbs", str(folder / "verbs.sock"), "--testbed-file", str(testbed), *args),
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):  # the engine may have to be compiled
            while b"REST" not in (line := await process.stdout.readline()):
                assert line, "the twin ended"
        yield yaml.safe_load(await asyncio.to_thread(testbed.read_text))
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
