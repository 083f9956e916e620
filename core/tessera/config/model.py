"""Which model is served: its folder, fetched from the hub where need be, its tokenizer, and what its files say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.config.checkpoint import FILE, Checkpoint, read_checkpoint
from tessera.config.checks import MAX_TOKENS, one_of, within
from tessera.config.engine import ModelConfig
from tessera.config.generation import eos_token_ids, generation_folder, sampling_defaults
from tessera.config.locate import HubAccess, locate_model, tokenizer_of_model
from tessera.config.model_folder import shown
from tessera.errors import ConfigError, ModelError

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
QUANTIZATIONS = ("int8", "int4")
LOAD_FORMATS = ("auto", "safetensors", "dummy")

_SPELLINGS = {"half": "float16", "float": "float32"}


def model_config(
    model: str | None,
    *,
    hub: HubAccess,
    served_name: str | None,
    tokenizer: str | None,
    skip_tokenizer: bool,
    dtype: str,
    quantization: str | None,
    load_format: str,
    max_model_len: int | None,
    seed: int,
    max_logprobs: int,
    generation_config: str | None,
    override: str | Mapping[str, Any] | None,
) -> ModelConfig:
    """The model's folder, fetched where need be, with what its files say of it. Raises ConfigError for a wrong value,
    before anything is fetched, and ModelError for files that cannot be served."""
    within("seed", seed, 0, 2**64 - 1)
    within("max_logprobs", max_logprobs, -1, 2**31 - 1)
    one_of("dtype", dtype, DTYPES)
    if quantization is not None:
        one_of("quantization", quantization, QUANTIZATIONS)
    one_of("load_format", load_format, LOAD_FORMATS)
    weights = load_format != "dummy"
    folder, name = locate_model(model, hub, weights=weights, tokenizer=tokenizer is None and not skip_tokenizer)
    checkpoint = read_checkpoint(folder, weights=weights)
    tokenizer_folder = None if skip_tokenizer else tokenizer_of_model(folder, name, tokenizer, hub)
    recommended = generation_folder(generation_config, folder)
    return ModelConfig(
        path=str(folder.resolve()),
        served_name=_served_name(served_name or name),
        checkpoint=checkpoint.config,
        vocab_size=checkpoint.vocab_size,
        max_model_len=_max_model_len(checkpoint, max_model_len),
        eos_token_ids=eos_token_ids(checkpoint, tokenizer_folder, recommended),
        dtype=_SPELLINGS.get(dtype, dtype),
        quantization=quantization,
        load_format=load_format,
        tokenizer="" if tokenizer_folder is None else str(tokenizer_folder.resolve()),
        seed=seed,
        max_logprobs=max_logprobs,
        sampling_defaults=sampling_defaults(recommended, override),
    )


def _served_name(name: str) -> str:
    if len(name) > 256 or not name.isprintable():
        raise ConfigError("served_model_name must be at most 256 printable characters.", param="served_model_name")
    return name


def _max_model_len(checkpoint: Checkpoint, asked: int | None) -> int:
    if asked is not None:
        within("max_model_len", asked, 1, MAX_TOKENS)
    most = checkpoint.max_positions
    if most is None:
        if asked is None:
            raise ModelError(
                f"'{shown(checkpoint.folder)}' does not say how many tokens it was made for; give --max-model-len."
            )
        return asked
    allowed = checkpoint.most_positions or most
    if asked is not None and asked > allowed:
        raise ConfigError(
            f"max_model_len is {asked}, but the model was made for {allowed} tokens; give at most that.",
            param="max_model_len",
        )
    if asked is None and most > MAX_TOKENS:
        raise ModelError(
            f"'{shown(checkpoint.folder / FILE)}' says that the model was made for {most:,} tokens, which is more than "
            f"{MAX_TOKENS:,}; give --max-model-len."
        )
    return most if asked is None else asked
