"""What a model is told of its sequences: control inputs, and the state that it gave with the answer before."""

from __future__ import annotations

from pathlib import Path
from struct import error as StructError

import msgspec

from trivium.backends.tensor_inference import TensorInference
from trivium.backends.tensor_null import NullInference
from trivium.backends.tensor_values import file_data, scalar_data, zero_data
from trivium.batching.sequence import sequence_of
from trivium.errors import InvalidRequest, ModelLoadError
from trivium.infer import CorrelationId, DataType, InferRequest, InferResponse, RequestedOutput, Tensor
from trivium.protocol.datatypes import wire_datatype
from trivium.protocol.model_config import ModelConfig, ModelSequenceBatching

_Control = ModelSequenceBatching.Control
INITIAL_STATES = "initial_state"
"""The folder, beside the versions, in which `data_file` names a file."""


class SequenceAdapter:
    """Adds `control_input` and `state` inputs to each request, and keeps the `state` outputs for the sequence's next one."""

    def __init__(self, config: ModelConfig, model_path: Path) -> None:
        """Raises `ModelLoadError` for an initial state that can't be had."""
        sequence = config.sequence_batching
        self._shape = (1, 1) if config.max_batch_size else (1,)
        self._flags: dict[int, tuple[Tensor, Tensor]] = {}
        self._correlation: tuple[str, DataType] | None = None
        for control_input in sequence.control_input:
            for control in control_input.control:
                if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
                    self._correlation = (control_input.name, wire_datatype(control.data_type))
                else:
                    self._flags[control.kind] = _flag_tensors(control_input.name, control, self._shape)
        self._states = [_State(state, model_path, batches=config.max_batch_size > 0) for state in sequence.state]
        self._state_outputs = {state.output_name: state for state in self._states}
        self._state_requests = [RequestedOutput(name=name) for name in self._state_outputs]
        self._public = frozenset(output.name for output in config.output)

    def check(self, request: InferRequest) -> None:
        if self._correlation is None:
            return
        try:
            self._correlation_tensor(request.correlation_id)
        except (StructError, OverflowError):
            name, datatype = self._correlation
            raise InvalidRequest(f"the correlation ID {request.correlation_id} does not fit {datatype}, the type of '{name}'") from None

    def prepare(self, inference: TensorInference) -> None:
        is_null = isinstance(inference, NullInference)
        inputs = list(inference.request.inputs)
        for kind, value in (
            (_Control.CONTROL_SEQUENCE_START, inference.sequence_start and not is_null),
            (_Control.CONTROL_SEQUENCE_END, inference.sequence_end and not is_null),
            (_Control.CONTROL_SEQUENCE_READY, not is_null),
        ):
            if kind in self._flags:
                inputs.append(self._flags[kind][value])
        if self._correlation is not None:
            inputs.append(self._correlation_tensor(0 if is_null else inference.correlation_id))
        if self._states:
            inputs.extend(self._state_inputs(inference))
        outputs = inference.request.outputs
        inference.request = msgspec.structs.replace(inference.request, inputs=inputs, outputs=[*outputs, *self._state_requests] if outputs else [])

    def restore(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        if not self._states:
            return response
        kept = _kept_state(inference)
        for tensor in response.outputs:
            state = self._state_outputs.get(tensor.name)
            if state is not None:
                # The transport may use its buffer again.
                kept[state.input_name] = Tensor(state.input_name, tensor.datatype, tensor.shape, bytes(tensor.data))
        response.outputs = [tensor for tensor in response.outputs if tensor.name in self._public]
        return response

    def _correlation_tensor(self, correlation_id: CorrelationId) -> Tensor:
        assert self._correlation is not None
        name, datatype = self._correlation
        # A model that wants numbers sees 0 for a string, as with Triton.
        value = correlation_id if datatype is DataType.BYTES or isinstance(correlation_id, int) else 0
        return Tensor(name, datatype, self._shape, scalar_data(datatype, value))

    def _state_inputs(self, inference: TensorInference) -> list[Tensor]:
        if isinstance(inference, NullInference):
            return [state.initial for state in self._states]
        kept = _kept_state(inference)
        if inference.sequence_start:
            kept.clear()
        return [kept.get(state.input_name, state.initial) for state in self._states]


class _State:
    def __init__(self, state: ModelSequenceBatching.State, model_path: Path, *, batches: bool) -> None:
        self.input_name = state.input_name
        self.output_name = state.output_name
        initial = state.initial_state[0] if state.initial_state else None
        datatype = wire_datatype(state.data_type)
        dims = tuple(1 if size == -1 else size for size in (state.dims if initial is None else initial.dims))
        if initial is None or not initial.data_file:
            data = zero_data(datatype, dims)
        else:
            folder = (model_path / INITIAL_STATES).resolve()
            path = (folder / initial.data_file).resolve()
            if not path.is_relative_to(folder):
                raise ModelLoadError(f"the initial state {initial.data_file!r} lies outside the model's folder")
            data = file_data(path, datatype, dims)
        self.initial = Tensor(self.input_name, datatype, (1, *dims) if batches else dims, data)


def _kept_state(inference: TensorInference) -> dict[str, Tensor]:
    sequence = sequence_of(inference)
    if sequence.state is None:
        sequence.state = {}
    return sequence.state


def _flag_tensors(name: str, control: _Control, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """For false and for true."""
    if control.int32_false_true:
        datatype, values = DataType.INT32, list[int | float | bool](control.int32_false_true)
    elif control.fp32_false_true:
        datatype, values = DataType.FP32, list[int | float | bool](control.fp32_false_true)
    else:
        datatype, values = DataType.BOOL, list[int | float | bool](control.bool_false_true)
    if len(values) != 2:
        raise ModelLoadError(f"the control input '{name}' must have two values, for false and for true")
    no, yes = (Tensor(name, datatype, shape, scalar_data(datatype, value)) for value in values)
    return no, yes
