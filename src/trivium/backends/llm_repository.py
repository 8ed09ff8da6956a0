"""Language models in a model repository: back ends `llm` and `vllm`, both Trivium's own engine.

A version's folder holds `model.json` (vLLM's engine arguments, as for Triton's vLLM back end), a model (its files, a folder of them, or a
`.gguf` file), or both. Clients see Triton's vLLM tensors, or the inputs and outputs of the configuration under whatever names: the first
string input is the prompt, the first string output the text. `max_batch_size` and `dynamic_batching` may stand in the configuration;
continuous batching takes their place.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from trivium.backends.base import ModelBackend
from trivium.backends.llm_load import load_backend
from trivium.backends.llm_tensors import LlmTensorModel
from trivium.backends.load_context import LoadContext, LoadedModel
from trivium.batching.model_metrics import ModelMetrics
from trivium.config import EngineConfig
from trivium.config_io import parse_text, settings_of
from trivium.config_io.vllm_arguments import engine_config
from trivium.errors import ConfigError, ModelLoadError
from trivium.protocol.model_config import TYPE_BOOL, TYPE_FP32, TYPE_STRING, TYPE_UINT32, ModelConfig
from trivium.sources import packaged
from trivium.sources.model_folder import find_model

logger = logging.getLogger(__name__)

_INPUTS: Final = (
    ("text_input", TYPE_STRING),
    ("stream", TYPE_BOOL),
    ("sampling_parameters", TYPE_STRING),
    ("exclude_input_in_output", TYPE_BOOL),
    ("return_finish_reason", TYPE_BOOL),
    ("return_cumulative_logprob", TYPE_BOOL),
    ("return_logprobs", TYPE_BOOL),
    ("return_num_input_tokens", TYPE_BOOL),
    ("return_num_output_tokens", TYPE_BOOL),
)
_OUTPUTS: Final = (
    ("text_output", TYPE_STRING, -1),
    ("finish_reason", TYPE_STRING, -1),
    ("cumulative_logprob", TYPE_FP32, -1),
    ("logprobs", TYPE_STRING, -1),
    ("num_input_tokens", TYPE_UINT32, 1),
    ("num_output_tokens", TYPE_UINT32, -1),
)
"""Tensors of Triton's vLLM back end: names, types and, of outputs, the one dimension."""

_FOREIGN_PARAMETERS: Final = frozenset({"REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK", "FORCE_CPU_ONLY_INPUT_TENSORS"})
"""Parameters of Triton's vLLM back end that ask for what happens anyway."""


_OF_ONE_MODEL: Final = frozenset(
    {"model", "tokenizer", "revision", "hub", "served_model_name", "chat_template", "generation_config", "override_generation_config"}
)


async def create_llm(config: ModelConfig, version: int, path: Path, context: LoadContext, *, defaults: EngineConfig | None = None) -> LoadedModel:
    """See `CreateModel`. `defaults`: the server's own engine settings, for whatever the model's folder doesn't say."""
    complete = context.complete(config, tensors_for(config))
    _tell_what_batching_means(config)
    started = time.monotonic()
    engine = await asyncio.to_thread(engine_arguments, config, path, defaults)

    def show(stage: str, done: int, total: int, unit: str = "") -> None:
        context.on_progress(stage, done, total)

    loaded = await load_backend(engine, name=config.name, registry=context.registry, on_progress=show)
    model = CountedLlm(loaded.backend, complete, version, context, load_s=time.monotonic() - started)
    return LoadedModel(model=model, config=complete, llm=loaded.backend)


class CountedLlm(LlmTensorModel):
    """With Triton's metrics, as any other model of a repository has them."""

    def __init__(self, backend: ModelBackend, config: ModelConfig, version: int, context: LoadContext, *, load_s: float) -> None:
        super().__init__(backend, config, version)
        self._metrics = ModelMetrics(
            context.registry, config, self.statistics, lambda: self.num_pending, options=context.metrics, load_seconds=load_s
        )

    async def close(self) -> None:
        self._metrics.close()
        await super().close()


def tensors_for(config: ModelConfig) -> ModelConfig:
    """What the configuration may leave out: the prompt and the text unless it has its own, and everything optional."""
    found = ModelConfig()
    has_prompt = any(tensor.data_type == TYPE_STRING for tensor in config.input)
    has_text = any(tensor.data_type == TYPE_STRING for tensor in config.output)
    for name, data_type in _INPUTS:
        if name != "text_input":
            found.input.add(name=name, data_type=data_type, dims=[1], optional=True)
        elif not has_prompt:
            found.input.add(name=name, data_type=data_type, dims=[1])
    for name, data_type, dim in _OUTPUTS:
        if name != "text_output" or not has_text:
            found.output.add(name=name, data_type=data_type, dims=[dim])
    if not config.input:
        found.model_transaction_policy.decoupled = True
    return found


def engine_arguments(config: ModelConfig, version: Path, defaults: EngineConfig | None = None) -> EngineConfig:
    """The engine's configuration from `model.json`, the parameters of the model's configuration, and what lies in the version's folder;
    settings that none of them has are those of `defaults`, but for what belongs to one model only.

    Raises `ModelLoadError` that names the file, relative to the repository, or the parameter.
    """
    file = version / (config.default_model_filename or "model.json")
    where = f"{config.name}/{version.name}/{file.name}"
    arguments = _read_arguments(file, where) if file.suffix == ".json" and file.exists() else {}
    known = settings_of(EngineConfig)
    for key in sorted(config.parameters):
        name = key.lower()
        if name in known:
            arguments[name] = parse_text(known[name], config.parameters[key].string_value)
        elif key not in _FOREIGN_PARAMETERS:
            raise ModelLoadError(f"parameter '{key}' of model '{config.name}' is not a setting of the engine")
    if arguments.get("served_model_name"):
        raise ModelLoadError(f"{where}: served_model_name is refused: a model's name is that of its folder")
    model = arguments.pop("model", None)
    inherited = _given(defaults) if defaults is not None else {}
    try:
        return engine_config(_model_argument(config, version, model), inherited | arguments)
    except ConfigError as error:
        raise ModelLoadError(f"{where}: {error.message}") from None


def _given(config: EngineConfig) -> dict[str, Any]:
    """Settings that differ from their defaults, by flat name, without those of one model."""
    found: dict[str, Any] = {}
    for name, setting in settings_of(EngineConfig).items():
        value: Any = config
        for part in setting.path:
            value = getattr(value, part)
        if value != setting.default and name not in _OF_ONE_MODEL:
            found[name] = value
    return found


def _read_arguments(file: Path, where: str) -> dict[str, Any]:
    try:
        arguments: object = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{where}: {error}") from None
    if not isinstance(arguments, dict):
        raise ModelLoadError(f"{where}: must be a JSON object of engine arguments")
    return dict(cast(Mapping[str, Any], arguments))


def _model_argument(config: ModelConfig, version: Path, named: object) -> str:
    where = f"{config.name}/{version.name}"
    if named is None:
        found = find_model(version)
        if found is None:
            file = config.default_model_filename or "model.json"
            raise ModelLoadError(f"{where} names no model: put its files there, or its name into {file} as 'model'")
        return str(found)
    if not isinstance(named, str):
        raise ModelLoadError(f"{where}: 'model' must be text, got {named!r}")
    if named in ("", packaged.NAME):
        return ""
    inside = (version / named).resolve()
    return str(inside) if not Path(named).is_absolute() and inside.exists() and inside.is_relative_to(version.resolve()) else named


def _tell_what_batching_means(config: ModelConfig) -> None:
    if config.HasField("dynamic_batching") or config.max_batch_size > 0:
        logger.info("continuous batching takes the place of max_batch_size and dynamic_batching", extra={"model": config.name})
