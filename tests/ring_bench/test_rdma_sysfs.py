# SPDX-License-Identifier: Apache-2.0
"""Which device and GID stand for a host: on a made-up /sys/class/infiniband."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ring_bench.errors import ProviderUnavailableError
from ring_bench.rdma_sysfs import Gid, choose_gid, device_names, driver_of, gid_table, rate_gbps

V4 = "0000:0000:0000:0000:0000:ffff:0a4d:{:04x}"
LINK_LOCAL = "fe80:0000:0000:0000:0077:00ff:fe00:0001"
UNIQUE_LOCAL = "fd00:0000:0000:0000:0000:0000:0000:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
NETDEVS = ("lo", "eth0", "eth1")

Row = tuple[str, str | None, str | None]


def choose(host: str | int, root: Path, netdevs: Sequence[str] = NETDEVS, **problems: str) -> Gid:
    """Choose among the devices of a made-up sysfs."""
    return choose_gid(host, device_names(root), lambda name: gid_table(name, root), problems, netdevs)


def add_device(root: Path, name: str, rows: list[Row], *, state: str = "4: ACTIVE", driver: str | None = None) -> None:
    """Write a device with one port; a row is GID, type, network device (None: as in an empty slot)."""
    port = root / name / "ports" / "1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    for index, (gid, kind, netdev) in enumerate(rows):
        (port / "gids" / str(index)).write_text(f"{gid}\n")
        for folder, value in (("types", kind), ("ndevs", netdev)):
            path = port / "gid_attrs" / folder / str(index)
            if value is None:
                path.mkdir()  # reading it fails, as the kernel's EINVAL does
            else:
                path.write_text(f"{value}\n")
    if driver is not None:
        (root / "drivers" / driver).mkdir(parents=True)
        (root / name / "device").mkdir()
        (root / name / "device" / "driver").symlink_to(root / "drivers" / driver)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two devices: mlx5_0 with every kind of entry, mlx5_1 with one good one."""
    root = tmp_path / "infiniband"
    rows: list[Row] = [
        (LINK_LOCAL, "RoCE v2", "eth0"),
        (V4.format(1), "IB/RoCE v1", "eth0"),
        (EMPTY, None, None),
        (UNIQUE_LOCAL, "RoCE v2", "eth0"),
        (V4.format(9), "RoCE v2", "pod7"),
        (V4.format(1), "RoCE v2", "eth0"),
    ]
    add_device(root, "mlx5_0", rows)
    add_device(root, "mlx5_1", [(V4.format(2), "RoCE v2", "eth1")])
    return root


@pytest.mark.parametrize("host", ["mlx5_0", "eth0", "10.77.0.1", 0, 2])
def test_a_host_is_a_device_a_netdev_an_address_or_a_number_counted_round(root: Path, host: str | int) -> None:
    gid = choose(host, root)
    assert (gid.device, gid.port, gid.index, str(gid.address)) == ("mlx5_0", 1, 5, "10.77.0.1")


def test_ipv6_addresses_are_as_good(root: Path) -> None:
    assert choose("fd00::1", root).index == 3


def test_every_rejected_entry_is_listed_with_its_reason(root: Path) -> None:
    with pytest.raises(ProviderUnavailableError) as caught:
        choose("mlx5_0", root, ("lo",))
    text = str(caught.value)
    assert "GID 0 fe80::77:ff:fe00:1: link-local address" in text
    assert "GID 1 10.77.0.1: type IB/RoCE v1: no UDP header" in text
    assert "GID 4 10.77.0.9: network device pod7 is not in this network namespace" in text
    assert "GID 2" not in text


def test_a_gid_of_another_network_namespace_is_never_taken(root: Path) -> None:
    with pytest.raises(ProviderUnavailableError, match="pod7 is not in this network namespace"):
        choose("10.77.0.9", root)


def test_a_port_that_is_down_is_rejected(tmp_path: Path) -> None:
    add_device(tmp_path, "rxe0", [(V4.format(1), "RoCE v2", "eth0")], state="1: DOWN")
    with pytest.raises(ProviderUnavailableError, match="port is not active"):
        choose("rxe0", tmp_path)


def test_an_address_of_no_device_is_answered_with_those_there_are(root: Path) -> None:
    with pytest.raises(ProviderUnavailableError) as caught:
        choose("10.9.9.9", root)
    assert "has the address 10.9.9.9, which is no RDMA device" in str(caught.value)
    assert "10.77.0.2 (mlx5_1)" in str(caught.value)


def test_a_machine_without_devices_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailableError, match="rdma link add rxe0"):
        choose(0, tmp_path / "nothing")


def test_a_device_without_addresses_is_told_to_get_one(tmp_path: Path) -> None:
    add_device(tmp_path, "rxe0", [(EMPTY, None, None)])
    with pytest.raises(ProviderUnavailableError, match="GID table is empty"):
        choose("rxe0", tmp_path)


def test_a_device_that_cannot_be_opened_matters_only_to_who_wants_it(root: Path) -> None:
    assert choose("mlx5_1", root, mlx5_9="cannot be opened").device == "mlx5_1"
    with pytest.raises(ProviderUnavailableError, match="mlx5_9 cannot be opened"):
        choose("mlx5_9", root, mlx5_9="cannot be opened")
    with pytest.raises(ProviderUnavailableError, match="mlx5_9 cannot be opened"):
        choose("10.9.9.9", root, mlx5_9="cannot be opened")


def test_names_are_in_natural_order_and_drivers_are_known(tmp_path: Path) -> None:
    for name in ("rxe10", "rxe2"):
        add_device(tmp_path, name, [])
        (tmp_path / name / "parent").write_text("eth0\n")
    assert device_names(tmp_path) == ["rxe2", "rxe10"]
    assert driver_of("rxe2", tmp_path) == "rxe"
    add_device(tmp_path, "mlx5_3", [], driver="mlx5_core")
    assert driver_of("mlx5_3", tmp_path) == "mlx5_core"
    assert rate_gbps("mlx5_3", 1, tmp_path) == 100.0
    assert gid_table("mlx5_3", tmp_path) == []
