"""What all tiers share: markers by path, tiers that need something absent left out, and an environment that tests can't leak into."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
# Time limits of single examples fail on busy machines; the same examples in every run keep CI's verdict about the change.
hypothesis.settings.register_profile("trivium", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("trivium")

# Triton reads this when a kernel is defined, so it must be set before any test module imports one: without a GPU kernels run in its interpreter.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

TIERS = ("null", "unit", "api", "gpu", "perf")


def _add_helper_folders() -> None:
    """Tests import `helpers_*` modules by name from wherever they lie; so each name may exist once."""
    seen: dict[str, Path] = {}
    for helper in sorted(TESTS.rglob("helpers_*.py")):
        assert helper.name not in seen, f"{helper} and {seen[helper.name]} have one name: rename one"
        seen[helper.name] = helper
        if str(helper.parent) not in sys.path:
            sys.path.insert(0, str(helper.parent))


_add_helper_folders()


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _tier(item: pytest.Item) -> str:
    parts = item.path.relative_to(TESTS).parts
    assert parts[0] in TIERS, f"{item.path}: tests lie in one of {', '.join(TIERS)}"
    return parts[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers = [_tier(item) for item in items]
    for item, tier in zip(items, tiers, strict=True):
        item.add_marker(tier)
    left_out: set[str] = set()
    if "perf" not in (config.option.markexpr or ""):
        left_out.add("perf")
    if "gpu" in tiers and not _has_cuda():
        left_out.add("gpu")
    kept = [item for item, tier in zip(items, tiers, strict=True) if tier not in left_out]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item, tier in zip(items, tiers, strict=True) if tier in left_out])
        items[:] = kept


@pytest.fixture(autouse=True)
def _isolated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads the user's settings, asks a hub, or writes into the user's cache."""
    for name in sorted(os.environ):
        if name.startswith("TRIVIUM_") and name != "TRIVIUM_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.delenv("HF_TOKEN", raising=False)
