"""A model repository from the server's settings: back ends, cache, rate limiter, and what the terminal shows while models load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trivium.backends.base import ModelBackend
from trivium.backends.llm_repository import create_llm, tensors_for
from trivium.backends.llm_tensors import LlmTensorModel
from trivium.backends.load_context import LoadContext, LoadedModel
from trivium.backends.tensor_base import ModelSignature
from trivium.backends.tensor_registry import create_tensor_model
from trivium.batching.rate_limiter import RateLimiter
from trivium.cli.model_bars import ModelBars
from trivium.cli.repository_settings import backend_settings, default_max_batch_size, metrics_options, resource_limits, response_cache
from trivium.config import EngineConfig, RepositoryConfig, ServerConfig
from trivium.errors import TriviumError
from trivium.metrics.host import HostMetrics
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import ModelConfig
from trivium.repository.backend_names import LLM_BACKENDS
from trivium.repository.devices import visible_gpus
from trivium.repository.loader import LoaderOptions
from trivium.repository.manager import ModelManager
from trivium.repository.normalize import normalize
from trivium.repository.plan import ModelPlan, PlanOptions
from trivium.repository.repository import ModelRepository, RepositoryOptions


def make_repository(server: ServerConfig, manager: ModelManager, registry: Registry, bars: ModelBars) -> ModelRepository:
    """Nothing is loaded yet. Raises `ConfigError` for settings that don't fit."""
    config = server.repository
    settings = backend_settings(config.backend_config)
    limiter = RateLimiter(resource_limits(config.rate_limit_resource)) if config.rate_limit != "off" else None
    cache = response_cache(config.cache_config)
    metrics = metrics_options(config.metrics_config)
    HostMetrics(registry)

    def make_context(repository: ModelRepository, plan: ModelPlan) -> LoadContext:
        return LoadContext(
            complete=plan.complete,
            caller=repository,
            control=repository,
            signature=lambda name, version: _signature(repository, name, version),
            registry=registry,
            repository_path=plan.folder.repository,
            model_path=plan.folder.path,
            auto_complete=not config.disable_auto_complete_config,
            default_max_batch_size=default_max_batch_size(settings, plan.config.backend),
            allow_python_models=config.allow_python_models,
            backend_settings=settings,
            rate_limiter=limiter,
            response_cache=cache,
            metrics=metrics,
            on_progress=lambda stage, done, total: bars.update(plan.name, stage, done, total),
        )

    async def create(config: ModelConfig, version: int, path: Path, context: LoadContext) -> LoadedModel:
        with bars.loading(config.name, version):
            if config.backend in LLM_BACKENDS:
                return await create_llm(config, version, path, context, defaults=share_gpu(server.engine, repository.num_language_models))
            return await create_tensor_model(config, version, path, context)

    repository = ModelRepository(repository_options(config), create, make_context, manager=manager, registry=registry)
    return repository


def share_gpu(engine: EngineConfig, num_models: int) -> EngineConfig:
    """Where nobody said how much of a GPU an engine may use, those that start together get equal parts of what one would have got."""
    default = EngineConfig().cache.gpu_memory_utilization
    if num_models < 2 or engine.cache.gpu_memory_utilization != default:
        return engine
    return replace(engine, cache=replace(engine.cache, gpu_memory_utilization=round(default / num_models, 3)))


def adopt(repository: ModelRepository, name: str, backend: ModelBackend) -> None:
    """Let tensor requests too reach a language model that is served beside the repository."""
    config = ModelConfig(name=name, backend="llm")
    config.MergeFrom(tensors_for(config))
    normalize(config)
    repository.adopt(name, LoadedModel(model=LlmTensorModel(backend, config, 1), config=config, llm=backend))


def repository_options(config: RepositoryConfig) -> RepositoryOptions:
    return RepositoryOptions(
        paths=[Path(path) for path in config.model_repository],
        control_mode=config.model_control_mode,
        load_models=config.load_model,
        poll_s=config.repository_poll_secs,
        exit_on_error=config.exit_on_error,
        strict_readiness=config.strict_readiness,
        plan=PlanOptions(config_name=config.model_config_name, auto_complete=not config.disable_auto_complete_config, gpus=visible_gpus()),
        loader=LoaderOptions(num_parallel=config.model_load_thread_count, num_retries=config.model_load_retry_count),
    )


def _signature(repository: ModelRepository, name: str, version: str) -> ModelSignature | None:
    try:
        lease = repository.lease(name, version)
    except TriviumError:
        return None
    lease.release()
    return lease.model.signature
