"""Models from s3://, oss:// and http://: `trivium pull` against an S3 server and web servers that can and can't answer ranges."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from helpers_model_hub import Faults, Hub, serve_hub
from helpers_pull import Trivium, check_folder, model_files, pulled

KEYS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "notForLogs", "AWS_REGION": "us-east-1"}


@pytest.fixture
def trivium(tmp_path: Path) -> Trivium:
    return Trivium(tmp_path)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of an S3 server with an empty bucket `models`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    _client(url).create_bucket(Bucket="models")
    yield url
    server.stop()


def _client(url: str) -> Any:
    import boto3

    key, secret = KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]
    return boto3.client("s3", endpoint_url=url, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")


def upload(url: str, prefix: str, files: dict[str, bytes]) -> None:
    client = _client(url)
    for name, data in files.items():
        client.put_object(Bucket="models", Key=f"{prefix}/{name}", Body=data)


def test_s3_folder_only_the_files_needed_and_only_once(trivium: Trivium, s3: str) -> None:
    files = model_files(40_000_000)
    upload(s3, "team/tiny", {**files, "nested/model.safetensors": b"never fetched"})
    variables = {**KEYS, "AWS_ENDPOINT_URL": s3}
    first = trivium.run("pull", "s3://models/team/tiny", **variables)
    folder = pulled(first)
    check_folder(folder, files)
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in first.stderr + first.stdout
    inode = (folder / "model.safetensors").stat().st_ino
    assert pulled(trivium.run("pull", "s3://models/team/tiny/", **variables)) == folder
    assert (folder / "model.safetensors").stat().st_ino == inode, "fetched again"
    changed = {**files, "model.safetensors": b"0123456789"}
    upload(s3, "team/tiny", changed)
    check_folder(pulled(trivium.run("pull", "s3://models/team/tiny", **variables)), changed)
    offline = trivium.run("pull", "s3://models/team/tiny", **{**variables, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    check_folder(pulled(offline), changed)
    assert "the copy fetched earlier is used" in offline.stderr


def test_s3_missing_bucket_folder_and_keys_are_one_line(trivium: Trivium, s3: str) -> None:
    variables = {**KEYS, "AWS_ENDPOINT_URL": s3}
    for url, reason in (("s3://models/absent", "neither a config.json nor a .gguf"), ("s3://absent/tiny", "Listing tiny failed")):
        done = trivium.run("pull", url, **variables)
        assert done.returncode == 1
        assert reason in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://host/tiny", "not from ftp://"),
        ("s3://key:secret@bucket/tiny", "must not hold credentials"),
        ("https://host/tiny?token=1", "plain path"),
        ("s3:///tiny", "names no bucket"),
        ("s3://bucket/a/../b", "no plain path"),
        ("oss://bucket/tiny", "OSS_ENDPOINT"),
    ],
)
def test_urls_that_cannot_be_one_are_refused_as_usage(trivium: Trivium, url: str, reason: str) -> None:
    done = trivium.run("pull", url)
    assert done.returncode == 2
    assert reason in done.stderr


class QuietHandler(SimpleHTTPRequestHandler):
    """Knows neither ranges nor tags, as many small web servers."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_http_folder_of_a_server_without_ranges(trivium: Trivium, tmp_path: Path) -> None:
    files = model_files(5_000)
    site = tmp_path / "site" / "tiny"
    site.mkdir(parents=True)
    for name, data in files.items():
        (site / name).write_bytes(data)
    with web_server(site.parent) as url:
        check_folder(pulled(trivium.run("pull", f"{url}/tiny")), files)


def test_http_shards_named_by_the_index(trivium: Trivium, tmp_path: Path) -> None:
    site = tmp_path / "tiny"
    site.mkdir()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    files = {"config.json": model_files(0)["config.json"], "model.safetensors.index.json": json.dumps(index).encode()}
    files |= {name: name.encode() for name in index["weight_map"].values()}
    for name, data in files.items():
        (site / name).write_bytes(data)
    with web_server(tmp_path) as url:
        folder = pulled(trivium.run("pull", f"{url}/tiny"))
        assert {path.name for path in folder.iterdir()} >= set(files)
        site.rename(tmp_path / "broken")
        (tmp_path / "broken" / "model-00002-of-00002.safetensors").unlink()
        broken = trivium.run("pull", f"{url}/broken")
    assert broken.returncode == 1
    assert "has no model-00002-of-00002.safetensors" in broken.stderr


def test_http_with_connections_that_break(trivium: Trivium) -> None:
    files = model_files(20_000_000)
    with serve_hub(Hub("ours/tiny", files, Faults(cut_after=17_000_000, num_busy=1))) as hub:
        check_folder(pulled(trivium.run("pull", f"{hub.url}/ours/tiny/resolve/main")), files)


def test_two_processes_pull_one_url_at_once_and_the_cache_names_it(trivium: Trivium, s3: str) -> None:
    files = model_files(20_000_000)
    upload(s3, "shared/tiny", files)
    variables = {**KEYS, "AWS_ENDPOINT_URL": s3}
    processes = [trivium.start("pull", "s3://models/shared/tiny", **variables) for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        check_folder(Path(out.strip()), files)
    listed = json.loads(trivium.run("cache", "ls", "--json").stdout)
    assert [(model["name"], model["kind"]) for model in listed] == [("s3://models/shared/tiny", "url")]
    assert trivium.run("cache", "rm", "s3://models/shared/tiny").returncode == 0
    assert json.loads(trivium.run("cache", "ls", "--json").stdout) == []
