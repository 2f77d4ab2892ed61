"""What is kept on disk between processes."""

import json

import pytest

from tpusim.disk_cache import JsonCache, content_key, default_folder


def test_an_entry_is_found_again_by_its_key_and_version(tmp_path):
    cache = JsonCache("things", 1, tmp_path)
    assert cache.get("a") is None
    cache.put("a", {"cycles": 3, "error": None})
    assert JsonCache("things", 1, tmp_path).get("a") == {"cycles": 3, "error": None, "key": "a"}
    assert JsonCache("things", 2, tmp_path).get("a") is None
    assert [path.name for path in (tmp_path / "things-1").iterdir()] == ["a.json"], "no temporary file is left"


@pytest.mark.parametrize("damage", ["", "{", "[1]", json.dumps({"key": "b"}), "\0"])
def test_a_damaged_entry_is_made_again_with_a_notice(tmp_path, damage):
    cache = JsonCache("things", 1, tmp_path)
    cache.put("a", {"cycles": 3})
    path = tmp_path / "things-1" / "a.json"
    path.write_text(damage)
    with pytest.warns(UserWarning, match=r"^damaged cache entry .*a\.json \(.*\): made again$"):
        assert cache.get("a") is None
    cache.put("a", {"cycles": 4})
    assert cache.get("a") == {"cycles": 4, "key": "a"}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.warns(UserWarning, match=r"^nothing is cached in "):
        JsonCache("things", 1, blocker).put("a", {})


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.setenv("TPUSIM_CACHE", "")
    assert default_folder() is None
    assert JsonCache("things", 1).get("a") is None
    monkeypatch.delenv("TPUSIM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_folder() == tmp_path / "x" / "tpusim"


def test_keys_tell_texts_and_their_order_apart():
    keys = {
        content_key("a", "b"),
        content_key("b", "a"),
        content_key("ab"),
        content_key("ab", ""),
        content_key("a", "b"),
    }
    assert len(keys) == 4
