# SPDX-License-Identifier: Apache-2.0
"""What a NIC should be like, what has to change for that, and what became of it; as REST and files hold it."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = ["Change", "NeighbourWish", "NicWish", "Outcome", "Plan", "RestoreRequest", "Wishes"]

NetdevName = Annotated[str, Field(pattern=r"^[^\s/:]{1,15}$")]
Mac = Annotated[str, Field(pattern=r"^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$")]
Priority = Annotated[int, Field(ge=0, le=7)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NeighbourWish(_Model):
    """A permanent neighbour entry."""

    address: str
    mac: Mac

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return str(ipaddress.ip_address(value))


class NicWish(_Model):
    """A network device as it should be; what is left out stays as it is."""

    netdev: NetdevName
    up: Literal[True] | None = None
    mtu: Annotated[int, Field(ge=576, le=65535)] | None = None
    """L3 MTU, bytes; 4200 gives path MTU 4096."""
    addresses: list[str] = []
    """ADDRESS/PREFIX to have; others stay."""
    neighbours: list[NeighbourWish] = []
    trust: Literal["dscp", "pcp"] | None = None
    traffic_class: Annotated[int, Field(ge=0, le=255)] | None = None
    """Forced on every QP of the device: DSCP << 2 | ECN."""
    ecn_np: bool | None = None
    """Notification point: one switch for the port."""
    ecn_rp: list[Priority] | None = None
    """Exactly these priorities have the reaction point on."""
    cnp_dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    cnp_priority: Priority | None = None
    rxe: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,30}$")] | None = None
    """Name of a soft-RoCE device on it."""

    @field_validator("addresses")
    @classmethod
    def _are_interfaces(cls, values: list[str]) -> list[str]:
        for value in values:
            if "/" not in value:
                raise ValueError(f"{value!r} lacks its prefix length, as in 10.0.0.1/24")
        return [str(ipaddress.ip_interface(value)) for value in values]


class Wishes(_Model):
    """All devices to prepare."""

    nics: Annotated[list[NicWish], Field(min_length=1)]

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        names = [nic.netdev for nic in self.nics]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"network device {twice!r} appears twice")
        return self


class Change(_Model):
    """One value that is not as it should be."""

    netdev: str
    what: str
    """"mtu", "address", "ecn_rp" and so on."""
    detail: str = ""
    """Which of several: an address, a priority."""
    before: Any
    after: Any
    note: str = ""
    """What else it affects."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the value."""
        return self.netdev, self.what, self.detail

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"{self.netdev} {self.what}" + (f" {self.detail}" if self.detail else "")


class Plan(_Model):
    """What has to change, in order; empty when all is as it should be."""

    changes: list[Change]
    obstacles: list[str]
    """What this machine cannot do; nothing is applied while there is one."""


class Outcome(_Model):
    """What was done."""

    done: list[Change]
    """As before -> after; for a restore the other way round."""
    left: list[str] = []
    """Restore: values that somebody else has changed since, and that stay; they can be forced."""


class RestoreRequest(_Model):
    """How to restore."""

    force: bool = False
    """Also put back what somebody else has changed since."""
