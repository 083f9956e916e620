"""What a model is served for: whether it generates, and how it pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tessera.config.checkpoint import Checkpoint
from tessera.config.classification import activation_of, classification
from tessera.config.conversion import converted_pooler
from tessera.config.dual_encoder import DUAL_ENCODERS, dual_pooler
from tessera.config.engine import ModelOptions
from tessera.config.modalities import sees_prompt
from tessera.config.model_folder import regular_file
from tessera.config.pooler import POOLINGS, PoolerConfig, Pooling, PoolingTask
from tessera.config.retrieval import retrieval_pooler
from tessera.config.retriever import RETRIEVERS
from tessera.config.reward import PROCESS_REWARD, REWARD, reward_pooler
from tessera.config.sentence_transformers import MODULES, SentenceTransformers, read_modules, saved_activation
from tessera.errors import ConfigError, ModelError, printable

_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")
_DECODERS = ("Gemma", "Llama", "Mistral", "Mixtral", "Olmo2", "Phi3", "Qwen2", "Qwen3", "SmolLM3")
"""Families whose tokens see those before them, also without a head that generates, by the name of their classes."""
_MASKED = "ForMaskedLM"
_HEADLESS = ("Model", _MASKED, "ForPreTraining")
"""What classes are called that do not generate, besides classifiers. A plugin's model of any other name generates."""
_CLASSIFIERS: Mapping[str, PoolingTask] = MappingProxyType(
    {"ForSequenceClassification": "classify", "ForTokenClassification": "token_classify"}
)
_DEFAULTS: Mapping[bool, tuple[Pooling, str]] = MappingProxyType(
    {True: ("last", "the last token's"), False: ("cls", "the first token's")}
)
"""By whether a token sees only those before it."""
_BIDIRECTIONAL = ("LlamaBidirectional",)
"""Families whose name begins as that of a decoder, and whose tokens see the whole text."""
_NAMED: Mapping[str, Pooling] = MappingProxyType({"avg": "mean", "cls": "cls", "last": "last"})
"""By `pooling` in config.json of these."""
_PICKLED = ("sparse_linear.pt", "colbert_linear.pt")
"""Further heads of BGE-M3."""
_WIDTHS = ("hidden_size", "dim", "n_embd", "d_model")
_EMBED: tuple[PoolingTask, ...] = ("embed", "token_embed")


@dataclass(frozen=True)
class Tasks:
    """generates: whether tokens are sampled. pooler: None if it only generates. max_tokens: longest text that its
    modules were made for; None if they do not say."""

    generates: bool
    pooler: PoolerConfig | None
    max_tokens: int | None = None


def model_tasks(checkpoint: Checkpoint, options: ModelOptions) -> Tasks:
    """From the name of the architecture, the folder's modules and the user's --runner, --convert and --pooler-config.
    Raises ConfigError for a flag that the model cannot follow, ModelError for unsupported modules."""
    architecture = str(checkpoint.config["architectures"][0])
    causal = _is_causal(checkpoint, architecture)
    able = causal and _has_head(architecture) and architecture not in RETRIEVERS
    if options.runner == "generate" and not able:
        raise ConfigError(
            f"{printable(architecture, 60)} has no head that generates; leave out --runner.", param="runner"
        )
    alone = _judge(checkpoint, architecture, options) or _of_images(checkpoint, architecture, options)
    if alone is not None:
        return Tasks(False, alone)
    modules, convert = read_modules(checkpoint.folder), options.convert
    if modules is not None and modules.token_score is not None and options.runner != "generate":
        if not able:
            raise ModelError(f"{printable(architecture, 60)} has no head for tokens, which LogitScore reads.")
        return Tasks(False, _token_scorer(checkpoint, architecture, modules, options), modules.max_tokens)
    if convert == "classify":
        return _converted(checkpoint, architecture, options, able=able)
    if modules is not None and modules.sparse:
        _check_flags(architecture, options, does="has sparse vectors")
        return Tasks(False, _sparse(checkpoint, architecture, modules), modules.max_tokens)
    if convert == "auto":
        convert = "none" if able and (modules is None or options.runner == "generate") else "embed"
    generates = able and (options.runner == "generate" or (options.runner == "auto" and modules is None))
    if not generates and convert == "none":
        convert = "embed"
    if convert == "none":
        if options.pooler_config is not None:
            raise ConfigError("pooler_config needs --convert embed for a model that generates.", param="pooler_config")
        return Tasks(generates, None)
    pooler = _embedding(checkpoint, modules, _named_pooling(checkpoint, architecture), causal=causal)
    pickled = [name for name in _PICKLED if regular_file(checkpoint.folder, name) is not None]
    if pickled:
        note = f"{' and '.join(pickled)} cannot be read, because such files can run code; other vectors are served"
        pooler = replace(pooler, notes=(*pooler.notes, note))
    pooler = _overridden(pooler, options.pooler_config or {})
    return Tasks(generates, pooler, None if modules is None else modules.max_tokens)


def _converted(checkpoint: Checkpoint, architecture: str, options: ModelOptions, *, able: bool) -> Tasks:
    """A language model that classifies too. able: whether it generates."""
    if not able and not architecture.startswith(_DECODERS):
        raise ConfigError(
            f"{printable(architecture, 60)} has no head to classify with, which --convert classify needs; remove it.",
            param="convert",
        )
    return Tasks(able and options.runner != "pooling", converted_pooler(checkpoint, options.pooler_config))


def _is_causal(checkpoint: Checkpoint, architecture: str) -> bool:
    """Whether a token of an answer sees only those before it."""
    text = checkpoint.text
    if (
        architecture.startswith(_BIDIRECTIONAL)
        or text.get("is_causal") is False
        or (text.get("use_bidirectional_attention") is True and not sees_prompt(checkpoint.config))
    ):
        return False
    return _has_head(architecture) or architecture.startswith(_DECODERS)


def _named_pooling(checkpoint: Checkpoint, architecture: str) -> Pooling | None:
    """What config.json of a family of _BIDIRECTIONAL names; None of others. Raises ModelError for an unknown name."""
    if not architecture.startswith(_BIDIRECTIONAL):
        return None
    named = checkpoint.config.get("pooling", "avg")
    if not isinstance(named, str) or named not in _NAMED:
        raise ModelError(f"pooling must be one of {', '.join(_NAMED)} in config.json.")
    return _NAMED[named]


def _has_head(architecture: str) -> bool:
    """Whether its name is that of a model that generates."""
    return architecture.endswith(_GENERATES) or not architecture.endswith((*_HEADLESS, *_CLASSIFIERS))


def _judge(checkpoint: Checkpoint, architecture: str, options: ModelOptions) -> PoolerConfig | None:
    """Of a class that has a head of a classifier or of a reward model; None for others."""
    if architecture.endswith((REWARD, PROCESS_REWARD)):
        _check_flags(architecture, replace(options, pooler_config=None), does="judges texts and does not embed")
        return reward_pooler(checkpoint, architecture, options.pooler_config)
    task = next((task for head, task in _CLASSIFIERS.items() if architecture.endswith(head)), None)
    return None if task is None else _classifier(checkpoint, architecture, task, options)


def _of_images(checkpoint: Checkpoint, architecture: str, options: ModelOptions) -> PoolerConfig | None:
    """Of a class that makes vectors of texts and images and nothing else; None for others."""
    if architecture in RETRIEVERS:
        _check_flags(architecture, options, does="makes a vector of each token")
        return retrieval_pooler(checkpoint)
    if architecture in DUAL_ENCODERS:
        _check_flags(architecture, options, does="has a vector of its own for texts and images")
        return dual_pooler(checkpoint)
    return None


def _classifier(checkpoint: Checkpoint, architecture: str, task: PoolingTask, options: ModelOptions) -> PoolerConfig:
    _check_flags(architecture, options)
    labels, activation = classification(checkpoint.config, saved_activation(checkpoint.folder))
    usual: Pooling = "last" if architecture.startswith(_DECODERS) else "cls"
    pooling = _named_pooling(checkpoint, architecture) or usual
    return PoolerConfig((task,), pooling, labels=labels, activation=activation)


def _token_scorer(
    checkpoint: Checkpoint, architecture: str, modules: SentenceTransformers, options: ModelOptions
) -> PoolerConfig:
    _check_flags(architecture, options)
    score, source = modules.token_score, f"{modules.pooling_from}/config.json"
    assert score is not None
    if max(score.true_token, score.false_token or 0) >= checkpoint.vocab_size:
        raise ModelError(f"{printable(source, 80)} names a token that is not in the model's vocabulary.")
    return PoolerConfig(
        ("classify",),
        "last",
        labels=("LABEL_0",),
        activation=activation_of(saved_activation(checkpoint.folder)) or "sigmoid",
        token_score=score,
        pair_instruction="" if modules.default_prompt is None else modules.prompts[modules.default_prompt],
        notes=(f"scores pairs of texts by the logits of tokens, as {source} says",),
    )


def _sparse(checkpoint: Checkpoint, architecture: str, modules: SentenceTransformers) -> PoolerConfig:
    if not architecture.endswith(_MASKED):
        raise ModelError(f"{printable(architecture, 60)} has no head for masked tokens, which SpladePooling reads.")
    return PoolerConfig(
        ("embed",),
        "max",
        normalize=False,
        sparse=True,
        dimensions=checkpoint.vocab_size,
        prompts=modules.prompts,
        default_prompt=modules.default_prompt,
        notes=(f"vectors have a weight for each token of the vocabulary, as {modules.pooling_from} says",),
    )


def _check_flags(architecture: str, options: ModelOptions, does: str = "classifies and does not embed") -> None:
    """Raises ConfigError for flags of other models, that embed. does: what this one does."""
    given = {"convert": options.convert == "embed", "pooler_config": options.pooler_config is not None}
    for name in (name for name, said in given.items() if said):
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{printable(architecture, 60)} {does}; remove {flag}.", param=name)


def _embedding(
    checkpoint: Checkpoint, modules: SentenceTransformers | None, named: Pooling | None, *, causal: bool
) -> PoolerConfig:
    """named: by config.json, for folders without modules."""
    hidden = next((width for name in _WIDTHS if type(width := checkpoint.text.get(name)) is int), 0)
    matryoshka = checkpoint.config.get("matryoshka_dimensions")
    sizes = tuple(size for size in matryoshka if type(size) is int) if isinstance(matryoshka, list) else None
    if modules is None and named is not None:
        note = f"pooling is {named}, as config.json says, and vectors are normalized"
        return PoolerConfig(_EMBED, named, dimensions=hidden, matryoshka=sizes, notes=(note,))
    if modules is None:
        pooling, what = _DEFAULTS[causal]
        note = f"vectors are {what} hidden states, normalized, as there is no {MODULES}; --pooler-config changes it"
        return PoolerConfig(_EMBED, pooling, dimensions=hidden, matryoshka=sizes, notes=(note,))
    dimensions = modules.dense[-1].out_features if modules.dense else hidden
    if modules.pooling is None:
        note = f"each token has a vector, of length 1, as {MODULES} names no module Pooling"
    else:
        note = f"pooling is {modules.pooling}, as {modules.pooling_from}/config.json says"
    return PoolerConfig(
        _EMBED if modules.pooling is not None else ("token_embed",),
        modules.pooling or "cls",
        dense=modules.dense,
        normalize=modules.normalize or modules.pooling is None,
        dimensions=dimensions,
        matryoshka=sizes,
        prompts=modules.prompts,
        default_prompt=modules.default_prompt,
        include_prompt=modules.include_prompt,
        message=modules.message,
        notes=(note,),
    )


_KEYS = ("pooling_type", "seq_pooling_type", "normalize", "use_activation", "dimensions")


def _overridden(pooler: PoolerConfig, flag: Mapping[str, Any]) -> PoolerConfig:
    """flag: --pooler-config, with vLLM's names. Raises ConfigError."""
    name = "pooler_config"
    for key in flag.keys() - set(_KEYS):
        raise ConfigError(f"{name} does not support the key '{key}'; it takes {', '.join(_KEYS)}.", param=name)
    pooling = flag.get("seq_pooling_type", flag.get("pooling_type"))
    if pooling is not None:
        chosen = next((one for one in POOLINGS if one == str(pooling).lower()), None)
        if chosen is None:
            raise ConfigError(f"{name}: pooling_type must be one of {', '.join(POOLINGS).upper()}.", param=name)
        pooler = replace(pooler, pooling=chosen, notes=(f"pooling is {chosen}, as --pooler-config says",))
    normalize = flag.get("normalize", flag.get("use_activation"))
    if normalize is not None:
        if not isinstance(normalize, bool):
            raise ConfigError(f"{name}: normalize must be true or false.", param=name)
        pooler = replace(pooler, normalize=normalize)
    dimensions = flag.get("dimensions")
    if dimensions is not None:
        if type(dimensions) is not int or not 1 <= dimensions <= pooler.dimensions:
            raise ConfigError(f"{name}: dimensions must be 1 to {pooler.dimensions}.", param=name)
        pooler = replace(pooler, dimensions=dimensions)
    return pooler
