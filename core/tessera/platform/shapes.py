"""How steps are split into launches, and what shapes these have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from tessera.arrays import Array
from tessera.errors import PlatformError
from tessera.platform.launch import Kind, LaunchKey, StepRules

if TYPE_CHECKING:
    from tessera.config import EngineConfig


@dataclass(frozen=True)
class StepShape:
    """The rows of a step, decode rows first. query_lens [R]: tokens to compute; of a decode row 1, or more with drafts,
    and then all rows are decode rows. seq_lens [R]: tokens in the cache afterwards. blocks [R]: blocks in the cache
    group that needs the most. All int32, on the host."""

    num_decode: int
    query_lens: Array
    seq_lens: Array
    blocks: Array
    bits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LaunchShape:
    """Rows first to last - 1 of a step, in one launch. stride: tokens between the starts of two rows; 0: no gaps."""

    key: LaunchKey
    first: int
    last: int
    stride: int = 0


class ShapePolicy(ABC):
    """The only place that splits a step into launches or pads one.

    max_decode_tokens: the most tokens that a decode row may have in a launch; None is no limit. With the default of 1,
    core refuses to start with speculative decoding. Rows with more than one token need launches of kind "verify", and a
    policy that pads lists their keys: EngineConfig.scheduler.max_decode_tokens says how wide they are.
    """

    max_decode_tokens: int | None = 1

    @abstractmethod
    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        """Splits a step into launches and gives the shape that each is padded to. Every row is in exactly one launch,
        in the order of the step. A launch that holds a decode row of several tokens is of kind "verify". Where
        Capabilities.static_shapes, every launch has one of keys()."""

    def rules(self) -> StepRules:
        """What the scheduler may put into one step. Asked in the engine's process. Default: StepRules(), which forbids
        nothing."""
        return StepRules()

    @abstractmethod
    def keys(self) -> Sequence[LaunchKey]:
        """The shapes that launches are padded to, without bits (core adds those of the enabled features). Warm-up runs
        through them, and graph runners capture them. A launch in which tokens alone are padded may have that of
        pieces_key() among them instead. Empty if nothing is padded."""


class ExactShapes(ShapePolicy):
    """One launch per step, of exactly its shape."""

    max_decode_tokens = None

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        rows, tokens = len(step.query_lens), int(step.query_lens.sum())
        kind: Kind = "mixed" if step.num_decode else "prefill"
        if rows == step.num_decode:
            kind = "decode" if tokens == rows else "verify"
        width = 1 if kind == "decode" else int(step.query_lens.max())
        key = LaunchKey(kind, rows, width, int(step.blocks.max()), tokens, step.bits)
        return [LaunchShape(key, 0, rows)]

    def keys(self) -> Sequence[LaunchKey]:
        return ()


@dataclass(frozen=True)
class BucketedShapes(ShapePolicy):
    """Launches of a few shapes, given as data: each launch gets the smallest that holds it. All sequences are sorted,
    smallest first."""

    # numbers of rows in launches that decode; a step with more rows than the largest is divided
    decode_rows: Sequence[int]
    # numbers of tokens of a prompt in a launch; empty: launches with prompts hold all rows of a step and have their
    # exact shape, as on devices that capture decode launches alone
    prompt_tokens: Sequence[int] = ()
    # rows in a launch with prompts; such launches are rectangles apart from decode rows, each prompt padded to the
    # width
    prompt_rows: int = 1
    # whether the rows of a step, decode rows too, lie behind one another instead, up to prompt_rows of them in a
    # launch, and prompt_tokens are numbers of tokens of a launch
    packed: bool = False
    # columns of block tables; the last must be enough for the longest request
    blocks: Sequence[int] = (1,)
    # where prompt_tokens is empty, numbers of tokens that launches with prompts are padded to, their rows and block
    # tables remaining exact; those with more tokens have their exact shape
    mixed_tokens: Sequence[int] = ()
    # tokens of a decode row; launches that verify drafts have this many for each row
    max_decode_tokens: int = 1
    # tokens: prompts may be split at multiples
    chunk_multiple: int = 1

    @classmethod
    def doubling(
        cls, config: EngineConfig, block_size: int, prompt_tokens: Sequence[int], fewest_blocks: int = 1
    ) -> Self:
        """For devices that compile each shape: rows that decode and columns of block tables double from one bucket to
        the next, so shapes grow with the logarithms of what is served. block_size: the fewest tokens of a block.
        prompt_tokens: of those, the buckets that a step of max_num_batched_tokens needs. fewest_blocks: columns of the
        narrowest table."""
        scheduler = config.scheduler
        needed = [size for size in prompt_tokens if size < 2 * scheduler.max_num_batched_tokens]
        return cls(
            decode_rows=doubled(1, scheduler.max_num_seqs),
            prompt_tokens=needed or [min(prompt_tokens)],
            blocks=doubled(fewest_blocks, -(-config.model.max_model_len // block_size)),
            max_decode_tokens=scheduler.max_decode_tokens,
        )

    def rules(self) -> StepRules:
        """What a step may hold so that every prompt fits into a launch."""
        return StepRules(
            mix_prefill_decode=self.packed or not self.prompt_tokens,
            chunk_multiple=self.chunk_multiple,
            max_tokens_per_request=max(self.prompt_tokens, default=None),
        )

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        if len(step.query_lens) == step.num_decode:
            return list(self._decode(step))
        if not self.prompt_tokens:
            return [self._mixed(shape) for shape in ExactShapes().launches(step)]
        return list(self._packed(step) if self.packed else [*self._decode(step), *self._padded(step)])

    def keys(self) -> Sequence[LaunchKey]:
        widths, rows = sorted({1, self.max_decode_tokens}), self.decode_rows
        decode = [self._decode_key(n, width, blocks) for width in widths for n in rows for blocks in self.blocks]
        prompts = [self._prompt_key(n, blocks) for n in self.prompt_tokens for blocks in self.blocks]
        return [*decode, *prompts, *map(pieces_key, self.mixed_tokens)]

    def _decode(self, step: StepShape) -> Iterator[LaunchShape]:
        for first in range(0, step.num_decode, max(self.decode_rows)):
            last = min(first + max(self.decode_rows), step.num_decode)
            width = 1 if int(step.query_lens[first:last].max()) == 1 else self.max_decode_tokens
            rows = _smallest(self.decode_rows, last - first)
            yield LaunchShape(
                self._decode_key(rows, width, self._blocks(step, first, last), step.bits), first, last, width
            )

    def _mixed(self, shape: LaunchShape) -> LaunchShape:
        """With padding behind the tokens of an exact shape, if there is a size for them."""
        tokens = next((size for size in self.mixed_tokens if size >= shape.key.tokens), shape.key.tokens)
        return replace(shape, key=replace(shape.key, tokens=tokens))

    def _padded(self, step: StepShape) -> Iterator[LaunchShape]:
        for first in range(step.num_decode, len(step.query_lens), self.prompt_rows):
            last = min(first + self.prompt_rows, len(step.query_lens))
            width = _smallest(self.prompt_tokens, int(step.query_lens[first:last].max()))
            yield LaunchShape(self._prompt_key(width, self._blocks(step, first, last), step.bits), first, last, width)

    def _packed(self, step: StepShape) -> Iterator[LaunchShape]:
        ends, first, done = step.query_lens.cumsum(), 0, 0
        while first < len(ends):
            fit = int(ends.searchsorted(done + max(self.prompt_tokens), side="right"))
            last = min(fit, first + self.prompt_rows)
            tokens = _smallest(self.prompt_tokens, int(ends[last - 1]) - done)
            yield LaunchShape(self._prompt_key(tokens, self._blocks(step, first, last), step.bits), first, last)
            first, done = last, int(ends[last - 1])

    def _decode_key(self, rows: int, width: int, blocks: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
        return LaunchKey("decode" if width == 1 else "verify", rows, width, blocks, rows * width, bits)

    def _prompt_key(self, size: int, blocks: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
        if self.packed:
            return LaunchKey("mixed", self.prompt_rows, size, blocks, size, bits)
        return LaunchKey("prefill", self.prompt_rows, size, blocks, self.prompt_rows * size, bits)

    def _blocks(self, step: StepShape, first: int, last: int) -> int:
        return _smallest(self.blocks, int(step.blocks[first:last].max()))


def pieces_key(tokens: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
    """The captured key of launches with so many tokens, where only the tokens count, since mixers are not captured:
    mixed, of as many rows of one token, so that the states of all tokens are computed."""
    return LaunchKey("mixed", tokens, 1, 1, tokens, bits)


def doubled(smallest: int, largest: int) -> tuple[int, ...]:
    """Sizes for buckets: the smallest, each twice the one before as long as they are below the largest, and the
    largest. A launch that needs `smallest` or more is padded to less than twice its size; a smaller one is padded to
    the first."""
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= 2
    return (*sizes, largest)


def _smallest(sizes: Sequence[int], needed: int) -> int:
    """The smallest size that is large enough."""
    for size in sizes:
        if size >= needed:
            return size
    raise PlatformError(
        f"a launch needs a bucket of {needed}, but those of the platform's shapes() end at {max(sizes)}; block tables "
        "must have room for the longest request in the smallest blocks that a layer may have."
    )
