# SPDX-License-Identifier: Apache-2.0
"""``switch-agent replay`` as a user meets it: output, files, errors, exit codes, documentation."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from pydantic import BaseModel
from replay_wire import ETHERNET, LAST_IMM, Record, Roce, link_header, pcap, records, write

from switch_agent.replay import ReplayError, add_parser
from switch_agent.replay import run as run_command
from switch_agent.replay.outcomes import OUTCOMES
from switch_agent.replay.report import ReplayReport

DOCS = Path(__file__).parents[3] / "docs" / "replay.md"
RING = [
    Roce(at_ns=250_000 * i, sport=0xC000 | (5 + (i % 3 == 0)), src=f"10.0.0.{i % 3 + 1}", psn=i // 3)
    for i in range(900)
]


def parse(*words: str) -> argparse.Namespace:
    """Parse a command line as switch-agent does."""
    parser = argparse.ArgumentParser(prog="switch-agent")
    parser.add_argument("--debug", action="store_true")
    add_parser(parser.add_subparsers(dest="command", required=True))
    return parser.parse_args(words)


def run(*words: str) -> int:
    """Run ``switch-agent replay`` with these words behind it."""
    return run_command(parse("replay", *words))


@pytest.fixture
def ring(tmp_path: Path) -> str:
    """A capture of one job."""
    return write(tmp_path, pcap(records(RING)), "ring.pcap")


def test_tables_are_printed(ring: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Capture, jobs and a timeline of at most 20 lines."""
    assert run(ring, "--window-ms", "2") == 0
    out = capsys.readouterr().out
    assert "900: RoCE 900" in out
    assert "RC_WRITE_MIDDLE 900" in out
    assert "Timeline of tag0, a line is 6 windows" in out
    assert len(re.findall(r"^ 0\.\d{6} ", out, re.MULTILINE)) == 19


def test_json_on_stdout_is_a_valid_report(ring: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing but the report, and it validates against its model."""
    assert run(ring, "--json", "-", "--variant", "refined", "--k", "0.5", "--seed", "9", "--job", "x=*,*,*") == 0
    report = ReplayReport.model_validate_json(capsys.readouterr().out)
    assert report.settings.params["k"] == 0.5
    assert report.settings.params["gate"] is True
    assert (report.settings.variant, report.settings.seed) == ("refined", 9)
    assert [(job.name, job.packets) for job in report.jobs] == [("x", 900)]


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--tau", "0.5"], "tau", 0.5),
        (["--window-us", "25.6"], "window_us", 25.6),
        (["--n-warmup", "3"], "n_warmup", 3),
        (["--n-sample", "4"], "n_sample", 4),
        (["--alpha-max", "7"], "alpha_max", 7),
        (["--ratio-floor", "0.5"], "ratio_floor", 0.5),
        (["--variant", "refined", "--ratio-floor", "none"], "ratio_floor", None),
        (["--variant", "refined", "--no-gate"], "gate", False),
        (["--gate"], "gate", True),
    ],
)
def test_each_parameter_overrides_its_variant(
    ring: str, capsys: pytest.CaptureFixture[str], words: list[str], name: str, value: object
) -> None:
    """Options named as the parameters are."""
    assert run(ring, "--json", "-", *words) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["params"][name] == value


def test_files_are_written(ring: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and PNG beside the tables."""
    assert run(ring, "--json", str(tmp_path / "a.json"), "--png", str(tmp_path / "a.png")) == 0
    assert "Timeline of tag0" in capsys.readouterr().out
    ReplayReport.model_validate_json((tmp_path / "a.json").read_text())
    png = (tmp_path / "a.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 10_000


def test_a_picture_without_jobs_and_with_many(tmp_path: Path) -> None:
    """No packets to draw; more jobs than are shown; pauses; a name that looks like a formula."""
    many = [Roce(at_ns=10**8 * i, sport=0xC000 | (i % 13) << 10, opcode=LAST_IMM) for i in range(60)]
    arp = Record(0, link_header(ETHERNET, 0x0806) + bytes(28))
    for name, file in (("$x_{1.pcap", pcap(records(many))), ("b.pcap", pcap([arp]))):
        assert run(write(tmp_path, file, name), "--png", str(tmp_path / "p.png")) == 0
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
        (tmp_path / "p.png").unlink()


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("switch-agent replay: ")
    return line


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is empty"), (b"hello, this is no capture", "no pcap or pcapng file"), (pcap([]), "without a packet")],
)
def test_files_of_no_use_are_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, words: str
) -> None:
    """The line names the file and what is wrong with it."""
    path = write(tmp_path, data)
    assert run(path) == 1
    line = one_line(capsys)
    assert words in line
    assert path in line


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No such file."""
    assert run(str(tmp_path / "none.pcap")) == 1
    assert "no such capture file" in one_line(capsys)


def test_no_roce_packets_says_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no error; the most frequent first."""
    rows = [Record(0, link_header(ETHERNET, 0x0806) + bytes(28))] + [
        Record(0, link_header(ETHERNET, 0x88CC) + bytes(60))
    ] * 3
    assert run(write(tmp_path, pcap(rows)), "--json", "-") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["jobs"] == []
    assert re.search(r"no RoCE packets in .*; 4 records \(Ethernet\): 3 x an ethertype .*; 1 x ARP", err)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (147, r"private use USER0 \(link type 147\) is not read: .*editcap -T ether"),
        (239, r"NFLOG \(tcpdump -i nflog\) \(link type 239\) is not read: .*tcpdump -i eth0"),
        (127, r"802.11 with radiotap .*Ethernet device"),
        (999, r"link type 999 is not read: capture on"),
    ],
)
def test_a_capture_of_which_nothing_can_be_read_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], link: int, words: str
) -> None:
    """The link type has its name, and what can be done is said."""
    assert run(write(tmp_path, pcap([Record(0, bytes(60))] * 3, link=link))) == 1
    err = capsys.readouterr().err
    assert re.search(words, err)
    assert "no RoCE packets in" in err


def test_figures_from_a_part_of_a_capture_say_so_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0: there are figures."""
    rows = [*records(RING[:8]), Record(10**9, link_header(ETHERNET, 0x88E5) + bytes(60))]
    assert run(write(tmp_path, pcap(rows)), "--json", "-") == 0
    out, err = capsys.readouterr()
    assert "1 of 9 records may hold RoCE that was not seen: 1 x MACsec" in err
    assert json.loads(out)["partial"] == [err.strip().removeprefix("switch-agent replay: ")]


def test_a_cut_file_is_reported_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, the place on stderr and in the report."""
    file = pcap(records(RING))[:-3]
    assert run(write(tmp_path, file), "--json", "-") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["capture"]["records"] == 899
    offset = report["capture"]["files"][0]["incomplete"]["offset"]
    assert f"byte {offset}" in err
    assert "cut off" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--k", "7"], "parameter k = 7.0 is not allowed"),
        (["--job", "x"], "job rule 'x'"),
        (["--step-bits", "1"], "--step-bits 1"),
        (["--window-ms", "0"], "--window-ms"),
    ],
)
def test_senseless_options_are_one_line(
    ring: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Options that parse but make no sense: wrong usage, exit code 2."""
    assert run(ring, *words) == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize("option", ["--json", "--png"])
def test_results_that_cannot_be_written(
    ring: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """The folder does not exist."""
    assert run(ring, option, str(tmp_path / "none" / "x")) == 1
    assert "cannot write the " in one_line(capsys)


@pytest.mark.parametrize(("option", "start"), [("--json", b"{"), ("--png", b"\x89PNG")])
def test_results_replace_a_file_as_a_whole_behind_its_links(
    ring: str, tmp_path: Path, option: str, start: bytes
) -> None:
    """Whoever reads the old one goes on reading it; links stay links, permissions stay as they were."""
    folder = tmp_path / "out"
    folder.mkdir()
    file, link, before = folder / "file", folder / "link", folder / "before"
    file.write_text("old")
    file.chmod(0o640)
    before.hardlink_to(file)
    link.symlink_to(file)
    assert run(ring, option, str(link)) == 0
    assert file.read_bytes().startswith(start)
    assert before.read_text() == "old"
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(path.name for path in folder.iterdir()) == ["before", "file", "link"]


@pytest.mark.parametrize("option", ["--json", "--png"])
def test_what_is_no_regular_file_is_written_in_place(
    ring: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """A device that takes nothing is an error; it stays a device, and the link to it a link."""
    device = tmp_path / "device"
    device.symlink_to("/dev/full")
    assert run(ring, option, str(device)) == 1
    assert "No space left on device" in one_line(capsys)
    assert device.is_symlink()
    assert device.is_char_device()


def test_a_picture_needs_no_home(ring: str, tmp_path: Path) -> None:
    """Where matplotlib keeps its fonts is its own affair: not a line about it."""
    done = subprocess.run(
        [sys.executable, "-m", "switch_agent.cli", "replay", ring, "--png", str(tmp_path / "a.png")],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": "/proc", "TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": numba.config.CACHE_DIR},  # type: ignore[attr-defined]
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "a.png").exists()


def test_debug_gives_the_traceback(tmp_path: Path) -> None:
    """``switch-agent --debug replay`` raises."""
    with pytest.raises(ReplayError):
        run_command(parse("--debug", "replay", str(tmp_path / "none")))


def test_a_capture_on_standard_input(
    ring: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tcpdump -w - | switch-agent replay -``."""
    stdin = io.TextIOWrapper(io.BytesIO(Path(ring).read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run("-", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["capture"]["records"] == 900


def test_registering_the_command_is_light() -> None:
    """Other subcommands do not pay for numba or matplotlib."""
    code = (
        "import argparse, sys; from switch_agent import replay; p = argparse.ArgumentParser(); "
        "replay.add_parser(p.add_subparsers()); print({'numba', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# -------------------------------------------------------------------------------------- docs


def field_names(model: type[BaseModel]) -> set[str]:
    """Return the names of all fields of a model and of the models inside it."""
    schema: dict[str, Any] = model.model_json_schema()
    models = [schema, *schema.get("$defs", {}).values()]
    return {name for part in models for name in part.get("properties", {})}


def test_the_documentation_names_every_field() -> None:
    """Every field of the JSON report is in docs/replay.md."""
    text = DOCS.read_text()
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]+`", text))))
    assert field_names(ReplayReport) - words == set()


def test_the_documentation_lists_every_outcome_with_its_meaning() -> None:
    """The table of docs/replay.md is that of the code."""
    rows = re.findall(r"^\| `(\w+)` \| (other|closed|junk) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert rows == [tuple(outcome) for outcome in OUTCOMES if outcome.kind != "roce"]


def test_the_documentation_names_every_option() -> None:
    """Every option of the parser is in docs/replay.md, and no other."""
    parser = argparse.ArgumentParser()
    replay_parser = add_parser(parser.add_subparsers())
    options = {word for action in replay_parser._actions for word in action.option_strings} - {"-h", "--help"}
    section = DOCS.read_text().partition("## Options")[2].partition("**Jobs.**")[0]
    assert set(re.findall(r"--[a-z][a-z-]+|--k\b", section)) == options
