"""The examples that need no download, made and served; and those that were downloaded, where they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from helpers_worker import arrays, request, served

from trivium.protocol.model_config import ModelConfig

ROOT = Path(__file__).parents[3]
datasets = pytest.importorskip("sklearn.datasets")
pytest.importorskip("treelite")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_repository", ROOT / "examples" / "make_repository.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config_of(folder: Path, backend: str) -> str:
    config = text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig()) if (folder / "config.pbtxt").exists() else ModelConfig()
    config.backend = backend
    return text_format.MessageToString(config)


def make(script: ModuleType, name: str, tmp_path: Path) -> Path:
    script.make(name, tmp_path, ROOT / "examples" / "wheels")
    return tmp_path / name


def test_every_folder_of_models_is_made(script: ModuleType) -> None:
    assert sorted(path.name for path in (ROOT / "examples" / "models").iterdir()) == sorted(script.MAKERS)


async def test_the_forest_and_the_digits_know_their_data(script: ModuleType, tmp_path: Path) -> None:
    features, classes = datasets.load_breast_cancer(return_X_y=True)
    forest = make(script, "breast_cancer", tmp_path)
    async with served(forest, config_of(forest, "fil")) as model:
        found = (await model.arrays(input__0=features.astype(np.float32)))["output__0"]
        assert (found.argmax(1) == classes).mean() > 0.98
    digits = make(script, "digits", tmp_path)
    data: Any = datasets.load_digits()
    async with served(digits, config_of(digits, "pytorch")) as model:
        found = (await model.arrays(INPUT__0=data.data.astype(np.float32)))["OUTPUT__0"]
        assert (found.argmax(1) == data.target).mean() > 0.98


async def test_shout_streams_words(script: ModuleType, tmp_path: Path) -> None:
    shout = make(script, "shout", tmp_path)
    async with served(shout, config_of(shout, "python")) as model:
        assert model.config.model_transaction_policy.decoupled
        (execution,) = await model.run(request(text=np.array(["big words"], np.object_)))
        await execution.ended.wait()
        words = [arrays(response)["word"][0] for response in execution.responses if not response.is_null]
        assert words == [b"BIG", b"WORDS"]
