# SPDX-License-Identifier: Apache-2.0
"""What `pip install` gives somebody who has no checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


PROGRAMS = ("ring-bench", "switch-agent", "host-agent", "fabric-twin", "symphony-experiments")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist built from the files that git knows, as on a clean clone, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("built")
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
    # Without a choice `build` makes the wheel from the sdist: what the sdist lacks, the wheel lacks.
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def wheel(built: Path) -> Path:
    """The wheel built from the sdist."""
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture
def sdist(built: Path) -> Path:
    """The source distribution."""
    (path,) = built.glob("*.tar.gz")
    return path


def installed(distribution: Path, home: Path) -> Path:
    """Install without dependencies into a new environment; they come from this one by path. Gives its ``bin``."""
    venv.create(home, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, str(distribution)], check=True)
    (site,) = (home / "lib").glob("python*/site-packages")
    dependencies = next(p for p in sys.path if p.startswith(sys.prefix) and p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(dependencies + "\n")
    return home / "bin"


def test_the_wheel_has_our_packages_typed_and_nothing_else(wheel: Path) -> None:
    """py.typed in each, the generated messages, no tests, no tools."""
    names = zipfile.ZipFile(wheel).namelist()
    packages = {"ring_bench", "switch_agent", "host_agent", "fabric_twin", "symphony_common", "symphony_experiments"}
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert "switch_agent/bfrt_proto/_generated/bfruntime.binpb" in names


def test_the_sdist_has_what_it_takes_to_build_and_no_generated_or_private_file(sdist: Path) -> None:
    """Sources, the .proto, the licence; no environment and no cache."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "LICENSE", "README.md", "switch-agent/p4/symphony.p4"} <= names
    assert "switch-agent/switch_agent/bfrt_proto/bfruntime.proto" in names
    assert not [name for name in names if name.startswith((".venv", ".git/")) or "__pycache__" in name]


def test_the_version_is_the_newest_of_the_changelog(wheel: Path, sdist: Path) -> None:
    """Who releases one writes the other."""
    newest = re.search(r"^## \[(\d\S*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert wheel.name.split("-")[1] == newest[1]
    assert sdist.name == f"symphony_testbed-{newest[1]}.tar.gz"


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_its_programs_run_in_an_empty_environment(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Installed from the wheel as from the sdist, all commands answer and say one version, and a ring runs."""
    distribution: Path = request.getfixturevalue(kind)
    programs = installed(distribution, tmp_path / "env")
    version = distribution.name.removesuffix(".tar.gz").split("-")[1]
    for program in PROGRAMS:
        for option, expected in (("--help", f"usage: {program}"), ("--version", version)):
            done = subprocess.run(
                [programs / program, option], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout
    code = "import switch_agent.bfrt_proto as p, fabric_twin; print(fabric_twin.__file__); p.WriteRequest()"
    where = subprocess.run([programs / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(tmp_path) in where.stdout
    run = [programs / "ring-bench", "--provider", "loopback", "--world", "4", "-b", "1K", "-e", "4K", "-f", "2"]
    table = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "# Out of bounds values : 0 OK" in table
