"""Whether a request fits a model's signature; what it may share a batch with. The texts are Triton's: clients match on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trivium.backends.tensor_base import ModelSignature
from trivium.batching.pending import ShapeKey
from trivium.errors import InvalidRequest
from trivium.infer import InferRequest, Tensor, TensorSpec

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. "
    "If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero. "
    "See the model configuration docs for more info on max_batch_size."
)


def log_prefix(request: InferRequest) -> str:
    return f"[request id: {request.id or '<id_unknown>'}] "


class RequestChecker:
    """Everything about a signature that is the same for each request, worked out once."""

    def __init__(self, signature: ModelSignature, *, batches: bool) -> None:
        """`batches`: requests of this model share batches, so that their shapes have to be compared."""
        self._name = signature.name
        self._max_batch_size = signature.max_batch_size
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._has_rows = {spec.name: signature.max_batch_size > 0 and not spec.is_shape_tensor for spec in signature.inputs}
        self._dims = {spec.name: spec.shape[1:] if self._has_rows[spec.name] else spec.shape for spec in signature.inputs}
        self._required = tuple(spec.name for spec in signature.inputs if not spec.is_optional)
        self._outputs = frozenset(spec.name for spec in signature.outputs)
        self._has_optional = len(self._required) < len(self._inputs)
        is_variable = any(spec.is_shape_tensor or (-1 in self._dims[spec.name] and not spec.allows_ragged) for spec in signature.inputs)
        self._has_shape_keys = batches and (self._has_optional or is_variable)

    def check(self, request: InferRequest) -> tuple[int, ShapeKey]:
        """Rows (1 for a model that doesn't batch) and shape key. Raises `InvalidRequest`."""
        for output in request.outputs:
            if output.name not in self._outputs:
                raise InvalidRequest(f"unexpected inference output '{output.name}' for model '{self._name}'")
        inputs = request.inputs
        if len(inputs) != len(self._inputs) or self._has_optional:
            self._check_names(request)
        rows = -1
        for tensor in inputs:
            spec = self._inputs.get(tensor.name)
            if spec is None:
                raise InvalidRequest(f"unexpected inference input '{tensor.name}' for model '{self._name}'")
            if self._has_rows[tensor.name]:
                rows = self._check_rows(request, tensor, rows)
        if rows > self._max_batch_size:
            raise InvalidRequest(f"{log_prefix(request)}inference request batch-size must be <= {self._max_batch_size} for '{self._name}'")
        for tensor in inputs:
            self._check_tensor(request, tensor)
        if len(inputs) > 1 and len({tensor.name for tensor in inputs}) < len(inputs):
            self._refuse_duplicate(inputs)
        return (rows if rows > 0 else 1), (self._shape_key(inputs) if self._has_shape_keys else None)

    def _check_names(self, request: InferRequest) -> None:
        given = {tensor.name for tensor in request.inputs}
        missing = [name for name in self._required if name not in given]
        num_given = len(request.inputs)
        if len(self._required) <= num_given <= len(self._inputs) and not missing:
            return
        if num_given == len(self._inputs) and not self._has_optional:
            return
        if self._has_optional:
            expected = f"number of inputs between {len(self._required)} and {len(self._inputs)}"
        else:
            expected = f"{len(self._inputs)} inputs"
        raise InvalidRequest(
            f"{log_prefix(request)}expected {expected} but got {num_given} inputs for model '{self._name}'. "
            f"Got input(s) {_names(tensor.name for tensor in request.inputs)}, but missing required input(s) {_names(missing)}. "
            "Please provide all required input(s)."
        )

    def _check_rows(self, request: InferRequest, tensor: Tensor, rows: int) -> int:
        if not tensor.shape:
            message = f"{log_prefix(request)}input '{tensor.name}' has no shape but model requires batch dimension for '{self._name}'"
            raise InvalidRequest(message)
        if rows not in (-1, tensor.shape[0]):
            raise InvalidRequest(f"{log_prefix(request)}input '{tensor.name}' batch size does not match other inputs for '{self._name}'")
        return tensor.shape[0]

    def _check_tensor(self, request: InferRequest, tensor: Tensor) -> None:
        spec = self._inputs[tensor.name]
        if tensor.datatype is not spec.datatype:
            raise InvalidRequest(
                f"{log_prefix(request)}inference input '{tensor.name}' data-type is '{tensor.datatype}', "
                f"but model '{self._name}' expects '{spec.datatype}'"
            )
        dims = self._dims[tensor.name]
        given = tensor.shape[1:] if self._has_rows[tensor.name] else tensor.shape
        if given == dims and -1 not in dims:
            return
        if len(given) != len(dims) or any(size not in (-1, got) for size, got in zip(dims, given, strict=True)):
            self._refuse_shape(request, tensor, spec)

    def _refuse_shape(self, request: InferRequest, tensor: Tensor, spec: TensorSpec) -> None:
        raise InvalidRequest(
            f"{log_prefix(request)}unexpected shape for input '{tensor.name}' for model '{self._name}'. "
            f"Expected {_dims(spec.shape)}, got {_dims(tensor.shape)}. {_BATCH_NOTE if self._max_batch_size else ''}"
        )

    def _refuse_duplicate(self, inputs: Sequence[Tensor]) -> None:
        names = [tensor.name for tensor in inputs]
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise InvalidRequest(f"input '{twice}' already exists in request")

    def _shape_key(self, inputs: Sequence[Tensor]) -> ShapeKey:
        keys = {tensor.name: self._tensor_key(tensor) for tensor in inputs}
        return tuple((name, keys[name]) for name in sorted(keys))

    def _tensor_key(self, tensor: Tensor) -> object:
        spec = self._inputs[tensor.name]
        if spec.is_shape_tensor:
            return tensor.shape, bytes(tensor.data)
        return None if spec.allows_ragged else tensor.shape[1:] if self._has_rows[tensor.name] else tensor.shape


def _names(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
