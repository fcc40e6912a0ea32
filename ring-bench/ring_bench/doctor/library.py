# SPDX-License-Identifier: Apache-2.0
"""Run as a program: tells as JSON what this interpreter's pyverbs is, and which devices libibverbs knows and opens.

In a process of its own because loading a provider may crash, and because nothing may fork once a device is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ring_bench.errors import ProviderUnavailableError
from ring_bench.verbs.pyverbs_library import load_pyverbs

__all__ = ["describe", "private_abi"]

_ABI = re.compile(rb"IBVERBS_PRIVATE_(\d+)")


def private_abi(library: Path) -> list[int]:
    """Give the versions of rdma-core's private interface that a shared library names; it names the one it needs,
    libibverbs the one it has.
    """
    try:
        return sorted({int(version) for version in _ABI.findall(library.read_bytes())})
    except OSError:
        return []


def describe() -> dict[str, Any]:
    """Look without changing anything."""
    found: dict[str, Any] = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "location": None,
        "compiled": False,
        "version": None,
        "abi_wanted": [],
        "error": None,
        "libibverbs": None,
        "mlx5": False,
        "devices": {},
    }
    spec = importlib.util.find_spec("pyverbs")
    if spec is not None and spec.submodule_search_locations:
        location = Path(next(iter(spec.submodule_search_locations)))
        binaries = sorted(location.glob("device*.so"))
        found |= {
            "location": str(location),
            "compiled": bool(binaries),
            "abi_wanted": private_abi(binaries[0]) if binaries else [],
            "version": _version(),
        }
    try:
        lib = load_pyverbs()
    except ProviderUnavailableError as error:
        found["error"] = str(error)
        found["libibverbs"] = _libibverbs()
        return found
    found["libibverbs"] = _libibverbs()
    with contextlib.suppress(ImportError):
        found["mlx5"] = importlib.import_module("pyverbs.providers.mlx5.mlx5dv") is not None
    try:
        names = [entry.name.decode() for entry in lib.get_device_list()]
    except lib.PyverbsError:  # raised where there is no device at all
        names = []
    found["devices"] = {name: _open(lib, name) for name in names}
    return found


def _libibverbs() -> str | None:
    """Give the file of the libibverbs that this process loads: pyverbs' own, LD_LIBRARY_PATH's or the installed one."""
    with contextlib.suppress(OSError):  # loaded already, if pyverbs is
        ctypes.CDLL("libibverbs.so.1")
    match = re.search(r"(/\S*/libibverbs\.so\S*)$", Path("/proc/self/maps").read_text(encoding="utf-8"), re.M)
    return match[1] if match else None


def _open(lib: Any, name: str) -> dict[str, Any]:
    try:
        with lib.Context(name=name) as context:
            ports = {}
            for number in range(1, context.query_device().phys_port_cnt + 1):
                port = context.query_port(number)
                ports[str(number)] = {"active_mtu": 128 << port.active_mtu, "max_mtu": 128 << port.max_mtu}
    except lib.PyverbsError as error:
        return {"error": str(error), "ports": {}}
    return {"error": None, "ports": ports}


def _version() -> str | None:
    try:
        return metadata.version("pyverbs")
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(describe()))
