"""`ModelConfig`: a model's configuration, as `auto_complete_config` gets it to fill in what is missing; and look-ups in its JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from trivium.infer import DataType
from trivium.worker.pb.errors import TritonModelException
from trivium.worker.tensors import NUMPY_TYPES, datatype_of

Json = dict[str, Any]

_INPUT_FIELDS: Final = frozenset({"name", "data_type", "dims", "optional", "allow_ragged_batch"})
_OUTPUT_FIELDS: Final = frozenset({"name", "data_type", "dims"})


class ModelConfig:
    """What the configuration already says stands; adding something that contradicts it raises `TritonModelException`."""

    def __init__(self, model_config: Json | str) -> None:
        self._config: Json = json.loads(model_config) if isinstance(model_config, str) else model_config

    def as_dict(self) -> Json:
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Never raises what the configuration says."""
        current = self._config.get("max_batch_size", 0)
        if current > max_batch_size:
            raise TritonModelException(
                "configuration specified max_batch_size "
                f"{current}, but in auto-complete-config function for model '{self._config['name']}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = current or max_batch_size

    def add_input(self, input: Mapping[str, Any]) -> None:
        self._add("input", input, _INPUT_FIELDS)

    def add_output(self, output: Mapping[str, Any]) -> None:
        self._add("output", output, _OUTPUT_FIELDS)

    def set_dynamic_batching(self) -> None:
        """Unless another scheduler is configured."""
        if "sequence_batching" in self._config or "ensemble_scheduling" in self._config:
            found = "sequence_batching" if "sequence_batching" in self._config else "ensemble_scheduling"
            raise TritonModelException(
                f"Configuration specified {found}, but auto-complete-config function for model '{self._config['name']}' sets dynamic_batching."
            )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """`{"decoupled": bool}`."""
        unknown = [key for key in transaction_policy_dict if key != "decoupled"]
        if unknown:
            raise TritonModelException(
                f"model transaction property in auto-complete-config function for model '{self._config['name']}' "
                f"contains property '{unknown[0]}', but only 'decoupled' is allowed"
            )
        current = self._config.get("model_transaction_policy")
        wanted = bool(transaction_policy_dict.get("decoupled", False))
        if current is not None and "decoupled" in current and current["decoupled"] != wanted:
            raise TritonModelException(
                f"trying to change decoupled property in auto-complete-config for model '{self._config['name']}', which is already set to "
                f"'{current['decoupled']}'"
            )
        self._config["model_transaction_policy"] = {"decoupled": wanted}

    def _add(self, kind: str, tensor: Mapping[str, Any], allowed: frozenset[str]) -> None:
        model = self._config.get("name", "")
        for field in ("name", "data_type", "dims"):
            if field not in tensor:
                raise TritonModelException(f"{kind} in auto-complete-config function for model '{model}' is missing '{field}' property.")
        unknown = sorted(field for field in tensor if field not in allowed)
        if unknown:
            raise TritonModelException(f"{kind} in auto-complete-config function for model '{model}' contains unknown property '{unknown[0]}'.")
        tensors: list[Json] = self._config.setdefault(kind, [])
        name = tensor["name"]
        current = next((entry for entry in tensors if entry["name"] == name), None)
        if current is None:
            tensors.append({**tensor, "dims": [int(dim) for dim in tensor["dims"]]})
            return
        for field in ("data_type", "dims"):
            value = current.get(field)
            if value and value != "TYPE_INVALID" and value != tensor[field]:
                raise TritonModelException(
                    f"unable to load model '{model}', configuration expects {field} {value} for {kind} '{name}' but auto-complete-config function "
                    f"specifies {tensor[field]}"
                )
            current[field] = tensor[field]


# -- look-ups ---------------------------------------------------------------------------------------------------------------------


def get_input_config_by_name(model_config: Json, name: str) -> Json | None:
    return _by_name(model_config, "input", name)


def get_output_config_by_name(model_config: Json, name: str) -> Json | None:
    return _by_name(model_config, "output", name)


def _by_name(model_config: Json, kind: str, name: str) -> Json | None:
    return next((entry for entry in model_config.get(kind, []) if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Json) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


# -- types ------------------------------------------------------------------------------------------------------------------------


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """`TYPE_FP32` to `numpy.float32`; None for what numpy doesn't have."""
    name = triton_type_string.removeprefix("TYPE_")
    name = "BYTES" if name == "STRING" else name
    dtype = NUMPY_TYPES.get(DataType(name)) if name in DataType.__members__ else None
    return None if dtype is None else dtype.type


_NUMBERS: Final = ("", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES", "BF16")


def triton_to_numpy_type(data_type: int) -> Any:
    """From the number of a type in model configurations."""
    return triton_string_to_numpy(_NUMBERS[data_type]) if 0 < data_type < len(_NUMBERS) else None


def numpy_to_triton_type(data_type: Any) -> int:
    return _NUMBERS.index(datatype_of(np.dtype(data_type)))
