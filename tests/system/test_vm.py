# SPDX-License-Identifier: Apache-2.0
"""The VM itself: what a command does there comes back as it was."""

from __future__ import annotations

import pytest
import soft_roce_vm
from soft_roce_vm import TIMED_OUT, VirtualMachine, VmError

pytestmark = pytest.mark.system


def test_output_and_exit_status_come_back_unchanged(vm: VirtualMachine) -> None:
    """Both streams, byte for byte, also without a last newline, while they come and at the end."""
    pieces: list[bytes] = []
    result = vm.run("printf 'no newline at the end'; echo -n ' ü' >&2; exit 7", echo=pieces.append)
    assert result == (7, "no newline at the end ü")
    assert b"".join(pieces).decode() == result.output


def test_large_output_comes_back_whole(vm: VirtualMachine) -> None:
    """Half a megabyte in many pieces."""
    assert vm.run("seq 100000").output == "".join(f"{i}\n" for i in range(1, 100001))


def test_commands_start_in_the_checkout_with_the_distributions_python_and_our_packages(vm: VirtualMachine) -> None:
    """One interpreter has pyverbs, numpy and the project."""
    result = vm.run("python -c 'import os, pyverbs, numpy, ring_bench; print(os.getcwd())'")
    assert result == (0, f"{soft_roce_vm._HERE.parents[1]}\n")


def test_a_command_that_takes_too_long_is_killed_and_the_next_one_runs(vm: VirtualMachine) -> None:
    """The channel stays in step after a time-out."""
    assert vm.run("echo begun; sleep 600", timeout_s=1) == (TIMED_OUT, "begun\n")
    assert vm.run("echo next").output == "next\n"


def test_the_guest_cannot_change_the_host_but_for_the_share(vm: VirtualMachine) -> None:
    """The root is an overlay."""
    mark = soft_roce_vm._HERE / "written-by-the-guest"
    assert vm.run(f"echo x > {mark} && cat {mark} && echo y > /share/result").output == "x\n"
    assert not mark.exists()
    assert (vm.share / "result").read_text() == "y\n"


def test_every_host_has_an_active_device_that_reaches_the_others(vm: VirtualMachine) -> None:
    """Seen with perftest's writes, which are none of ours."""
    links = vm.run("rdma link").output.splitlines()
    assert [line.split()[1] for line in links] == [f"rxe{i}/1" for i in range(4)]
    assert all("state ACTIVE" in line for line in links)
    write = "ib_write_bw -x 1 -s 65536 -n 5 -F -d"
    server = f"{write} rxe0 >/dev/null & until ss -ltn | grep -q 18515; do :; done"
    assert vm.run(f"{server}; {write} rxe3 10.77.0.1", timeout_s=60).status == 0


def test_missing_packages_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is the command that mends it."""
    monkeypatch.setattr(soft_roce_vm, "PACKAGES", ("kmod", "symphony-no-such-a", "symphony-no-such-b"))
    with pytest.raises(VmError) as caught:
        VirtualMachine()
    assert str(caught.value) == (
        "the soft-RoCE VM needs Debian packages: apt-get install symphony-no-such-a symphony-no-such-b"
    )


def test_a_vm_that_dies_at_its_start_says_why_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU's own words are in the error, its files are gone."""
    command = soft_roce_vm._qemu
    monkeypatch.setattr(soft_roce_vm, "_qemu", lambda *args: [*command(*args), "-no-such-option"])
    state = soft_roce_vm._state_directory()
    before = set(state.iterdir())
    with pytest.raises(VmError, match="no-such-option"):
        VirtualMachine()
    assert set(state.iterdir()) == before
