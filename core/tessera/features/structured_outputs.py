"""Structured outputs: answers that a grammar allows, such as a JSON Schema or a regular expression, by llguidance.

A grammar is compiled on a thread of its own, which also computes its first mask, the most expensive one; requests wait
for their own grammar only, and for one that is compiled not at all. From then on the engine asks the request's matcher
for a mask before each token and passes it the token that was sampled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import numpy as np

from tessera.arrays import Array
from tessera.errors import ConfigError, RequestError
from tessera.platform.feature import EngineFeature, Feature, FeatureState
from tessera.sampling_params import StructuredOutputsParams
from tessera.text import Vocabulary
from tessera.text.grammar import FIELD, TokenTable, compile_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from tessera.config import EngineConfig
    from tessera.request import Request

FEATURE = Feature(engine="tessera.features.structured_outputs:StructuredOutputs")
MAX_GRAMMARS = 64
"""Compiled grammars that are kept, the ones used last."""


class StructuredOutputs(EngineFeature):
    """The grammars of an engine's requests."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        if option:
            raise ConfigError("The feature structured_outputs takes no option; leave out what follows the =.")
        self._model = config.model
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._tokenizer: LLTokenizer | None = None
        self._special: Mapping[str, int] = {}
        self._matchers: OrderedDict[StructuredOutputsParams, Future[LLMatcher]] = OrderedDict()

    def fields(self) -> frozenset[str]:
        return frozenset((FIELD,))

    def begin(self, request: Request) -> Grammar | None:
        asked = request.params.structured_outputs
        if asked is None:
            return None
        if not self._model.tokenizer:
            raise RequestError(
                "No tokenizer is loaded (skip_tokenizer_init), so structured_outputs cannot be followed; remove it.",
                param=FIELD,
            )
        never = self._model.eos_token_ids if request.params.ignore_eos else ()
        return Grammar(self._matcher(asked), never)

    def mask(self, states: Sequence[FeatureState], bits: Array) -> None:
        """Into one array, on the calling thread: llguidance's executor computes masks on threads of its own, but
        handing them over takes longer than the masks do, all the more where other threads want the processors."""
        assert self._tokenizer is not None, "a grammar was compiled"
        grammars = cast("Sequence[Grammar]", states)
        allowed = np.empty((len(states), -(-self._tokenizer.vocab_size // 32)), np.int32)
        start, size = allowed.ctypes.data, allowed.strides[0]
        for place, grammar in enumerate(grammars):
            grammar.matcher.unsafe_compute_mask_ptr(start + place * size, size)
        bits &= allowed[:, : bits.shape[1]]
        for grammar, own in zip(grammars, bits, strict=True):
            grammar.forbid(own)

    def _matcher(self, asked: StructuredOutputsParams) -> Future[LLMatcher]:
        """A matcher at the start of the grammar, for each request to copy."""
        matcher = self._matchers.get(asked)
        if matcher is None or (matcher.done() and matcher.exception()):
            matcher = self._matchers[asked] = self._compiler.submit(self._compile, asked)
            if len(self._matchers) > MAX_GRAMMARS:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(asked)
        return matcher

    # ---- on the compiler's thread

    def _compile(self, asked: StructuredOutputsParams) -> LLMatcher:
        """Raises RequestError."""
        if self._tokenizer is None:
            model = self._model
            table = TokenTable.of(Vocabulary.from_folder(model.tokenizer), model.vocab_size, model.eos_token_ids)
            self._tokenizer, self._special = table.tokenizer(), table.special
        return compile_grammar(asked, self._tokenizer, self._special)


class Grammar(FeatureState):
    """The position of one request in its grammar. never: tokens to forbid although the grammar allows them. These are
    the end-of-text tokens if the request sets ignore_eos, because they would end nothing."""

    masks = True

    def __init__(self, coming: Future[LLMatcher], never: tuple[int, ...]) -> None:
        self._coming = coming
        self._never = never
        self._kept = [(token >> 5, ~np.uint32(1 << (token & 31)).view(np.int32)) for token in never]
        self.matcher: LLMatcher

    def ready(self) -> bool:
        if not self._coming.done():
            return False
        self.matcher = self._coming.result().deep_copy()
        return True

    def mask(self, bits: Array) -> None:
        allowed = np.frombuffer(self.matcher.compute_bitmask(), np.int32)
        bits &= allowed[: len(bits)]
        self.forbid(bits)

    def forbid(self, bits: Array) -> None:
        """Clears the bits of what is never allowed. bits: as in mask()."""
        for word, kept in self._kept:
            bits[word] &= kept

    def accept(self, token: int) -> bool:
        return self.matcher.consume_token(token)

    def num_allowed(self, drafts: Array) -> int:
        allowed = self.matcher.validate_tokens(drafts.tolist())
        never = np.flatnonzero(np.isin(drafts[:allowed], self._never))
        return int(never[0]) if len(never) else allowed

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)

    @property
    def complete(self) -> bool:
        return self.matcher.is_stopped() and not self.matcher.is_error()
