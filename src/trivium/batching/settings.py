"""The scheduling part of a model's configuration as frozen values. The configuration is expected to be normalized and valid already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from trivium.protocol.model_config import ModelConfig, ModelDynamicBatching, ModelInstanceGroup, ModelQueuePolicy

MICROSECOND_NS = 1000
DEFAULT_IDLE_US = 1_000_000


@dataclass(frozen=True, kw_only=True)
class QueuePolicy:
    """How long and how many requests of one priority level may wait. 0: no limit."""

    timeout_us: int = 0
    allows_override: bool = False
    """A request's own timeout may shorten `timeout_us`, never lengthen it."""
    delays_late: bool = False
    """A request whose time is over is moved behind those in time; otherwise it is rejected."""
    max_size: int = 0

    @property
    def is_default(self) -> bool:
        return self == _NO_POLICY


_NO_POLICY = QueuePolicy()


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """Dynamic batching. `preferred_sizes` ascend; the largest is `max_batch_size` where the configuration names none."""

    max_batch_size: int
    preferred_sizes: tuple[int, ...]
    max_delay_ns: int = 0
    preserves_order: bool = False
    priority_levels: int = 0
    default_level: int = 0
    policy: QueuePolicy = QueuePolicy()
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=lambda: MappingProxyType[int, QueuePolicy]({}))

    @property
    def has_policy(self) -> bool:
        return self.priority_levels > 0 or not self.policy.is_default or any(not policy.is_default for policy in self.level_policies.values())


def queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_us=policy.default_timeout_microseconds,
        allows_override=policy.allow_timeout_override,
        delays_late=policy.timeout_action == ModelQueuePolicy.DELAY,
        max_size=policy.max_queue_size,
    )


def batch_settings(config: ModelConfig) -> BatchSettings:
    """Of a model with `dynamic_batching`, or of one without any scheduling: then each request is a batch of its own."""
    if not config.HasField("dynamic_batching"):
        return BatchSettings(max_batch_size=1, preferred_sizes=(1,))
    dynamic: ModelDynamicBatching = config.dynamic_batching
    max_batch_size = max(1, config.max_batch_size)
    return BatchSettings(
        max_batch_size=max_batch_size,
        preferred_sizes=tuple(sorted(dynamic.preferred_batch_size)) or (max_batch_size,),
        max_delay_ns=dynamic.max_queue_delay_microseconds * MICROSECOND_NS,
        preserves_order=dynamic.preserve_ordering,
        priority_levels=dynamic.priority_levels,
        default_level=dynamic.default_priority_level if dynamic.priority_levels else 0,
        policy=queue_policy(dynamic.default_queue_policy),
        level_policies=MappingProxyType({level: queue_policy(policy) for level, policy in dynamic.priority_queue_policy.items()}),
    )


@dataclass(frozen=True, kw_only=True)
class SequenceSettings:
    """Sequence batching. `batches` is the oldest strategy's dynamic batcher; None: the direct strategy."""

    max_batch_size: int
    num_slots: int
    """Sequences that an instance works on at once; more wait until one ends."""
    max_idle_ns: int
    batches: BatchSettings | None = None
    max_delay_ns: int = 0
    min_utilization: float = 0.0
    """Share of an instance's slots that must have a request before the direct strategy runs a batch ahead of `max_delay_ns`."""
    is_iterative: bool = False
    """Each request is a sequence of its own, which its model runs again and again until it is done."""


def sequence_settings(config: ModelConfig) -> SequenceSettings:
    """Of a model with `sequence_batching`; direct unless the configuration says oldest."""
    sequence = config.sequence_batching
    max_batch_size = max(1, config.max_batch_size)
    max_idle_ns = (sequence.max_sequence_idle_microseconds or DEFAULT_IDLE_US) * MICROSECOND_NS
    if not sequence.HasField("oldest"):
        return SequenceSettings(
            max_batch_size=max_batch_size,
            num_slots=max_batch_size,
            max_idle_ns=max_idle_ns,
            max_delay_ns=sequence.direct.max_queue_delay_microseconds * MICROSECOND_NS,
            min_utilization=sequence.direct.minimum_slot_utilization,
            is_iterative=sequence.iterative_sequence,
        )
    oldest = sequence.oldest
    return SequenceSettings(
        max_batch_size=max_batch_size,
        num_slots=oldest.max_candidate_sequences or max_batch_size,
        max_idle_ns=max_idle_ns,
        batches=BatchSettings(
            max_batch_size=max_batch_size,
            preferred_sizes=tuple(sorted(oldest.preferred_batch_size)) or (max_batch_size,),
            max_delay_ns=oldest.max_queue_delay_microseconds * MICROSECOND_NS,
            preserves_order=oldest.preserve_ordering,
        ),
        is_iterative=sequence.iterative_sequence,
    )


CPU_DEVICE = -1


def instance_groups(config: ModelConfig) -> list[tuple[ModelInstanceGroup, int]]:
    """Group and device (`CPU_DEVICE`, or a GPU's number) of each instance, in the order in which they are made; passive groups make none."""
    found: list[tuple[ModelInstanceGroup, int]] = []
    for group in config.instance_group:
        if not group.passive:
            devices = list(group.gpus) if group.kind == ModelInstanceGroup.KIND_GPU and group.gpus else [CPU_DEVICE]
            found += [(group, device) for device in devices for _ in range(max(1, group.count))]
    return found
