"""What the processors of models make of images: the names, shapes, dtypes and tokens of their own (transformers'
processing_*.py and image_processing_*.py), for tiny models, with random pixels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

from tessera.arrays import Array
from tessera.config.tiled_encoder import TiledEncoder
from tessera.media.placed import PlacedMedia
from tessera.media.placement import TILES_SHOWN
from tools.parity.family import SIZES
from tools.parity.images import Image, in_a_row, pixels, side_by_side

TOKEN = SIZES["vocab_size"] - 1
"""That which stands for a feature."""
_BREAK, _BEGIN, _END, _TILE = 11, 12, 13, 14
"""Tokens around those that stand for features."""


def square(size: int, features: int) -> Callable[[random.Random, int], Image]:
    """An image whose size is always the same."""
    return lambda draw, number: Image([TOKEN] * features, {"pixel_values": pixels(draw, 1, 3, size, size)})


def _whole(*numbers: int) -> Array:
    """[1, numbers] int64."""
    return np.array([numbers], np.int64)


def in_rows(draw: random.Random, number: int) -> Image:
    """Of Pixtral: each row of features ends with a token of its own. The tower joins 2 by 2 patches of 5 by 5."""
    rows, columns = ((2, 3), (1, 2), (3, 2), (2, 1))[number]
    tokens = [*[*[TOKEN] * columns, _BREAK] * rows]
    tokens[-1] = _END
    height, width = 10 * rows, 10 * columns
    return Image(tokens, {"pixel_values": pixels(draw, 1, 3, height, width), "image_sizes": _whole(height, width)})


def without_rows(draw: random.Random, number: int) -> Image:
    image = in_rows(draw, number)
    return Image([token for token in image.tokens if token == TOKEN], image.inputs)


def in_frames(draw: random.Random, number: int) -> Image:
    """Of Idefics 3: parts of an image and then the whole, each behind tokens of its own, or the whole alone."""
    columns = (2, 0, 0, 2)[number]
    part = [_BEGIN, _TILE, *[TOKEN] * 4]
    tokens = [*part * columns, *[_BREAK] * 2 * bool(columns), _BEGIN, _BREAK, *[TOKEN] * 4, _BEGIN]
    shape = columns + 1, 20, 20
    inputs = {
        "pixel_values": pixels(draw, 1, shape[0], 3, *shape[1:]),
        "pixel_attention_mask": np.ones((1, *shape), np.int64),
    }
    return Image(tokens, inputs)


def in_tiles(draw: random.Random, number: int) -> Image:
    """Of InternVL: parts of an image and then the whole, or the whole alone."""
    count = (3, 1)[number % 2]
    tokens = [_BEGIN, *[TOKEN] * 4 * count, _END]
    return Image(tokens, {"pixel_values": pixels(draw, count, 3, 20, 20)})


_ANYRES = (((10, 20), 3, 14), ((10, 10), 3, 10), ((9, 9), 3, 10), ((20, 20), 5, 24))
"""Size; parts of 10 by 10, of which the first is the whole; features, of 2 by 2 for each part, without those of padding
and with one behind each row."""
PINPOINTS = [[10, 20], [20, 10], [20, 20]]


def anyres(draw: random.Random, number: int) -> Image:
    """Of LLaVA-NeXT."""
    size, parts, features = _ANYRES[number]
    return Image([TOKEN] * features, {"pixel_values": pixels(draw, 1, parts, 3, 10, 10), "image_sizes": _whole(*size)})


def anyres_shrunk(draw: random.Random, number: int) -> Image:
    """Of LLaVA-OneVision: of the last one there are more features than vision_aspect_ratio allows."""
    image = anyres(draw, number)
    tokens = [TOKEN] * min(len(image.tokens), 14 if number < 3 else 10)
    return Image(tokens, {**image.inputs, "batch_num_images": np.array([1], np.int64)})


def twice(sizes: list[list[int]]) -> list[list[int]]:
    return [[2 * side for side in size] for size in sizes]


def anyres_twice(draw: random.Random, number: int) -> Image:
    """As anyres(), where 4 by 4 patches make 2 by 2 features."""
    size, parts, features = _ANYRES[number]
    inputs = {
        "pixel_values": pixels(draw, 1, parts, 3, 20, 20),
        "image_sizes": _whole(*(2 * side for side in size)),
    }
    return Image([TOKEN] * features, inputs)


def whole_among(image: Image, count: int) -> Image:
    """Several images of a prompt are seen as wholes alone, with one token behind each."""
    if count == 1:
        return image
    return Image([TOKEN] * 5, {**image.inputs, "batch_num_images": np.array([count], np.int64)})


def in_separated_tiles(draw: random.Random, number: int) -> Image:
    """Of Llama 4."""
    columns = (2, 0, 0, 2)[number]
    tiles = [*chain.from_iterable([*[TOKEN] * 4, _TILE] for _ in range(columns))]
    tokens = [_BEGIN, *tiles, _BREAK, *[TOKEN] * 4, _END]
    return Image(tokens, {"pixel_values": pixels(draw, columns + 1, 3, 20, 20)})


def in_patches(draw: random.Random, number: int) -> Image:
    """Of LFM2-VL: one row for each patch, and rows of padding; two tiles and the whole, or the whole alone."""
    whole = ((2, 6), (4, 4), (4, 2), (2, 4))[number]
    shapes = [(4, 4), (4, 4), whole] if number == 0 else [whole]
    tokens = [_BEGIN]
    for rows, columns in shapes:
        tokens += [_TILE] * (len(shapes) > 1) + [TOKEN] * (rows * columns // 4)
    values, mask = np.zeros((len(shapes), 20, 75), np.float32), np.zeros((len(shapes), 20), np.int32)
    for tile, (rows, columns) in enumerate(shapes):
        values[tile, : rows * columns] = pixels(draw, rows * columns, 75)
        mask[tile, : rows * columns] = 1
    inputs: dict[str, Array] = {
        "pixel_values": values,
        "spatial_shapes": np.array(shapes, np.int64),
        "pixel_attention_mask": mask,
    }
    return Image([*tokens, _END], inputs)


def by_patch(draw: random.Random, number: int) -> Image:
    """Of Kimi K2.5."""
    rows, columns = ((4, 6), (2, 4), (6, 4), (2, 2))[number]
    inputs = {"pixel_values": pixels(draw, rows * columns, 3, 5, 5), "image_grid_thw": _whole(1, rows, columns)}
    return Image([TOKEN] * (rows * columns // 4), inputs)


def with_mask(draw: random.Random, number: int) -> Image:
    """Of Idefics 2: a few features of an image of any size."""
    shape = ((20, 15), (15, 20), (20, 20), (10, 20))[number]
    inputs = {
        "pixel_values": pixels(draw, 1, 1, 3, *shape),
        "pixel_attention_mask": np.ones((1, 1, *shape), np.int64),
    }
    return Image([_BEGIN, *[TOKEN] * 4, _BEGIN], inputs)


def _padded_side_by_side(arrays: Sequence[Array]) -> Array:
    return in_a_row([array[0] for array in arrays])[None]


FRAMES = dict.fromkeys(("pixel_values", "pixel_attention_mask"), side_by_side)
PADDED = dict.fromkeys(("pixel_values", "pixel_attention_mask"), _padded_side_by_side)


def square_between(size: int, features: int) -> Callable[[random.Random, int], Image]:
    """An image whose size is always the same, with a token at both ends."""
    return lambda draw, number: Image(
        [_BEGIN, *[TOKEN] * features, _END], {"pixel_values": pixels(draw, 1, 3, size, size)}
    )


def in_slices(draw: random.Random, number: int) -> Image:
    """Of MiniCPM-V: the whole and its slices, patch behind patch in one row of pixels; 4 by 4 patches of 5 by 5 make a
    feature."""
    shapes = (((4, 8), (8, 4), (8, 4)), ((8, 8),), ((4, 4),), ((4, 8), (4, 4), (4, 4)))[number]
    tokens = []
    for rows, columns in shapes:
        tokens += [_BEGIN, *[TOKEN] * (rows * columns // 16), _END]
    count = sum(rows * columns for rows, columns in shapes)
    return Image(tokens, {"pixel_values": pixels(draw, 1, 3, 5, 5 * count), "target_sizes": np.array(shapes, np.int32)})


def on_grid(values: int) -> Callable[[random.Random, int], Image]:
    """Of Qwen's processors: a row of so many values for each patch; 2 by 2 of them make a feature."""

    def make(draw: random.Random, number: int) -> Image:
        rows, columns = ((4, 6), (2, 4), (6, 4), (2, 2))[number]
        inputs = {"pixel_values": pixels(draw, rows * columns, values), "image_grid_thw": _whole(1, rows, columns)}
        return Image([TOKEN] * (rows * columns // 4), inputs)

    return make


def on_merged_grid(draw: random.Random, number: int) -> Image:
    """Of VideoLLaMA 3, whose processor says how many patches make a feature: 1 of an image."""
    rows, columns = ((2, 4), (1, 3), (3, 2), (2, 2))[number]
    inputs = {
        "pixel_values": pixels(draw, rows * columns, 75),
        "image_grid_thw": _whole(1, rows, columns),
        "image_merge_sizes": np.array([1], np.int64),
    }
    return Image([TOKEN] * (rows * columns), inputs)


def in_numbered_tiles(draw: random.Random, number: int) -> Image:
    """Of Aya Vision: a token ahead of each part, and the whole last."""
    count = (3, 1, 1, 3)[number]
    tokens = [_BEGIN, *[_TILE, *[TOKEN] * 4] * count, _END]
    return Image(tokens, {"pixel_values": pixels(draw, count, 3, 20, 20)})


def in_ended_tiles(draw: random.Random, number: int) -> Image:
    """Of Command A Vision: a token behind each part."""
    image = in_numbered_tiles(draw, number)
    tiles = [*[TOKEN] * 4, _BREAK] * len(image.inputs["pixel_values"])
    return Image([_BEGIN, *tiles, _END], image.inputs)


def with_edges(draw: random.Random, number: int) -> Image:
    """Of Aria: parts of an image on black squares, and which pixels are its own."""
    count = (2, 1, 1, 2)[number]
    mask = np.zeros((count, 20, 20), bool)
    mask[:, : 20 - 5 * (number % 3), : 20 - 3 * number] = True
    values = pixels(draw, count, 3, 20, 20) * mask[:, None]
    return Image([TOKEN] * 5 * count, {"pixel_values": values, "pixel_mask": mask})


def at_two_sizes(draw: random.Random, number: int) -> Image:
    """Of DeepSeek-VL 7B."""
    inputs = {"pixel_values": pixels(draw, 1, 3, 15, 15), "high_res_pixel_values": pixels(draw, 1, 3, 48, 48)}
    return Image([TOKEN] * 9, inputs)


def end_to_end(arrays: Sequence[Array]) -> Array:
    """Along the last dimension."""
    return np.concatenate(arrays, axis=-1)


def in_views(
    whole: tuple[int, int], local: tuple[int, int], counts: Sequence[int] = (2, 0, 3, 0)
) -> Callable[[random.Random, int], Image]:
    """Of processors that make the parts of an image an input of their own: the features of some parts, which small
    images do not have, and then those of the whole. whole, local: the size of a view, and its features. counts: of
    parts."""

    def make(draw: random.Random, number: int) -> Image:
        parts, (size, features), (side, each) = counts[number], whole, local
        inputs = {"pixel_values": pixels(draw, 1, 3, size, size), "num_local_patches": np.array([parts], np.int64)}
        if parts:
            inputs["pixel_values_local"] = pixels(draw, parts, 3, side, side)
        return Image([*[_BEGIN, *[TOKEN] * each, _END] * parts, _TILE, *[TOKEN] * features], inputs)

    return make


def in_masked_tiles(draw: random.Random, number: int) -> Image:
    """Of Granite Docling: tiles in rows and then the whole, and which of the tiles there are."""
    count = (2, 1, 1, 2)[number]
    tokens = [_BEGIN, *[_TILE, *[TOKEN] * 4] * count, _END]
    inputs: dict[str, Array] = {
        "pixel_values": pixels(draw, 1, count, 3, 40, 40),
        "pixel_attention_mask": np.ones((1, count), bool),
    }
    return Image(tokens, inputs)


def on_flat_grid(draw: random.Random, number: int) -> Image:
    """Of Nemotron Omni: as on_grid(), of images alone."""
    image = on_grid(75)(draw, number)
    inputs = {**image.inputs, "image_grid_hw": image.inputs["image_grid_thw"][:, 1:]}
    del inputs["image_grid_thw"]
    return Image([_BEGIN, *image.tokens, _END], inputs)


def in_lines(draw: random.Random, number: int) -> Image:
    """Of Emu3: 2 by 2 pixels make a token, and each line ends with one. All have one size, as the tower sees what pads
    the smaller images of a prompt."""
    rows, columns = 2, 3
    inputs = {"pixel_values": pixels(draw, 1, 3, 2 * rows, 2 * columns), "image_sizes": _whole(2 * rows, 2 * columns)}
    return Image([_BEGIN, *[TOKEN] * (rows * (columns + 1)), _END], inputs)


MARKS = tuple(range(TOKEN - 5, TOKEN))
"""Of Ovis2: the tokens at the beginning of an image, ahead of its parts, between two in a row, between rows, and at its
end."""


def in_marked_tiles(draw: random.Random, number: int) -> Image:
    """Of Ovis2: the whole, and then two parts in a row, or none."""
    start, grid, column, _, end = MARKS
    parts = (2, 0, 0, 2)[number]
    each = [TOKEN] * 4
    tokens = [start, *each, grid, *([*each, column, *each] if parts else []), end]
    inputs = {"pixel_values": pixels(draw, parts + 1, 3, 20, 20), "image_tokens": np.array(tokens, np.int64)}
    return Image(tokens, inputs)


def in_padded_patches(values: int, pooled: int) -> Callable[[random.Random, int], Image]:
    """Of Gemma 4: as many patches for each image, the last ones of which pad, and each one's place. values: of a patch.
    pooled: so many times as many of them, in height and in width, make a feature."""

    def make(draw: random.Random, number: int) -> Image:
        rows, columns = ((2, 3), (1, 2), (3, 2), (2, 1))[number]
        places = [[x, y] for y in range(rows * pooled) for x in range(columns * pooled)]
        count, most = len(places), 8 * pooled**2
        patches = np.zeros((1, most, values), np.float32)
        patches[0, :count] = pixels(draw, count, values)
        inputs: dict[str, Array] = {
            "pixel_values": patches,
            "image_position_ids": np.array([[*places, *[[-1, -1]] * (most - count)]], np.int64),
        }
        return Image([_BEGIN, *[TOKEN] * (rows * columns), _END], inputs)

    return make


TILED = TiledEncoder(tiles=4, positions=10)
"""Of Llama 3.2 Vision's tiny model: 3 by 3 patches of a tile, and one position more."""
SEEN = SIZES["vocab_size"]
"""The token of an image that tokens see, which is none of those that are written."""


def in_seen_tiles(draw: random.Random, number: int) -> Image:
    """Of Llama 3.2 Vision: tiles of which the last ones may be empty; aspect ratios count from 1."""
    tiles, ratio = ((1, 1), (2, 5), (4, 6), (3, 7))[number]
    values = pixels(draw, 1, 1, 4, 3, 15, 15)
    values[:, :, tiles:] = 0.0
    shown = np.arange(4)[None, None] < tiles
    inputs = {"pixel_values": values, "aspect_ratio_ids": np.array([[ratio]]), TILES_SHOWN: shown.astype(np.int64)}
    return Image([SEEN], inputs, tiled=TILED)


def seen_from(media: Sequence[PlacedMedia], length: int, prompt: int) -> dict[str, Array]:
    """The mask of cross attention that transformers' processor makes of a prompt, and its code of an answer."""
    ids = np.zeros(prompt, np.int64)
    ids[[one.token for one in media]] = SEEN
    tiles = [int(one.inputs[TILES_SHOWN].sum()) for one in media]
    ranges = get_cross_attention_token_mask(ids.tolist(), SEEN)
    mask = convert_sparse_cross_attention_mask_to_dense([ranges], [tiles], TILED.tiles, prompt)
    answer = np.repeat(mask[:, -1:], length - prompt, axis=1)
    return {"cross_attention_mask": np.concatenate([mask, answer], axis=1)}
