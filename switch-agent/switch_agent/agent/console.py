# SPDX-License-Identifier: Apache-2.0
"""``switch-agent show``: what the REST interface says, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from switch_agent.agent.inputs import checked_url, read_token
from switch_agent.errors import AgentUnreachableError

__all__ = ["RestClient", "jobs_table", "plain_table", "registers_table", "session_table", "show"]


class RestClient:
    """Reads an agent's REST interface. Raises AgentUnreachableError with the agent's own words, ConfigError at once."""

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self.url = checked_url(url).rstrip("/")
        token = read_token(None)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=self.url, timeout=timeout, headers=headers, trust_env=False)

    def __enter__(self) -> RestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET a path and return its JSON object."""
        params = {name: value for name, value in query.items() if value is not None}
        try:
            answer = self._http.get(path, params=params)
            body = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AgentUnreachableError(
                f"no answer from a switch-agent at {self.url}: {error or type(error).__name__}; "
                "is it running there? Give its address with --url"
            ) from error
        if not answer.is_success:
            detail = body.get("detail") if isinstance(body, dict) else answer.text[:200]
            raise AgentUnreachableError(f"the agent at {self.url} says {answer.status_code}: {detail}")
        return dict(body)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


_WORDS = ("job", "variant", "scope", "field", "value", "pipes", "overlap over time")


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Return a table without frames: words to the left, numbers to the right."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, padding=(0, 1))
    table.pad_edge, table.header_style = False, "underline"
    for column in columns:
        table.add_column(column, justify="left" if column in _WORDS else "right", no_wrap=column != "value")
    for row in rows:
        table.add_row(*(value if isinstance(value, Text) else escape(_text(value)) for value in row))
    return table


def jobs_table(answer: Mapping[str, Any]) -> Table:
    """Return the answer of ``GET /api/v1/jobs`` as a table."""
    rows = [
        (
            job["job_id"],
            job["name"],
            job["job_tag"],
            len(job["flows"]),
            job["symphony"]["enabled"],
            job["symphony"]["variant"],
            job["symphony"]["k"],
            job["symphony"]["tau"],
            job["symphony"]["window_us"],
            job["symphony"]["scope"],
            job["revision"],
        )
        for job in answer["jobs"]
    ]
    columns = ("id", "job", "tag", "flows", "on", "variant", "k", "tau", "us", "scope", "rev")
    return plain_table(f"Jobs on {answer['switch']}", columns, rows)


def registers_table(answer: Mapping[str, Any]) -> Table:
    """Return the answer of ``GET /api/v1/registers`` as a table.

    min and max are steps, psn the recorded PSN, ahead outpacing packets, marked and queue the packets marked by
    Symphony and by RED.
    """
    rows = [
        (
            sample["job_id"],
            sample["name"],
            sample["step_min"],
            sample["step_max"],
            sample["overlap"],
            sample["alpha"],
            sample["psn_recorded"],
            sample["packets"]["all"],
            sample["packets"]["outpacing"],
            sample["marked"]["symphony"],
            sample["marked"]["queue"],
            sample["live_pipes"],
        )
        for sample in answer["samples"]
    ]
    columns = (
        *("id", "job", "min", "max", "overlap", "alpha", "psn"),
        *("packets", "ahead", "marked", "queue", "pipes"),
    )
    return plain_table(f"Registers of {answer['switch']}", columns, rows)


def session_table(answer: Mapping[str, Any]) -> Table:
    """Return the answer of ``GET /api/v1/switch`` as a table."""
    drift = answer["drift"]
    rows = [(name, answer[name]) for name in ("bfrt", "state", "mode", "last_error", "owner", "client_id")]
    rows += [(name, answer[name]) for name in ("program", "programs_on_switch", "schema_sha256", "reconnects")]
    if drift is None:
        rows.append(("drift", "not known"))
    elif drift["repaired"]:
        rows.append(("drift", f"none, {drift['entries']} entries were repaired in {drift['seconds']:.2f} s"))
    else:
        rows.append(("drift", f"{drift['entries']} entries" if drift["entries"] else "none"))
    rows += [("reconcile_error", answer["reconcile_error"]), ("jobs", answer["jobs"])]
    return plain_table(f"Switch {answer['name']}", ("field", "value"), rows)


def show(what: str, client: RestClient, console: Console, *, as_json: bool, job: int | None) -> None:
    """Print jobs, registers or session once."""
    if what == "jobs":
        answer = client.get("/api/v1/jobs")
        if job is not None:
            answer = {**answer, "jobs": [client.get(f"/api/v1/jobs/{job}")]}
        table = jobs_table
    elif what == "registers":
        answer = client.get("/api/v1/registers", job=job)
        table = registers_table
    else:
        answer = client.get("/api/v1/switch")
        table = session_table
    if as_json:
        console.out(json.dumps(answer, indent=2), highlight=False)
    else:
        console.print(table(answer))
