"""From what was asked for and what was found to what will run: a pure function, so that the outcome can be printed and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trivium.arch import ModelSpec
from trivium.config import EngineConfig
from trivium.errors import ConfigError

GIB: Final = 1 << 30
DTYPES: Final = ("float32", "bfloat16", "float16")
LARGE_GPU_BYTES: Final = 70 * GIB
"""From this size on a GPU gets the larger defaults, as in vLLM."""


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """The device as found. Memory in bytes."""

    type: str
    name: str
    total_memory: int
    free_memory: int
    has_bf16: bool
    has_fp8: bool = False
    num_cores: int = 1


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig:
    """No "auto" left but the size of the KV cache, which is measured after the weights are in place."""

    device: str
    dtype: str
    cache_dtype: str
    """Of cached keys and values."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_threads: int
    block_size: int
    notes: tuple[str, ...]

    @property
    def max_blocks_per_seq(self) -> int:
        return -(-self.max_model_len // self.block_size)


def resolve(config: EngineConfig, spec: ModelSpec, device: DeviceInfo, *, is_gguf: bool) -> ResolvedConfig:
    """Raises `ConfigError` for settings that can't go together with this model on this device."""
    if config.cache.kv_cache_dtype == "fp8" and not device.has_fp8:
        raise ConfigError(
            f"kv_cache_dtype fp8 needs a GPU that computes with it (compute capability 8.9 or later), not {device.name}.", param="kv_cache_dtype"
        )
    notes: list[str] = []
    max_model_len = config.model.max_model_len or spec.max_model_len
    if max_model_len > spec.max_position_embeddings:
        raise ConfigError(
            f"max_model_len {max_model_len} is more than the {spec.max_position_embeddings} tokens this model was made for.", param="max_model_len"
        )
    is_gpu = device.type == "cuda"
    is_large = is_gpu and device.total_memory >= LARGE_GPU_BYTES
    dtype = config.model.dtype
    if dtype == "auto":
        dtype = spec.torch_dtype or "float32"
        if (dtype == "float32" and is_gguf) or dtype == "float16":
            dtype = "bfloat16" if device.has_bf16 else ("float16" if is_gpu else "float32")
        if dtype not in DTYPES:
            raise ConfigError(f"The model's config asks for dtype {dtype!r}; there are {', '.join(DTYPES)}.", param="dtype")
        notes.append(f"dtype {dtype}: {'of GGUF weights that are not kept packed' if is_gguf else 'from the checkpoint'}")
    max_num_seqs = config.scheduler.max_num_seqs
    if max_num_seqs is None:
        max_num_seqs = 1024 if is_large else 256 if is_gpu else 64
        notes.append(f"max_num_seqs {max_num_seqs}: the default on {device.name}")
    max_num_batched_tokens = config.scheduler.max_num_batched_tokens
    if max_num_batched_tokens is None:
        max_num_batched_tokens = max(8192 if is_large else 2048 if is_gpu else 512, max_num_seqs)
        notes.append(f"max_num_batched_tokens {max_num_batched_tokens}: the default on {device.name}")
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}): "
            "every running sequence needs a token a step.",
            param="max_num_batched_tokens",
        )
    return ResolvedConfig(
        device=device.type,
        dtype=dtype,
        cache_dtype="float8_e4m3fn" if config.cache.kv_cache_dtype == "fp8" else dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_threads=config.num_threads or device.num_cores,
        block_size=config.cache.block_size,
        notes=tuple(notes),
    )
