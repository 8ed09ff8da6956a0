"""Old quantized checkpoints say how in a file of their own: AutoGPTQ's `quantize_config.json`, the first AutoAWQ's `quant_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from trivium.sources.paths import read_json_child

FILES: Final = ("quantize_config.json", "quant_config.json")


def separate_quantization_config(folder: Path) -> dict[str, Any] | None:
    """What such a file says, in the form of a config.json's `quantization_config`; None if there is none."""
    found = read_json_child(folder, FILES[0])
    if found is not None:
        is_awq = str(found.get("version", "")).upper() in ("GEMM", "GEMV") or "zero_point" in found
        return {"quant_method": "awq" if is_awq else "gptq", **found}
    found = read_json_child(folder, FILES[1])
    if found is None:
        return None
    renamed = {"w_bit": "bits", "q_group_size": "group_size"}
    return {"quant_method": "awq", **{renamed.get(key, key): value for key, value in found.items()}}
