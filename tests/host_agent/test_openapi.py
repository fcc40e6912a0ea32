# SPDX-License-Identifier: Apache-2.0
"""The description of REST: the committed file is what the routes are, and says enough to be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from host_agent.openapi import operations
from host_agent.openapi_file import committed_text

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(committed_text())


def test_the_committed_description_is_that_of_the_routes(document: dict[str, Any]) -> None:
    assert json.loads(COMMITTED.read_text()) == document, "run `make openapi` and commit docs/openapi.json"


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    assert [name for name, operation in operations(document) if not operation.get("description")] == []


def test_every_error_has_the_form_that_is_described(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for code, answer in operation["responses"].items():
            if not code.startswith("2"):
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Problem"}, (name, code)


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            return own + [ref for value in part.values() for ref in references(value)]
        return [ref for value in part for ref in references(value)] if isinstance(part, list) else []

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_what_changes_state_says_that_it_takes_a_token(document: dict[str, Any]) -> None:
    changing = {name for name, _ in operations(document) if not name.startswith("GET ")}
    assert {name for name, operation in operations(document) if "security" in operation} == changing


def test_answers_that_are_no_json_are_not_described_as_json(document: dict[str, Any]) -> None:
    kinds = {
        name: list(operation["responses"].get("200", {}).get("content", {})) for name, operation in operations(document)
    }
    assert kinds["GET /metrics"] == ["text/plain"]
    assert kinds["GET /experiments/{name}/report.html"] == ["text/html"]
    assert kinds["GET /api/v1/jobs/{job_id}/stream"] == ["text/event-stream"]
