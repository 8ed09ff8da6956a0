"""`trivium pull` and `cache` as processes, against stand-ins that speak the hubs' protocols, with broken connections and damaged contents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers_model_hub import COMMIT, Faults, Hub, serve_hub
from helpers_pull import CONFIG, Trivium, check_folder, model_files, pulled

SECRET = "hf_notForLogs"


@pytest.fixture
def trivium(tmp_path: Path) -> Trivium:
    return Trivium(tmp_path)


def test_pull_over_a_mirror_whose_connection_breaks_every_five_megabytes(trivium: Trivium) -> None:
    files = model_files(37 * 1024 * 1024 + 11)
    with serve_hub(Hub("ours/tiny", files, Faults(cut_after=5_000_000))) as hub:
        folder = pulled(trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url))
        check_folder(folder, files)
        assert hub.asked["model.safetensors"] == 8
        assert all("README" not in path and ".py" not in path and ".bin" not in path for path in hub.paths if "resolve" in path)
        hub.asked.clear()
        assert pulled(trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url)) == folder
        assert not hub.asked, "what is there is not fetched again"
    assert pulled(trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")) == folder


def test_contents_damaged_once_are_fetched_again(trivium: Trivium) -> None:
    files = model_files(100_000)
    with serve_hub(Hub("ours/tiny", {"config.json": CONFIG, "model.safetensors": files["model.safetensors"]}, Faults(num_damaged=2))) as hub:
        folder = pulled(trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url))
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert (folder / "config.json").read_bytes() == CONFIG


def test_contents_that_stay_damaged_are_an_error_and_leave_nothing(trivium: Trivium) -> None:
    with serve_hub(Hub("ours/tiny", model_files(100_000), Faults(num_damaged=1000))) as hub:
        done = trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url)
        assert done.returncode == 1
        assert "arrived twice with contents that differ from their checksum" in done.stderr
        assert "Traceback" not in done.stderr
        hub.faults.num_damaged = 0
        check_folder(pulled(trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url)), model_files(100_000))


def test_a_busy_hub_is_asked_again(trivium: Trivium) -> None:
    with serve_hub(Hub("ours/tiny", model_files(1000), Faults(num_busy=2))) as hub:
        check_folder(pulled(trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url)), model_files(1000))


def test_two_processes_pull_one_model_at_once(trivium: Trivium) -> None:
    files = model_files(12 * 1024 * 1024)
    with serve_hub(Hub("ours/tiny", files, Faults(cut_after=5_000_000))) as hub:
        processes = [trivium.start("pull", "ours/tiny", HF_ENDPOINT=hub.url) for _ in range(2)]
        for process in processes:
            out, err = process.communicate(timeout=90)
            assert process.returncode == 0, err
            check_folder(Path(out.strip()), files)


def test_tokens_open_gated_models_and_are_never_shown(trivium: Trivium) -> None:
    with serve_hub(Hub("ours/gated", model_files(1000), Faults(token=SECRET))) as hub:
        refused = trivium.run("pull", "ours/gated", HF_ENDPOINT=hub.url, HF_TOKEN=SECRET + "x")
        assert refused.returncode == 1
        assert SECRET not in refused.stderr + refused.stdout
        check_folder(pulled(trivium.run("pull", "ours/gated", HF_ENDPOINT=hub.url, HF_TOKEN=SECRET)), model_files(1000))


def test_a_hub_out_of_reach_is_one_line(trivium: Trivium) -> None:
    done = trivium.run("pull", "ours/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "can't be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_modelscope_by_flag_and_by_variable(trivium: Trivium) -> None:
    files = model_files(9_000_000)
    with serve_hub(Hub("ours/tiny", files, Faults(cut_after=5_000_000))) as hub:
        folder = pulled(trivium.run("pull", "--hub", "modelscope", "ours/tiny", MODELSCOPE_ENDPOINT=hub.url))
        check_folder(folder, files)
        again = trivium.run("pull", "ours/tiny", MODELSCOPE_ENDPOINT=hub.url, TRIVIUM_HUB="modelscope")
        assert pulled(again) == folder
        missing = trivium.run("pull", "--hub", "modelscope", "ours/absent", MODELSCOPE_ENDPOINT=hub.url)
        assert missing.returncode == 1
        assert "ModelScope has no model" in missing.stderr


def test_cache_lists_and_removes(trivium: Trivium) -> None:
    with serve_hub(Hub("ours/tiny", model_files(1000))) as hub:
        folder = pulled(trivium.run("pull", "ours/tiny", HF_ENDPOINT=hub.url))
    assert folder.name == COMMIT
    listed = json.loads(trivium.run("cache", "ls", "--json").stdout)
    assert [(model["name"], model["kind"]) for model in listed] == [("ours/tiny", "huggingface")]
    assert trivium.run("cache", "rm", "ours/tiny").returncode == 0
    assert not folder.exists()
    assert json.loads(trivium.run("cache", "ls", "--json").stdout) == []
    absent = trivium.run("cache", "rm", "ours/tiny")
    assert absent.returncode == 1
    assert "is not in the cache" in absent.stderr
