# SPDX-License-Identifier: Apache-2.0
"""What `pip install` gives somebody who has no checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the files that git knows, as on a clean clone."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_our_packages_typed_and_nothing_else(wheel: Path) -> None:
    """py.typed in each, the generated messages, no tests, no tools."""
    names = zipfile.ZipFile(wheel).namelist()
    packages = {"ring_bench", "switch_agent", "host_agent", "fabric_twin", "symphony_common"}
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert "switch_agent/bfrt_proto/_generated/bfruntime.binpb" in names


def test_its_programs_run_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Installed without its dependencies, which come from this environment by path: the four commands answer."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home / "bin" / "python"),
        "install",
        "-q",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run(pip, check=True)
    (site,) = (home / "lib").glob("python*/site-packages")
    dependencies = next(p for p in sys.path if p.startswith(sys.prefix) and p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(dependencies + "\n")
    for program in ("ring-bench", "switch-agent", "host-agent", "fabric-twin"):
        done = subprocess.run(
            [home / "bin" / program, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"usage: {program}" in done.stdout
    code = "import switch_agent.bfrt_proto as p, fabric_twin; print(fabric_twin.__file__); p.WriteRequest()"
    where = subprocess.run(
        [home / "bin" / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert str(home) in where.stdout
    run = [home / "bin" / "ring-bench", "--provider", "loopback", "--world", "4", "-b", "1K", "-e", "4K", "-f", "2"]
    table = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "# Out of bounds values : 0 OK" in table
