# SPDX-License-Identifier: Apache-2.0
"""Tokens: one rule for all programs, files and environment alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony_common.tokens import checked_token, read_token

GOOD = "correct horse battery"


def test_a_file_goes_before_the_environment_and_neither_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {GOOD}\r\n")
    monkeypatch.setenv("A_TOKEN", f" {GOOD} of the environment\n")
    assert read_token(path, "A_TOKEN") == GOOD
    assert read_token(None, "A_TOKEN") == f"{GOOD} of the environment"
    for blank in ("", "  \n"):
        monkeypatch.setenv("A_TOKEN", blank)
        assert read_token(None, "A_TOKEN") is None
    monkeypatch.delenv("A_TOKEN")
    assert read_token(None, "A_TOKEN") is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no token"),
        (b" \n", "holds no token"),
        (b"secret-secret-secret\nsecond line", "holds no token"),
        (b"secret-secret-secr\xc3\xa4t", "holds no token"),
        (b"secret-secret\0secret", "holds no token"),
        (b"secret-secret", "shorter than 16 characters"),
    ],
)
def test_what_is_no_token_is_refused_with_its_place_and_without_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    """An empty file is an error, not an open door."""
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as refused:
        read_token(path, "A_TOKEN")
    assert str(path) in str(refused.value)
    assert "secret" not in str(refused.value)
    if content.strip() and b"\0" not in content:
        monkeypatch.setenv("A_TOKEN", content.decode("ascii", "surrogateescape"))
        with pytest.raises(ValueError, match=words) as refused:
            read_token(None, "A_TOKEN")
        assert "A_TOKEN" in str(refused.value)
        assert "secret" not in str(refused.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none: No such file"):
        read_token(tmp_path / "none", "A_TOKEN")
    with pytest.raises(ValueError, match="Is a directory"):
        read_token(tmp_path, "A_TOKEN")


def test_the_shortest_token_has_16_characters() -> None:
    assert checked_token("x" * 16, "here") == "x" * 16
