"""Norms, activations, rotation, cache writes and dispatch: references against formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
import torch

from trivium.arch import RopeSpec
from trivium.ops import dispatch
from trivium.ops.activation import act_and_mul_reference
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.norm import add_rms_norm_reference, rms_norm, rms_norm_reference
from trivium.ops.qkv import prepare_qkv_reference, write_kv
from trivium.ops.rope import cos_sin_table, inverse_frequencies, rotate


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    x, weight = torch.randn(3, 8) * 4, torch.randn(8)
    expected = torch.stack([row / math.sqrt(float((row**2).mean()) + 0.1) * (offset + weight) for row in x])
    torch.testing.assert_close(rms_norm_reference(x, weight, 0.1, offset=offset), expected)
    normed, residual = add_rms_norm_reference(x, x, weight, 0.1, offset=offset)
    torch.testing.assert_close(residual, 2 * x)
    torch.testing.assert_close(normed, rms_norm_reference(2 * x, weight, 0.1, offset=offset))


def test_rms_norm_keeps_the_dtype_and_computes_in_float32() -> None:
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # its square overflows float16
    out = rms_norm_reference(x, torch.ones(4, dtype=torch.float16), 1e-6)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), torch.ones(1, 4))


@pytest.mark.parametrize(("kind", "act"), [
    ("silu", lambda x: x / (1 + math.exp(-x))),
    ("gelu", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
    ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
])  # fmt: skip
def test_activations(kind: str, act: Any) -> None:
    out = act_and_mul_reference(torch.tensor([[1.5, -0.7, 2.0, 3.0]]), kind)
    torch.testing.assert_close(out, torch.tensor([[act(1.5) * 2.0, act(-0.7) * 3.0]]))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_turns_each_pair_by_its_angle(interleaved: bool) -> None:
    spec = RopeSpec(theta=100.0, rotary_dim=4)
    table = cos_sin_table(spec, 10, "cpu")
    x = torch.randn(2, 3, 6)
    out = rotate(x, table, torch.tensor([0, 7]), rotary_dim=4, interleaved=interleaved)
    torch.testing.assert_close(out[0], x[0])
    torch.testing.assert_close(out[..., 4:], x[..., 4:])
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    for (a, b), angle in zip(pairs, (7.0, 7.0 / 10.0), strict=True):
        torch.testing.assert_close(out[1, :, a], x[1, :, a] * math.cos(angle) - x[1, :, b] * math.sin(angle))
        torch.testing.assert_close(out[1, :, b], x[1, :, b] * math.cos(angle) + x[1, :, a] * math.sin(angle))


def test_attention_factor_scales_the_table() -> None:
    plain, scaled = (cos_sin_table(RopeSpec(theta=10.0, rotary_dim=4, attention_factor=factor), 5, "cpu") for factor in (1.0, 1.5))
    torch.testing.assert_close(scaled, plain * 1.5)


def test_yarn_ramp_runs_from_kept_to_stretched() -> None:
    spec = RopeSpec(kind="yarn", theta=10000.0, rotary_dim=64, factor=8.0, original_max_len=4096, beta_fast=32.0, beta_slow=1.0)
    ratio = inverse_frequencies(RopeSpec(theta=10000.0, rotary_dim=64)) / inverse_frequencies(spec)
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(8.0)
    assert torch.all(ratio.diff() >= -1e-4)


def test_yarn_with_equal_ends_of_the_ramp_stays_finite() -> None:
    spec = RopeSpec(kind="yarn", theta=10000.0, rotary_dim=4, factor=8.0, original_max_len=64, beta_fast=1.0, beta_slow=1.0, truncate=False)
    assert inverse_frequencies(spec).isfinite().all()


def test_slot_minus_one_lands_in_the_block_of_nobody() -> None:
    cache = KVCache(torch.zeros(3, 1, 4, 2), torch.zeros(3, 1, 4, 2))
    write_kv(torch.ones(2, 1, 2), torch.full((2, 1, 2), 2.0), torch.tensor([-1, 6]), cache)
    assert cache.key[1, 0, 2].tolist() == [1.0, 1.0]
    assert cache.value is not None
    assert cache.value[1, 0, 2].tolist() == [2.0, 2.0]
    assert cache.key[1:].sum() == 2.0


def test_prepare_without_rope_or_norm_only_splits() -> None:
    args = AttentionArgs(num_heads=2, num_kv_heads=1, head_dim=4, scale=1.0)
    cache = KVCache(torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4))
    qkv = torch.arange(16.0)[None]
    query = prepare_qkv_reference(qkv, None, torch.tensor([3]), torch.tensor([5]), cache, args, rotary_dim=4)
    assert query.flatten().tolist() == list(range(8))
    assert cache.key[1, 0, 1].tolist() == [8.0, 9.0, 10.0, 11.0]
    assert cache.value is not None
    assert cache.value[1, 0, 1].tolist() == [12.0, 13.0, 14.0, 15.0]


class FakePackage(ModuleType):
    def fast_paths(self) -> Mapping[str, dispatch.FastPath]:
        return {"rms_norm": lambda x, weight, eps, *, offset=0.0: "fast"}


def test_an_op_takes_the_fast_path_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_loaded", {"cpu": FakePackage("fake").fast_paths()})
    x = torch.ones(1, 2)
    assert rms_norm(x, torch.ones(2), 1e-6) == "fast"
    with dispatch.references_only("cpu"):
        assert isinstance(rms_norm(x, torch.ones(2), 1e-6), torch.Tensor)
    assert rms_norm(x, torch.ones(2), 1e-6) == "fast"


def test_a_package_that_is_absent_has_no_fast_paths_and_a_broken_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_loaded", {})
    monkeypatch.setattr(dispatch, "PACKAGES", {"cpu": "trivium.ops.not_there"})
    assert dispatch.load_fast_paths("cpu") == {}
    assert dispatch.load_fast_paths("meta") == {}

    def broken(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'x'", name="x")

    monkeypatch.setattr(dispatch, "_loaded", {})
    monkeypatch.setattr(dispatch.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        dispatch.load_fast_paths("cpu")
