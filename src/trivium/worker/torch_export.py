"""`torch.export` archives (`model.pt2`): checked before torch reads them, and what they say of inputs and outputs.

`torch.export.load` unpickles parts of an archive, evaluates the expressions of symbolic sizes and looks up the functions that a program calls
from their names, each of which can run any code. So every pickled part must be one that torch's restricted unpickler reads, opaque objects
are refused, an expression may hold nothing but arithmetic on symbols, and a function must be an operator. Format: torch/export/pt2_archive
and torch/_export/serde/schema.py.
"""

from __future__ import annotations

import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from trivium.errors import ModelLoadError
from trivium.infer import DataType
from trivium.worker.completion import Port

_DATATYPES: Final = {
    torch.bool: DataType.BOOL,
    torch.uint8: DataType.UINT8,
    torch.int8: DataType.INT8,
    torch.int16: DataType.INT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.float16: DataType.FP16,
    torch.float32: DataType.FP32,
    torch.float64: DataType.FP64,
    torch.bfloat16: DataType.BF16,
}
_SYMBOL: Final = re.compile(r"Symbol\('\w+'(?:, \w+=(?:True|False))*\)")
_EXPRESSION: Final = re.compile(
    r"(?:(?:Add|Mul|Pow|Integer|Rational|Float|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|IntTrueDiv|Max|Min|Equality|Unequality|StrictLessThan|"
    r"LessThan|StrictGreaterThan|GreaterThan|And|Or|Not|true|false|[su]\d+|precision=)(?!\w)|-?\d+|[-+*/(), ]|[<>=!]=|[<>])*"
)
"""What is left of an expression (the `srepr` of sympy) without its symbols."""
_TARGET: Final = re.compile(
    r"torch\.ops\.(?:aten|prim|prims|higher_order|quantized|quantized_decomposed)\.(?!from_file)[a-z_]\w*(?:\.\w+)?"
    r"|torch\.sym_\w+|math\.\w+|_operator\.\w+|"
)
_MAX_JSON: Final = 256 * 2**20


def is_compiled(path: Path) -> bool:
    """An AOTInductor package: native code."""
    with zipfile.ZipFile(path) as archive:
        return any("/aotinductor/" in name for name in archive.namelist())


def load_exported(path: Path) -> torch.export.ExportedProgram:
    """Raises `ModelLoadError`, also for an archive that could run code."""
    check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # whatever a wrong archive makes torch raise
        raise ModelLoadError(f"torch can't load {path.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None


def check_archive(path: Path) -> None:
    """Raises `ModelLoadError` if anything in the archive could run code when it is loaded."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if not any(re.fullmatch(r"[^/]+/models/[^/]+\.json", name) for name in names):
            raise ModelLoadError(f"{path.name} is no torch.export archive")
        for name in names:
            if name.endswith(".json"):
                _check_json(archive, name, path)
            elif name.endswith(".pt"):
                _check_pickle(archive.read(name), name, path)


def _check_json(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    if archive.getinfo(name).file_size > _MAX_JSON:
        raise ModelLoadError(f"{path.name}: {name} has more than {_MAX_JSON} bytes")
    try:
        content = json.loads(archive.read(name))
    except ValueError:
        raise ModelLoadError(f"{path.name}: {name} is no JSON") from None
    if "/models/" in name:
        for kind, text in _evaluated(content):
            if kind == "target" and not _TARGET.fullmatch(text):
                raise ModelLoadError(f"{path.name}: {name} calls {text!r}, which is no tensor operation")
            if kind == "expression" and not _EXPRESSION.fullmatch(_SYMBOL.sub("", text)):
                raise ModelLoadError(f"{path.name}: {name} has an expression of sizes that is no plain arithmetic")
    for payload in content.get("config", {}).values() if isinstance(content, dict) and "_config" in name else ():
        folder = name.rpartition("/")[0]
        file_name = payload.get("path_name", "")
        if file_name.startswith("opaque_obj"):
            raise ModelLoadError(f"{path.name} holds an opaque object, which could run code when it is loaded")
        if payload.get("use_pickle"):
            _check_pickle(archive.read(f"{folder}/{file_name}"), file_name, path)


def _check_pickle(data: bytes, name: str, path: Path) -> None:
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception:
        raise ModelLoadError(f"{path.name}: {name} holds pickled objects other than tensors, which could run code when they are loaded") from None


def _evaluated(content: Any) -> Iterator[tuple[str, str]]:
    """Every text of a program that torch evaluates: functions its nodes call, and expressions of sizes."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key == "expr_str" and isinstance(value, str):
                yield "expression", value
            elif key == "range_constraints" and isinstance(value, dict):
                yield from (("expression", name) for name in value)
            elif key == "target" and isinstance(value, str) and "inputs" in content:
                yield "target", value
            yield from _evaluated(value)
    elif isinstance(content, list):
        for value in content:
            yield from _evaluated(value)


def exported_ports(program: torch.export.ExportedProgram) -> tuple[list[Port], list[Port]]:
    """The program's inputs and outputs that are tensors, named as its arguments. Raises `ModelLoadError` for other arguments."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    inputs = [_port(nodes.get(name), str(name)) for name in signature.user_inputs]
    outputs = [_port(nodes.get(name), f"OUTPUT__{index}") for index, name in enumerate(signature.user_outputs)]
    return inputs, outputs


def _port(node: Any, name: str) -> Port:
    value = None if node is None else node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise ModelLoadError(f"'{name}' of the exported program is no tensor")
    datatype = _DATATYPES.get(value.dtype)
    if datatype is None:
        raise ModelLoadError(f"'{name}' of the exported program is {value.dtype}, which no tensor of a request can be")
    return Port(name, datatype, tuple(dim if isinstance(dim, int) else -1 for dim in value.shape))


def num_positional(program: torch.export.ExportedProgram) -> int:
    """How many of its inputs are passed by position; the others by name."""
    args, _kwargs = program.example_inputs or ((), {})
    return len(args)
