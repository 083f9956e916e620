"""A GGUF file of a text model with that of a tower beside it, as one model that reads images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tessera.errors import ModelError, printable
from tessera.gguf.file import GgufFile
from tessera.gguf.model import GgufModel
from tessera.gguf.tensors import GgufWeight
from tessera.gguf.vision.fields import TowerFields
from tessera.gguf.vision.projectors import Projector, Settings, projector_of
from tessera.gguf.vision.tensors import tower_tensors

_TOKENS = "tokenizer.ggml.tokens"
_SECTIONS = "rope.dimension_sections"
_TIED = "tie_word_embeddings"
_OF_THE_WHOLE = ("bos_token_id", "eos_token_id", "dtype", _TIED)
"""Fields of the text model's configuration that the whole's has too."""


class VisionModel(GgufModel):
    """Raises ModelError as GgufModel does, for a tower that is not served, and for one of another model."""

    def __init__(self, file: GgufFile, tower: GgufFile) -> None:
        super().__init__(file)
        self.tower = TowerFields(tower)
        self.projector: Projector = projector_of(self.tower)
        tensor, dimension = self.projector.width
        width, fits = self.fields.count("embedding_length"), self.tower.shape(tensor)[dimension]
        if self.fields.architecture not in self.projector.texts or width != fits:
            raise ModelError(
                f"'{printable(tower.path)}' is the tower of another model: its type '{self.tower.projector}' goes with "
                f"{' or '.join(self.projector.texts)} of width {fits}, and '{printable(file.path)}' is "
                f"{printable(self.fields.architecture, 60)} of width {width}."
            )

    @cached_property
    def weights(self) -> Mapping[str, GgufWeight]:
        """By transformers' name; those of the text model as if it were alone."""
        return {**self.text_weights, **tower_tensors(self.tower, self.projector)}

    def release(self) -> None:
        super().release()
        self.tower.file.release()

    def config(self) -> dict[str, Any]:
        text = super().config()
        del text["architectures"]
        return {
            "architectures": [self.projector.architecture],
            "model_type": self.projector.model_type,
            "text_config": {**text, **self._by_axis(text)},
            **self.projector.settings(self.tower, text),
            **self._tokens,
            **{name: text[name] for name in _OF_THE_WHOLE},
        }

    def _by_axis(self, text: Settings) -> Settings:
        """The rotary embedding of a text model whose tokens have positions on several axes."""
        sections = self.fields.get(_SECTIONS)
        if not isinstance(sections, list):
            return {}
        rope: Settings = {"rope_type": "default", "rope_theta": text["rope_theta"]}
        rope["mrope_section"] = [size for size in sections if size]
        if self.projector.interleaved:
            rope["mrope_interleaved"] = True
        return {"rope_parameters": rope}

    @cached_property
    def _tokens(self) -> Mapping[str, int]:
        """By the field of config.json; none for a file without a vocabulary. Raises ModelError for a vocabulary
        without such tokens."""
        texts = self.file.metadata.get(_TOKENS)
        if not isinstance(texts, list):
            return {}
        ids = {text: number for number, text in enumerate(texts)}
        named: dict[str, int] = {}
        for field, known in self.projector.tokens.items():
            number = next((ids[text] for text in known if text in ids), None)
            if number is None:
                raise ModelError(
                    f"'{printable(self.file.path)}' has no token '{known[0]}', which stands for a part of an image."
                )
            named[field] = number
        return named

    @contextmanager
    def processor_folder(self) -> Iterator[Path]:
        """A folder for as long as transformers' processor is loaded from it. Raises ModelError."""
        with TemporaryDirectory(prefix="tessera-processor-") as name:
            for file, content in self._processor_files().items():
                Path(name, file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
            yield Path(name)

    def _processor_files(self) -> Mapping[str, bytes | Settings]:
        processing = self.projector.processing(self.tower)
        shared = {"image_mean": self.tower.triple("image_mean"), "image_std": self.tower.triple("image_std")}
        tokenizer_config = json.loads(self.read("tokenizer_config.json") or b"{}")
        image = self.file.metadata[_TOKENS][next(iter(self._tokens.values()))]
        tokenizer_config |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "extra_special_tokens": {"image_token": image, **processing.named},
        }
        return {
            "config.json": self.config(),
            "preprocessor_config.json": {**shared, **processing.image_processor},
            "processor_config.json": processing.processor,
            "tokenizer.json": self.read("tokenizer.json") or b"",
            "tokenizer_config.json": tokenizer_config,
        }


def open_vision_model(path: Path, tower: Path) -> VisionModel:
    """The model in a file and in that of its tower; as open_model(). Raises ModelError."""
    status, tower_status = path.stat(), _status(tower)
    changed = status.st_mtime_ns, status.st_size, tower_status.st_mtime_ns, tower_status.st_size
    return _opened(path.absolute(), tower.absolute(), changed)


def _status(path: Path) -> Any:
    try:
        return path.stat()
    except OSError as error:
        raise ModelError(f"'{printable(path)}' cannot be read: {error.strerror}.") from error


@lru_cache(maxsize=4)
def _opened(path: Path, tower: Path, changed: tuple[int, ...]) -> VisionModel:
    return VisionModel(GgufFile.open(path), GgufFile.open(tower))
