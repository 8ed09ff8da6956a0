"""Names in a model folder become paths in one place, and its JSON files are read with care."""

from __future__ import annotations

import pytest

from trivium.errors import ModelLoadError
from trivium.sources.paths import child_path, read_json_child, read_json_object


def test_a_plain_file_of_the_folder_is_found(tmp_path):
    (tmp_path / "a-1.json").write_text("{}")
    assert child_path(tmp_path, "a-1.json") == tmp_path / "a-1.json"
    assert child_path(tmp_path, "absent.json") is None
    (tmp_path / "sub").mkdir()
    assert child_path(tmp_path, "sub") is None, "a folder is no file"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "a\0b", "a..b", "a\nb", "-x", "a\n"])
def test_a_name_that_is_more_than_a_name_is_refused(tmp_path, name):
    with pytest.raises(ModelLoadError, match="is not the name of a file"):
        child_path(tmp_path, name)


def test_a_link_may_not_lead_out_of_the_folder(tmp_path):
    outside = tmp_path / "secret.json"
    outside.write_text("{}")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").symlink_to(outside)
    with pytest.raises(ModelLoadError, match="link to a place outside"):
        child_path(folder, "config.json")


def test_links_inside_the_folder_and_to_it_are_fine(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "real.json").write_text("{}")
    (folder / "alias.json").symlink_to("real.json")
    (tmp_path / "link").symlink_to(folder)
    assert child_path(tmp_path / "link", "alias.json") == tmp_path / "link" / "alias.json", "names, not targets: an index goes by them"


def test_the_hubs_cache_links_to_its_own_blobs_only(tmp_path):
    cache = tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "123").write_text('{"a": 1}')
    (snapshot / "config.json").symlink_to("../../blobs/123")
    assert read_json_child(snapshot, "config.json") == {"a": 1}
    (tmp_path / "other").write_text("{}")
    (snapshot / "bad.json").symlink_to("../../../other")
    with pytest.raises(ModelLoadError, match="outside"):
        child_path(snapshot, "bad.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[1]", "must hold a JSON object, not list"),
        ("null", "must hold a JSON object, not NoneType"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a":' + "[" * 200_000, "is not valid JSON"),
        (b'{"a": "\xff"}', "is not valid JSON"),
    ],
)
def test_what_is_no_json_object_is_an_error_that_names_the_file(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelLoadError, match=message) as caught:
        read_json_object(path)
    assert "config.json" in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": "' + "x" * 100 + '"}')
    with pytest.raises(ModelLoadError, match="at most 50"):
        read_json_object(path, max_bytes=50)
    assert read_json_child(tmp_path, "none.json") is None
