# SPDX-License-Identifier: Apache-2.0
"""testbed.yaml: which switches and hosts there are, and how to reach them.

    name: lab
    switches: [{name: tor0, url: "http://127.0.0.1:9401", token_file: /etc/symphony/tor0.token}]
    hosts: [{name: h0, address: 10.0.0.1, switch: tor0}]        # rank r runs on hosts[r] unless a job says otherwise
    twin: {http: "http://127.0.0.1:9301", verbs: /run/symphony/verbs.sock}      # only with the twin

A host with several NICs has an entry for each. Switches above the ToRs have a tier of 1 or more.

The twin writes this file itself (`fabric-twin run --testbed-file`); for hardware it is written by hand.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from host_agent.errors import BadInputError, TestbedError
from symphony_common.addresses import checked_url

__all__ = ["HostEntry", "SwitchEntry", "Testbed", "TwinEntry", "load_testbed"]

Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+/?$"), AfterValidator(checked_url)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class _Entry(BaseModel):
    # Other programs read the same file: their keys (bfrt, preset ...) are none of our business.
    model_config = ConfigDict(extra="ignore", frozen=True)


class SwitchEntry(_Entry):
    """A switch and its agent's address."""

    name: Name
    url: Url
    tier: Annotated[int, Field(ge=0)] = 0
    """0: a ToR, which watches the flows of its hosts; above it a switch watches all that may cross it."""
    token_file: Path | None = None
    """File with the agent's bearer token; without it the environment's SWITCH_AGENT_TOKEN is used."""


class HostEntry(_Entry):
    """A host: its RDMA address and the switch it hangs on; None: one without Symphony."""

    name: Name
    address: str
    switch: Name | None = None

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return str(ipaddress.ip_address(value))


class TwinEntry(_Entry):
    """The twin's REST address and the Unix socket of its verbs service."""

    http: Url
    verbs: Path


class Testbed(_Entry):
    """The whole file."""

    __test__ = False

    name: str = "testbed"
    switches: Annotated[list[SwitchEntry], Field(min_length=1)]
    hosts: Annotated[list[HostEntry], Field(min_length=1)]
    twin: TwinEntry | None = None
    preset: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind, names in (
            ("switch", [s.name for s in self.switches]),
            ("host", [h.name for h in self.hosts]),
            ("host address", [h.address for h in self.hosts]),
        ):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{kind} {sorted(twice)[0]!r} appears twice")
        known = {s.name for s in self.switches}
        for host in self.hosts:
            if host.switch is not None and host.switch not in known:
                raise ValueError(f"host {host.name!r} hangs on switch {host.switch!r}, which is not in the list")
        return self

    def pick(self, hosts: list[str] | None, world: int | None) -> list[HostEntry]:
        """The hosts of a job's ranks, in rank order. Raises BadInputError for what the testbed does not
        have.
        """
        if hosts is None:
            count = len(self.hosts) if world is None else world
            if count > len(self.hosts):
                raise BadInputError(
                    f"world {count} needs {count} hosts, but testbed {self.name!r} has {len(self.hosts)}"
                )
            return self.hosts[:count]
        by_name = {host.name: host for host in self.hosts}
        missing = [name for name in hosts if name not in by_name]
        if missing:
            raise BadInputError(
                f"testbed {self.name!r} has no host {missing[0]!r}; it has {', '.join(list(by_name)[:8])} ..."
            )
        if len(set(hosts)) != len(hosts):
            raise BadInputError("a host is named twice: each rank needs a host of its own")
        return [by_name[name] for name in hosts]


def load_testbed(path: Path) -> Testbed:
    """Read and check testbed.yaml. Raises TestbedError with the file's name and what to change."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TestbedError(
            f"cannot read {path}: {error.strerror}; start `fabric-twin run --testbed-file {path}` first, "
            "or write the file by hand (docs/host-agent.md)"
        ) from error
    except UnicodeDecodeError as error:
        raise TestbedError(f"{path} is no UTF-8 text: byte {error.start} cannot be read") from error
    except yaml.YAMLError as error:
        raise TestbedError(f"{path} is no YAML: {error}".replace("\n", " ")) from error
    try:
        return Testbed.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise TestbedError(f"{path}: {where}: {first['msg']}") from error
