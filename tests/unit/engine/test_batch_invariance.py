"""On the CPU a request's tokens and logprobs are the same to the bit alone and in any batch, however prompts are chunked."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers_engine import InProcessEngine
from safetensors.torch import save_file

from trivium.engine.invariance import attention_name, batch_invariance_note, check_batch_invariance
from trivium.errors import ConfigError
from trivium.layers.base import Layer
from trivium.ops.attention import create_attention_backend
from trivium.ops.collective import ParallelContext
from trivium.ops.dispatch import load_fast_paths, references_only
from trivium.protocol.messages import TokenOutput
from trivium.types import SamplingParams

pytestmark = pytest.mark.skipif("pack_weight" not in load_fast_paths("cpu"), reason="the CPU kernels are not built")

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LENGTHS = (1, 3, 17, 40, 64, 130, 9)
MODES: dict[str, dict[str, Any]] = {
    "chunks of 7": {"max_num_batched_tokens": 7},
    "chunks of 33, blocks of 64": {"max_num_batched_tokens": 33, "block_size": 64},
    "preempted": {"num_gpu_blocks_override": 15},
    "prefix hits": {"enable_prefix_caching": True},
}


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with two layers of its shape, random and wide."""
    folder, generator = tmp_path_factory.mktemp("smollm2"), torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(torch.bfloat16)

    tensors = {"model.embed_tokens.weight": matrix(49152, 576), "model.norm.weight": torch.ones(576, dtype=torch.bfloat16)}
    for index in range(2):
        layer = f"model.layers.{index}."
        shapes = {"self_attn.q_proj": (576, 576), "self_attn.k_proj": (192, 576), "self_attn.v_proj": (192, 576), "self_attn.o_proj": (576, 576),
                  "mlp.gate_proj": (1536, 576), "mlp.up_proj": (1536, 576), "mlp.down_proj": (576, 1536)}  # fmt: skip
        tensors |= {f"{layer}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"{layer}{name}.weight": torch.ones(576, dtype=torch.bfloat16) for name in ("input_layernorm", "post_attention_layernorm")}
    (folder / "config.json").write_text(json.dumps(SMOLLM2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def prompts() -> list[list[int]]:
    source = random.Random(1)
    return [[source.randrange(211) for _ in range(length)] for length in LENGTHS]


def params() -> list[SamplingParams]:
    """A different kind for each prompt, all with logprobs."""
    fields: list[dict[str, Any]] = [
        {"temperature": 0.0, "prompt_logprobs": 2},
        {"temperature": 0.9, "top_p": 0.9, "seed": 3},
        {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"temperature": 1.0, "min_p": 0.02, "typical_p": 0.95, "seed": 4},
        {"temperature": 0.0, "prompt_logprobs": 0},
        {"temperature": 0.7, "top_k": 30, "seed": 5, "prompt_logprobs": 1},
        {"temperature": 1.3, "seed": 6},
    ]
    return [SamplingParams(**own, max_tokens=20, logprobs=3, ignore_eos=True) for own in fields]


def bits(outputs: list[TokenOutput]) -> list[Any]:
    """Everything the engine says about a request that could differ."""
    tokens = [token for output in outputs for token in output.token_ids]
    entries = [entry for output in outputs for entry in (*(output.prompt_logprobs or ())[1:], *(output.logprobs or ()))]
    return [tokens, [(entry.token_id, entry.logprob, entry.rank, entry.top_ids, entry.top_logprobs) for entry in entries if entry]]


def run(engine: InProcessEngine, first: int = 0, last: int = len(LENGTHS)) -> list[list[Any]]:
    return [bits(outputs) for outputs in engine.outputs(prompts()[first:last], params()[first:last])]


def one_by_one(engine: InProcessEngine) -> list[list[Any]]:
    return [run(engine, index, index + 1)[0] for index in range(len(LENGTHS))]


def assert_invariant(name: str, **arguments: Any) -> None:
    arguments = {"batch_invariant": True, "enable_prefix_caching": False, **arguments}
    engine = InProcessEngine(name, **arguments)
    alone = one_by_one(engine)
    for size in range(2, 8):
        assert run(engine, 0, size) == alone[:size], f"batch of {size}"
        assert run(engine, 7 - size) == alone[7 - size :], f"batch of {size}"
    engine.close()
    for mode, changes in MODES.items():
        engine = InProcessEngine(name, **{**arguments, **changes})
        for _ in range(2):
            assert run(engine) == alone, mode
        stats = engine.engine.scheduler.stats()
        assert (stats.num_preemptions > 0) == (mode == "preempted")
        assert (stats.prefix_hits > 0) == (mode == "prefix hits")
        engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3-moe", "deepseek-v3"])
def test_requests_are_the_same_in_any_company(name: str, dtype: str) -> None:
    assert_invariant(name, dtype=dtype)


def test_requests_are_the_same_in_any_company_at_the_size_of_smollm2(smollm2: str) -> None:
    assert_invariant(smollm2, dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_share_work_without_a_trace(smollm2: str, dtype: str) -> None:
    """Not between numbers of threads: the sum that normalizes logprobs is cut by them. At either number a request is always the same."""
    engine = InProcessEngine(smollm2, batch_invariant=True, enable_prefix_caching=False, num_threads=2, dtype=dtype)
    assert run(engine) == one_by_one(engine)
    engine.close()


def test_the_default_is_on_where_it_costs_nothing() -> None:
    assert "batch_invariant: on, it costs nothing here" in InProcessEngine("llama").engine.ready.notes
    assert "batch_invariant: not asked for" in InProcessEngine("llama", batch_invariant=False).engine.ready.notes


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("llama", {"attention_backend": "reference"}, "the attention back end reference"),
        ("llama", {"dtype": "float16"}, "the weights of embedding|the weights of layers.0"),
        ("mixtral", {"dtype": "float16"}, "the weights of"),
        ("deepseek-v3", {"dtype": "float16"}, "the weights of"),
    ],
)
def test_it_is_refused_where_it_cannot_be_had(name: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"batch_invariant can't be had here: {reason}") as caught:
        InProcessEngine(name, batch_invariant=True, **arguments)
    assert caught.value.param == "batch_invariant"
    assert any(note.startswith("batch_invariant: off, ") for note in InProcessEngine(name, **arguments).engine.ready.notes)


def test_it_is_refused_without_the_kernels() -> None:
    with references_only("cpu"), pytest.raises(ConfigError, match="the attention back end reference"):
        InProcessEngine("llama", batch_invariant=True)


def test_it_is_refused_over_several_ranks() -> None:
    attention = create_attention_backend("cpu", "cpu")
    parallel: Any = SimpleNamespace(size=2)
    check_batch_invariance(wanted=None, attention=attention, parallel=parallel)
    with pytest.raises(ConfigError, match="sums over several ranks"):
        check_batch_invariance(wanted=True, attention=attention, parallel=parallel)


def test_on_a_gpu_it_has_kernels_of_its_own_when_asked_for() -> None:
    assert attention_name("auto", wanted=True, device_type="cuda") == "invariant"
    assert attention_name("auto", wanted=None, device_type="cuda") == attention_name("auto", wanted=True, device_type="cpu") == "auto"
    assert attention_name("flash", wanted=True, device_type="cuda") == "flash", "what was named is used, or refused by name"
    attention = create_attention_backend("reference", "cpu")
    note = batch_invariance_note(wanted=None, device_type="cuda", attention=attention, parallel=ParallelContext(), model=Layer())
    assert note == "batch_invariant: off, on cuda it costs speed and has to be asked for"


def test_layers_of_torch_products_are_told_from_packed_ones() -> None:
    """What the refusal stands on: without packed weights no layer with a matrix claims to keep rows apart."""
    # A router of DeepSeek-V3 is float32 whatever the rest is, and packed.
    for name, expected in {"llama": 3 * 4 + 1, "mixtral": 3 * 4 + 1, "deepseek-v3": 3 * 5 + 2 + 2 * 3 + 1}.items():
        engine = InProcessEngine(name, dtype="float16")
        model: Any = engine.engine.executor._runner.model  # type: ignore[attr-defined]
        assert sum(not layer.keeps_rows_apart() for _, layer in model.walk()) == expected
        engine.close()
