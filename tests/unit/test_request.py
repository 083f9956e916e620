"""What keeps the cached prefixes of requests apart."""

from __future__ import annotations

from tessera.request import make_cache_key


def test_cache_keys_are_equal_only_for_the_same_salt_and_feature_args() -> None:
    keys = [
        make_cache_key(""),
        make_cache_key("a"),
        make_cache_key("ab"),
        make_cache_key("", {"a": ""}),
        make_cache_key("", {"a": "b"}),
        make_cache_key("a", {"b": ""}),
        make_cache_key("a", {"a": "b"}),
        make_cache_key("a", {"a": "b", "c": "d"}),
        make_cache_key("a", {"a": "d", "c": "b"}),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == b"", "most requests have nothing to keep apart"
    assert {len(key) for key in keys[1:]} == {32}
    assert keys[7] == make_cache_key("a", {"c": "d", "a": "b"})
