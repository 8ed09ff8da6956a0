"""Element types of model configurations (`TYPE_FP32`, an int) and of requests (`FP32`): the same but for STRING, which clients call BYTES."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from trivium.infer import DataType
from trivium.protocol import model_config

_CONFIG_NAMES: Final = {DataType.BYTES: "TYPE_STRING"}

_TO_CONFIG: Final = MappingProxyType(
    {datatype: model_config.DataType.Value(_CONFIG_NAMES.get(datatype, f"TYPE_{datatype}")) for datatype in DataType}
)
_TO_WIRE: Final = MappingProxyType({number: datatype for datatype, number in _TO_CONFIG.items()})


def wire_datatype(data_type: int) -> DataType:
    """What clients call a configuration's type. Raises `KeyError` for `TYPE_INVALID`, which validation has refused before."""
    return _TO_WIRE[data_type]


def config_datatype(datatype: DataType) -> int:
    return _TO_CONFIG[datatype]
