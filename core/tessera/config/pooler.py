"""What a model that answers with numbers makes of its hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify", "align"]
"""embed: a vector for the text. classify: a number for each label; a reranker has one label. token_embed and
token_classify: the same for each token. align: how much each token attends to each position of a sound, which this
engine asks itself to time words."""
TASKS: tuple[PoolingTask, ...] = tuple(task for task in get_args(PoolingTask) if task != "align")
"""Those that a request may name."""

ALIGNED = "aligned_tokens"
"""The column: of a request of the task align, how many tokens its prompt has; 0 for others."""

Pooling = Literal["last", "cls", "mean", "max", "weighted_mean", "mean_sqrt_len"]
"""Which hidden states of a text become its vector: that of the last token or the first, or of all tokens their mean,
the largest of each element, their mean weighted by position (1, 2, 3, ...), or their sum divided by the square root of
their number."""
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
ACTIVATIONS = ("identity", "tanh", "gelu", "relu", "sigmoid")
"""Of Dense modules."""


@dataclass(frozen=True)
class DenseConfig:
    """A Dense module of sentence-transformers: a linear layer and an activation behind the pooled vector."""

    # Its folder within the model's, whose tensors are linear.weight and linear.bias.
    name: str
    in_features: int
    out_features: int
    bias: bool
    # One of ACTIVATIONS.
    activation: str
    # Whether its tensors are among the model's own, by its name alone.
    inside: bool = False


@dataclass(frozen=True)
class Padding:
    """Tokens behind a text that every model of its type was trained to see."""

    token: int
    # Tokens of a text with them.
    length: int


@dataclass(frozen=True)
class TokenScore:
    """How a language model ranks: by the logit of one token behind the prompt, less that of another."""

    # "yes", or what else says that a passage answers the question.
    true_token: int
    # "no"; None: nothing is subtracted.
    false_token: int | None = None


@dataclass(frozen=True)
class PoolerConfig:
    """How a model pools, from its files, --pooler-config, or what its family does; config/tasks.py fills it."""

    # What it can be asked for; the first where a request does not say.
    tasks: tuple[PoolingTask, ...]
    pooling: Pooling
    # Behind the pooled vector, in this order.
    dense: tuple[DenseConfig, ...] = ()
    # Whether vectors are divided by their length, unless a request says otherwise.
    normalize: bool = True
    # Whether a vector has a weight for each token of the vocabulary (SPLADE).
    sparse: bool = False
    # Elements of a vector.
    dimensions: int = 0
    # Those that a request may ask for; None for any up to `dimensions`; () for no others.
    matryoshka: tuple[int, ...] | None = ()
    # The labels of classify, in order.
    labels: tuple[str, ...] = ()
    # What makes probabilities of the labels' numbers: "sigmoid", "softmax" or "identity".
    activation: str = "softmax"
    # Of token_classify, the token whose numbers alone are answered, as that behind each step of a solution; None: those
    # of all.
    step_token: int | None = None
    # What gives the number of the only label, if the model is a language model that ranks.
    token_score: TokenScore | None = None
    # Of the task align, (layer, head) of a decoder's cross attention, those that follow what is said; in order.
    alignment_heads: tuple[tuple[int, int], ...] = ()
    # The tokens whose logits are the labels' numbers, if the model is a language model that classifies.
    label_tokens: tuple[int, ...] = ()
    # Whether it classifies because --convert says so, and its head may be missing.
    converted: bool = False
    # Of a model that was trained on messages, what its chat template is told beside them: a text is one of a user, and
    # an instruction one of the system. None: texts stand as they are, behind their instruction.
    message: Mapping[str, Any] | None = None
    # What stands before and behind every text, but for its instruction.
    around: tuple[str, str] = ("", "")
    # The prompt of an image, with its placeholder; "": the chat template writes it.
    image_prompt: str = ""
    # Whether the tokenizer puts its tokens around that prompt, as around a text.
    image_special_tokens: bool = True
    # Whether its text model reads that prompt. False: it is the placeholder and nothing else.
    reads_images: bool = True
    # Whether a text is read in lower case.
    lower: bool = False
    # Whether a text is read in lower case, without punctuation and with single spaces.
    canonical: bool = False
    # What texts are filled up with, for a model that sees that too; None: they stay as long as they are.
    padding: Padding | None = None
    # What the first message of its chat template says, "" for none; None: the tokenizer joins pairs of texts.
    pair_instruction: str | None = None
    # Texts put in front of others, by name, as "query".
    prompts: Mapping[str, str] = field(default_factory=dict)
    # The prompt of a request that names none.
    default_prompt: str | None = None
    # Whether the tokens of a prompt are pooled too.
    include_prompt: bool = True
    # Lines about where this comes from, to say at start-up.
    notes: tuple[str, ...] = ()
