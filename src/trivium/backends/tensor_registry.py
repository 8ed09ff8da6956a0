"""From a configuration and a version's folder to a model that answers: processes started, scheduler chosen, warmed up, cached, counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trivium.backends.cached_model import CachedModel
from trivium.backends.ensemble import EnsembleModel
from trivium.backends.ensemble_graph import component_models, ensemble_graph
from trivium.backends.load_context import LoadContext, LoadedModel
from trivium.backends.sequence_inputs import SequenceAdapter
from trivium.backends.signature import model_signature
from trivium.backends.tensor_adapters import Adapter, reshape_adapter
from trivium.backends.tensor_base import TensorModel
from trivium.backends.tensor_inference import TensorInference
from trivium.backends.tensor_model import ScheduledModel
from trivium.backends.tensor_null import null_inference
from trivium.backends.warmup import warm_up
from trivium.batching.dynamic import DynamicBatcher
from trivium.batching.model_metrics import ModelMetrics
from trivium.batching.rate_limiter import Permit
from trivium.batching.scheduler import BatchScheduler
from trivium.batching.sequence import SequenceBatcher
from trivium.batching.settings import batch_settings, instance_groups, sequence_settings
from trivium.errors import ModelLoadError
from trivium.execution import ModelInstance
from trivium.protocol.model_config import ModelConfig

logger = logging.getLogger(__name__)

REGROUPING: Final = "regrouping"
BATCH_STRATEGY: Final = "TRITON_BATCH_STRATEGY_PATH"


async def create_tensor_model(config: ModelConfig, version: int, path: Path, context: LoadContext) -> LoadedModel:
    """See `CreateModel`: ensembles, and any back end but those of language models."""
    if config.platform == "ensemble":
        return _create_ensemble(config, version, context)
    from trivium.client.worker import WorkerPool, WorkerSpec

    started = time.monotonic()
    pool = await WorkerPool.start(WorkerSpec(config=config, version=version, path=path, context=context))
    try:
        complete = context.complete(config, pool.completion)
        await warm_up(complete, pool.instances, _adapters(complete, context.model_path), context.model_path)
        model = build_model(complete, version, pool.instances, context, close_instances=pool.close, started=started)
    except BaseException:
        await pool.close()
        raise
    return LoadedModel(model=model, config=complete)


def build_model(
    config: ModelConfig,
    version: int,
    instances: Sequence[ModelInstance],
    context: LoadContext,
    *,
    close_instances: Callable[[], Awaitable[None]] | None = None,
    started: float | None = None,
) -> TensorModel:
    """The model of `config`, which is complete, on instances that run: with scheduler, cache and metrics. `started` is the monotonic time at
    which loading began. Raises `ModelLoadError`."""
    if BATCH_STRATEGY in config.parameters:
        raise ModelLoadError(f"model '{config.name}': parameter '{BATCH_STRATEGY}' is not supported, batching libraries are not loaded")
    adapters = _adapters(config, context.model_path)
    signature = model_signature(config, version, context.model_path)
    schedule = _schedule(config, len(instances))
    permits = _permits(config, len(instances), context)
    model = ScheduledModel(
        signature,
        instances,
        schedule.scheduler,
        batches=schedule.batches,
        preserves_order=schedule.preserves_order,
        takes_ahead=schedule.takes_ahead and not permits,
        adapters=adapters,
        permits=permits,
        close_instances=close_instances,
    )
    return _finish(config, model, context, started)


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    """See `ScheduledModel`."""

    scheduler: BatchScheduler[TensorInference]
    batches: bool
    preserves_order: bool
    takes_ahead: bool = False


def _schedule(config: ModelConfig, num_instances: int) -> _Schedule:
    if config.HasField("sequence_batching"):
        sequences = sequence_settings(config)
        return _Schedule(
            scheduler=SequenceBatcher(sequences, model=config.name, num_instances=num_instances, make_null=null_inference),
            batches=sequences.max_batch_size > 1,
            preserves_order=sequences.batches is not None and sequences.batches.preserves_order,
        )
    settings = batch_settings(config)
    return _Schedule(
        scheduler=DynamicBatcher(settings, regroups=_regroups(config) and num_instances == 1),
        batches=settings.max_batch_size > 1,
        preserves_order=settings.preserves_order,
        takes_ahead=settings.max_batch_size == 1 and not settings.has_policy,
    )


def _regroups(config: ModelConfig) -> bool:
    """See `batching.regrouping`; the parameter `regrouping` of a configuration turns it off."""
    if REGROUPING not in config.parameters:
        return True
    text = config.parameters[REGROUPING].string_value
    if text not in ("on", "off"):
        raise ModelLoadError(f"parameter '{REGROUPING}' of model '{config.name}' must be 'on' or 'off', not {text!r}")
    return text == "on"


def _create_ensemble(config: ModelConfig, version: int, context: LoadContext) -> LoadedModel:
    complete = context.complete(config, None)
    graph = ensemble_graph(complete)
    if any(_is_decoupled(name, version, context) for name, version in component_models(complete)):
        complete.model_transaction_policy.decoupled = True
    signature = model_signature(complete, version, context.model_path)
    if signature.is_decoupled and complete.response_cache.enable:
        raise ModelLoadError(f"ensemble '{config.name}' has a decoupled step: its responses can't be cached")
    model = EnsembleModel(signature, graph, context.caller, max_in_flight=complete.ensemble_scheduling.max_inflight_requests)
    return LoadedModel(model=_finish(complete, model, context, None), config=complete)


def _is_decoupled(name: str, version: str, context: LoadContext) -> bool:
    signature = context.signature(name, version)
    return signature is not None and signature.is_decoupled


def _finish(config: ModelConfig, model: ScheduledModel | EnsembleModel, context: LoadContext, started: float | None) -> TensorModel:
    cache = context.response_cache if config.response_cache.enable else None
    if config.response_cache.enable and cache is None:
        logger.warning("Model '%s' enables the response cache, but the server has none (cache_config).", config.name)
    metrics = ModelMetrics(
        context.registry,
        config,
        model.statistics,
        lambda: model.num_pending,
        options=context.metrics,
        has_cache=cache is not None,
        load_seconds=0.0 if started is None else time.monotonic() - started,
    )
    model.latencies = metrics.latencies
    model.on_close = metrics.close
    return model if cache is None else CachedModel(model, cache, model.gate)


def _adapters(config: ModelConfig, model_path: Path) -> list[Adapter]:
    """In the order in which they prepare a request."""
    reshape = reshape_adapter(config)
    sequence = [SequenceAdapter(config, model_path)] if config.HasField("sequence_batching") else []
    return [*([] if reshape is None else [reshape]), *sequence]


def _permits(config: ModelConfig, num_instances: int, context: LoadContext) -> list[Permit | None]:
    limiter = context.rate_limiter
    groups = instance_groups(config)
    if limiter is None or not any(group.rate_limiter.resources for group, _ in groups):
        return []
    if len(groups) != num_instances:
        raise ModelLoadError(f"model '{config.name}' has {num_instances} instances where its groups ask for {len(groups)}")
    permits: list[Permit | None] = []
    try:
        for group, device in groups:
            permits.append(limiter.register(group.rate_limiter, device))
    except ModelLoadError:
        for permit in permits:
            if permit is not None:
                permit.close()
        raise
    return permits
