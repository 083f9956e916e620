"""A platform whose device runs programs that were compiled for fixed shapes, over torch's own ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tessera.platform.attention import MixerBackend
from tessera.platform.masked import SdpaAttention
from tessera.platform.model import ModelFacts
from tessera.platform.platform import Default, Platform, WorkerSpec
from tessera.platform.shapes import BucketedShapes, ShapePolicy, doubled
from tessera.platform.vendor import import_vendor

if TYPE_CHECKING:
    from tessera.config import EngineConfig


class CompiledPlatform(Platform):
    """Launches of a few shapes alone, so that all of them are compiled before the first request: prompts come one by
    one, apart from rows that decode, and everything is padded to the next size. Attention is torch's scaled dot product
    under a mask. A subclass says what its device takes, and opens it."""

    torch: Any
    """The library. A subclass sets it to what it imports; a test may set another."""
    package: str
    """Python's name of the vendor's package, which registers the device with torch."""
    install: str
    """How to get that package, as the end of a sentence; {torch} stands for the version of torch."""
    block_sizes: tuple[int, ...] = (128, 16)
    """Tokens of a block: the preferred number, then others that a user may choose. Large blocks mean few columns of
    block tables, and so few shapes."""
    prompt_tokens: tuple[int, ...] = doubled(128, 2048)
    """Tokens of launches with a prompt."""
    fewest_blocks: int = 4
    """Columns of the narrowest block table that launches are compiled for."""

    def enter_process(self, spec: WorkerSpec) -> None:
        import_vendor(self.torch, self.package, self.name, self.install)

    def attention_backends(self) -> Sequence[MixerBackend[Any]]:
        return (SdpaAttention(self.torch, self.block_sizes),)

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        block_size = config.cache.block_size or min(self.block_sizes)
        return BucketedShapes.doubling(config, block_size, self.prompt_tokens, self.fewest_blocks)

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        reason = "fewer columns of block tables, so fewer shapes to compile"
        return {"cache.block_size": Default(self.block_sizes[0], reason)}
