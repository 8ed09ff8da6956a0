"""Checks of `sequence_batching`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trivium.protocol.model_config import (
    TYPE_INT32,
    TYPE_INT64,
    TYPE_INVALID,
    TYPE_STRING,
    TYPE_UINT32,
    TYPE_UINT64,
    ModelConfig,
    ModelSequenceBatching,
)
from trivium.repository.config_text import Field

Found = Iterator[tuple[str, Field]]
Control = ModelSequenceBatching.Control

_ID_TYPES: Final = (TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING)
_VALUES: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")


def check_sequences(config: ModelConfig) -> Found:
    """Messages, without the name of the model, and fields."""
    if not config.HasField("sequence_batching"):
        return
    yield from _check_controls(config.sequence_batching)
    yield from _check_strategy(config)
    yield from _check_states(config.sequence_batching)


def _check_controls(batching: ModelSequenceBatching) -> Found:
    tensors: set[str] = set()
    kinds: set[int] = set()
    for index, control_input in enumerate(batching.control_input):
        where: Field = ("sequence_batching", "control_input", index)
        if not control_input.name:
            yield "sequence batching control tensor must have a name", where
        elif control_input.name in tensors:
            yield f"sequence batching control tensor '{control_input.name}' is specified for multiple control kinds", where
        tensors.add(control_input.name)
        for control in control_input.control:
            if control.kind in kinds:
                yield f"sequence batching specifies multiple {Control.Kind.Name(control.kind)} tensors", where
            kinds.add(control.kind)
            yield from ((message, where) for message in _check_control(control))


def _check_control(control: ModelSequenceBatching.Control) -> Iterator[str]:
    kind = Control.Kind.Name(control.kind)
    given = [name for name in _VALUES if len(getattr(control, name))]
    if control.kind == Control.CONTROL_SEQUENCE_CORRID:
        if given:
            yield f"sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for {kind}"
        if control.data_type not in _ID_TYPES:
            yield (
                f"unexpected data type for control {kind}. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
            )
    elif not given:
        yield f"sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for {kind}"
    elif len(given) > 1:
        yield f"sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for {kind}"
    elif len(getattr(control, given[0])) != 2:
        yield f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind}"


def _check_strategy(config: ModelConfig) -> Found:
    batching = config.sequence_batching
    where: Field = ("sequence_batching", "oldest", "preferred_batch_size")
    if any(size <= 0 for size in batching.oldest.preferred_batch_size):
        yield "sequence batching preferred batch size must be positive", where
    elif any(size > config.max_batch_size for size in batching.oldest.preferred_batch_size):
        yield "sequence batching preferred batch size must be <= max batch size", where
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        where = ("sequence_batching", "direct", "minimum_slot_utilization")
        yield "sequence batching minimum slot utilization must be in range (0.0, 1.0]", where
    if batching.iterative_sequence and batching.HasField("direct") and batching.direct.minimum_slot_utilization > 0:
        yield "iterative sequences can't wait for a minimum slot utilization", ("sequence_batching", "iterative_sequence")


def _check_states(batching: ModelSequenceBatching) -> Found:
    inputs: set[str] = set()
    outputs: set[str] = set()
    for index, state in enumerate(batching.state):
        where: Field = ("sequence_batching", "state", index)
        if not state.input_name or not state.output_name:
            yield "sequence batching state must specify 'input_name' and 'output_name'", where
        if state.input_name in inputs or state.output_name in outputs:
            yield f"sequence batching state '{state.input_name}' is specified twice", where
        inputs.add(state.input_name)
        outputs.add(state.output_name)
        if state.data_type == TYPE_INVALID or not state.dims:
            yield f"sequence batching state '{state.input_name}' must specify 'data_type' and 'dims'", where
        if any(dim < 1 and dim != -1 for dim in state.dims):
            yield f"sequence batching state '{state.input_name}' dimension must be integer >= 1, or -1", (*where, "dims")
        if -1 in state.dims and not state.initial_state and not state.use_growable_memory:
            continue
        for initial in state.initial_state:
            if initial.WhichOneof("state_data") is None:
                yield f"sequence batching initial state '{initial.name}' must specify 'zero_data' or 'data_file'", where
            if any(dim < 1 for dim in initial.dims):
                yield f"sequence batching initial state '{initial.name}' must have fixed dimensions", where
