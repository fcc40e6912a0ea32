# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI description of the REST interface, as host-agent serves it and as docs/openapi.json has it.

FastAPI describes what goes in. What it cannot know is put right here: errors have our own form, and the bearer token
is a security scheme (OpenAPI 3.1, Parameter Object: a header parameter called Authorization is ignored).
The committed file is written by openapi_file.py (`make openapi`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

__all__ = ["describe", "operations"]

METHODS: Final = ("get", "put", "post", "delete", "patch")
PROBLEM: Final = {
    "type": "object",
    "title": "Problem",
    "description": "Every error: what happened, where, what to do.",
    "required": ["detail", "code"],
    "properties": {
        "detail": {"type": "string", "description": "For people."},
        "code": {"type": "string", "description": "For programs, like unknown_job or switch_unreachable."},
        "switch": {"type": "string", "description": "The switch it is about, where it is about one."},
        "errors": {
            "type": "array",
            "description": "With code bad_input: each field that is wrong.",
            "items": {
                "type": "object",
                "required": ["where", "what"],
                "properties": {"where": {"type": "string"}, "what": {"type": "string"}},
            },
        },
    },
}


def describe(app: FastAPI) -> None:
    """Let `app` describe itself as this module says."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each operation with its name, like "GET /healthz"."""
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield f"{method.upper()} {path}", item[method]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for _, operation in operations(document):
        _put_right(operation)
    return document


def _put_right(operation: dict[str, Any]) -> None:
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    given = operation.get("parameters", [])
    left = [parameter for parameter in given if parameter["name"].lower() != "authorization"]
    responses = operation["responses"]
    if len(left) < len(given):
        operation.setdefault("security", [{"token": []}, {}])  # {}: a service started without a token asks for none
        responses["401"] = {"description": "No token, or another one", "content": problem}
    operation.pop("parameters", None)
    if left:
        operation["parameters"] = left
    if "422" in responses:
        responses["422"] = {"description": "Input that cannot work", "content": problem}
    responses["default"] = {"description": "Any other error", "content": problem}
