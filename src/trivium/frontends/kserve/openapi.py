"""KServe's part of the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any, Final

from trivium.frontends.kserve.control import IndexBody, ParametersBody, RegisterBody
from trivium.frontends.kserve.errors import KserveErrorBody
from trivium.frontends.kserve.schema import InferBody

Json = dict[str, Any]

BODIES: Final = (InferBody, IndexBody, ParametersBody, RegisterBody, KserveErrorBody)
"""Structs that the paths refer to."""
_REF: Final = "#/components/schemas/{name}"
_ANY_OBJECT: Final[Json] = {"type": "object"}
_MODEL_PREFIXES: Final = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")

_GETS: Final = {
    "/v2": "Name, version and extensions of the server",
    "/v2/health/live": "Does the process answer?",
    "/v2/health/ready": "Can it answer requests? 400 if not",
    "/v2/models/stats": "Statistics of all models",
    "/v2/logging": "Log settings",
    "/v2/trace/setting": "Trace settings",
    "/v2/models/{model}/trace/setting": "Trace settings of one model",
    "/v2/systemsharedmemory/status": "Registered shared memory",
    "/v2/systemsharedmemory/region/{region}/status": "One registered region",
    "/v2/cudasharedmemory/status": "Always an empty list",
    "/v2/cudasharedmemory/region/{region}/status": "Always an error: nothing is ever registered",
    **dict.fromkeys(_MODEL_PREFIXES, "Inputs and outputs of a model"),
    **{f"{prefix}/ready": "Is the model ready? 400 if not" for prefix in _MODEL_PREFIXES},
    **{f"{prefix}/config": "The model's configuration, completed" for prefix in _MODEL_PREFIXES},
    **{f"{prefix}/stats": "Statistics of a model" for prefix in _MODEL_PREFIXES},
}
_POSTS: Final[dict[str, tuple[str, str | None]]] = {
    **{f"{prefix}/infer": ("Tensors in, tensors out; binary data may follow the JSON", "InferBody") for prefix in _MODEL_PREFIXES},
    **{f"{prefix}/generate": ("A flat JSON object in, one out", None) for prefix in _MODEL_PREFIXES},
    **{f"{prefix}/generate_stream": ("A flat JSON object in, server-sent events out", None) for prefix in _MODEL_PREFIXES},
    "/v2/repository/index": ("Models, versions and their states", "IndexBody"),
    "/v2/repository/{repository}/index": ("The same: the name makes no difference", "IndexBody"),
    "/v2/repository/models/{model}/load": ("Load or reload a model", "ParametersBody"),
    "/v2/repository/models/{model}/unload": ("Unload a model", "ParametersBody"),
    "/v2/repository/{repository}/models/{model}/load": ("Refused: repositories have no names", None),
    "/v2/repository/{repository}/models/{model}/unload": ("Refused: repositories have no names", None),
    "/v2/systemsharedmemory/region/{region}/register": ("Register a file under /dev/shm", "RegisterBody"),
    "/v2/systemsharedmemory/region/{region}/unregister": ("Forget a region", None),
    "/v2/systemsharedmemory/unregister": ("Forget all regions", None),
    "/v2/cudasharedmemory/region/{region}/register": ("Refused: not supported", None),
    "/v2/cudasharedmemory/region/{region}/unregister": ("Nothing happens", None),
    "/v2/cudasharedmemory/unregister": ("Nothing happens", None),
    "/v2/logging": ("Change log settings", None),
    "/v2/trace/setting": ("Change trace settings", None),
    "/v2/models/{model}/trace/setting": ("Change trace settings of one model", None),
}
_OPTIONAL_BODIES: Final = frozenset({None, "IndexBody", "ParametersBody"})


def paths() -> Json:
    found: dict[str, Json] = {}
    for path, summary in _GETS.items():
        found.setdefault(path, _parameters(path))["get"] = _operation(summary)
        if path.startswith("/v2/health/"):
            found[path]["get"]["security"] = []
    for path, (summary, body) in _POSTS.items():
        operation = _operation(summary)
        schema = {"$ref": _REF.format(name=body)} if body else _ANY_OBJECT
        operation["requestBody"] = {"required": body not in _OPTIONAL_BODIES, "content": {"application/json": {"schema": schema}}}
        found.setdefault(path, _parameters(path))["post"] = operation
    return found


def _operation(summary: str) -> Json:
    error = {"application/json": {"schema": {"$ref": _REF.format(name="KserveErrorBody")}}}
    return {"summary": summary, "responses": {"200": {"description": "The answer."}, "default": {"description": "An error.", "content": error}}}


def _parameters(path: str) -> Json:
    names = re.findall(r"{(\w+)}", path)
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]} if names else {}
