"""The token ids that prompts for a server are drawn from."""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array
from tessera.cli.bench.workload import check_count
from tessera.config.locate import HubAccess, find_tokenizer
from tessera.errors import ConfigError
from tessera.text import Vocabulary

_USUAL = 1000


def vocabulary_of(tokenizer: str | None, vocab_size: int | None) -> Array:
    """tokenizer: folder or repository; all its tokens but the special ones, which no text of a user holds. vocab_size:
    all ids below it. Raises ConfigError, ModelError."""
    if tokenizer is None:
        return np.arange(check_count("vocab-size", _USUAL if vocab_size is None else vocab_size))
    if vocab_size is not None:
        raise ConfigError("--tokenizer says which token ids there are; leave --vocab-size out.")
    read = Vocabulary.from_folder(find_tokenizer(tokenizer, HubAccess()))
    ordinary = [token for token in range(read.vocab_size) if token not in read.special_ids]
    if not ordinary:
        raise ConfigError(f"--tokenizer '{tokenizer}' has no token but special ones.")
    return np.array(ordinary)
