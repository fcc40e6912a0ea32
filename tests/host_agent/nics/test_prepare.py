# SPDX-License-Identifier: Apache-2.0
"""Plan, apply, restore: on real links in a namespace, and on the files of a made-up driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from host_agent.errors import BadInputError, ConflictError, HostAgentError, NicError, StorageError, UnknownNicError
from host_agent.nics import knobs
from host_agent.nics.knobs import Unsupported, Workbench
from host_agent.nics.models import Wishes
from host_agent.nics.netlink import Netlink
from host_agent.nics.prepare import Journal, Preparation
from ring_bench.doctor.machine import Output

MAC = "02:00:00:00:00:99"
LINK = {
    "netdev": "v0",
    "up": True,
    "mtu": 4200,
    "addresses": ["10.1.0.1/24", "10.1.7.1/24", "fd00::7/64"],
    "neighbours": [{"address": "10.1.0.9", "mac": MAC.upper()}],
}
QUALITY = {
    "netdev": "v0",
    "trust": "dscp",
    "traffic_class": 106,
    "ecn_np": True,
    "ecn_rp": [3],
    "cnp_priority": 6,
    "cnp_dscp": 48,
}


def wish(*nics: dict[str, Any]) -> Wishes:
    """Wishes for some NICs."""
    return Wishes.model_validate({"nics": list(nics)})


def names(changes: Any) -> list[str]:
    """Names of changes."""
    return [change.name for change in changes]


def test_a_plan_holds_what_differs_with_before_and_after_and_changes_nothing(
    preparation: Preparation, namespace: Any
) -> None:
    """The address that is there already is not in it."""
    before = namespace.state()
    plan = preparation.plan(wish(LINK))
    assert [(c.name, c.before, c.after) for c in plan.changes] == [
        ("v0 mtu", 1500, 4200),
        ("v0 address 10.1.7.1/24", False, True),
        ("v0 address fd00::7/64", False, True),
        ("v0 up", False, True),
        ("v0 neighbour 10.1.0.9", None, {"mac": MAC, "state": "permanent"}),
    ]
    assert plan.obstacles == []
    assert "queue pairs" in plan.changes[0].note
    assert namespace.state() == before


def test_apply_then_restore_leaves_everything_exactly_as_it_was(preparation: Preparation, namespace: Any) -> None:
    """Links, addresses, neighbours; and applying twice does nothing the second time."""
    before = namespace.state()
    assert len(preparation.apply(wish(LINK)).done) == 5
    assert namespace.state() != before
    assert preparation.apply(wish(LINK)).done == []
    assert preparation.plan(wish(LINK)).changes == []
    outcome = preparation.restore()
    assert names(outcome.done)[0] == "v0 neighbour 10.1.0.9"
    assert outcome.left == []
    assert namespace.state() == before
    assert preparation.restore().done == []
    assert preparation.changed() == []


def test_an_entry_that_was_there_comes_back(preparation: Preparation, namespace: Any) -> None:
    """A permanent neighbour with another address, replaced and restored."""
    namespace.run("link", "set", "v0", "up")
    namespace.run("neigh", "add", "10.1.0.9", "lladdr", "02:00:00:00:00:11", "dev", "v0", "nud", "permanent")
    before = namespace.state()
    preparation.apply(wish(LINK))
    assert MAC in namespace.run("neigh", "show", "10.1.0.9")
    preparation.restore()
    assert namespace.state() == before


def test_after_several_applies_the_first_original_counts(preparation: Preparation, namespace: Any) -> None:
    """1500, then 4200, then 9000, and back to 1500."""
    before = namespace.state()
    for mtu in (4200, 9000):
        preparation.apply(wish({"netdev": "v0", "mtu": mtu}))
    (change,) = preparation.changed()
    assert (change.before, change.after) == (1500, 9000)
    preparation.restore()
    assert namespace.state() == before


def test_what_somebody_else_changed_since_is_left_alone_unless_forced(preparation: Preparation, namespace: Any) -> None:
    """The rest is restored; the entry stays for a forced restore."""
    preparation.apply(wish({"netdev": "v0", "mtu": 4200, "addresses": ["10.1.7.1/24"]}))
    namespace.run("link", "set", "v0", "mtu", "2000")
    outcome = preparation.restore()
    assert names(outcome.done) == ["v0 address 10.1.7.1/24"]
    assert outcome.left == ["v0 mtu is 2000 now, not 4200 as set here: left alone"]
    assert names(preparation.changed()) == ["v0 mtu"]
    assert names(preparation.restore(force=True).done) == ["v0 mtu"]
    assert " mtu 1500 " in namespace.run("link", "show", "v0")


def test_a_device_that_is_gone_needs_no_restore(preparation: Preparation, namespace: Any) -> None:
    """Its settings went with it."""
    preparation.apply(wish({"netdev": "v0", "mtu": 4200}))
    namespace.run("link", "del", "v0")
    outcome = preparation.restore()
    assert (outcome.done, outcome.left) == ([], [])
    assert preparation.changed() == []


def test_a_failure_on_the_way_undoes_what_was_done(
    preparation: Preparation, namespace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or nothing; the journal is empty afterwards."""

    def refuse(*_: Any) -> None:
        raise NicError("v0: neighbour 10.1.0.9, replace: EINVAL")

    monkeypatch.setattr(Netlink, "set_neighbour", refuse)
    before = namespace.state()
    with pytest.raises(NicError, match=r"EINVAL$"):
        preparation.apply(wish(LINK))
    assert namespace.state() == before
    assert preparation.changed() == []


def test_a_failed_second_apply_keeps_the_first(
    preparation: Preparation, namespace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MTU 1500, set to 4200; a failed change to 9000 goes back to 4200, and the original stays 1500."""
    preparation.apply(wish({"netdev": "v0", "mtu": 4200}))

    def refuse(*_: Any, **__: Any) -> None:
        raise NicError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Netlink, "set_address", refuse)
        with pytest.raises(NicError):
            preparation.apply(wish({"netdev": "v0", "mtu": 9000, "addresses": ["10.1.7.1/24"]}))
    (change,) = preparation.changed()
    assert (change.before, change.after) == (1500, 4200)
    assert " mtu 4200 " in namespace.run("link", "show", "v0")


def test_what_cannot_be_put_back_after_a_failure_is_said(
    preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stays in the journal."""
    real = Netlink.set_mtu

    def once(self: Netlink, name: str, mtu: int) -> None:
        if mtu == 1500:
            raise NicError("stuck")
        real(self, name, mtu)

    def refuse(*_: Any, **__: Any) -> None:
        raise NicError("no")

    monkeypatch.setattr(Netlink, "set_mtu", once)
    monkeypatch.setattr(Netlink, "set_address", refuse)
    with pytest.raises(NicError) as caught:
        preparation.apply(wish({"netdev": "v0", "mtu": 4200, "addresses": ["10.1.7.1/24"]}))
    assert caught.value.detail == "no; and v0 mtu could not be put back to 1500: stuck"
    assert names(preparation.changed()) == ["v0 mtu"]


def as_a_driver_shows_it(path: Path, text: str) -> None:
    """Write a file as mlx5 would then show it: a global traffic class by name, -1 as nothing."""
    if path.name == "traffic_class":
        text = "" if text == "-1" else f"Global tclass={text}\n"
    path.write_text(text)


def test_files_of_the_driver_are_set_and_restored(
    preparation: Preparation, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust, traffic class, both legs of DCQCN, the CNPs' class."""
    monkeypatch.setattr(knobs, "_put", as_a_driver_shows_it)
    files.rdma_device("mlx5_0", "v0")
    files.quality("v0")
    forced = files.write("sys/class/infiniband/mlx5_0/tc/1/traffic_class", "")
    plan = preparation.plan(wish(QUALITY))
    assert [(c.name, c.before, c.after) for c in plan.changes] == [
        ("v0 trust", "pcp", "dscp"),
        ("v0 traffic_class", None, 106),
        ("v0 cnp_priority", 3, 6),
        ("v0 ecn_np", False, True),
        ("v0 ecn_rp 3", False, True),
        ("v0 ecn_rp 5", True, False),
    ]
    assert "affects all priorities of the port" in next(c.note for c in plan.changes if c.what == "ecn_np")
    preparation.apply(wish(QUALITY))
    assert preparation.plan(wish(QUALITY)).changes == []
    assert files.read("sys/class/net/v0/qos/trust") == "dscp"
    assert forced.read_text() == "Global tclass=106\n"
    assert files.read("sys/class/net/v0/ecn/roce_rp/enable/3") == "1"
    assert files.read("sys/class/net/v0/ecn/roce_rp/enable/5") == "0"
    preparation.restore()
    assert files.read("sys/class/net/v0/qos/trust") == "pcp"
    assert forced.read_text() == ""
    assert files.read("sys/class/net/v0/ecn/roce_np/enable/0") == "0"
    assert files.read("sys/class/net/v0/ecn/roce_rp/enable/5") == "1"


def test_a_value_that_the_driver_does_not_take_is_an_error(
    preparation: Preparation, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written, and read back as something else."""
    files.rdma_device("mlx5_0", "v0")
    files.quality("v0")
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: None)
    with pytest.raises(HostAgentError, match="'dscp' was written, 'pcp' is there now"):
        preparation.apply(wish({"netdev": "v0", "trust": "dscp"}))


def test_what_the_machine_lacks_is_an_obstacle_and_nothing_is_changed(preparation: Preparation, namespace: Any) -> None:
    """All obstacles at once, each with what it would take."""
    before = namespace.state()
    wishes = wish({**QUALITY, "mtu": 4200})
    plan = preparation.plan(wishes)
    assert names(plan.changes) == ["v0 mtu"]
    assert any("qos/trust does not exist: it comes with MLNX_OFED" in text for text in plan.obstacles)
    assert any("v0 has no RDMA device" in text for text in plan.obstacles)
    with pytest.raises(BadInputError, match="nothing was changed"):
        preparation.apply(wishes)
    assert namespace.state() == before


def test_soft_roce_is_made_and_removed_by_rdma(preparation: Preparation, files: Any) -> None:
    """The device appears in sysfs, as the kernel does it."""
    parent = files.root / "sys/class/infiniband/rxe0/parent"

    class Rdma(dict[str, Output]):
        def items(self) -> Any:
            line = files.commands[-1]
            if line == "rdma link add rxe0 type rxe netdev v0":
                files.write("sys/class/infiniband/rxe0/parent", "v0")
            elif line == "rdma link delete rxe0":
                parent.unlink()
                parent.parent.rmdir()
            return {"rdma": Output(0, ""), "modprobe": Output(0, "")}.items()

    files.outputs = Rdma()
    preparation.apply(wish({"netdev": "v0", "rxe": "rxe0"}))
    assert parent.exists()
    preparation.restore()
    assert not parent.exists()
    assert files.commands == [
        "modprobe rdma_rxe",
        "rdma link add rxe0 type rxe netdev v0",
        "rdma link delete rxe0",
    ]


def test_an_unknown_device_is_told_before_anything_else(preparation: Preparation) -> None:
    """Also in a plan."""
    with pytest.raises(UnknownNicError, match="eth7"):
        preparation.plan(wish({"netdev": "eth7", "mtu": 4200}))


def test_the_journal_is_written_before_the_change(
    preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between loses no original value."""
    seen = []
    monkeypatch.setattr(Netlink, "set_mtu", lambda *_: seen.append(names(preparation.changed())))
    with pytest.raises(NicError):
        preparation.apply(wish({"netdev": "v0", "mtu": 4200}))
    assert seen[0] == ["v0 mtu"]


def test_a_state_folder_that_cannot_be_written_prevents_any_change(
    files: Any, netlink: Netlink, namespace: Any, tmp_path: Path
) -> None:
    """507 for REST."""
    (tmp_path / "file").write_text("")
    preparation = Preparation(Workbench(files.machine(), netlink), Journal(tmp_path / "file", "boot-1"))
    before = namespace.state()
    with pytest.raises(StorageError, match="--state-dir"):
        preparation.apply(wish(LINK))
    assert namespace.state() == before


def test_values_of_an_earlier_boot_are_not_restored(preparation: Preparation, files: Any, tmp_path: Path) -> None:
    """The kernel has started with its own."""
    preparation.apply(wish({"netdev": "v0", "mtu": 4200}))
    rebooted = Journal(tmp_path / "state" / "nics", "boot-2")
    assert rebooted.read() == []


def test_two_at_a_time_are_refused(preparation: Preparation, tmp_path: Path) -> None:
    """409: the command line and a service, for instance."""
    with (
        Journal(tmp_path / "state" / "nics", "boot-1").locked(),
        pytest.raises(ConflictError, match="right now"),
    ):
        preparation.restore()


def test_a_value_that_no_version_knows_is_not_guessed(files: Any, netlink: Netlink) -> None:
    """A journal of a later version."""
    with pytest.raises(Unsupported, match="no value 'colour'"):
        Workbench(files.machine(), netlink).knob("v0", "colour", "")


@pytest.mark.parametrize(
    "nic",
    [
        {"netdev": "v0", "mtu": 10},
        {"netdev": "v0", "addresses": ["10.0.0.1"]},
        {"netdev": "v0", "neighbours": [{"address": "10.0.0.1", "mac": "zz"}]},
        {"netdev": "v0", "ecn_rp": [8]},
        {"netdev": "v0", "up": False},
        {"netdev": "../etc"},
        {"netdev": "v0", "colour": "red"},
    ],
)
def test_wishes_that_cannot_be_meant_are_refused(nic: dict[str, Any]) -> None:
    """Before anything is looked at."""
    with pytest.raises(ValueError, match="validation error"):
        wish(nic)


def test_a_device_may_be_named_once() -> None:
    """Else two wishes could contradict each other."""
    with pytest.raises(ValueError, match="'v0' appears twice"):
        wish({"netdev": "v0"}, {"netdev": "v0"})
