"""Defaults of a model configuration, and what auto-completion adds to it."""

from __future__ import annotations

from typing import Any, Final

from trivium.protocol.model_config import ModelConfig, ModelInstanceGroup
from trivium.repository.backend_names import ENSEMBLE, LLM_BACKENDS

SEQUENCE_IDLE_US: Final = 1_000_000

CPU_INSTANCES: Final = {"onnxruntime": 2, "tensorflow": 2}
"""Instances on a CPU where the configuration gives no number; 1 for the other back ends."""


CPU_ONLY: Final = ("fil",)
"""Back ends that KIND_AUTO puts on the CPU on a machine with GPUs too."""


def normalize(config: ModelConfig) -> None:
    """Fill in what has a default whatever the model's files say."""
    if config.version_policy.WhichOneof("policy_choice") is None:
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching") and not config.dynamic_batching.preferred_batch_size and config.max_batch_size > 0:
        config.dynamic_batching.preferred_batch_size.append(config.max_batch_size)
    if config.HasField("sequence_batching"):
        _normalize_sequences(config)
    if config.HasField("ensemble_scheduling") or config.platform == ENSEMBLE:
        return
    if not config.optimization.HasField("input_pinned_memory"):
        config.optimization.input_pinned_memory.enable = True
    if not config.optimization.HasField("output_pinned_memory"):
        config.optimization.output_pinned_memory.enable = True


def _normalize_sequences(config: ModelConfig) -> None:
    batching = config.sequence_batching
    if batching.max_sequence_idle_microseconds == 0:
        batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_US
    if batching.HasField("oldest") and not batching.oldest.preferred_batch_size and config.max_batch_size > 0:
        batching.oldest.preferred_batch_size.append(config.max_batch_size)


def normalize_instances(config: ModelConfig, gpus: tuple[int, ...]) -> None:
    """Names, kinds and numbers of the instance groups. `gpus`: those this machine has."""
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            is_there = bool(gpus) and all(gpu in gpus for gpu in group.gpus)
            group.kind = ModelInstanceGroup.KIND_GPU if is_there and config.backend not in CPU_ONLY else ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            group.count = CPU_INSTANCES.get(config.backend, 1) if group.kind == ModelInstanceGroup.KIND_CPU else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)


def merge_completion(config: ModelConfig, found: ModelConfig) -> None:
    """Take from `found` what `config` doesn't say. What both say stays as configured: whether it fits is for the back end to find out."""
    if config.max_batch_size == 0:
        config.max_batch_size = found.max_batch_size
    _merge_tensors(config, found)
    if config.WhichOneof("scheduling_choice") is None:
        choice = found.WhichOneof("scheduling_choice")
        if choice is not None:
            getattr(config, choice).CopyFrom(getattr(found, choice))
            getattr(config, choice).SetInParent()
    if not config.HasField("model_transaction_policy") and found.HasField("model_transaction_policy"):
        config.model_transaction_policy.CopyFrom(found.model_transaction_policy)
    for name in found.parameters:
        if name not in config.parameters:
            config.parameters[name].CopyFrom(found.parameters[name])


def _merge_tensors(config: ModelConfig, found: ModelConfig) -> None:
    for kind in ("input", "output"):
        ours, theirs = _tensors(config, kind), _tensors(found, kind)
        known = {tensor.name: tensor for tensor in ours}
        if not known:
            ours.MergeFrom(theirs)
            continue
        for tensor in theirs:
            match = known.get(tensor.name)
            if match is None:
                # These say themselves what they have; elsewhere a configuration may leave outputs out on purpose.
                if config.backend in ("python", *LLM_BACKENDS):
                    ours.add().CopyFrom(tensor)
                continue
            if not match.data_type:
                match.data_type = tensor.data_type
            if not match.dims:
                match.dims.extend(tensor.dims)


def _tensors(config: ModelConfig, kind: str) -> Any:
    return getattr(config, kind)
