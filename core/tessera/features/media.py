"""Images and the like in prompts, the engine's half: which features are in the workers' encoder cache. The workers'
half is runner/media.py.

Features are computed once for each content, in the steps before their tokens or with them, and stay until their slots
are needed for others. A worker runs steps in order, so a slot may be given away as soon as the step that reads it is
scheduled. What tokens see through cross attention passes through the same slots: the step that begins a row writes
keys and values of it into the row's own blocks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
from tessera.config.tiled_encoder import TiledEncoder, tiled_encoder
from tessera.errors import ConfigError, RequestError
from tessera.features.encoding_cost import EncodingCost
from tessera.media.item import MAX_INPUT_BYTES, input_bytes
from tessera.media.positions import AxisPositions
from tessera.media.ranges import SeenRanges
from tessera.media.source_text import TEXT
from tessera.platform.attention import SOURCES
from tessera.platform.feature import EngineFeature, Feature, FeatureCounter, FeatureState
from tessera.platform.launch import RequestView, Resource
from tessera.step import MediaToEncode, RowMedia, RowSources, SchedulerOutput, StepMedia

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.media.placed import PlacedMedia
    from tessera.platform.device import Reason
    from tessera.platform.loaded_model import LoadedModel
    from tessera.request import Request

FEATURE = Feature(engine="tessera.features.media:MediaInEngine", worker="tessera.runner.media:media_in_worker")

SHIFT = "media_shift"
"""The column: what is added to the positions of a row's tokens behind its prompt."""
LAST_FIRST, LAST_NUMBER = "last_first_source", "last_num_sources"
"""The columns: the range of its positions that a row's tokens behind its prompt see through cross attention."""


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
        # Of a type whose tokens see images through cross attention.
        self._tiled, self._most_sources = tiled_encoder(config.model.checkpoint), config.model.most_sources
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

    def started(self, loaded: LoadedModel) -> None:
        self._cache.num_towers = loaded.num_towers

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
        if not request.media:
            return None
        if self._tiled is not None:
            return self._begin_images(request, self._tiled)
        if self._merge is None:
            return WithMedia(self._cache, request)
        positions = AxisPositions.from_media(request.prompt.size, request.media, self._merge, self._per_second)
        seen = None if self._around is None else _seen(request, self._around)
        state = OnAxes(self._cache, request, positions, seen)
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
        return WithEncoder(self._cache, request, lengths[0])

    def _begin_images(self, request: Request, tiled: TiledEncoder) -> FeatureState:
        if len(request.media) * tiled.length > self._most_sources:
            raise RequestError(
                f"A prompt has up to {self._most_sources // tiled.length} images (--limit-mm-per-prompt); this one has "
                f"{len(request.media)}.",
                param="prompt",
            )
        if any(one.length != tiled.length or not 1 <= one.num_shown <= one.length for one in request.media):
            raise RequestError(f"An image of this model has {tiled.length} positions.", param="prompt")
        state = WithImages(self._cache, request)
        self._cache.ranges[request.key] = state.ranges
        return state

    def _begin_text(self, request: Request) -> FeatureState:
        lengths = [media.length for media in request.media if media.modality == TEXT]
        if len(lengths) != 1 or len(request.media) != 1 or not 1 <= lengths[0] <= self._encoder_length:
            raise RequestError(
                f"This model's encoder reads a text of up to {self._encoder_length} tokens; send one.", param="prompt"
            )
        return WithEncoder(self._cache, request, lengths[0])

    def scheduled(self, step: SchedulerOutput, row_of: Callable[[int], int]) -> None:
        step.media = self._cache.take_step(row_of)

    def retired(self, seconds: float, num_tokens: int) -> None:
        self._cache.retired(seconds, num_tokens)


class WithMedia(FeatureState):
    """A request with images or the like."""

    def __init__(self, cache: EncoderCache, request: Request) -> None:
        self._cache, self._request = cache, request

    def ended(self) -> None:
        self._cache.ended(self._request)


class OnAxes(WithMedia):
    """A request whose tokens have positions on several axes. seen [tokens of the prompt] int32: 1 for those that
    experts for images take, if there are such experts."""

    def __init__(
        self, cache: EncoderCache, request: Request, positions: AxisPositions, seen: Array | None = None
    ) -> None:
        super().__init__(cache, request)
        self.positions, self._seen = positions, seen

    def seen(self, start: int, end: int) -> Array | None:
        """Of the row's tokens from start on, behind the prompt too, where all are text."""
        if self._seen is None:
            return None
        known = self._seen[start:end]
        return np.concatenate([known, np.zeros(end - start - len(known), np.int32)])

    def columns(self) -> Mapping[str, float]:
        return {SHIFT: self.positions.shift}


class WithEncoder(WithMedia):
    """A request whose tokens see what an encoder made. length: its positions."""

    def __init__(self, cache: EncoderCache, request: Request, length: int) -> None:
        super().__init__(cache, request)
        self.length = length

    def columns(self) -> Mapping[str, float]:
        return {SOURCES: self.length}


class WithImages(WithEncoder):
    """A request whose tokens see images through cross attention."""

    def __init__(self, cache: EncoderCache, request: Request) -> None:
        super().__init__(cache, request, sum(media.length for media in request.media))
        self.ranges = SeenRanges.from_media(request.prompt.size, request.media)

    def columns(self) -> Mapping[str, float]:
        first, number, _ = self.ranges.last.tolist()
        return {**super().columns(), LAST_FIRST: first, LAST_NUMBER: number}


@dataclass
class _Encoding:
    """One that is not done."""

    # MediaToEncode.number
    number: int
    # MediaToEncode.rank
    rank: int
    # Of what it reads.
    modality: str
    # Its features.
    size: int
    # MediaToEncode.done, of the last step that has a part of it.
    done: int = 0
    # Whether the workers have its inputs.
    sent: bool = False
    # Keys of the requests that want it.
    waiting: set[int] = field(default_factory=set)


class EncoderCache(Resource):
    """The slots of the workers' features. Those unused for the longest time go first.

    An image is encoded for those who want it, in the order in which they ask. A step has room for as much work as the
    tokens that it may compute: what prompts compute, and what is encoded for them, each feature being as much as
    several tokens. So the steps of an image hold what runs beside it no longer than those of a long prompt do.
    Several towers encode at once, each another image: what counts then is what the busiest one does.
    """

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
        # How much a step computes and encodes at most, and the bytes of the towers' inputs that it sends.
        self._each_step, self._step_bytes = each_step, step_bytes
        # LoadedModel.num_towers
        self.num_towers = 1
        # Whether a step computes all tokens of an image.
        self._whole = whole
        # Whether it computes all of a prompt, whose tokens see each other; the scheduler then splits none.
        self._prefix = prefix
        self._cost = EncodingCost(each_step)
        # What each step in flight encodes on its busiest tower, the oldest first: a modality, if it is only one, and
        # features.
        self._in_flight: deque[tuple[str | None, int]] = deque()
        # By digest, in the order of last use: [features] int32.
        self._slots: dict[bytes, Array] = {}
        self._free: Array = np.arange(size, dtype=np.int32)
        # By digest, those of which there is still work to do.
        self._encodings: dict[bytes, _Encoding] = {}
        # By digest, whose need began an encoding: the request's key, until it has read it.
        self._owners: dict[bytes, int] = {}
        # How many were begun.
        self._begun = 0
        # Numbers of those that nobody goes on with, of which the workers do not know yet.
        self._dropped: list[int] = []
        # By key, of the requests that have them.
        self.states: dict[int, OnAxes] = {}
        self.ranges: dict[int, SeenRanges] = {}
        # How many images and the like were looked up, and how many of them were there.
        self.queries = self.hits = 0
        self.begin_step()

    def begin_step(self) -> None:
        # Of the step that is being scheduled: what its tokens leave of what it has room for, how much work each tower
        # does, in tokens, how many features of each modality it encodes, what of it is sent, what it reads, whose slots
        # must stay, and what it encodes.
        self._budget, self._sent = self._each_step, 0
        self._encoded = [0] * self.num_towers
        self._features: list[Counter[str]] = [Counter() for _ in range(self.num_towers)]
        self._reads: list[tuple[RequestView, int, int]] = []
        self._used: set[bytes] = set()
        self._parts: dict[bytes, MediaToEncode] = {}

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        at = start = request.num_computed_tokens
        end, left, encoded = start + num_tokens, self._budget, [*self._encoded]
        used, sent, room = set(self._used), self._sent, self._room
        for media in _within(request.media, start, end):
            before = max(media.start - at, 0)
            if before > left - max(encoded):
                break
            at, left = at + before, left - before
            work, size, begun = self._work(media), media.size, media.digest in self._slots
            encoded[self._rank(media, encoded)] += work
            if media.digest not in used:
                used.add(media.digest)
                room -= size
                sent += 0 if begun else input_bytes(media.inputs)
            tokens = media.end - at if self._whole else 0
            most = max(encoded)
            if room < 0 or most + tokens > left or (not begun and self._too_much(media, sent)) or at + tokens > end:
                left = most
                break
        count = at - start + min(end - at, left - max(encoded))
        if not count or (self._prefix and count < num_tokens):
            return "it is full for now"
        return count

    def take(self, request: RequestView, num_tokens: int) -> None:
        start, self._budget = request.num_computed_tokens, self._budget - num_tokens
        if not request.media and not self._prefix:
            return
        end = start + num_tokens
        self._encode_from(request, start, end)
        for media in _within(request.media, start, end):
            if media.start >= start:  # the rest of one that a chunk began was looked up with its beginning
                self._look_up(request, media)
        self._reads.append((request, start, end))

    def prepare(self, request: RequestView) -> bool:
        before, start = sum(self._encoded), request.num_computed_tokens
        self._encode_from(request, start, max((one.end for one in request.media), default=start))
        return sum(self._encoded) > before

    def release(self, request: RequestView) -> None:
        """Never called: nothing is held from step to step."""

    def ended(self, request: Request) -> None:
        """Drops what was being encoded for it alone."""
        self.states.pop(request.key, None)
        self.ranges.pop(request.key, None)
        for media in request.media:
            if self._owners.get(media.digest) == request.key:
                del self._owners[media.digest]
            encoding = self._encodings.get(media.digest)
            if encoding is not None:
                encoding.waiting.discard(request.key)
                if not encoding.waiting:
                    self._give_back(media.digest)

    def take_step(self, row_of: Callable[[int], int]) -> StepMedia | None:
        """What the step reads and encodes; None if nothing."""
        busiest = self._features[self._encoded.index(max(self._encoded))]
        self._in_flight.append((next(iter(busiest)) if len(busiest) == 1 else None, busiest.total()))
        rows = [self._read_by(row_of(request.key), request, start, end) for request, start, end in self._reads]
        rows = [row for row in rows if not row.is_plain]
        sources = [
            RowSources(row_of(request.key), self._sources_of(request.media))
            for request, start, _ in self._reads
            if start == 0 and any(one.length for one in request.media)
        ]
        if not (rows or sources or self._parts or self._dropped):
            return None
        dropped, self._dropped = self._dropped, []
        return StepMedia([*self._parts.values()], rows, sources, dropped)

    def retired(self, seconds: float, num_tokens: int) -> None:
        """Of the oldest step that was taken."""
        self._cost.learn(seconds, num_tokens, *self._in_flight.popleft())

    # ---- encoding ----------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Slots of which the step uses none yet."""
        return self.size - sum(self._slots[digest].size for digest in self._used)

    def _work(self, media: PlacedMedia) -> int:
        """How much of it is still to be encoded, in tokens."""
        encoding, cost = self._encodings.get(media.digest), self._cost.tokens(media.modality)
        if encoding is not None:
            return (media.size - encoding.done) * cost
        return 0 if media.digest in self._slots else media.size * cost

    def _rank(self, media: PlacedMedia, encoded: Sequence[int]) -> int:
        """The tower that encodes it: for one that nobody has begun, the one with the least to do. encoded: by rank,
        work in this step."""
        encoding = self._encodings.get(media.digest)
        if encoding is not None:
            return encoding.rank
        work = [*encoded]
        for other in self._encodings.values():
            work[other.rank] += (other.size - other.done) * self._cost.tokens(other.modality)
        return work.index(min(work))

    def _too_much(self, media: PlacedMedia, sent: int) -> bool:
        """Whether a step cannot send so many bytes. It sends any number if they are those of one image."""
        return sent > max(self._step_bytes, input_bytes(media.inputs))

    def _encode_from(self, request: RequestView, start: int, end: int) -> None:
        """Encodes what tokens from start on stand for, as far as end in order, and what is behind that only where it
        takes no tower longer than the busiest one."""
        ahead = False
        for media in request.media:
            if media.end <= start:
                continue
            ahead = ahead or media.start > end
            if ahead and self.num_towers == 1:
                break
            complete = self._encode(request, media, max(self._encoded) if ahead else self._budget)
            ahead = ahead or not complete

    def _encode(self, request: RequestView, media: PlacedMedia, room: int) -> bool:
        """Encodes as much of it as the step has room for, up to so much work on its tower, in tokens. Whether there is
        then no more to do."""
        digest, cost = media.digest, self._cost.tokens(media.modality)
        if digest in self._slots:
            self._slots[digest] = self._slots.pop(digest)
        elif not self._begin(request, media, room - cost):
            return False
        self._used.add(digest)
        encoding = self._encodings.get(digest)
        if encoding is None:
            return True
        encoding.waiting.add(request.key)
        part = min(media.size - encoding.done, (room - self._encoded[encoding.rank]) // cost)
        if part > 0:
            self._encoded[encoding.rank] += part * cost
            self._features[encoding.rank][media.modality] += part
            encoding.done += part
            if digest not in self._parts:
                inputs, slots = {} if encoding.sent else media.inputs, self._slots[digest]
                self._parts[digest] = MediaToEncode(media.modality, slots, inputs, encoding.number, 0, encoding.rank)
                encoding.sent = True
            self._parts[digest].done = encoding.done
        if encoding.done < media.size:
            return False
        del self._encodings[digest]
        return True

    def _begin(self, request: RequestView, media: PlacedMedia, max_work: int) -> bool:
        """Gives it slots, if the step may begin with it. max_work: of its tower, with which it may."""
        sent, rank = self._sent + input_bytes(media.inputs), self._rank(media, self._encoded)
        if self._encoded[rank] > max_work or self._too_much(media, sent) or media.size > self._room:
            return False
        self._sent = sent
        self._slots[media.digest] = self._allocate(media.size)
        self._encodings[media.digest] = _Encoding(self._begun, rank, media.modality, media.size)
        self._owners[media.digest] = request.key
        self._begun += 1
        self.queries += 1
        return True

    def _look_up(self, request: RequestView, media: PlacedMedia) -> None:
        """Counts an image that a request reads and that another one had encoded; its own was counted then."""
        if self._owners.get(media.digest) == request.key:
            del self._owners[media.digest]
        else:
            self.queries += 1
            self.hits += 1

    def _allocate(self, size: int) -> Array:
        while self._free.size < size:
            self._give_back(next(digest for digest in self._slots if digest not in self._used))
        taken, self._free = self._free[:size], self._free[size:]
        return taken

    def _give_back(self, digest: bytes) -> None:
        self._free = np.concatenate([self._free, self._slots.pop(digest)])
        self._owners.pop(digest, None)
        encoding = self._encodings.pop(digest, None)
        if encoding is not None:
            self._dropped.append(encoding.number)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _sources_of(self, media: Sequence[PlacedMedia]) -> Array:
        """The slots of what a row's tokens see, as SeenRanges orders it."""
        slots = [(self._slots[one.digest], one.num_shown or one.length) for one in media]
        return np.concatenate([*(own[:shown] for own, shown in slots), *(own[shown:] for own, shown in slots)])

    def _read_by(self, row: int, request: RequestView, start: int, end: int) -> RowMedia:
        places, slots = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for one in _within(request.media, start, end):
            if one.length:
                continue
            first, last = np.searchsorted(one.places, (start, end))
            places.append(one.places[first:last])
            slots.append(self._slots[one.digest][first:last])
        known = self.states.get(request.key)
        positions = None if known is None else known.positions.of_tokens(start, end)
        seen = None if known is None else known.seen(start, end)
        ahead, ranges = self._ahead(request, start, end), self.ranges.get(request.key)
        seen_ranges = None if ranges is None else ranges.of_tokens(start, end)
        return RowMedia(row, np.concatenate(places), np.concatenate(slots), positions, ahead, seen, seen_ranges)

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


def _seen(request: Request, around: Sequence[int]) -> Array:
    """OnAxes.seen of a prompt. around: tokens that count as an image's."""
    seen = np.isin(request.prompt, around).astype(np.int32)
    for media in request.media:
        seen[media.places] = 1
    return seen


def _within(media: Sequence[PlacedMedia], start: int, end: int) -> list[PlacedMedia]:
    """Those with a place from start on and before end, as far as the first and the last of their places say."""
    return [one for one in media if one.start < end and one.end > start]
