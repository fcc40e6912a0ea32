# SPDX-License-Identifier: Apache-2.0
"""Generate the BF-Runtime message descriptors from bfruntime.proto.

hatchling runs this as a build hook for wheels, sdists and editable installs. Developers run
``python hatch_build.py`` after a change to the .proto. Needs grpcio-tools and
googleapis-common-protos (for google/rpc/status.proto).

Written to ``switch-agent/switch_agent/bfrt_proto/_generated/``, never committed:

- ``bfruntime.binpb``: a FileDescriptorSet with everything bfruntime.proto imports;
- ``bfruntime_pb2.pyi`` and ``status_pb2.pyi``: the types of the messages, for type checkers.

There is no ``bfruntime_pb2.py`` on purpose: it would register the messages in protobuf's default
pool, where the SDE's own ``bfrt_grpc`` registers the same names.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

PROTO_DIR = Path("switch-agent/switch_agent/bfrt_proto")
STATUS_PROTO = "google/rpc/status.proto"


def include_dirs() -> list[Path]:
    """Folders that hold google/protobuf/*.proto and google/rpc/*.proto.

    Raises SystemExit with what to install when one of them is missing.
    """
    tools, rpc = (importlib.util.find_spec(name) for name in ("grpc_tools", "google.rpc"))
    if tools is None or rpc is None or not rpc.submodule_search_locations or not tools.origin:
        raise SystemExit(
            "hatch_build.py: cannot compile bfruntime.proto: grpcio-tools or googleapis-common-protos is "
            "missing from this interpreter; run `pip install grpcio-tools googleapis-common-protos`"
        )
    dirs = [Path(tools.origin).parent / "_proto"]
    dirs += [Path(location).parent.parent for location in rpc.submodule_search_locations]
    return dirs


def generate(root: Path) -> list[Path]:
    """Write the generated files of the checkout at ``root``; returns their paths."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    source = root / PROTO_DIR
    target = source / "_generated"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = ["protoc", f"-I{source}", *(f"-I{folder}" for folder in include_dirs())]
        command += ["--include_imports", f"--descriptor_set_out={scratch}/set.binpb", f"--pyi_out={scratch}"]
        if protoc.main([*command, "bfruntime.proto", STATUS_PROTO]) != 0:
            raise SystemExit(f"hatch_build.py: protoc refused {source}/bfruntime.proto; its message is above")
        files = {
            "bfruntime.binpb": Path(scratch, "set.binpb").read_bytes(),
            "bfruntime_pb2.pyi": Path(scratch, "bfruntime_pb2.pyi")
            .read_bytes()
            # The Status beside our messages lives in our pool, so it is typed beside them too.
            .replace(b"from google.rpc import status_pb2", b"from . import status_pb2"),
            "status_pb2.pyi": Path(scratch, "google/rpc/status_pb2.pyi").read_bytes(),
        }
    for name, content in files.items():
        path = target / name
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
    return [target / name for name in files]


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, without hatchling
    pass
else:

    class BfRuntimeBuildHook(BuildHookInterface[Any]):
        """Runs :func:`generate` before hatchling collects files."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Called by hatchling once per target (wheel, editable, sdist)."""
            generate(Path(self.root))


if __name__ == "__main__":
    for written in generate(Path(__file__).resolve().parent):
        print(written)
