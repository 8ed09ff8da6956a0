"""What is wrong with a model configuration that parses: Triton's rules, in Triton's words.

Each check yields `Problem`s; `where` leads to the field, for the line in the file. A complete configuration is checked whole; one whose
inputs, outputs or batch size are still to be read from the model's files only for what they can't change (`check_stated`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import PurePosixPath

from trivium.protocol.model_config import (
    TYPE_FP32,
    TYPE_INT32,
    TYPE_INVALID,
    BatchInput,
    BatchOutput,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelQueuePolicy,
)
from trivium.repository.backend_names import BACKENDS, ENSEMBLE, LLM_BACKENDS, PLATFORMS
from trivium.repository.config_text import Field
from trivium.repository.validate_ensemble import check_ensemble
from trivium.repository.validate_instances import check_instances
from trivium.repository.validate_sequence import check_sequences
from trivium.repository.validate_support import check_support


@dataclass(frozen=True)
class Problem:
    message: str
    where: Field = ()


def check_stated(config: ModelConfig) -> Iterator[Problem]:
    """Everything that auto-completion can't mend."""
    name = config.name
    if not name:
        yield Problem("model configuration must specify 'name'")
    yield from _check_backend(config)
    if config.max_batch_size < 0:
        yield Problem(f"'max_batch_size' must be non-negative value for {name}", ("max_batch_size",))
    if config.backend not in LLM_BACKENDS:
        # For language models the batch size and the batcher are accepted and have no meaning: continuous batching takes their place.
        yield from _problems(config, check_sequences(config))
        if config.HasField("dynamic_batching"):
            yield from _check_dynamic_batching(config)
    if config.HasField("ensemble_scheduling") or config.platform == ENSEMBLE:
        yield from (Problem(message, where) for message, where in check_ensemble(config))
    yield from (Problem(message, where) for message, where in (*check_instances(config), *check_support(config)))
    yield from _check_cache(config)
    yield from _check_metrics(config)
    yield from _check_file_names(config)
    yield from _check_stated_tensors(config)


def check_complete(config: ModelConfig) -> Iterator[Problem]:
    """All of it, for a configuration to which nothing will be added."""
    yield from check_stated(config)
    for kind, tensors in (("input", config.input), ("output", config.output)):
        if not tensors:
            yield Problem(f"model configuration must specify at least one {kind} for {config.name}")
        for index, tensor in enumerate(tensors):
            yield from _check_tensor_whole(config, kind, index, tensor)
    yield from _check_batch_io(config)


def _problems(config: ModelConfig, found: Iterable[tuple[str, Field]]) -> Iterator[Problem]:
    return (Problem(f"{message} for {config.name}", where) for message, where in found)


def _check_backend(config: ModelConfig) -> Iterator[Problem]:
    is_ensemble = config.platform == ENSEMBLE
    if is_ensemble and config.backend:
        yield Problem(f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE}' and empty backend type", ("backend",))
    elif not is_ensemble and not config.backend:
        if config.platform:
            yield Problem(f"unexpected platform type '{config.platform}' for {config.name}", ("platform",))
        elif not config.HasField("ensemble_scheduling"):
            yield Problem(f"must specify 'platform' or 'backend' for '{config.name}'")
    elif config.backend and config.backend not in BACKENDS:
        known = ", ".join(BACKENDS)
        yield Problem(f"unable to find backend '{config.backend}' for model '{config.name}'; there are: {known}", ("backend",))
    elif config.platform and not is_ensemble and PLATFORMS.get(config.platform) != config.backend:
        yield Problem(f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}", ("platform",))


# -- inputs and outputs -----------------------------------------------------------------------------------------------------------

Tensors = ModelInput | ModelOutput


def _check_stated_tensors(config: ModelConfig) -> Iterator[Problem]:
    for kind, tensors in (("input", config.input), ("output", config.output)):
        seen: dict[str, int] = {}
        for index, tensor in enumerate(tensors):
            where: Field = (kind, index)
            if not tensor.name:
                yield Problem(f"model {kind} must specify 'name' for {config.name}", where)
                continue
            if tensor.name in seen:
                yield Problem(f"model {kind} '{tensor.name}' is specified twice for {config.name}", where)
            seen[tensor.name] = index
            yield from _check_shape(config, kind, where, tensor)
            if isinstance(tensor, ModelInput):
                yield from _check_input(config, where, tensor)
            yield from _check_device_layout(config, kind, where, tensor)


def _check_tensor_whole(config: ModelConfig, kind: str, index: int, tensor: Tensors) -> Iterator[Problem]:
    what = f"model {kind} '{tensor.name}'"
    if tensor.data_type == TYPE_INVALID:
        yield Problem(f"{what} must specify 'data_type' for {config.name}", (kind, index))
    if not tensor.dims:
        yield Problem(f"{what} must specify 'dims' for {config.name}", (kind, index))


def _check_shape(config: ModelConfig, kind: str, where: Field, tensor: Tensors) -> Iterator[Problem]:
    what, end = f"model {kind} '{tensor.name}'", f" for {config.name}"
    if any(dim < 1 and dim != -1 for dim in tensor.dims):
        yield Problem(f"{what} dimension must be integer >= 1, or -1 to indicate a variable-size dimension{end}", (*where, "dims"))
        return
    if not tensor.HasField("reshape"):
        return
    shape = list(tensor.reshape.shape)
    where = (*where, "reshape")
    if any(dim < 1 and dim != -1 for dim in shape):
        yield Problem(f"{what} reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension{end}", where)
    elif not shape:
        if config.max_batch_size == 0:
            yield Problem(f"{what} cannot have empty reshape for non-batching model as scalar tensors are not supported{end}", where)
        elif list(tensor.dims) != [1] * len(tensor.dims):
            yield Problem(f"{what} has different size for dims and reshape{end}", where)
    elif list(tensor.dims).count(-1) != shape.count(-1):
        has_both = -1 in tensor.dims and -1 in shape
        reason = "number of variable-size dimensions" if has_both else "size"
        yield Problem(f"{what} has different {reason} for dims and reshape{end}", where)
    elif _runs(tensor.dims) != _runs(shape):
        yield Problem(f"{what} has different size for dims and reshape{end}", where)


def _runs(dims: Iterable[int]) -> list[int]:
    """Elements between the variable-size dimensions: what a reshape must keep."""
    runs: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [prod(run) for run in runs]


def _check_input(config: ModelConfig, where: Field, tensor: ModelInput) -> Iterator[Problem]:
    if tensor.format != ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
        yield Problem(f"model input NHWC/NCHW require 3 dims for {config.name}", (*where, "format"))


def _check_device_layout(config: ModelConfig, kind: str, where: Field, tensor: Tensors) -> Iterator[Problem]:
    is_tensorrt = config.platform == "tensorrt_plan"
    if tensor.is_shape_tensor and not is_tensorrt:
        yield Problem(f"shape tensors are only supported for TensorRT platform for {config.name}", (*where, "is_shape_tensor"))
    if tensor.is_non_linear_format_io:
        if not is_tensorrt:
            message = "Non-linear IO format is only supported for the TensorRT platform"
            yield Problem(f"{message} for {config.name}", (*where, "is_non_linear_format_io"))
        elif len(tensor.dims) != 3:
            yield Problem(f"Non-linear IO format {kind} requires 3 dims for {config.name}", where)


def _check_batch_io(config: ModelConfig) -> Iterator[Problem]:
    """Inputs that the server computes for ragged batches, and outputs it takes apart."""
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for index, extra in enumerate(config.batch_input):
        where: Field = ("batch_input", index)
        kind = BatchInput.Kind.Name(extra.kind)
        if len(extra.source_input) != 1:
            yield Problem(f"batch input kind '{kind}' expects 1 source input, got {len(extra.source_input)} for {config.name}", where)
        if extra.data_type not in (TYPE_INT32, TYPE_FP32):
            yield Problem(f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}", where)
        yield from _unknown("source input", extra.source_input, inputs, config, where)
    for index, cut in enumerate(config.batch_output):
        where = ("batch_output", index)
        if len(cut.source_input) != 1:
            kind = BatchOutput.Kind.Name(cut.kind)
            yield Problem(f"batch output kind '{kind}' expects 1 source input, got {len(cut.source_input)} for {config.name}", where)
        yield from _unknown("source input", cut.source_input, inputs, config, where)
        yield from _unknown("target output", cut.target_name, outputs, config, where)
        for name in dict.fromkeys(cut.target_name):
            if list(cut.target_name).count(name) > 1:
                yield Problem(f"target output name '{name}' can only be specified once for {config.name}", where)


def _unknown(what: str, names: Iterable[str], known: set[str], config: ModelConfig, where: Field) -> Iterator[Problem]:
    return (Problem(f"unknown {what} name '{name}' for {config.name}", where) for name in names if name not in known)


# -- schedulers -------------------------------------------------------------------------------------------------------------------


def _check_dynamic_batching(config: ModelConfig) -> Iterator[Problem]:
    batching, end = config.dynamic_batching, f" for {config.name}"
    sizes: Field = ("dynamic_batching", "preferred_batch_size")
    if any(size <= 0 for size in batching.preferred_batch_size):
        yield Problem(f"dynamic batching preferred size must be positive{end}", sizes)
    elif any(size > config.max_batch_size for size in batching.preferred_batch_size) and not _may_grow(config):
        yield Problem(f"dynamic batching preferred size must be <= max batch size{end}", sizes)
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        yield Problem(f"default priority level must be in range [1, {levels}]{end}", ("dynamic_batching", "default_priority_level"))
    if levels and not all(1 <= level <= levels for level in batching.priority_queue_policy):
        where: Field = ("dynamic_batching", "priority_queue_policy")
        yield Problem(f"priority queue policy must have priority level in range [1, {levels}]{end}", where)
    if batching.preserve_ordering:
        yield from _check_ordering(config)


def _may_grow(config: ModelConfig) -> bool:
    """Whether the batch size is still to be found in the model's files."""
    return config.max_batch_size == 0 and not config.input


def _check_ordering(config: ModelConfig) -> Iterator[Problem]:
    batching = config.dynamic_batching
    where: Field = ("dynamic_batching", "preserve_ordering")
    if batching.priority_levels > 1:
        yield Problem(f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}", where)
    policies = [batching.default_queue_policy, *(batching.priority_queue_policy[level] for level in sorted(batching.priority_queue_policy))]
    if any(policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.DELAY for policy in policies):
        yield Problem(f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {config.name}", where)


def _check_cache(config: ModelConfig) -> Iterator[Problem]:
    if not config.response_cache.enable:
        return
    where: Field = ("response_cache",)
    begin, end = f"Response Cache does not currently support model {config.name}", "Please disable the response cache."
    if config.HasField("sequence_batching"):
        yield Problem(f"{begin} with sequence batching scheduler. {end}", where)
    if config.model_transaction_policy.decoupled:
        yield Problem(f"{begin} with 'decoupled' transaction policy. {end}", where)


def _check_metrics(config: ModelConfig) -> Iterator[Problem]:
    for index, control in enumerate(config.model_metrics.metric_control):
        where: Field = ("model_metrics", "metric_control", index)
        if not control.HasField("metric_identifier"):
            yield Problem("metric control must specify 'metric_identifier'", where)
        elif not control.metric_identifier.family:
            yield Problem("metric identifier must specify non-empty 'family'", where)
        elif not control.HasField("histogram_options"):
            yield Problem("metric control must specify 'histogram_options'", where)
        elif not control.histogram_options.buckets:
            yield Problem("histogram options must specify non-empty 'buckets'", where)
        elif not all(map(isfinite, control.histogram_options.buckets)) or list(control.histogram_options.buckets) != sorted(
            set(control.histogram_options.buckets)
        ):
            yield Problem("histogram options must specify finite 'buckets' that increase", where)


def _check_file_names(config: ModelConfig) -> Iterator[Problem]:
    """A configuration may come from a client: no file it names is outside the model's folder."""
    named: list[tuple[str, Field]] = [(config.default_model_filename, ("default_model_filename",))]
    named += [(config.cc_model_filenames[key], ("cc_model_filenames",)) for key in sorted(config.cc_model_filenames)]
    named += [(output.label_filename, ("output", index, "label_filename")) for index, output in enumerate(config.output)]
    for index, warmup in enumerate(config.model_warmup):
        named += [(warmup.inputs[name].input_data_file, ("model_warmup", index)) for name in sorted(warmup.inputs)]
    for index, state in enumerate(config.sequence_batching.state):
        named += [(initial.data_file, ("sequence_batching", "state", index)) for initial in state.initial_state]
    for name, where in named:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            yield Problem(f"file name '{name}' leaves the folder of model {config.name}", where)
