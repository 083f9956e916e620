"""The engine's half of images: which features a step encodes, and which it finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.errors import RequestError
from tessera.features.media import EncoderCache
from tessera.kvcache.prefix_cache import PrefixCache, SpanContent
from tessera.media.item import input_bytes
from tessera.media.placed import PlacedMedia
from tessera.media.positions import AxisPositions
from tessera.platform.runner import CacheGroup


def image(name: str, start: int, size: int = 6, grid: tuple[int, int, int] | None = None) -> PlacedMedia:
    inputs = {} if grid is None else {"image_grid_thw": np.array([grid])}
    return PlacedMedia("image", name.encode(), int32(np.arange(start, start + size)), inputs)


class Request(SimpleNamespace):
    """What the scheduler shows of a request."""

    def __init__(self, key: int, *media: PlacedMedia, computed: int = 0, num_prompt_tokens: int = 0) -> None:
        super().__init__(key=key, media=media, num_computed_tokens=computed, num_prompt_tokens=num_prompt_tokens)


FULL = "it is full for now"


def step(cache: EncoderCache, *asked: tuple[Any, int]) -> tuple[list[Any], Any]:
    """What each request may compute of what it asks for, and what the step is told."""
    cache.begin_step()
    granted = []
    for request, num_tokens in asked:
        answer = cache.fits(request, num_tokens)
        granted.append(answer)
        if isinstance(answer, int):
            cache.take(request, answer)
        else:
            cache.prepare(request)
    return granted, cache.take_step(lambda key: key)


def parts(media: Any) -> list[tuple[int, int, bool]]:
    """Of each encoding of a step: its number, how far it gets, and whether its inputs are sent."""
    return [] if media is None else [(one.number, one.done, bool(one.inputs)) for one in media.encode]


def test_an_image_is_encoded_once_for_all_that_show_it() -> None:
    cache = EncoderCache(20, 40)
    granted, media = step(cache, (Request(0, image("a", 2)), 10), (Request(1, image("b", 0), image("a", 6)), 12))
    assert granted == [10, 12]
    assert [list(one.slots) for one in media.encode] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert [(row.row, list(row.places), list(row.slots)) for row in media.rows] == [
        (0, [2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5]),
        (1, list(range(12)), [*range(6, 12), *range(6)]),
    ]
    _, later = step(cache, (Request(2, image("b", 1), computed=3), 6))
    assert later.encode == []
    assert list(later.rows[0].places) == [3, 4, 5, 6]
    assert list(later.rows[0].slots) == [8, 9, 10, 11]
    # The second "a" was there; the rest of "b" was looked up with its beginning.
    assert (cache.queries, cache.hits) == (3, 1)
    step(cache, (Request(3, image("b", 4)), 10))
    assert (cache.queries, cache.hits) == (4, 2)


@pytest.mark.parametrize(
    ("options", "ahead"),
    [({}, None), ({"whole": True}, [0, 2, 1, 0, 0, 0, 0, 0]), ({"prefix": True}, [5, 4, 3, 2, 1, 0])],
)
def test_tokens_of_an_image_or_of_a_prompt_see_those_behind_them(options: Any, ahead: list[int] | None) -> None:
    pictured = Request(0, image("a", 2, 3), computed=1, num_prompt_tokens=7)
    text = Request(1, num_prompt_tokens=3)
    _, media = step(EncoderCache(20, 20, **options), (pictured, 8), (text, 4))
    told = {row.row: None if row.ahead is None else row.ahead.tolist() for row in media.rows}
    assert told == ({0: ahead, 1: [2, 1, 0]} if "prefix" in options else {0: ahead})


def test_a_prompt_that_sees_itself_waits_as_a_whole() -> None:
    cache = EncoderCache(12, 40, prefix=True)
    asked = [(Request(key, image(f"{key}", 0), image(f"{key}+", 6), num_prompt_tokens=13), 13) for key in range(2)]
    assert step(cache, *asked)[0] == [13, FULL]
    cache = EncoderCache(24, 13, prefix=True)
    for encoded in ([(0, 6), (1, 6)], []):
        granted, media = step(cache, asked[0])
        assert [(number, done) for number, done, _ in parts(media)] == encoded
    assert granted == [13]


def test_a_prompt_waits_before_an_image_that_there_is_no_room_for_and_text_does_not() -> None:
    cache = EncoderCache(12, 100)
    first, second = Request(0, image("a", 0), image("b", 6)), Request(1, image("c", 4))
    granted, media = step(cache, (first, 12), (second, 10), (Request(2), 7))
    assert granted == [12, 4, 7]
    assert len(media.encode) == 2
    at_once, _ = step(cache, (first, 12), (Request(3, image("d", 0)), 6))
    assert at_once == [12, FULL]


def test_steps_encode_and_compute_no_more_than_a_chunk_of_a_prompt() -> None:
    cache = EncoderCache(100, 8)
    request, told = Request(0, image("a", 2, 20, (1, 8, 10))), []
    for _ in range(4):
        granted, media = step(cache, (request, 8))
        told.append((granted[0], parts(media), len(media.rows)))
        request.num_computed_tokens += 0 if granted == [FULL] else granted[0]
    assert told == [
        (2, [(0, 6, True)], 0),
        (FULL, [(0, 14, False)], 0),
        (2, [(0, 20, False)], 1),
        (8, [], 1),
    ]
    granted, media = step(cache, (Request(1), 7), (Request(2, image("b", 0)), 8), (Request(3), 3))
    assert (granted, parts(media)) == ([7, FULL, FULL], [(1, 1, False)])
    granted, media = step(cache, (Request(4, image("c", 0, 3), image("d", 3, 2), image("e", 6, 2)), 8))
    assert (granted, [done for _, done, _ in parts(media)]) == ([3], [3, 2])


def test_a_step_that_computes_no_tokens_encodes_for_those_who_wait() -> None:
    cache = EncoderCache(100, 8)
    waiting = Request(0, image("a", 0, 20))
    assert cache.fits(waiting, 8) == FULL
    assert [cache.prepare(waiting), cache.prepare(waiting), cache.prepare(Request(1))] == [True, False, False]


def test_equal_images_in_flight_are_encoded_once() -> None:
    cache = EncoderCache(100, 8)
    first, second = Request(0, image("a", 0, 20)), Request(1, image("a", 1, 20))
    told = [parts(step(cache, (first, 8), (second, 8))[1]) for _ in range(3)]
    assert [one[:2] for encoded in told for one in encoded] == [(0, 8), (0, 16), (0, 20)]
    assert (cache.queries, cache.hits) == (1, 0)
    second.num_computed_tokens = 1
    assert (step(cache, (second, 7))[0], cache.queries, cache.hits) == ([7], 2, 1)


def test_what_nobody_waits_for_any_more_is_dropped() -> None:
    cache = EncoderCache(20, 8)
    first, second, third = Request(0, image("a", 0, 20)), Request(1, image("a", 0, 20)), Request(2, image("b", 0, 20))
    step(cache, (first, 8))
    step(cache, (first, 4), (second, 4))
    cache.ended(first)
    assert parts(step(cache, (second, 8))[1]) == [(0, 20, False)]
    cache.ended(second)
    assert step(cache)[1] is None
    assert parts(step(cache, (third, 8))[1]) == [(1, 8, False)]
    cache.ended(third)
    media = step(cache)[1]
    assert (media.encode, media.dropped) == ([], [1])
    assert parts(step(cache, (first, 8))[1]) == [(2, 8, False)]


def test_an_encoding_that_loses_its_slots_begins_anew() -> None:
    cache = EncoderCache(20, 8)
    first, second = Request(0, image("a", 0, 15)), Request(1, image("b", 0, 15))
    step(cache, (first, 8))
    media = step(cache, (second, 8))[1]
    assert (parts(media), media.dropped) == ([(1, 8, False)], [0])
    media = step(cache, (first, 8))[1]
    assert (parts(media), media.dropped) == ([(2, 8, False)], [1])


def test_a_step_sends_no_more_to_the_workers_than_a_message_holds_or_one_image() -> None:
    cache = EncoderCache(100, 100, step_bytes=60)
    first, second, third = (image(name, at, 6, (1, 4, 6)) for name, at in (("a", 0), ("b", 6), ("c", 12)))
    assert input_bytes(first.inputs) == 24
    granted, media = step(cache, (Request(0, first, second, third), 20))
    assert granted == [12]
    assert len(media.encode) == 2
    granted, media = step(cache, (Request(0, first, second, third, computed=12), 8), (Request(1, first, third), 20))
    assert granted == [8, 20]
    assert len(media.encode) == 1
    granted, _ = step(EncoderCache(100, 100, step_bytes=20), (Request(0, first, second), 12))
    assert granted == [6]


def test_the_image_unused_for_the_longest_time_makes_room() -> None:
    cache = EncoderCache(12, 12)
    step(cache, (Request(0, image("a", 0)), 6))
    step(cache, (Request(1, image("b", 0)), 6))
    step(cache, (Request(2, image("a", 0)), 6))
    _, media = step(cache, (Request(3, image("c", 0)), 6))
    assert list(media.encode[0].slots) == [6, 7, 8, 9, 10, 11]
    _, media = step(cache, (Request(4, image("a", 0)), 6))
    assert media.encode == []


def test_equal_tokens_that_show_other_images_are_another_prefix() -> None:
    cache = PrefixCache([CacheGroup((0,), "paged", 4, 1, 8)], b"")
    tokens = np.full(12, 7, np.int32)

    def links(*contents: SpanContent) -> list[bytes]:
        return cache.chain(contents=contents).links(0, 3, tokens)

    plain, cat, dog = links(), links(SpanContent(5, 8, b"cat")), links(SpanContent(5, 8, b"dog"))
    assert plain[0] == cat[0] == dog[0]
    assert len({plain[1], cat[1], dog[1]}) == len({plain[2], cat[2], dog[2]}) == 3
    assert links(SpanContent(4, 7, b"cat"))[1] != cat[1]
    assert links(SpanContent(5, 8, b"cat")) == cat


def test_tokens_of_an_image_have_positions_of_its_grid_and_text_goes_on_behind_the_largest() -> None:
    positions = AxisPositions.from_media(11, [image("a", 2, 6, (1, 4, 6))], 2)
    assert positions.prompt.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ]
    assert positions.shift == -3
    assert positions.of_tokens(9, 13).tolist() == [[6, 7, 8, 9]] * 3
    with pytest.raises(RequestError, match="another number of tokens"):
        AxisPositions.from_media(11, [image("a", 2, 5, (1, 4, 6))], 2)


def video(places: list[int], **inputs: object) -> PlacedMedia:
    return PlacedMedia("video", b"v", int32(places), {name: np.array(value) for name, value in inputs.items()})


def test_tokens_of_a_video_have_positions_in_time_and_text_goes_on_behind_its_height_and_width() -> None:
    whole = video([1, 2, 3, 4], video_grid_thw=[[4, 2, 2]], second_per_grid_ts=[0.7])
    frames = AxisPositions.from_media(7, [whole], 2)
    assert frames.prompt.tolist() == [[0, 1, 2, 3, 4, 2, 3], [0, 1, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 2, 3]]
    assert AxisPositions.from_media(7, [whole], 2, 2.0).prompt[0].tolist() == [0, 1, 2, 3, 5, 2, 3]
    apart = AxisPositions.from_media(8, [video([1, 2, 5, 6], video_grid_thw=[[2, 2, 4]])], 2)
    assert apart.prompt.tolist() == [[0, 1, 1, 3, 4, 5, 5, 7], [0, 1, 1, 3, 4, 5, 5, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    for places in ([1, 2, 3, 5], [1, 3, 5, 6], [1, 2, 3]):
        with pytest.raises(RequestError, match="A video of the prompt has another number of tokens"):
            AxisPositions.from_media(8, [video(places, video_grid_thw=[[2, 2, 4]])], 2)


def sound(name: str) -> PlacedMedia:
    return PlacedMedia("audio", name.encode(), int32(()), {}, length=6)


def test_what_an_encoder_made_is_read_when_a_row_begins_and_made_once() -> None:
    cache = EncoderCache(12, 12)
    granted, media = step(cache, (Request(0, sound("a")), 5), (Request(1, sound("a")), 1), (Request(2, sound("b")), 3))
    assert granted == [5, 1, FULL]
    assert [list(one.slots) for one in media.encode] == [[0, 1, 2, 3, 4, 5]]
    assert [(one.row, list(one.slots)) for one in media.sources] == [(0, list(range(6))), (1, list(range(6)))]
    assert media.rows == []
    granted, media = step(cache, (Request(0, sound("a"), computed=5), 3), (Request(2, sound("b")), 3))
    assert granted == [3, 3]
    assert [(one.row, list(one.slots)) for one in media.sources] == [(2, list(range(6, 12)))]
    assert step(cache, (Request(2, sound("b"), computed=3), 1))[1] is None


def test_several_towers_encode_at_once() -> None:
    """Each another image; a step holds what the busiest one does, beside the tokens."""
    cache = EncoderCache(100, 8)
    cache.num_towers = 2
    shown = image("a", 0), image("b", 6), image("c", 12, 10)
    expected = [  # computed tokens, tokens of this step, encodings
        (0, 2, [(0, 6, 0), (1, 6, 1)]),  # the second image costs nothing beside the first
        (2, 8, []),
        (10, 2, [(2, 6, 0)]),
        (12, 4, [(2, 10, 0)]),
        (16, 6, []),
    ]
    for computed, count, encoded in expected:
        granted, media = step(cache, (Request(0, *shown, computed=computed), 22 - computed))
        assert granted == [count]
        assert encodings(media) == encoded


def test_an_image_of_another_request_is_encoded_beside_the_first() -> None:
    cache = EncoderCache(100, 8)
    cache.num_towers = 2
    granted, media = step(cache, (Request(0, image("a", 0, 10)), 10), (Request(1, image("b", 0)), 6))
    assert granted == [FULL, FULL]
    assert encodings(media) == [(0, 8, 0), (1, 6, 1)]


def encodings(media: Any) -> list[tuple[int, int, int]]:
    """Of each of a step: its number, how far it gets, and on which tower."""
    return [(one.number, one.done, one.rank) for one in media.encode]
