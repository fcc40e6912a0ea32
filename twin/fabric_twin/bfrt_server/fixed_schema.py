# SPDX-License-Identifier: Apache-2.0
"""Schema of the fixed tables of a Tofino2 that this server has, in the form of a bf-rt.json.

The driver has many more; these are the ones a control plane of this project needs: ports, their
statistics, the device's make-up and the traffic manager's queue counters. Clients take ids from
here, as they do on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["DEVICE", "PORT", "PORT_STAT", "QUEUE_COUNTER", "fixed_document"]

PORT: Final = "$PORT"
PORT_STAT: Final = "$PORT_STAT"
DEVICE: Final = "tf2.dev.device_configuration"
QUEUE_COUNTER: Final = "tf2.tm.counter.queue"

Json = dict[str, Any]

SPEEDS = ("1G", "10G", "25G", "40G", "50G", "100G", "200G", "400G")
PORT_COUNTERS = (
    "FramesReceivedOK",
    "FramesReceivedAll",
    "FramesReceivedwithFCSError",
    "FrameswithanyError",
    "OctetsReceivedinGoodFrames",
    "OctetsReceived",
    "FramesDroppedBufferFull",
    "FramesTransmittedOK",
    "FramesTransmittedAll",
    "FramesTransmittedwithError",
    "OctetsTransmittedwithouterror",
    "OctetsTransmittedTotal",
    *(f"ReceivedPri{priority}Pause" for priority in range(8)),
    *(f"TransmitPri{priority}Pause" for priority in range(8)),
)


def _type(word: str, default: object = None, choices: Sequence[str] = ()) -> Json:
    node: Json = {"type": word}
    if choices:
        node["choices"] = list(choices)
    if default is not None:
        node["default_value"] = default
    return node


def _field(number: int, name: str, node: Json, *, mandatory: bool = False, read_only: bool = False) -> Json:
    inner = {"id": number, "name": name, "repeated": False, "annotations": [], "type": node}
    return {"mandatory": mandatory, "read_only": read_only, "singleton": inner}


def _counters(names: Sequence[str]) -> list[Json]:
    return [_field(n, name, _type("uint64", 0), read_only=True) for n, name in enumerate(names, start=1)]


def _table(number: int, name: str, kind: str, size: int, keys: Sequence[str], data: Sequence[Json]) -> Json:
    return {
        "name": name,
        "id": 0xFF000000 + number,
        "table_type": kind,
        "size": size,
        "annotations": [],
        "depends_on": [],
        "key": [
            {
                "id": 1 + i,
                "name": key,
                "repeated": False,
                "annotations": [],
                "mandatory": True,
                "match_type": "Exact",
                "type": _type("uint32"),
            }
            for i, key in enumerate(keys)
        ],
        "data": list(data),
        "supported_operations": [],
        "attributes": ["port_status_notif_cb"] if name == PORT else [],
    }


def _port_fields() -> list[Json]:
    fec = ("BF_FEC_TYP_NONE", "BF_FEC_TYP_FC", "BF_FEC_TYP_RS")
    negotiation = ("PM_AN_DEFAULT", "PM_AN_FORCE_ENABLE", "PM_AN_FORCE_DISABLE")
    loopback = ("BF_LPBK_NONE", "BF_LPBK_MAC_NEAR", "BF_LPBK_MAC_FAR", "BF_LPBK_PIPE")
    return [
        _field(1, "$SPEED", _type("string", choices=[f"BF_SPEED_{s}" for s in SPEEDS]), mandatory=True),
        _field(2, "$FEC", _type("string", choices=fec), mandatory=True),
        _field(3, "$N_LANES", _type("uint32", 0)),
        _field(4, "$PORT_ENABLE", _type("bool", False)),
        _field(5, "$AUTO_NEGOTIATION", _type("string", "PM_AN_DEFAULT", negotiation)),
        _field(6, "$LOOPBACK_MODE", _type("string", "BF_LPBK_NONE", loopback)),
        _field(7, "$TX_MTU", _type("uint32", 10240)),
        _field(8, "$RX_MTU", _type("uint32", 10240)),
        _field(9, "$TX_PFC_EN_MAP", _type("uint32", 0)),
        _field(10, "$RX_PFC_EN_MAP", _type("uint32", 0)),
        _field(11, "$PORT_UP", _type("bool", False), read_only=True),
        _field(12, "$PORT_NAME", _type("string", ""), read_only=True),
        _field(13, "$CONN_ID", _type("uint32", 0), read_only=True),
        _field(14, "$CHNL_ID", _type("uint32", 0), read_only=True),
    ]


def fixed_document(ports: int = 512) -> Json:
    """The document; ``ports`` is how many device ports there are (dev_port 0..ports-1)."""
    device = [
        _field(1, "sku", _type("string", ""), read_only=True),
        *(
            _field(n, name, _type("uint32", 0), read_only=True)
            for n, name in enumerate(("num_pipes", "num_stages", "num_ports"), start=2)
        ),
    ]
    queue = _counters(("usage_cells", "watermark_cells", "drop_count_packets"))
    return {
        "schema_version": "1.0.0",
        "tables": [
            _table(1, PORT, "PortConfigure", ports, ["$DEV_PORT"], _port_fields()),
            _table(2, PORT_STAT, "PortStat", ports, ["$DEV_PORT"], _counters([f"${c}" for c in PORT_COUNTERS])),
            _table(3, DEVICE, "DevConfigure", 1, [], device),
            _table(4, QUEUE_COUNTER, "TmCounterQueue", ports * 8, ["pg_id", "pg_queue"], queue),
        ],
        "learn_filters": [],
    }
