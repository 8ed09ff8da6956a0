"""What a configuration makes of instances, and what it can't."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_tensor_models import Caller, FunctionInstance, answers, config, context, double, request, settle, tensor

from trivium.backends import signature
from trivium.backends.response_cache import ResponseCache
from trivium.backends.signature import model_signature
from trivium.backends.tensor_registry import build_model, create_tensor_model
from trivium.batching.rate_limiter import RateLimiter
from trivium.batching.settings import CPU_DEVICE, batch_settings, instance_groups, sequence_settings
from trivium.errors import ModelLoadError
from trivium.metrics.instruments import Registry
from trivium.metrics.triton import render
from trivium.protocol.model_config import (
    TYPE_FP32,
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelQueuePolicy,
    ModelRateLimiter,
    ModelResponseCache,
    ModelSequenceBatching,
    ModelTransactionPolicy,
)


def labelled(filename: str) -> ModelConfig:
    return config(output=[ModelOutput(name="OUT", data_type=TYPE_FP32, dims=[3], label_filename=filename)])


def test_a_signature_has_the_batch_dimension_and_the_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\nfox\n")
    found = model_signature(labelled("labels.txt"), 3, tmp_path)
    assert (found.version, found.platform, found.max_batch_size) == (3, "python", 8)
    assert (found.inputs[0].shape, found.outputs[0].shape, found.outputs[0].labels) == ((-1, 1), (-1, 3), ("cat", "dog", "fox"))
    assert model_signature(config(max_batch_size=0), 1, tmp_path).inputs[0].shape == (1,)


@pytest.mark.parametrize(
    ("filename", "reason"), [("absent", "can't be read"), ("../x", "outside"), ("large", "more than 4 bytes"), ("bad", "decode")]
)
def test_labels_that_can_not_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filename: str, reason: str) -> None:
    monkeypatch.setattr(signature, "MAX_LABELS_BYTES", 4)
    (tmp_path / "large").write_text("12345")
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=reason):
        model_signature(labelled(filename), 1, tmp_path)


def limited(*counts: int) -> ModelConfig:
    groups = [
        ModelInstanceGroup(count=1, rate_limiter=ModelRateLimiter(resources=[ModelRateLimiter.Resource(name="R", count=count)])) for count in counts
    ]
    return config(instance_group=groups)


async def test_an_instance_that_could_never_run_is_a_load_error_that_leaves_no_claim() -> None:
    limiter = RateLimiter({("R", None): 2})
    instances = [FunctionInstance(double), FunctionInstance(double)]
    with pytest.raises(ModelLoadError, match="minimum required count is 3"):
        build_model(limited(2, 3), 1, instances, context(rate_limiter=limiter))
    assert limiter._permits == {}
    with pytest.raises(ModelLoadError, match="has 1 instances where its groups ask for 2"):
        build_model(limited(1, 2), 1, instances[:1], context(rate_limiter=limiter))


async def test_without_the_rate_limiter_resources_limit_nothing() -> None:
    instance = FunctionInstance(double)
    model = build_model(limited(5), 1, [instance], context())
    assert len(await answers(model.infer(request(tensor("IN", 1))))) == 1
    await model.close()


async def test_a_cached_model_has_the_metrics_of_the_cache() -> None:
    registry = Registry()
    settings = config(response_cache=ModelResponseCache(enable=True))
    model = build_model(settings, 1, [FunctionInstance(double)], context(registry=registry, response_cache=ResponseCache(10**6)))
    for _ in range(3):
        await answers(model.infer(request(tensor("IN", 1))))
        await settle()
    page = render(point for source in registry.triton_sources for point in source()).decode()
    for line in ("nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model", "nv_inference_request_success", "nv_inference_exec_count"):
        expected = {"nv_cache_num_hits_per_model": 2, "nv_cache_num_misses_per_model": 1, "nv_inference_request_success": 3}.get(line, 1)
        assert f'{line}{{model="model",version="1"}} {expected}' in page.splitlines()
    assert model.is_alive and model.num_pending == 0 and model.signature.name == "model"
    await model.close()
    assert registry.triton_sources == []


async def test_a_decoupled_ensemble_can_not_be_cached() -> None:
    caller = Caller()
    decoupled = config("steps", model_transaction_policy=ModelTransactionPolicy(decoupled=True))
    caller.models["steps"] = build_model(decoupled, 1, [FunctionInstance(double)], context())
    settings = ModelConfig(
        name="ens",
        platform="ensemble",
        input=[ModelInput(name="X", data_type=TYPE_FP32, dims=[1])],
        output=[ModelOutput(name="Y", data_type=TYPE_FP32, dims=[1])],
        ensemble_scheduling=ModelEnsembling(step=[ModelEnsembling.Step(model_name="steps", input_map={"IN": "X"}, output_map={"OUT": "Y"})]),
        response_cache=ModelResponseCache(enable=True),
    )
    with pytest.raises(ModelLoadError, match="has a decoupled step: its responses can't be cached"):
        await create_tensor_model(settings, 1, Path("/nowhere"), context(caller=caller))
    await caller.models["steps"].close()


def test_instances_in_the_order_of_their_groups_passive_ones_left_out() -> None:
    groups = [
        ModelInstanceGroup(kind=ModelInstanceGroup.KIND_CPU, count=2),
        ModelInstanceGroup(kind=ModelInstanceGroup.KIND_GPU, count=2, gpus=[1, 3]),
        ModelInstanceGroup(count=4, passive=True),
        ModelInstanceGroup(),
    ]
    assert [device for _, device in instance_groups(config(instance_group=groups))] == [CPU_DEVICE, CPU_DEVICE, 1, 1, 3, 3, CPU_DEVICE]


def test_settings_of_the_schedulers() -> None:
    none = batch_settings(config())
    assert (none.max_batch_size, none.preferred_sizes, none.has_policy) == (1, (1,), False)
    plain = batch_settings(config(dynamic_batching=ModelDynamicBatching()))
    assert (plain.max_batch_size, plain.preferred_sizes, plain.max_delay_ns, plain.has_policy) == (8, (8,), 0, False)
    policy = ModelQueuePolicy(timeout_action=ModelQueuePolicy.DELAY, default_timeout_microseconds=7, allow_timeout_override=True, max_queue_size=3)
    full = ModelDynamicBatching(
        preferred_batch_size=[4, 2], max_queue_delay_microseconds=5, priority_levels=2, default_priority_level=1, priority_queue_policy={2: policy}
    )
    settings = batch_settings(config(dynamic_batching=full))
    assert (settings.preferred_sizes, settings.max_delay_ns, settings.priority_levels, settings.default_level) == ((2, 4), 5000, 2, 1)
    own = settings.level_policies[2]
    assert (own.delays_late, own.timeout_us, own.allows_override, own.max_size) == (True, 7, True, 3)
    assert settings.has_policy
    assert batch_settings(config(dynamic_batching=ModelDynamicBatching(default_queue_policy=ModelQueuePolicy(max_queue_size=1)))).has_policy


def test_settings_of_sequences() -> None:
    def of(**fields: object) -> ModelConfig:
        return config(sequence_batching=ModelSequenceBatching(**fields))  # type: ignore[arg-type]

    direct = sequence_settings(of(direct=ModelSequenceBatching.StrategyDirect(max_queue_delay_microseconds=5, minimum_slot_utilization=0.5)))
    assert (direct.num_slots, direct.batches, direct.max_delay_ns, direct.min_utilization) == (8, None, 5000, 0.5)
    assert direct.max_idle_ns == 1_000_000_000
    oldest = sequence_settings(
        of(
            max_sequence_idle_microseconds=2,
            oldest=ModelSequenceBatching.StrategyOldest(
                max_candidate_sequences=3, preferred_batch_size=[4, 2], max_queue_delay_microseconds=6, preserve_ordering=True
            ),
        )
    )
    assert (oldest.num_slots, oldest.max_idle_ns, oldest.is_iterative) == (3, 2000, False)
    assert oldest.batches is not None
    assert (oldest.batches.preferred_sizes, oldest.batches.max_delay_ns, oldest.batches.preserves_order) == ((2, 4), 6000, True)
    assert sequence_settings(of(iterative_sequence=True)).is_iterative
