"""What clients are told of a failed load names no path of the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_repository import StubLoader, make_repository, states, write_model

from trivium.backends.load_context import LoadContext, LoadedModel
from trivium.errors import InvalidRequest, ModelLoadError
from trivium.protocol.model_config import ModelConfig
from trivium.repository.reasons import without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{root}/m/1/model.py(3): boom", "m/1/model.py(3): boom"),
        ('File "{root}/m/1/model.onnx" is empty', 'File "m/1/model.onnx" is empty'),
        ("nothing in {root}.", "nothing in the repository."),
        ("{root}-other/x.bin is truncated", ".../x.bin is truncated"),
        ("/usr/lib/python3/site.py line 3", ".../site.py line 3"),
        ("no such node /encoder/layer/MatMul", "no such node /encoder/layer/MatMul"),
        ("https://hub.example/usr/lib/x is gone", "https://hub.example/usr/lib/x is gone"),
        ("use models/x and 1/2", "use models/x and 1/2"),
    ],
)
def test_paths_are_told_relative_to_the_repository_or_by_their_last_name(tmp_path: Path, text: str, shown: str) -> None:
    assert without_paths(text.format(root=tmp_path), [tmp_path]) == shown


def test_a_relative_repository_is_known_by_both_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"models/m/1/a.onnx, {tmp_path}/models/m/1/b.onnx: the models"
    assert without_paths(text, [Path("models")]) == "m/1/a.onnx, m/1/b.onnx: the models"


class Failing(StubLoader):
    async def __call__(self, config: ModelConfig, version: int, path: Path, context: LoadContext) -> LoadedModel:
        raise ModelLoadError(f"{path}/model.onnx is truncated")


async def test_the_index_and_the_answer_leave_them_out_and_the_log_has_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path, "m")
    repository = make_repository(tmp_path, Failing())
    await repository.start()
    assert states(repository) == {"m:1": "UNAVAILABLE (Internal: m/1/model.onnx is truncated)"}
    assert [record.getMessage() for record in caplog.records] == [f"failed to load: Internal: {tmp_path}/m/1/model.onnx is truncated"], "once"
    with pytest.raises(InvalidRequest, match=r"state: Internal: m/1/model.onnx is truncated;\n"):
        await repository.load("m")
    await repository.close()
