"""Structured outputs: answers that a grammar allows, such as a JSON Schema or a regular expression, by llguidance.

A grammar is compiled on a thread of its own, which also computes its first mask, the most expensive one; requests wait
for their own grammar only, and for one that is compiled not at all. From then on the engine asks the request's matcher
for a mask before each token and passes it the token that was sampled.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from tessera.arrays import Array
from tessera.errors import ConfigError, RequestError
from tessera.features.grammar import CompiledGrammar, GrammarPosition, bit, without
from tessera.features.reasoning import Gate, Place, Spelling
from tessera.platform.feature import EngineFeature, Failure, Feature, FeatureState
from tessera.sampling_params import GrammarSource, ReasoningParams, StructuredOutputsParams
from tessera.text import Vocabulary
from tessera.text.grammar import FIELD, TokenTable, compile_grammar, compile_source

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from tessera.config import EngineConfig
    from tessera.request import Request

FEATURE = Feature(engine="tessera.features.structured_outputs:StructuredOutputs")
MAX_GRAMMARS = 64
"""Compiled grammars that are kept, the ones used last."""
MAX_ROLLBACK = 256
"""Tokens that can be taken back: more than there are drafts."""
BUDGET = "thinking_token_budget"

K = TypeVar("K")
V = TypeVar("V")


class StructuredOutputs(EngineFeature):
    """The grammars of an engine's requests, and how long their reasoning may be."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        if option:
            raise ConfigError("The feature structured_outputs takes no option; leave out what follows the =.")
        self._model = config.model
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._table: TokenTable | None = None
        self._spelling: Spelling | None = None
        self._tokenizer: LLTokenizer | None = None
        self._grammars: OrderedDict[StructuredOutputsParams | GrammarSource, CompiledGrammar] = OrderedDict()
        self._gates: OrderedDict[tuple[ReasoningParams, int | None], Future[Gate]] = OrderedDict()

    def fields(self) -> frozenset[str]:
        return frozenset((FIELD, BUDGET))

    def begin(self, request: Request) -> GrammarPosition | ReasonedGrammar | None:
        params = request.params
        asked, reasoning, budget = params.structured_outputs, params.reasoning, params.thinking_token_budget
        if asked is None and budget is None:
            return None
        if not self._model.tokenizer:
            field = FIELD if asked is not None else BUDGET
            raise RequestError(
                f"No tokenizer is loaded (skip_tokenizer_init), so {field} cannot be followed; remove it.", param=field
            )
        eos = self._model.eos_token_ids
        never = eos if params.ignore_eos else ()
        grammar = None if asked is None else GrammarPosition(self._compiled(params.grammar_source or asked), eos, never)
        if reasoning is None:
            assert grammar is not None, "a budget comes with reasoning"
            return grammar
        return ReasonedGrammar(grammar, self._gated(reasoning, budget), never if asked is None else eos)

    def mask(self, states: Sequence[FeatureState], bits: Array) -> None:
        """Into one array, on the calling thread: llguidance's executor computes masks on threads of its own, but
        handing them over takes longer than the masks do, all the more where other threads want the processors."""
        grammars = cast("Sequence[GrammarPosition | ReasonedGrammar]", states)
        plain = [place for place, grammar in enumerate(grammars) if grammar.plain]
        for place, grammar in enumerate(grammars):
            if not grammar.plain:
                grammar.mask(bits[place])
        if not plain:
            return
        assert self._tokenizer is not None, "a grammar was compiled"
        allowed = np.empty((len(plain), -(-self._tokenizer.vocab_size // 32)), np.int32)
        start, size = allowed.ctypes.data, allowed.strides[0]
        for row, place in enumerate(plain):
            matcher = grammars[place].matcher
            matcher.unsafe_compute_mask_ptr(start + row * size, size)
            if matcher.is_error():
                allowed[row] = grammars[place].retried()[: allowed.shape[1]]
        if len(plain) == len(grammars):
            bits &= allowed[:, : bits.shape[1]]
        else:
            bits[plain] &= allowed[:, : bits.shape[1]]
        for place in plain:
            grammars[place].forbid(bits[place])

    def _compiled(self, grammar: StructuredOutputsParams | GrammarSource) -> CompiledGrammar:
        """Compiled on the compiler's thread; again if it was refused. grammar: its source, where the text worker
        sent it."""
        found = self._grammars.get(grammar)
        if found is None or found.refused:
            found = CompiledGrammar(grammar.kind, partial(self._compile, grammar), self._compiler.submit)
        return _used(self._grammars, grammar, found)

    def _gated(self, reasoning: ReasoningParams, budget: int | None) -> Future[Gate]:
        found = self._gates.get((reasoning, budget))
        if found is None or (found.done() and found.exception()):
            found = self._compiler.submit(self._gate, reasoning, budget)
        return _used(self._gates, (reasoning, budget), found)

    # ---- on the compiler's thread

    def _tokens(self) -> TokenTable:
        """Raises RequestError."""
        if self._table is None:
            model = self._model
            vocabulary = Vocabulary.from_folder(model.tokenizer)
            self._table = TokenTable.from_vocabulary(vocabulary, model.vocab_size, model.eos_token_ids)
        return self._table

    def _compile(self, grammar: StructuredOutputsParams | GrammarSource) -> LLMatcher:
        """A matcher at the start of the grammar, for each request to copy. Raises RequestError."""
        table = self._tokens()
        if self._tokenizer is None:
            self._tokenizer = table.tokenizer()
        if isinstance(grammar, GrammarSource):
            return compile_source(grammar, self._tokenizer)
        return compile_grammar(grammar, self._tokenizer, table.special)

    def _gate(self, reasoning: ReasoningParams, budget: int | None) -> Gate:
        """Raises RequestError."""
        if self._spelling is None:
            self._spelling = Spelling(self._tokens().tokens)
        return Gate.from_params(reasoning, budget, self._spelling)


def _used(cache: OrderedDict[K, V], key: K, value: V) -> V:
    """Keeps a value as the one that was used last, and no more than MAX_GRAMMARS of them."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > MAX_GRAMMARS:
        cache.popitem(last=False)
    return value


class ReasonedGrammar(FeatureState):
    """The position of one request that reasons first. grammar: None if it has none. unfinished: tokens that must not
    end the reasoning."""

    masks = True

    def __init__(self, grammar: GrammarPosition | None, gate: Future[Gate], unfinished: tuple[int, ...]) -> None:
        self._grammar = grammar
        self._coming = gate
        self._unfinished = without(unfinished)
        self._past: deque[tuple[Place, bool]] = deque(maxlen=MAX_ROLLBACK)
        self._gate: Gate
        self._place: Place

    @property
    def plain(self) -> bool:
        return self._place.phase == "after" and self._grammar is not None

    @property
    def matcher(self) -> LLMatcher:
        assert self._grammar is not None
        return self._grammar.matcher

    def retried(self) -> Array:
        """As GrammarPosition.retried."""
        assert self._grammar is not None
        return self._grammar.retried()

    @property
    def failure(self) -> Failure | None:
        return None if self._grammar is None else self._grammar.failure

    def ready(self) -> bool:
        if not self._coming.done() or (self._grammar is not None and not self._grammar.ready()):
            return False
        self._gate = self._coming.result()
        self._place = self._gate.start()
        return True

    def mask(self, bits: Array) -> None:
        demanded = self._gate.demanded(self._place)
        if demanded is not None:
            _leave(bits, demanded)
        elif self._place.phase == "within":
            for word, kept in self._unfinished:
                bits[word] &= kept
        elif self._grammar is not None:
            begin = self._gate.begin if self._place.phase == "before" else None
            allowed = 0 if begin is None else bits[begin >> 5] & bit(begin)
            self._grammar.mask(bits)
            if begin is not None:
                bits[begin >> 5] |= allowed

    def forbid(self, bits: Array) -> None:
        """As GrammarPosition.forbid."""
        assert self._grammar is not None
        self._grammar.forbid(bits)

    def accept(self, token: int) -> bool:
        own = self._gate.is_reasoning(self._place, token)
        self._past.append((self._place, own))
        self._place = self._gate.step(self._place, token)
        return own or self._grammar is None or self._grammar.accept(token)

    def num_allowed(self, drafts: Array) -> int:
        place, count = self._place, 0
        for token in drafts.tolist():
            if not self._gate.is_reasoning(place, token):
                break
            if self._gate.demanded(place) not in (None, token):
                return count
            place, count = self._gate.step(place, token), count + 1
        if self._grammar is None:
            return len(drafts) if count == len(drafts) or place.phase != "within" else count
        return count + self._grammar.num_allowed(drafts[count:])

    def rollback(self, num_tokens: int) -> None:
        taken = 0
        for _ in range(num_tokens):
            self._place, own = self._past.pop()
            taken += not own
        if taken and self._grammar is not None:
            self._grammar.rollback(taken)

    @property
    def complete(self) -> bool:
        return self._place.phase == "after" and self._grammar is not None and self._grammar.complete


def _leave(bits: Array, token: int) -> None:
    """Clears the bits of all tokens but one."""
    kept = bits[token >> 5] & bit(token)
    bits[:] = 0
    bits[token >> 5] = kept
