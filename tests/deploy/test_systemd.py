# SPDX-License-Identifier: Apache-2.0
"""The systemd units: valid, hardened, and still able to do RDMA and to end in order."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from programs import run

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
NAMES = ["fabric-twin.service", "host-agent.service", "switch-agent@.service"]
PREFIX = "/opt/symphony-testbed/bin/"
SCRIPTS = Path(sys.executable).parent


def settings(name: str) -> dict[str, list[str]]:
    """All settings of a unit, by name, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in (UNITS / name).read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def one(name: str, key: str) -> str:
    """A setting that a unit has once."""
    (value,) = settings(name)[key]
    return value


@pytest.fixture(params=NAMES)
def unit(request: pytest.FixtureRequest) -> str:
    """Each unit."""
    name: str = request.param
    return name


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as somebody would install them, with programs that exist."""
    for name in NAMES:
        text = (UNITS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(PREFIX, f"{SCRIPTS}/"), encoding="utf-8")
    return tmp_path


def test_all_units_are_tested() -> None:
    """No unit is shipped unchecked."""
    assert sorted(path.name for path in UNITS.glob("*.service")) == NAMES


def test_systemd_finds_nothing_to_complain_about(unit: str, installed: Path) -> None:
    """Unknown settings, wrong values, missing programs: systemd-analyze verify prints nothing."""
    assert run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(installed / unit)) == ""


def test_hardening_does_not_wear_off(unit: str, installed: Path) -> None:
    """systemd's own score from 0 (safe) to 10; RDMA needs a little."""
    output = run("systemd-analyze", "security", "--offline=yes", "--threshold=25", str(installed / unit))
    assert "Overall exposure level" in output


def test_the_rdma_agent_keeps_devices_and_locked_memory() -> None:
    """PrivateDevices would hide /dev/infiniband, a small limit makes reg_mr, create_cq and create_qp fail."""
    found = settings("host-agent.service")
    assert found["LimitMEMLOCK"] == ["infinity"]
    assert found["PrivateDevices"] == ["no"]
    assert found["DeviceAllow"] == ["char-infiniband_verbs rw"]
    assert "modprobe@ib_uverbs.service" in one("host-agent.service", "After").split()
    assert "AF_NETLINK" in one("host-agent.service", "RestrictAddressFamilies").split()
    assert not {"PrivateUsers", "PrivateNetwork", "MemoryDenyWriteExecute"} & found.keys()


def test_stopping_leaves_time_to_end_in_order(unit: str) -> None:
    """systemd kills later than the program's own limits: streams, then benchmarks, then connections."""
    from host_agent import cli, hub, launcher

    longest = cli.GRACEFUL_S + launcher.GRACE_S + hub.SHUTDOWN_S
    assert int(one(unit, "TimeoutStopSec")) >= 2 * longest
    assert one(unit, "KillMode") == "mixed"


def test_programs_have_absolute_paths_in_one_place(unit: str) -> None:
    """An interpreter found by PATH might be one without the right pyverbs."""
    assert one(unit, "ExecStart").startswith(PREFIX)
    assert "PATH" not in "".join(settings(unit)["Environment"])


def test_the_command_line_is_one_that_the_program_understands(unit: str) -> None:
    """Sub-command and options exist."""
    program, command, *arguments = shlex.split(one(unit, "ExecStart"))
    script = SCRIPTS / Path(program).name
    help_text = subprocess.run(
        [str(script), command, "--help"], capture_output=True, text=True, timeout=50, check=True
    ).stdout
    for argument in arguments:
        if argument.startswith("--"):
            assert re.search(rf"{argument}\b", help_text), argument


def test_variables_of_the_command_line_have_defaults(unit: str) -> None:
    """The environment file is optional (a leading minus), so every variable is set before it."""
    found = settings(unit)
    defaults = {text.partition("=")[0] for text in found["Environment"]}
    used = set(re.findall(r"\$\{?(\w+)", one(unit, "ExecStart"))) - {"CREDENTIALS_DIRECTORY"}
    assert used <= defaults
    assert all(file.startswith("-/etc/symphony/") for file in found["EnvironmentFile"])


def test_agents_start_only_with_a_token_that_others_cannot_read() -> None:
    """The token comes as a credential, never on the command line or in the unit."""
    for name in ("host-agent.service", "switch-agent@.service"):
        assert "--token-file ${CREDENTIALS_DIRECTORY}/token" in one(name, "ExecStart")
        assert one(name, "LoadCredential").startswith("token:/etc/symphony/")
        assert not any("TOKEN" in text for text in settings(name)["Environment"])


def test_units_listen_on_loopback_by_default(unit: str) -> None:
    """As the programs themselves; anything else is the operator's explicit choice."""
    addresses = [text for text in settings(unit)["Environment"] if text.startswith(("LISTEN=", "BFRT="))]
    assert all(text.partition("=")[2].startswith("127.0.0.1:") for text in addresses)
    assert "0.0.0.0" not in (UNITS / unit).read_text(encoding="utf-8")  # noqa: S104


def test_nobody_is_root(unit: str) -> None:
    """All run as the user that sysusers creates, without capabilities."""
    user = one(unit, "User")
    sysusers = (UNITS / "symphony.sysusers.conf").read_text(encoding="utf-8")
    assert re.search(rf"^u {user} ", sysusers, re.MULTILINE)
    assert settings(unit)["CapabilityBoundingSet"] == [""]
    assert settings(unit)["NoNewPrivileges"] == ["yes"]


def test_the_twin_may_compile_and_see_its_ranks() -> None:
    """numba needs a cache it can write and pages it can execute; ranks' memory is mapped through /proc."""
    found = settings("fabric-twin.service")
    assert any(text.startswith("NUMBA_CACHE_DIR=%C/") for text in found["Environment"])
    assert found["CacheDirectory"] == ["symphony/fabric-twin"]
    assert not {"MemoryDenyWriteExecute", "PrivateUsers", "ProcSubset"} & found.keys()
    assert one("fabric-twin.service", "User") == one("host-agent.service", "User")
