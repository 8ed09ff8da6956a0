"""Forests against the libraries they were trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_worker import load_here, request, served

from trivium.errors import InvalidRequest, ModelLoadError

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
sklearn_datasets = pytest.importorskip("sklearn.datasets")
treelite = pytest.importorskip("treelite")


@pytest.fixture(scope="module")
def cancer() -> tuple[Any, Any]:
    features, classes = sklearn_datasets.load_breast_cancer(return_X_y=True)
    return features.astype(np.float32), classes


@pytest.fixture(scope="module")
def iris() -> tuple[Any, Any]:
    features, classes = sklearn_datasets.load_iris(return_X_y=True)
    return features.astype(np.float32), classes


def version_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "1"
    folder.mkdir()
    return folder


def parameter(**values: str) -> str:
    return "\n".join(f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}' for name, value in values.items())


async def test_a_bare_xgboost_file_is_completed_and_answers_with_classes(tmp_path: Path, cancer: tuple[Any, Any]) -> None:
    features, classes = cancer
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=4).fit(features, classes)
    model.save_model(version_folder(tmp_path) / "xgboost.json")
    async with served(tmp_path, 'backend: "fil"') as forest:
        assert forest.config.max_batch_size == 4
        assert forest.config.HasField("dynamic_batching")
        assert [(tensor.name, list(tensor.dims)) for tensor in forest.config.input] == [("input__0", [30])]
        assert [(tensor.name, list(tensor.dims)) for tensor in forest.config.output] == [("output__0", [1])]
        (first, second) = await forest.run(request(input__0=features[:3]), request(input__0=features[3:50]))
        found = np.concatenate([first.arrays()["output__0"], second.arrays()["output__0"]])[:, 0]
        assert np.array_equal(found, model.predict(features[:50]))
        assert first.arrays()["output__0"].dtype == np.float32
        wrong, right = await forest.run(request(input__0=features[:2, :7])), await forest.run(request(input__0=features[:2]))
        with pytest.raises(InvalidRequest, match="must have 30 features"):
            wrong[0].arrays()
        assert right[0].arrays()["output__0"].shape == (2, 1)


async def test_probabilities_of_two_classes_are_one_column_or_two_as_the_configuration_says(tmp_path: Path, cancer: tuple[Any, Any]) -> None:
    features, classes = cancer
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=4).fit(features, classes)
    model.save_model(version_folder(tmp_path) / "xgboost.ubj")
    expected = model.predict_proba(features[:40])
    base = 'backend: "fil" max_batch_size: 64 ' + parameter(model_type="xgboost_ubj", predict_proba="true")
    async with served(tmp_path, base) as forest:
        np.testing.assert_allclose((await forest.arrays(input__0=features[:40]))["output__0"], expected[:, 1:], rtol=1e-5)
    async with served(tmp_path, base + ' output { name: "output__0" data_type: TYPE_FP32 dims: 2 }') as forest:
        np.testing.assert_allclose((await forest.arrays(input__0=features[:40]))["output__0"], expected, rtol=1e-4, atol=1e-6)


async def test_the_threshold_moves_the_class(tmp_path: Path, cancer: tuple[Any, Any]) -> None:
    features, classes = cancer
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=4).fit(features, classes)
    model.save_model(version_folder(tmp_path) / "xgboost.json")
    async with served(tmp_path, 'backend: "fil" max_batch_size: 600 ' + parameter(output_class="true", threshold="0.97")) as forest:
        found = (await forest.arrays(input__0=features))["output__0"][:, 0]
    assert np.array_equal(found, model.predict_proba(features)[:, 1] > 0.97)
    assert not np.array_equal(found, model.predict(features))


async def test_lightgbm_text_and_scikit_learn_by_treelite(tmp_path: Path, iris: tuple[Any, Any]) -> None:
    features, classes = iris
    booster = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1).fit(features, classes).booster_
    folder = version_folder(tmp_path)
    booster.save_model(folder / "model.txt")
    async with served(tmp_path, 'backend: "fil" max_batch_size: 200 ' + parameter(predict_proba="true")) as forest:
        np.testing.assert_allclose((await forest.arrays(input__0=features))["output__0"], booster.predict(features), rtol=1e-5)
    from sklearn.ensemble import RandomForestClassifier

    random_forest = RandomForestClassifier(10, random_state=0).fit(features, classes)
    treelite.sklearn.import_model(random_forest).serialize(folder / "checkpoint.tl")
    async with served(tmp_path, 'backend: "fil" max_batch_size: 200 ' + parameter(model_type="treelite_checkpoint", predict_proba="true")) as forest:
        np.testing.assert_allclose((await forest.arrays(input__0=features))["output__0"], random_forest.predict_proba(features), rtol=1e-5, atol=1e-6)


async def test_regressions_answer_with_values(tmp_path: Path) -> None:
    features, targets = sklearn_datasets.load_diabetes(return_X_y=True)
    features = features.astype(np.float32)
    model = xgboost.XGBRegressor(n_estimators=20).fit(features, targets)
    model.save_model(version_folder(tmp_path) / "xgboost.json")
    async with served(tmp_path, 'backend: "fil" max_batch_size: 500') as forest:
        np.testing.assert_allclose((await forest.arrays(input__0=features))["output__0"][:, 0], model.predict(features), rtol=1e-5)
    with pytest.raises(ModelLoadError, match="no classifier"):
        load_here(tmp_path, 'backend: "fil" ' + parameter(predict_proba="true"))


@pytest.mark.parametrize(
    ("name", "content", "parameters", "text"),
    [
        ("xgboost.json", b'{"learner": 3}', {}, "xgboost.json can't be read as xgboost_json"),
        ("xgboost.json", b"", {}, "xgboost.json can't be read"),
        ("model.txt", b"tree\nversion=v4\nnum_class=1\n", {}, "model.txt can't be read"),
        ("xgboost.json", b"{}", {"model_type": "catboost"}, "model_type 'catboost' is not known"),
        ("xgboost.json", b"{}", {"model_type": "lightgbm"}, "there is no model.txt in version folder 1"),
    ],
)
def test_a_broken_file_is_a_load_error(tmp_path: Path, name: str, content: bytes, parameters: dict[str, str], text: str) -> None:
    (version_folder(tmp_path) / name).write_bytes(content)
    config = 'backend: "fil" ' + parameter(**parameters)
    with pytest.raises(ModelLoadError, match=text):
        load_here(tmp_path, config)


async def test_a_checkpoint_of_lies_hurts_only_its_own_process(tmp_path: Path) -> None:
    (version_folder(tmp_path) / "checkpoint.tl").write_bytes(b"\x04\0\0\0\x08\0\0\0\x01\0\0\0" + b"\xff" * 64)
    with pytest.raises(ModelLoadError, match="checkpoint.tl can't be read as treelite_checkpoint|ended unexpectedly"):
        async with served(tmp_path, 'backend: "fil"'):
            pass


def test_a_file_name_can_not_lead_out_of_the_model(tmp_path: Path) -> None:
    version_folder(tmp_path)
    with pytest.raises(ModelLoadError, match="leads out of the model's folder"):
        load_here(tmp_path, 'backend: "fil" default_model_filename: "../../xgboost.json"')
