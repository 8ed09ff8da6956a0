"""What clients see of a model, from its configuration."""

from __future__ import annotations

from pathlib import Path

from trivium.backends.tensor_base import ModelSignature
from trivium.errors import ModelLoadError
from trivium.infer import TensorSpec
from trivium.protocol.datatypes import wire_datatype
from trivium.protocol.model_config import ModelConfig, ModelInput, ModelOutput

MAX_LABELS_BYTES = 64 * 1024 * 1024


def model_signature(config: ModelConfig, version: int, model_path: Path) -> ModelSignature:
    """`config` is complete and valid; label files lie in `model_path`. Raises `ModelLoadError` for one that can't be read."""
    is_batching = config.max_batch_size > 0
    return ModelSignature(
        name=config.name,
        version=version,
        platform=config.platform or config.backend,
        backend=config.backend,
        inputs=tuple(
            TensorSpec(
                name=tensor.name,
                datatype=wire_datatype(tensor.data_type),
                shape=_shape(tensor, is_batching=is_batching and not tensor.is_shape_tensor),
                is_optional=tensor.optional,
                allows_ragged=tensor.allow_ragged_batch,
                is_shape_tensor=tensor.is_shape_tensor,
            )
            for tensor in config.input
        ),
        outputs=tuple(
            TensorSpec(
                name=tensor.name,
                datatype=wire_datatype(tensor.data_type),
                shape=_shape(tensor, is_batching=is_batching and not tensor.is_shape_tensor),
                labels=_labels(model_path, tensor.label_filename) if tensor.label_filename else (),
            )
            for tensor in config.output
        ),
        max_batch_size=config.max_batch_size,
        is_decoupled=config.model_transaction_policy.decoupled,
        is_sequence=config.HasField("sequence_batching"),
    )


def _shape(tensor: ModelInput | ModelOutput, *, is_batching: bool) -> tuple[int, ...]:
    return (-1, *tensor.dims) if is_batching else tuple(tensor.dims)


def _labels(model_path: Path, filename: str) -> tuple[str, ...]:
    path = model_path / filename
    if not path.resolve().is_relative_to(model_path.resolve()):
        raise ModelLoadError(f"the label file {filename!r} lies outside the model's folder")
    try:
        if path.stat().st_size > MAX_LABELS_BYTES:
            raise ModelLoadError(f"the label file {filename!r} has more than {MAX_LABELS_BYTES} bytes")
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"the label file {filename!r} can't be read: {error}") from error
