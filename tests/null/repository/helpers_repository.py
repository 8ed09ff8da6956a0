"""Model folders on disk, and a stand-in for what loads them: models that answer nothing but can be leased, closed, slow or broken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.backends.load_context import LoadContext, LoadedModel
from trivium.backends.signature import model_signature
from trivium.backends.tensor_base import Inference, ModelSignature
from trivium.batching.statistics import ModelStatistics
from trivium.errors import ModelLoadError
from trivium.infer import InferRequest
from trivium.protocol.model_config import ModelConfig
from trivium.repository.plan import ModelPlan
from trivium.repository.repository import ModelRepository, RepositoryOptions

PLAIN = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def ensemble_of(*steps: str, batch: int = 8) -> str:
    """A chain: the first model's IN is the ensemble's X, every OUT is the next one's IN, the last is Y."""
    names = ["X", *(f"T{index}" for index in range(1, len(steps))), "Y"]
    texts = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{names[index]}" }} '
        f'output_map {{ key: "OUT" value: "{names[index + 1]}" }} }}'
        for index, model in enumerate(steps)
    ]
    return f"""
platform: "ensemble"
max_batch_size: {batch}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
ensemble_scheduling {{ step [ {", ".join(texts)} ] }}
"""


def write_model(repository: Path, name: str, config: str | None = PLAIN, *, versions: tuple[int, ...] = (1,), file: str = "model.onnx") -> Path:
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    for version in versions:
        (folder / str(version)).mkdir(exist_ok=True)
        if file:
            (folder / str(version) / file).write_text(f"version {version}")
    return folder


def write_onnx(repository: Path, name: str, config: str | None = PLAIN, *, versions: tuple[int, ...] = (1,), file: str = "model.onnx") -> Path:
    """As `write_model`; an ONNX file is one by its outline."""
    folder = write_model(repository, name, config, versions=versions, file=file)
    for path in folder.glob("*/*.onnx"):
        path.write_bytes(b"\x3a\x01x")
    return folder


class StubModel:
    """Implements `TensorModel`, but for `infer`."""

    def __init__(self, signature: ModelSignature, content: str) -> None:
        self.signature = signature
        self.content = content
        self.statistics = ModelStatistics(signature.name, str(signature.version))
        self.is_alive = True
        self.num_pending = 0
        self.is_closed = False

    def infer(self, request: InferRequest) -> Inference:
        raise NotImplementedError

    async def close(self) -> None:
        assert not self.is_closed, "closed twice"
        await asyncio.sleep(0)
        self.is_closed = True


class StubLoader:
    """`create` for a `ModelRepository`. A file that says `broken` can't be loaded; `gate`, while it is set to an event, holds loads up."""

    def __init__(self) -> None:
        self.made: list[StubModel] = []
        self.attempts: list[tuple[str, int]] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.num_loading = 0
        self.most_loading = 0

    async def __call__(self, config: ModelConfig, version: int, path: Path, context: LoadContext) -> LoadedModel:
        self.attempts.append((config.name, version))
        self.num_loading += 1
        self.most_loading = max(self.most_loading, self.num_loading)
        try:
            gate = self.gates.get(config.name)
            if gate is not None:
                await gate.wait()
            await asyncio.sleep(0)
            files = [file for file in sorted(path.iterdir()) if file.is_file()] if path.is_dir() else []
            content = files[0].read_text() if files else ""
            if "broken" in content:
                raise ModelLoadError("the file is broken")
            if "crash" in content:
                raise RuntimeError("boom on load")
            complete = context.complete(config, None)
        finally:
            self.num_loading -= 1
        model = StubModel(model_signature(complete, version, context.model_path), content)
        self.made.append(model)
        return LoadedModel(model=model, config=complete)

    def open_models(self) -> list[str]:
        return [f"{model.signature.name}:{model.signature.version}" for model in self.made if not model.is_closed]


def context_of(repository: ModelRepository, plan: ModelPlan) -> LoadContext:
    return LoadContext(
        complete=plan.complete,
        caller=repository,
        control=repository,
        signature=lambda name, version: None,
        registry=repository.registry,
        repository_path=plan.folder.repository,
        model_path=plan.folder.path,
    )


def make_repository(path: Path, create: StubLoader, **options: Any) -> ModelRepository:
    """With explicit control unless told otherwise, so that tests can load and unload."""
    given: Mapping[str, Any] = {"control_mode": "explicit", "load_models": ("*",), **options}
    if given["control_mode"] != "explicit":
        given = {**given, "load_models": ()}
    return ModelRepository(RepositoryOptions(paths=[path], **given), create, context_of)


def states(repository: ModelRepository) -> dict[str, str]:
    """`model:version` to state, or to `state (reason)`."""
    lines = repository.index(ready_only=False)
    return {f"{line.name}:{line.version}".rstrip(":"): f"{line.state}" + (f" ({line.reason})" if line.reason else "") for line in lines}
