# SPDX-License-Identifier: Apache-2.0
"""The command: one clear line for each error, and an end that leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import httpx
import msgpack
import pytest
import yaml

from fabric_twin.cli import main

PROGRAM = [sys.executable, "-c", "from fabric_twin.cli import main; main()"]


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run the command in this process; it must exit with 2 and one line, which is returned."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fabric-twin: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--preset", "huge"], "no preset 'huge'; there are demo, paper-128"),
        (["--tors", "0"], "needs at least one ToR"),
        (["--mtu", "20"], "has mtu 20; allowed are 256 to 9000 bytes"),
        (["--buffer-bytes", "5"], "needs 20 packets at least"),
        (["--host-gbps", "-1"], "not positive"),
        (["--host-gbps", "nan"], "not positive"),
        (["--oversubscription", "1:3"], "impossible: a ToR of demo has 80 Gb/s downwards, so it needs 2.66667 uplinks"),
        (["--oversubscription", "1:2,1:2"], "demo has 1 tiers with uplinks"),
        (["--oversubscription", "2"], "write 1:1 to 1:8"),
        (["--oversubscription", "1:2", "--spines", "3"], "say the same thing"),
        (["--pods", "2"], "with several pods, one core switch"),
        (["--pods", "3", "--cores", "1"], "needs a multiple of pods x rails"),
        (["--skew", "tor0->spine0=3"], "a factor from 1.0 to 2.0"),
        (["--skew", "tor0->spine9=1.5"], "no link 'tor0->spine9'; names look like h0->tor0"),
        (["--skew", "spine0->tor1=1.5"], "shares its traffic with 0 other links"),
        (["--symphony-tiers", "leaf"], "symphony_tiers 'leaf'; give all, none, or some of tor,spine,core"),
        (["--fabric", "/no/such/file"], "cannot read /no/such/file: No such file"),
        (["--fabric", "/dev/null", "--tors", "3"], "--tors and --fabric do not go together"),
        (["--fabric", "/dev/null"], "/dev/null: empty"),
        (["--pace", "0"], "--pace 0.0: allowed are more than 0"),
        (["--pace", "nan"], "--pace nan"),
        (["--pace", "inf"], "--pace inf"),
        (["--seed", "-1"], "--seed -1"),
        (["--http-port", "70000"], "--http-port 70000: allowed are 0 to 65535"),
        (["--bfrt-port", "65533"], "--bfrt-port 65533: allowed are 0 to 65532"),
    ],
)
def test_a_bad_option_is_one_line(capsys: pytest.CaptureFixture[str], args: list[str], says: str) -> None:
    """It names the value and what is allowed."""
    assert says in fails(capsys, "run", *args)


def test_a_wrong_command_line_is_explained_by_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, as argparse has it."""
    for args in ([], ["fly"], ["run", "--mtu", "big"], ["run", "--dcqcn", "fast"]):
        with pytest.raises(SystemExit) as caught:
            main(args)
        assert caught.value.code == 2
    assert "usage: fabric-twin" in capsys.readouterr().err


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Fabrics and DCQCN sets with their numbers."""
    main(["presets"])
    out = capsys.readouterr().out
    assert re.search(r"^demo +1 +4 +32 +32 +4 +0 +10/10G +1:2 +4096 +mlx$", out, re.MULTILINE)
    assert re.search(r"^paper-256 +2 +8 +256 +256 +8 +2 +10/10/10G +1:8,1:2 +4096 +mlx$", out, re.MULTILINE)
    assert re.search(r"^spec +spec +55 +0 +55 +5 +40 +200$", out, re.MULTILINE)


def test_each_value_of_a_preset_has_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's table, its text, or ours; what follows from them is said to."""
    main(["presets", "paper-512"])
    out = capsys.readouterr().out
    assert re.search(r"^cores +4  paper, table 1: 2/4$", out, re.MULTILINE)
    assert re.search(r"^buffer_bytes +9000000  ours$", out, re.MULTILINE)
    assert re.search(r"^oversubscription 1:8, 1:1, from the above: ToRs, spines$", out, re.MULTILINE)
    assert "no preset 'huge'" in fails(capsys, "presets", "huge")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """As pip has it."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"fabric-twin {metadata.version('symphony-testbed')}\n"


def test_help_names_defaults_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    """And does not call None one."""
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "(default: None)" not in out
    assert "virtual seconds per second (default: as fast as possible) " in out
    assert "REST port on 127.0.0.1; 0: any (default: 9301)" in out


@pytest.mark.parametrize(
    ("shell", "says"),
    [("> /dev/full", "fabric-twin: cannot write to standard output: No space left on device\n"), ("| true", "")],
)
@pytest.mark.parametrize("command", ["presets", "--help"])
def test_output_that_cannot_be_written_is_one_line_and_a_closed_pipe_none(command: str, shell: str, says: str) -> None:
    """Buffered output fails late; it must not end in Python's own complaint."""
    script = f'set -o pipefail; "$0" -c "from fabric_twin.cli import main; main()" {command} {shell}'
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True, env=env, timeout=60)
    # `true` may live on until everything is in the pipe: then nothing has gone wrong
    assert done.returncode in ((1,) if says else (0, 1))
    assert done.stderr == says


@contextmanager
def taken_port() -> Iterator[int]:
    """A TCP port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("option", ["--http-port", "--bfrt-port"])
def test_an_occupied_port_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str) -> None:
    """And which option to change; the verbs socket is gone again."""
    verbs = tmp_path / "verbs.sock"
    with taken_port() as port:
        ports = {"--http-port": "0", "--bfrt-port": "0", option: str(port)}
        args = [word for pair in ports.items() for word in pair]
        line = fails(capsys, "run", "--preset", "two-flows", "--verbs", str(verbs), *args)
    assert f"127.0.0.1:{port}" in line
    assert "port" in line
    assert not verbs.exists()


def test_a_testbed_file_that_cannot_be_written_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And nothing is left running."""
    file = tmp_path / "missing" / "testbed.yaml"
    verbs = tmp_path / "verbs.sock"
    args = ["--preset", "two-flows", "--verbs", str(verbs), "--http-port", "0", "--bfrt-port", "0"]
    assert f"cannot write {file}" in fails(capsys, "run", *args, "--testbed-file", str(file))
    assert not verbs.exists()


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """For whoever wants to see where it came from."""
    with pytest.raises(SystemExit):
        main(["--debug", "run", "--preset", "huge"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_and_removes_the_socket(tmp_path: Path, number: signal.Signals) -> None:
    """A running twin serves; a second one on its socket is refused; a signal ends it with code 0."""
    verbs, file = tmp_path / "verbs.sock", tmp_path / "testbed.yaml"
    args = ["run", "--preset", "two-flows", "--verbs", str(verbs), "--http-port", "0", "--bfrt-port", "0"]
    with subprocess.Popen(
        [*PROGRAM, *args, "--testbed-file", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as twin:
        assert twin.stdout is not None
        try:
            lines = []
            for line in twin.stdout:
                lines.append(line)
                if "REST" in line:
                    break
            testbed = yaml.safe_load(file.read_text())
            assert testbed["twin"]["verbs"] == str(verbs)
            assert testbed["hosts"][3] == {"name": "h3", "address": "10.0.0.4", "switch": "tor0"}
            assert testbed["switches"][0]["bfrt"] in "".join(lines)
            answer = httpx.get(testbed["twin"]["http"] + "/api/v1/topology", timeout=30)
            assert answer.json()["preset"] == "two-flows"
            if number == signal.SIGINT:
                second = subprocess.run([*PROGRAM, *args], capture_output=True, text=True, timeout=60)
                assert second.returncode == 2
                assert second.stderr == (
                    f"fabric-twin: another twin listens on {verbs}; stop it or choose another --verbs path\n"
                )
                assert verbs.exists()
        finally:
            twin.send_signal(number)
            _, err = twin.communicate(timeout=30)
    assert (twin.returncode, err) == (0, "")
    assert not verbs.exists()


def test_a_signal_ends_it_quietly_while_processes_are_attached(tmp_path: Path) -> None:
    """One that has said nothing yet, and one in the middle of a frame."""
    verbs = tmp_path / "verbs.sock"
    args = ["run", "--preset", "two-flows", "--verbs", str(verbs), "--http-port", "0", "--bfrt-port", "0"]
    with (
        subprocess.Popen([*PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as twin,
        socket.socket(socket.AF_UNIX) as silent,
        socket.socket(socket.AF_UNIX) as talking,
    ):
        assert twin.stdout is not None
        try:
            for line in twin.stdout:
                if "REST" in line:
                    break
            for client in (silent, talking):
                client.settimeout(30)
                client.connect(str(verbs))
            request = msgpack.packb({"id": 1, "calls": []})
            talking.sendall(struct.pack(">I", len(request)) + request)
            assert talking.recv(4), "it is served, and so is the one before"
            talking.sendall(b"\0\0")
        finally:
            twin.terminate()
            _, err = twin.communicate(timeout=30)
    assert (twin.returncode, err) == (0, "")
