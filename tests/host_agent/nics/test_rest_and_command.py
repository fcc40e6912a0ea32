# SPDX-License-Identifier: Apache-2.0
"""REST and command line of the NICs and of the doctor, down to the kernel where a namespace can be had."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest

from host_agent.cli import main
from host_agent.errors import NotPermittedError
from host_agent.nics import NicService
from host_agent.nics.checks import check_files, check_pyroute2
from host_agent.nics.netlink import Netlink
from ring_bench.doctor import Machine, Options, Severity
from ring_bench.doctor.options import Examination

WISH = {"nics": [{"netdev": "v0", "mtu": 4200, "addresses": ["10.1.7.1/24"]}]}


@pytest.fixture
async def client(make_bench: Any, files: Any, netlink: Netlink, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application whose NICs are those of the namespace; it needs a token."""
    files.rdma_device("mlx5_0", "v0")
    service = NicService(tmp_path / "state", make_machine=files.machine, netlink=netlink)
    bench = make_bench(token="correct horse battery", nics=service)
    bench.client.headers["Authorization"] = "Bearer correct horse battery"
    yield bench.client
    await bench.client.aclose()
    service.close()


async def test_the_inventory_shows_what_there_is_to_everybody(client: httpx.AsyncClient) -> None:
    """Ports with their GIDs and why one cannot be used; links without RDMA after them; null where nothing tells."""
    del client.headers["Authorization"]
    answer = (await client.get("/api/v1/nics")).json()
    rdma, link = answer["nics"]
    assert (rdma["netdev"], rdma["mtu"], rdma["up"], rdma["addresses"]) == ("v0", 1500, False, ["10.1.0.1/24"])
    assert rdma["rdma"]["device"] == "mlx5_0"
    assert rdma["rdma"]["gids"] == [{"index": 0, "address": "10.1.0.1", "kind": "RoCE v2", "rejected": None}]
    assert rdma["rdma"]["ecn_rp"] is None
    assert (link["netdev"], link["rdma"]) == ("v1", None)
    assert answer["changed"] == []


@pytest.mark.parametrize("path", ["nics/plan", "nics/apply", "nics/restore", "doctor"])
async def test_the_rest_needs_the_token(client: httpx.AsyncClient, path: str) -> None:
    """Plans and findings too: they tell a lot about the machine."""
    del client.headers["Authorization"]
    body = WISH if path in ("nics/plan", "nics/apply") else {}
    assert (await client.post(f"/api/v1/{path}", json=body)).status_code == 401


async def test_plan_apply_restore_over_rest(client: httpx.AsyncClient, namespace: Any) -> None:
    """Each answers with what it did; the state is the kernel's."""
    before = namespace.state()
    plan = (await client.post("/api/v1/nics/plan", json=WISH)).json()
    assert [change["what"] for change in plan["changes"]] == ["mtu", "address"]
    applied = await client.post("/api/v1/nics/apply", json=WISH)
    assert applied.status_code == 200
    assert applied.json()["done"] == plan["changes"]
    assert (await client.post("/api/v1/nics/apply", json=WISH)).json()["done"] == []
    changed = (await client.get("/api/v1/nics")).json()["changed"]
    assert [(change["before"], change["after"]) for change in changed] == [(1500, 4200), (False, True)]
    restored = (await client.post("/api/v1/nics/restore", json={})).json()
    assert [change["after"] for change in restored["done"]] == [False, 1500]
    assert namespace.state() == before


@pytest.mark.parametrize(
    ("nic", "status", "code", "text"),
    [
        ({"netdev": "eth9", "mtu": 4200}, 404, "unknown_nic", "eth9"),
        ({"netdev": "v0", "mtu": 1}, 422, "bad_input", "mtu"),
        ({"netdev": "v0", "trust": "dscp"}, 422, "bad_input", "MLNX_OFED"),
        ({"netdev": "v0", "speed": 1}, 422, "bad_input", "speed"),
    ],
)
async def test_errors_have_status_code_and_reason(
    client: httpx.AsyncClient, nic: dict[str, Any], status: int, code: str, text: str
) -> None:
    """As everywhere in host-agent."""
    answer = await client.post("/api/v1/nics/apply", json={"nics": [nic]})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert text in answer.json()["detail"]


async def test_a_missing_capability_is_a_403(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """And names it."""

    def refuse(*_: Any) -> None:
        raise NotPermittedError("v0: not permitted (EPERM); it needs CAP_NET_ADMIN")

    monkeypatch.setattr(Netlink, "set_mtu", refuse)
    answer = await client.post("/api/v1/nics/apply", json=WISH)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")
    assert "CAP_NET_ADMIN" in answer.json()["detail"]


async def test_the_doctor_looks_from_inside_the_service(client: httpx.AsyncClient, files: Any) -> None:
    """Its own limits, not those of somebody's shell."""
    files.write("proc/self/limits", "Max locked memory  65536  65536  bytes")
    files.write("proc/self/status", "CapEff:\t0000000000000000")
    files.write("proc/self/cgroup", "0::/system.slice/host-agent.service")
    answer = (await client.post("/api/v1/doctor", json={"only": ["memlock", "pyroute2"]})).json()
    assert [finding["id"] for finding in answer["findings"]] == ["memlock", "pyroute2"]
    assert answer["findings"][0]["severity"] == "error"
    assert "service host-agent.service may lock 64K" in answer["findings"][0]["evidence"]


def in_namespace(namespace: Any, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run host-agent's command in the namespace, as a user would."""
    command = ["ip", "netns", "exec", namespace.name, sys.executable, "-m", "host_agent", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, input=stdin, timeout=60)


def test_the_command_prepares_and_restores_the_nics_of_this_machine(namespace: Any, tmp_path: Path) -> None:
    """Plan, apply, restore from a YAML file; exact in the end."""
    before = namespace.state()
    wishes = tmp_path / "nics.yaml"
    wishes.write_text("nics:\n  - {netdev: v0, mtu: 4200, up: true, addresses: [10.1.7.1/24]}\n")
    nics = ("nics", "--state-dir", str(tmp_path / "state"))
    plan = in_namespace(namespace, *nics, "plan", str(wishes))
    assert (plan.returncode, plan.stderr) == (0, "")
    assert plan.stdout.splitlines()[0].startswith("v0 mtu: 1500 -> 4200   # the port's GIDs are made anew")
    assert namespace.state() == before
    applied = in_namespace(namespace, *nics, "apply", str(wishes))
    assert applied.stdout.splitlines()[1:] == ["v0 address 10.1.7.1/24: no -> yes", "v0 up: no -> yes"]
    shown = in_namespace(namespace, *nics, "show").stdout
    assert "changed: v0 mtu: 1500 -> 4200" in shown
    assert in_namespace(namespace, *nics, "--json", "plan", "-", stdin=wishes.read_text()).stdout.startswith("{")
    restored = in_namespace(namespace, *nics, "restore")
    assert (restored.returncode, restored.stderr) == (0, "")
    assert namespace.state() == before


def test_what_the_command_cannot_do_is_one_line_on_stderr(namespace: Any, tmp_path: Path) -> None:
    """Exit code 1 for the machine, 2 for the file."""
    nics = ("nics", "--state-dir", str(tmp_path / "state"))
    gone = in_namespace(namespace, *nics, "apply", "-", stdin="nics: [{netdev: eth9, mtu: 4200}]")
    assert gone.returncode == 1
    assert gone.stderr == "host-agent: there is no network device 'eth9' here; there are lo, v1, v0\n"
    bad = in_namespace(namespace, *nics, "plan", "-", stdin="nics: [{netdev: v0, mtu: many}]")
    assert bad.returncode == 2
    assert bad.stderr.startswith("host-agent: -: nics.0.mtu: ")


def test_a_file_that_is_no_wish_list_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It says where, before anything is touched."""
    (tmp_path / "bad.yaml").write_text("nics: [")
    assert main(["nics", "plan", str(tmp_path / "bad.yaml")]) == 2
    assert main(["nics", "plan", str(tmp_path / "missing.yaml")]) == 2
    assert main(["nics", "--server", "http://127.0.0.1:9", "show"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert "is no YAML" in errors[0]
    assert "cannot read" in errors[1]
    assert "no host-agent answers" in errors[2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"only": ["memlock", "zzz"]}, ["no check 'zzz'", "memlock", "pyroute2"]),
        ({"interval_s": 11}, ["interval_s", "10"]),
        ({"gid_index": 65536}, ["gid_index"]),
        ({"switch_mtu": 65536}, ["switch_mtu"]),
    ],
)
async def test_the_doctor_of_the_service_refuses_what_it_does_not_know(
    client: httpx.AsyncClient, body: dict[str, Any], words: list[str]
) -> None:
    """As the command does; no findings at all would look like a clean machine."""
    answer = await client.post("/api/v1/doctor", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_input")
    assert all(word in answer.json()["detail"] for word in words)


def test_the_doctor_command_says_how_long_a_service_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """Longer is possible without --server only."""
    assert main(["doctor", "--server", "http://far:9400", "--interval", "20"]) == 2
    assert "at most 10 s" in capsys.readouterr().err


def test_the_doctor_command_has_ring_benchs_checks_and_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON for scripts."""
    assert main(["doctor", "--only", "capabilities,pyroute2", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["id"] for finding in findings] == ["capabilities", "pyroute2"]


def test_the_doctor_command_can_ask_a_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table and the exit status are made here."""
    asked: list[Any] = []
    finding = {"id": "memlock", "severity": "error", "subject": "", "evidence": "64K", "fix": "raise it"}

    def answer(*given: Any) -> dict[str, Any]:
        asked.append(given)
        return {"host": "far", "findings": [finding]}

    monkeypatch.setattr("host_agent.nics.commands.call", answer)
    assert main(["doctor", "--server", "http://far:9400", "--memory", "1G", "--only", "memlock"]) == 1
    assert "far: 1 errors" in capsys.readouterr().out
    body = asked[0][-1]
    assert (body["memory"], body["only"], body["interval_s"]) == (1 << 30, ["memlock"], 1.0)


@pytest.mark.parametrize(
    ("version", "severity"), [("0.9.7", Severity.OK), ("0.6.9", Severity.WARNING), ("1.0.0", Severity.WARNING)]
)
def test_a_pyroute2_that_was_not_tested_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, version: str, severity: Severity
) -> None:
    """Some releases hang or leak."""
    monkeypatch.setattr(metadata, "version", lambda _: version)
    (finding,) = check_pyroute2(Examination(Machine(), Options()))
    assert finding.severity is severity


@pytest.mark.parametrize(("limit", "severity"), [(1024, Severity.WARNING), (65536, Severity.OK)])
def test_few_open_files_are_a_warning(files: Any, limit: int, severity: Severity) -> None:
    """Streams and rings need them."""
    files.write("proc/self/limits", f"Max open files            {limit}                 1048576              files")
    (finding,) = check_files(Examination(files.machine(), Options()))
    assert finding.severity is severity
