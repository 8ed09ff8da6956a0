"""What a back end needs to know, beyond the model's configuration, to load one version of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trivium.backends.base import ModelBackend
from trivium.backends.response_cache import ResponseCache
from trivium.backends.tensor_base import ModelCaller, ModelSignature, TensorModel
from trivium.batching.model_metrics import MetricsOptions
from trivium.batching.rate_limiter import RateLimiter
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import ModelConfig

Completion = Callable[[ModelConfig, ModelConfig | None], ModelConfig]


class ModelControl(Protocol):
    """The repository as a model may use it (`pb_utils.load_model` and the like)."""

    def is_ready(self, name: str, version: str = "") -> bool: ...

    async def load(self, name: str, *, config_json: str | None = None, files: Mapping[str, bytes] | None = None) -> None: ...

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LoadContext:
    """The same for every model but for `model_path` and `on_progress`."""

    complete: Completion
    """`complete(config, found)`: the configuration with what is missing taken from `found` (what the back end read in the model's files),
    then with every default filled in, and checked. Raises `ModelLoadError`. Call it once the model is loaded; `found` None: nothing was
    found, what the configuration lacks can't be had."""
    caller: ModelCaller
    """Other models, for ensembles and business logic."""
    control: ModelControl
    signature: Callable[[str, str], ModelSignature | None]
    """What another model that is ready takes and gives, by name and version ("": its default)."""
    registry: Registry
    repository_path: Path
    """The repository that the model is in."""
    model_path: Path
    """The model's folder: labels, warmup data and initial states are named relative to it."""
    auto_complete: bool = True
    """False: the configuration says everything; nothing is to be read from the model's files."""
    default_max_batch_size: int = 4
    """Given to a model that can batch and whose configuration says nothing of it."""
    allow_python_models: bool = False
    """Whether code from the repository may run."""
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """`--backend-config`: settings by name of the back end; "" are those of all."""
    rate_limiter: RateLimiter | None = None
    """None: the resources that instance groups name limit nothing."""
    response_cache: ResponseCache | None = None
    """None: `response_cache` of a configuration has no effect."""
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    """Stage, work done, work in all (0: unknown)."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """One version that can answer."""

    model: TensorModel
    config: ModelConfig
    """Complete: what clients get to see."""
    llm: ModelBackend | None = None
    """Set where the model generates text: it answers on the OpenAI routes too."""


class CreateModel(Protocol):
    """Loads version `version` from folder `path`. Raises `TriviumError`; cancelling it stops what was started."""

    def __call__(self, config: ModelConfig, version: int, path: Path, context: LoadContext) -> Awaitable[LoadedModel]: ...
