"""Images and the like in prompts, the engine's half: which features are in the workers' encoder cache. The workers'
half is runner/media.py.

Features are computed in the step that first needs one of them, once for each content, and stay until their slots are
needed for others. A worker runs steps in order, so a slot may be given away as soon as the step that reads it is
scheduled. What an encoder made for an encoder-decoder passes through the same slots: the step that begins a row writes
keys and values of it into the row's own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from tessera.arrays import Array
from tessera.config.modalities import (
    NOUNS,
    computes_whole,
    encoder_length,
    longest_prefix,
    merge_size,
    positions_per_second,
    sees_prompt,
    tokens_around,
)
from tessera.config.sound_encoder import sound_encoder
from tessera.errors import ConfigError, RequestError
from tessera.media.item import MAX_INPUT_BYTES, input_bytes
from tessera.media.positions import AxisPositions
from tessera.media.source_text import TEXT
from tessera.platform.attention import SOURCES
from tessera.platform.feature import EngineFeature, Feature, FeatureCounter, FeatureState
from tessera.platform.launch import RequestView, Resource
from tessera.step import MediaToEncode, RowMedia, RowSources, SchedulerOutput, StepMedia

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.media.placed import PlacedMedia
    from tessera.platform.device import Reason
    from tessera.request import Request

FEATURE = Feature(engine="tessera.features.media:MediaInEngine", worker="tessera.runner.media:MediaInWorker")

SHIFT = "media_shift"
"""The column: what is added to the positions of a row's tokens behind its prompt."""


class MediaInEngine(EngineFeature):
    """Refuses media that do not fit, and tells workers which to encode."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        if option:
            raise ConfigError("The feature media takes no option; use --limit-mm-per-prompt.")
        self._modalities, self._merge = config.model.modalities, merge_size(config.model.checkpoint)
        # Around images, where experts take them for an image's; None where there are no such experts.
        self._around = tokens_around(config.model.checkpoint)
        self._per_second = positions_per_second(config.model.checkpoint)
        # Of an encoder-decoder; 0 of other models.
        self._encoder_length = encoder_length(config.model.checkpoint)
        # Whether it always makes as many positions.
        self._always = sound_encoder(config.model.checkpoint) is None
        most, whole = config.scheduler.max_num_batched_tokens, computes_whole(config.model.checkpoint)
        prefix = sees_prompt(config.model.checkpoint)
        self._cache = EncoderCache(config.encoder_cache_tokens, most, whole=whole, prefix=prefix)
        # Of the tokens of a prompt that see each other; None: any number.
        self._longest = longest_prefix(config.model.checkpoint)
        # Of the tokens of an image.
        self._largest = min(self._cache.size, most) if whole else self._cache.size

    def resources(self) -> Sequence[Resource]:
        return (self._cache,)

    def counters(self) -> Sequence[FeatureCounter]:
        queries, hits = self._cache.queries, self._cache.hits
        return (
            FeatureCounter("mm_cache_queries", "Images and the like looked up in the encoder cache.", queries),
            FeatureCounter("mm_cache_hits", "Images and the like found in the encoder cache.", hits),
        )

    def begin(self, request: Request) -> FeatureState | None:
        if self._longest is not None and request.prompt.size > self._longest:
            raise RequestError(
                f"All tokens of a prompt see each other, which this model's windows allow for up to {self._longest}; "
                f"the prompt has {request.prompt.size}.",
                param="prompt",
            )
        if self._encoder_length and not self._modalities:
            return self._begin_text(request)
        for media in request.media:
            if media.modality not in self._modalities:
                raise RequestError(f"This model takes no {NOUNS[media.modality]}s in a prompt.", param="prompt")
            takes = max(media.end - media.start, media.length)
            if takes > self._largest:
                raise RequestError(
                    f"One of the prompt's {NOUNS[media.modality]}s takes {takes} tokens, and there is room for "
                    f"{self._largest}; make it smaller.",
                    param="prompt",
                )
        if self._encoder_length:
            return self._begin_encoder(request)
        if self._merge is None or not request.media:
            return None
        positions = AxisPositions.from_media(request.prompt.size, request.media, self._merge, self._per_second)
        state = OnAxes(positions, None if self._around is None else _seen(request, self._around))
        self._cache.states[request.key] = state
        return state

    def _begin_encoder(self, request: Request) -> FeatureState:
        (modality,) = self._modalities
        lengths, least = [media.length for media in request.media], self._encoder_length if self._always else 1
        if len(lengths) != 1 or not least <= lengths[0] <= self._encoder_length:
            most = "" if self._always else f" of up to {self._encoder_length} positions"
            raise RequestError(
                f"This model writes what it hears in one {modality}{most}; send one with the prompt.", param="prompt"
            )
        return WithEncoder(lengths[0])

    def _begin_text(self, request: Request) -> FeatureState:
        lengths = [media.length for media in request.media if media.modality == TEXT]
        if len(lengths) != 1 or len(request.media) != 1 or not 1 <= lengths[0] <= self._encoder_length:
            raise RequestError(
                f"This model's encoder reads a text of up to {self._encoder_length} tokens; send one.", param="prompt"
            )
        return WithEncoder(lengths[0])

    def scheduled(self, step: SchedulerOutput, row_of: Callable[[int], int]) -> None:
        step.media = self._cache.take_step(row_of)


class OnAxes(FeatureState):
    """A request whose tokens have positions on several axes. seen [tokens of the prompt] int32: 1 for those that
    experts for images take, if there are such experts."""

    def __init__(self, positions: AxisPositions, seen: Array | None = None) -> None:
        self.positions, self._seen = positions, seen

    def seen(self, start: int, end: int) -> Array | None:
        """Of the row's tokens from start on, behind the prompt too, where all are text."""
        if self._seen is None:
            return None
        known = self._seen[start:end]
        return np.concatenate([known, np.zeros(end - start - len(known), np.int32)])

    def columns(self) -> Mapping[str, float]:
        return {SHIFT: self.positions.shift}


class WithEncoder(FeatureState):
    """A request whose tokens see what an encoder made. length: its positions."""

    def __init__(self, length: int) -> None:
        self.length = length

    def columns(self) -> Mapping[str, float]:
        return {SOURCES: self.length}


class EncoderCache(Resource):
    """The slots of the workers' features. Those unused for the longest time go first. A step encodes only so much, or
    one image that takes more, so that what runs beside it goes on."""

    name = "encoder cache"
    scope = "prompt"

    def __init__(
        self,
        size: int,
        each_step: int,
        step_bytes: int = MAX_INPUT_BYTES,
        *,
        whole: bool = False,
        prefix: bool = False,
    ) -> None:
        # In features.
        self.size = size
        # How many features a step encodes at most, and of how many bytes of the towers' inputs.
        self._each_step, self._step_bytes = each_step, step_bytes
        # Whether a step computes all tokens of an image.
        self._whole = whole
        # Whether it computes all of a prompt, whose tokens see each other; the scheduler then splits none.
        self._prefix = prefix
        # By digest, in the order of last use: [features] int32.
        self._slots: dict[bytes, Array] = {}
        self._free: Array = np.arange(size, dtype=np.int32)
        # By key, of the requests that have them.
        self.states: WeakValueDictionary[int, OnAxes] = WeakValueDictionary()
        # How many images and the like were looked up, and how many of them were there.
        self.queries = self.hits = 0
        # Of the step that is being scheduled: what it reads, and what it must encode first.
        self._reads: list[tuple[RequestView, int, int]] = []
        self._read: set[bytes] = set()
        self._encoded: list[PlacedMedia] = []

    def begin_step(self) -> None:
        self._reads, self._read, self._encoded = [], set(), []

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        if not request.media:
            return num_tokens
        start = request.num_computed_tokens
        read, encoded = set(self._read), sum(media.size for media in self._encoded)
        sent = sum(input_bytes(media.inputs) for media in self._encoded)
        room = self.size - sum(self._slots[digest].size for digest in read)
        for media in _within(request.media, start, start + num_tokens):
            if self._whole and media.end > start + num_tokens:
                return media.start - start if media.start > start else "an image's tokens fit into no step for now"
            if media.digest not in read:
                known, size = media.digest in self._slots, media.size
                room -= size
                encoded += 0 if known else size
                sent += 0 if known else input_bytes(media.inputs)
                first = encoded == size
                too_much = encoded > self._each_step or sent > self._step_bytes
                if room < 0 or (not known and too_much and not first):
                    before = media.start - start
                    return before if before > 0 and not self._prefix else "it is full for now"
                read.add(media.digest)
        return num_tokens

    def take(self, request: RequestView, num_tokens: int) -> None:
        if not request.media and not self._prefix:
            return
        start = request.num_computed_tokens
        end = start + num_tokens
        wanted = _within(request.media, start, end)
        self._read |= {media.digest for media in wanted} & self._slots.keys()
        for media in wanted:
            there = media.digest in self._slots
            if there:
                self._slots[media.digest] = self._slots.pop(media.digest)
            else:
                self._slots[media.digest] = self._allocate(media.size)
                self._read.add(media.digest)
                self._encoded.append(media)
            # The rest of one that a chunk began was looked up with its beginning.
            if media.start >= start or not there:
                self.queries += 1
                self.hits += there
        self._reads.append((request, start, end))

    def release(self, request: RequestView) -> None:
        """Never called: nothing is held from step to step."""

    def take_step(self, row_of: Callable[[int], int]) -> StepMedia | None:
        """What the step reads and encodes; None if nothing."""
        if not self._reads:
            return None
        rows = [self._read_by(row_of(request.key), request, start, end) for request, start, end in self._reads]
        rows = [row for row in rows if row.places.size or row.positions is not None or row.ahead is not None]
        sources = [
            RowSources(row_of(request.key), self._slots[one.digest])
            for request, start, end in self._reads
            for one in _within(request.media, start, end)
            if one.length
        ]
        if not rows and not sources:
            return None
        encode = [MediaToEncode(one.modality, self._slots[one.digest], one.inputs) for one in self._encoded]
        return StepMedia(encode, rows, sources)

    def _read_by(self, row: int, request: RequestView, start: int, end: int) -> RowMedia:
        places, slots = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for one in _within(request.media, start, end):
            first, last = np.searchsorted(one.places, (start, end))
            places.append(one.places[first:last])
            slots.append(self._slots[one.digest][first:last])
        known = self.states.get(request.key)
        positions = None if known is None else known.positions.of_tokens(start, end)
        seen = None if known is None else known.seen(start, end)
        ahead = self._ahead(request, start, end)
        return RowMedia(row, np.concatenate(places), np.concatenate(slots), positions, ahead, seen)

    def _ahead(self, request: RequestView, start: int, end: int) -> Array | None:
        """RowMedia.ahead; None where no token sees one after it."""
        if self._prefix:
            left = min(end, request.num_prompt_tokens) - start
            return np.arange(left - 1, -1, -1, dtype=np.int32) if left > 1 else None
        within = _within(request.media, start, end) if self._whole else []
        if not within:
            return None
        ahead = np.zeros(end - start, np.int32)
        for one in within:
            places = one.places[slice(*np.searchsorted(one.places, (start, end)))]
            ahead[places - start] = one.end - 1 - places
        return ahead

    def _allocate(self, size: int) -> Array:
        while self._free.size < size:
            oldest = next(digest for digest in self._slots if digest not in self._read)
            self._free = np.concatenate([self._free, self._slots.pop(oldest)])
        taken, self._free = self._free[:size], self._free[size:]
        return taken


def _seen(request: Request, around: Sequence[int]) -> Array:
    """OnAxes.seen of a prompt. around: tokens that count as an image's."""
    seen = np.isin(request.prompt, around).astype(np.int32)
    for media in request.media:
        seen[media.places] = 1
    return seen


def _within(media: Sequence[PlacedMedia], start: int, end: int) -> list[PlacedMedia]:
    """Those with a place from start on and before end, as far as the first and the last of their places say."""
    return [one for one in media if one.start < end and one.end > start]
