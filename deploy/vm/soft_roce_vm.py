#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A virtual machine with real soft-RoCE devices, for machines that have no RDMA.

Boots a Debian kernel under QEMU's software emulation (no KVM, no root needed once the packages are installed)
and runs commands there. The guest sees the host's file system, read-only below a tmpfs, so whatever is installed
on the host runs in the guest; what it writes vanishes, except below ``/share``. The soft-RoCE hosts are devices
rxe0, rxe1, ... with addresses 10.77.0.1, 10.77.0.2, ... in one network namespace. docs/soft-roce.md has more.

    soft_roce_vm.py run [--hosts N] [--share DIR] COMMAND
    soft_roce_vm.py packages

Standard library only; runs with the Python of the project's venv or any other from 3.11 on.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import lzma
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["PACKAGES", "CommandResult", "VirtualMachine", "VmError", "missing_packages"]

PACKAGES = (
    "qemu-system-x86",
    "busybox-static",
    "cpio",
    "kmod",
    "iproute2",
    "ibverbs-providers",
    "python3-pyverbs",
    "openmpi-bin",
    "perftest",
    "tcpdump",
    "nftables",
)
"""Debian packages: the first four boot the VM, the others are what its commands use."""

TIMED_OUT = 124
"""Exit status of a command that took too long, as timeout(1) has it."""

_HERE = Path(__file__).resolve().parent
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")
_GUEST_PYTHON = "/usr/bin/python3"
_KERNEL_OPTIONS = "console=ttyS0 panic=-1 nokaslr mitigations=off random.trust_cpu=on cryptomgr.notests quiet"


class VmError(Exception):
    """The VM cannot be built or booted, or it died; the text says what to do."""


class CommandResult(NamedTuple):
    """How a command in the guest ended."""

    status: int
    """Exit status; `TIMED_OUT` when it took too long."""
    output: str
    """Standard output and standard error, interleaved."""


def missing_packages() -> list[str]:
    """Give those of `PACKAGES` that are not installed.

    Raises:
        VmError: This is no Debian (or Ubuntu).
    """
    try:
        query = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES],
            capture_output=True,
            text=True,
            check=False,  # it fails for a package it does not know, which is an answer too
        )
    except FileNotFoundError:
        raise VmError("the soft-RoCE VM is made of Debian packages, and this machine has no dpkg") from None
    installed = {line.split()[0] for line in query.stdout.splitlines() if line.endswith(" installed")}
    return [package for package in PACKAGES if package not in installed]


class VirtualMachine:
    """A running VM; a context manager.

    Args:
        hosts: Soft-RoCE hosts in the guest; 0: none.
        mtu: Of their links, bytes. 4200 gives path MTU 4096, 1500 gives 1024.
        memory_mib: Of the guest.
        share: Folder that the guest sees as /share, writable; by default a temporary one.
        boot_timeout_s: Longest boot.

    Raises:
        VmError: Packages are missing, or the guest does not come up.
    """

    def __init__(
        self,
        *,
        hosts: int = 4,
        mtu: int = 4200,
        memory_mib: int = 2048,
        share: Path | None = None,
        boot_timeout_s: float = 180.0,
    ) -> None:
        if absent := missing_packages():
            raise VmError(f"the soft-RoCE VM needs Debian packages: apt-get install {' '.join(absent)}")
        state = _state_directory()
        modules, kernel = _kernel(state)
        self._received = bytearray()
        with contextlib.ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=state)))
            self.share = work / "share" if share is None else share.resolve()
            """What the guest sees as /share."""
            self.share.mkdir(parents=True, exist_ok=True)
            _write_environment(self.share / "environment", modules, _guest_programs(state), hosts, mtu)
            shutil.copyfile(_HERE / "guest-init", self.share / "guest-init")
            initramfs = _pack_initramfs(work, modules)
            self._console = work / "console.log"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(work / "port"))
            listener.listen(1)
            listener.settimeout(0.2)
            command = _qemu(kernel, initramfs, memory_mib, self.share, self._console, work / "port")
            self._messages = work / "qemu.log"
            with self._messages.open("wb") as messages:
                self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages)
            stack.callback(self._stop)
            self._port = stack.enter_context(self._accept(listener))
            answer = self._read_until(b"\n", time.monotonic() + boot_timeout_s, "boot")
            if answer != b"ready":
                raise VmError(f"the guest's start failed: {answer.decode(errors='replace')}")
            self._stack = stack.pop_all()

    def run(
        self, command: str, *, timeout_s: float = 300.0, echo: Callable[[bytes], object] | None = None
    ) -> CommandResult:
        """Run a command in the guest: by bash, as root, in this process's directory.

        Args:
            command: One or more lines for bash.
            timeout_s: The command is killed after this time.
            echo: Gets the output as it comes.

        Raises:
            VmError: The guest died.
        """
        token = secrets.token_hex(16)
        script = self.share / token
        script.write_text(command + "\n", encoding="utf-8")
        try:
            self._port.sendall(f"{token} {timeout_s:g}\n".encode())
            grace_s = 60.0  # for killing the command; after that the guest itself hangs
            output = self._read_until(f"\n{token} ".encode(), time.monotonic() + timeout_s + grace_s, command, echo)
            status = self._read_until(b"\n", time.monotonic() + grace_s, command)
        finally:
            script.unlink(missing_ok=True)
        return CommandResult(int(status), output.decode(errors="replace"))

    def close(self) -> None:
        """Switch the VM off. What it wrote to /share stays only if a folder was given."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        self._qemu.kill()
        self._qemu.wait()

    def _accept(self, listener: socket.socket) -> socket.socket:
        while self._qemu.poll() is None:
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
        raise self._dead("start")

    def _read_until(
        self, mark: bytes, deadline: float, what: str, echo: Callable[[bytes], object] | None = None
    ) -> bytes:
        """Read from the guest to ``mark``, which is taken away."""
        shown = 0
        while (end := self._received.find(mark, shown)) < 0:
            safe = max(shown, len(self._received) - len(mark) + 1)  # what may be the begin of the mark waits
            if echo is not None:
                echo(bytes(self._received[shown:safe]))
            shown = safe
            self._port.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                piece = self._port.recv(1 << 16)
            except TimeoutError:
                raise VmError(f"the guest does not answer ({what.strip()[:60]}){self._last_words()}") from None
            if not piece:
                raise self._dead(what)
            self._received += piece
        taken = bytes(self._received[:end])
        del self._received[: end + len(mark)]
        if echo is not None:
            echo(taken[shown:])
        return taken

    def _dead(self, what: str) -> VmError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._qemu.wait(5.0)
        return VmError(f"the VM died ({what.strip()[:60]}){self._last_words()}")

    def _last_words(self) -> str:
        words = ""
        for log in (self._messages, self._console):
            if log.exists() and (lines := log.read_text(errors="replace").splitlines()):
                words += f"\n{log.name}:\n  " + "\n  ".join(lines[-15:])
        return words or "; it printed nothing"


def _state_directory() -> Path:
    """Where kernel and run files lie: $SYMPHONY_VM_DIR or ~/.cache/symphony-testbed/vm, never the checkout."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "symphony-testbed" / "vm"
    state = Path(os.environ.get("SYMPHONY_VM_DIR") or default).resolve()
    state.mkdir(parents=True, exist_ok=True)
    return state


def _tool(*command: str, cwd: Path | None = None, stdin: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, input=stdin)
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise VmError(f"{shlex.join(command[:4])} failed: {reason[-1]}")
    return done.stdout


def _kernel(state: Path) -> tuple[Path, Path]:
    """Give the module folder ("lib/modules" of a kernel package) and the kernel, fetched at the first use."""
    found = sorted(state.glob("kernel-*"))
    if not found:
        depends = _tool("apt-cache", "depends", "linux-image-amd64")
        match = re.search(r"Depends: linux-image-(\S+)", depends)
        if match is None:
            raise VmError("apt knows no kernel package (linux-image-amd64): run apt-get update")
        release = match[1]
        print(f"fetching the kernel package linux-image-{release} once", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=state) as folder:
            work = Path(folder)
            _tool("apt-get", "download", "-qq", f"linux-image-{release}", cwd=work)
            root = work / "root"
            _tool("dpkg-deb", "-x", str(next(work.glob("*.deb"))), str(root))
            _tool("depmod", "-b", str(root), release)
            compressed = root / "boot" / f"vmlinuz-{release}"
            (root / "kernel").write_bytes(_unpacked(compressed.read_bytes()))
            target = state / f"kernel-{release}"
            with contextlib.suppress(OSError):  # another process was faster
                root.rename(target)
        found = [target]
    return found[-1] / "lib" / "modules", found[-1] / "kernel"


def _unpacked(image: bytes) -> bytes:
    """Take the ELF kernel out of a bzImage, so that the guest need not; the bzImage itself where that fails."""
    for magic, unpack in (
        (b"\xfd7zXZ\x00", lambda data: lzma.LZMADecompressor().decompress(data)),
        (b"\x1f\x8b\x08", gzip.decompress),
    ):
        begin = image.find(magic)
        while begin >= 0:
            with contextlib.suppress(OSError, EOFError, lzma.LZMAError):
                kernel = unpack(image[begin:])
                if kernel.startswith(b"\x7fELF"):
                    return kernel
            begin = image.find(magic, begin + 1)
    return image


def _pack_initramfs(work: Path, modules: Path) -> Path:
    root = work / "initramfs"
    for name in ("bin", "dev", "proc", "sys", "modules", "lower", "upper", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    shutil.copy(_HERE / "initramfs-init", root / "init")
    (root / "init").chmod(0o755)
    release = next(modules.iterdir()).name
    order: dict[str, None] = {}
    for module in _MODULES:
        listing = _tool("modprobe", "-d", str(modules.parents[1]), "-S", release, "--show-depends", module)
        for line in listing.splitlines():
            if line.startswith("insmod "):
                order[line.split()[1]] = None
    for path in order:
        shutil.copy(path, root / "modules")
    (root / "modules" / "order").write_text("".join(f"{Path(path).name}\n" for path in order))
    archive = work / "initramfs.cpio"
    names = "\n".join(sorted(str(path.relative_to(root)) for path in root.rglob("*")))
    _tool("cpio", "--quiet", "-o", "-H", "newc", "-F", str(archive), cwd=root, stdin=names + "\n")
    return archive


def _guest_programs(state: Path) -> Path:
    """Make a venv for the guest: the distribution's Python, which pyverbs is built for, with the packages of the
    Python that runs this. Gives its folder of programs.

    Raises:
        VmError: The two Pythons are of different minor versions.
    """
    version = _tool(_GUEST_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != ours:
        raise VmError(
            f"python3-pyverbs is for {_GUEST_PYTHON}, which is Python {version}; this is {ours} "
            f"({sys.executable}): make the venv with Python {version}"
        )
    ours_packages = sysconfig.get_path("purelib")
    venv = state / f"venv-{version}"
    if not (venv / "bin" / "python").exists():
        _tool(_GUEST_PYTHON, "-m", "venv", "--without-pip", "--system-site-packages", str(venv))
    packages = venv / "lib" / f"python{version}" / "site-packages"
    folders = [ours_packages, *_linked_folders(Path(ours_packages))]
    (packages / "host.pth").write_text("".join(f"{folder}\n" for folder in folders), encoding="utf-8")
    for script in Path(sysconfig.get_path("scripts")).iterdir():
        text = script.read_bytes()[:4096] if script.is_file() else b""
        if (
            text.startswith(b"#!")
            and b"python" in text.split(b"\n", 1)[0]
            and not (venv / "bin" / script.name).exists()
        ):
            body = script.read_text(encoding="utf-8").split("\n", 1)[1]
            (venv / "bin" / script.name).write_text(f"#!{venv}/bin/python\n{body}", encoding="utf-8")
            (venv / "bin" / script.name).chmod(0o755)
    return venv / "bin"


def _linked_folders(packages: Path) -> list[str]:
    """Give the folders that .pth files add to a folder of packages: the sources of editable installs."""
    lines = [line for path in sorted(packages.glob("*.pth")) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if Path(line).is_absolute() and Path(line).is_dir()]


def _write_environment(path: Path, modules: Path, programs: Path, hosts: int, mtu: int) -> None:
    values = {
        "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "MODULES": str(modules),
        "DIRECTORY": str(Path.cwd()),
        "HOSTS": str(hosts),
        "MTU": str(mtu),
        "NET": str(_HERE / "soft-roce-net"),
    }
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items()))


def _qemu(kernel: Path, initramfs: Path, memory_mib: int, share: Path, console: Path, port: Path) -> list[str]:
    # The machine is q35: microvm hangs calibrating the TSC when the host's CPUs are busy. Here that calibration can
    # be wrong too (a clock 10 times as fast); the kernel's watchdog finds out and takes the HPET, so no tsc=reliable.
    # Without these three CPU features the kernel takes ways that suit emulation: word by word instead of byte by byte
    # (copies 10 times as fast), CRC tables instead of carry-less multiplication (a quarter more soft-RoCE bandwidth).
    # One virtual CPU keeps packets in order. setpriv: the VM must not outlive this process.
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *(
            "qemu-system-x86_64",
            "-M",
            "q35",
            "-accel",
            "tcg",
            "-cpu",
            "max,-erms,-fsrm,-pclmulqdq",
            "-smp",
            "1",
            "-m",
            str(memory_mib),
        ),
        *("-kernel", str(kernel), "-initrd", str(initramfs), "-append", _KERNEL_OPTIONS),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none"),
        *("-serial", f"file:{console}"),
        *("-chardev", f"socket,id=port,path={port}", "-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=port,name=commands"),
        *("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=root,mount_tag=root"),
        *("-fsdev", f"local,id=share,path={share},security_model=none"),
        *("-device", "virtio-9p-pci,fsdev=share,mount_tag=share"),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soft_roce_vm.py", description="Run commands on real soft-RoCE devices, in a virtual machine."
    )
    commands = parser.add_subparsers(dest="action", required=True)
    run = commands.add_parser("run", help="boot, run one command, switch off; exits with the command's status")
    run.add_argument("command", nargs="+", help="one argument is a line for bash; several are a program's")
    run.add_argument("--hosts", type=int, default=4, help="soft-RoCE hosts (default 4)")
    run.add_argument("--mtu", type=int, default=4200, help="of the links (default 4200, for path MTU 4096)")
    run.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of the guest (default 2048)")
    run.add_argument("--share", type=Path, metavar="DIR", help="folder that the guest may write, there as /share")
    run.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for the command (default 600)")
    commands.add_parser("packages", help="print the Debian packages that are needed")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    options = _parser().parse_args(arguments)
    if options.action == "packages":
        print(*PACKAGES)
        return 0
    command = options.command[0] if len(options.command) == 1 else shlex.join(options.command)

    def show(piece: bytes) -> None:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    try:
        with VirtualMachine(hosts=options.hosts, mtu=options.mtu, memory_mib=options.memory, share=options.share) as vm:
            result = vm.run(command, timeout_s=options.timeout, echo=show)
    except VmError as error:
        print(f"soft_roce_vm.py: {error}", file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        return 130
    if result.status == TIMED_OUT:
        print(
            f"soft_roce_vm.py: the command took longer than {options.timeout:g} s (or exited with 124)", file=sys.stderr
        )
    return result.status


if __name__ == "__main__":
    sys.exit(main())
