"""transformers' processor of a model, for images alone: from an image to the inputs of the model's vision tower, and to
the text that stands for the image in a prompt.

Each image is processed by itself, so that its inputs are the same whatever else a prompt holds. Processors whose
outcome for an image depends on the others of its prompt (LLaVA-OneVision does not cut the images of a prompt with
several into tiles; batches are padded) so give what they give for one image.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.arrays import Array, encode_array
from tessera.errors import ModelError, RequestError
from tessera.media.item import MAX_INPUT_BYTES, MediaReady, ProcessedMedia, digest_of, input_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

_NAMING_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
# What a request may not choose: how the outcome is held, and where it is computed.
_OWN_OPTIONS = frozenset({"return_tensors", "data_format", "input_data_format", "device", "disable_grouping"})
_MOST_OPTION_BYTES = 4096
_MOST_MESSAGE_CHARS = 300
_PROBE_SIZE = (96, 64)
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


class MediaProcessor:
    """A model's processor. Raises ModelError."""

    def __init__(self, folder: str | Path, options: Mapping[str, Any] | None = None) -> None:
        """options: arguments of the processor, besides its own."""
        try:
            import PIL.Image
        except ImportError as error:
            raise ModelError(
                "This model takes images, which needs Pillow: run pip install 'tessera-llm[vision]', or serve the text "
                "model alone with --limit-mm-per-prompt '{\"image\": 0}'."
            ) from error
        try:
            self._processor = _loaded(Path(folder))
        except (ModelError, MemoryError):
            raise
        except Exception as error:
            raise ModelError(f"The processor of this model cannot be loaded: {_one_line(error)}") from error
        kind = type(self._processor).__name__
        if getattr(self._processor, "image_token", None) is None or not hasattr(self._processor, "_process_images"):
            raise ModelError(
                f"Images cannot be put into the prompts of this model: {kind} of the installed transformers names no "
                "text that stands for one."
            )
        self._options = dict(options or {})
        self._check_options(self._options)
        self.ready = MediaReady(self._processor.image_token, _feature_ids(self._processor))
        # The whole processor says which inputs the model takes: some are there for the processor itself.
        self._names: frozenset[str] | None = None
        self._check(PIL.Image.linear_gradient("L").resize(_PROBE_SIZE).convert("RGB"), kind)

    def image(self, image: Image, options: Mapping[str, Any] | None = None) -> ProcessedMedia:
        """Processes an image. options: further arguments of the processor. Raises RequestError or MemoryError."""
        options = dict(options or {})
        self._check_options(options)
        try:
            inputs, replacement = self._processed(image, options)
        except MemoryError:
            raise
        except Exception as error:
            # A processor raises what it likes for a size or an option that does not suit it.
            raise RequestError(f"The model's processor does not take this image: {_one_line(error)}") from error
        if input_bytes(inputs) > MAX_INPUT_BYTES:
            raise RequestError("The model's processor makes too much of this image; make it smaller.")
        rows = np.isin(self._tokens(replacement), self.ready.feature_ids).sum()
        return ProcessedMedia("image", digest_of(inputs), replacement, int(rows), inputs)

    def _processed(self, image: Image, options: Mapping[str, Any]) -> tuple[dict[str, Array], str]:
        """The inputs of the tower, and the replacement."""
        processed, replacement = self._processor.one_image(image, {**self._options, **options})
        names = set(processed).difference(self._processor.unused_input_names)
        if self._names is not None:
            names &= self._names
        return {name: np.asarray(processed[name]) for name in sorted(names)}, replacement

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    def _check(self, image: Image, kind: str) -> None:
        """Processes an image as image() does and by the processor as a whole, which must be the same. Raises
        ModelError."""
        try:
            whole = self._processor(
                images=[image], text=[self.ready.placeholder], **{**self._options, "return_tensors": "np"}
            )
            self._names = frozenset(whole)
            inputs, replacement = self._processed(image, {})
            if not all(np.array_equal(np.asarray(whole[name]), array) for name, array in inputs.items()):
                raise ValueError("an image's inputs are not those that it makes of image and text")
            if self._processor.tokenizer(replacement)["input_ids"] != np.asarray(whole["input_ids"])[0].tolist():
                raise ValueError("an image's tokens are not those that it makes of image and text")
            if not inputs:
                raise ValueError("it makes nothing of an image")
            for array in inputs.values():
                encode_array(array)
        except MemoryError:
            raise
        except Exception as error:
            raise ModelError(f"Images of this model cannot be processed: {kind}: {_one_line(error)}") from error

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Raises RequestError."""
        if not options:
            return
        if len(json.dumps(options)) > _MOST_OPTION_BYTES:
            raise RequestError(f"mm_processor_kwargs has at most {_MOST_OPTION_BYTES} bytes of JSON.")
        image_processor = self._processor.image_processor
        known = set(image_processor.valid_kwargs.__annotations__) - _OWN_OPTIONS
        for name in options:
            if name not in known:
                raise RequestError(
                    f"mm_processor_kwargs has {name[:40]!r}, which {type(image_processor).__name__} does not take; it "
                    f"takes: {', '.join(sorted(known))}."
                )


class _ImagesOnly:
    """Mixed into a class of processors: loads a tokenizer and Pillow's image processor, and none of the parts for
    videos and sounds, which may need libraries that images do not."""

    get_attributes: Any
    prepare_inputs_layout: Any
    _merge_kwargs: Any
    _process_images: Any

    @classmethod
    def _get_arguments_from_pretrained(cls, path: str, processor_dict: object = None, **_: object) -> list[Any]:
        from transformers import AutoImageProcessor, AutoTokenizer

        arguments: list[Any] = []
        for name in cls.get_attributes():
            if name == "tokenizer":
                arguments.append(AutoTokenizer.from_pretrained(path, **_LOCAL))
            elif name == "image_processor":
                arguments.append(AutoImageProcessor.from_pretrained(path, backend="pil", **_LOCAL))
            else:
                arguments.append(None)
        return arguments

    def check_argument_for_proper_class(self, name: str, argument: object) -> object:
        if argument is None:
            return None
        return super().check_argument_for_proper_class(name, argument)  # type: ignore[misc]  # of what it is mixed into

    def one_image(self, image: Image, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """What the processor makes of an image, and the text for it, before it makes tokens of a prompt."""
        tokenizer = getattr(self, "tokenizer", None)
        merged = self._merge_kwargs(
            tokenizer_init_kwargs={} if tokenizer is None else tokenizer.init_kwargs,
            **{**options, "return_tensors": "np"},
        )
        images = self.prepare_inputs_layout(images=[image], text=None)[0]
        processed, (replacement,) = self._process_images(images, **merged["images_kwargs"])
        return processed, replacement


def _loaded(folder: Path) -> Any:
    known = _processor_class(folder)
    images_only: Any = type(known.__name__, (_ImagesOnly, known), {})
    return images_only.from_pretrained(str(folder), **_LOCAL)


def _processor_class(folder: Path) -> Any:
    """As AutoProcessor chooses it. Raises ModelError."""
    from transformers import AutoConfig
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    for file in _NAMING_FILES:
        path = folder / file
        name = json.loads(path.read_text(encoding="utf-8")).get("processor_class") if path.is_file() else None
        if isinstance(name, str) and name in PROCESSOR_MAPPING_NAMES.values():
            return _class_of(name)
    name = PROCESSOR_MAPPING_NAMES.get(AutoConfig.from_pretrained(str(folder), **_LOCAL).model_type)
    if name is None:
        raise ModelError("The installed transformers has no processor for this model; its own code is not run.")
    return _class_of(name)


def _class_of(name: str) -> Any:
    """A class of processors. transformers hides some that import torchvision's image processor beside them, though all
    they need of it is in Pillow's too: that one takes its place."""
    from transformers.models.auto.processing_auto import (
        PROCESSOR_MAPPING_NAMES,
        model_type_to_module_name,
        processor_class_from_name,
    )

    known = processor_class_from_name(name)
    if not getattr(known, "is_dummy", False):
        return known
    for kind, known in PROCESSOR_MAPPING_NAMES.items():
        module = model_type_to_module_name(kind)
        package = f"transformers.models.{module}"
        if known == name and find_spec(f"{package}.processing_{module}"):
            other = f"{package}.image_processing_{module}"
            sys.modules.setdefault(other, import_module(f"{package}.image_processing_pil_{module}"))
            return getattr(import_module(f"{package}.processing_{module}"), name)
    raise ModelError(f"{name} needs torchvision, which is not used here.")


def _feature_ids(processor: Any) -> tuple[int, ...]:
    """Some processors count the tokens around an image's features among its own: these name the one of features."""
    ids: list[int] = [token for token in processor.image_token_ids if token is not None]
    single: int | None = getattr(processor, "image_token_id", None)
    return tuple(token for token in ids if token == single) or tuple(ids)


def _one_line(error: Exception) -> str:
    return " ".join(str(error)[:_MOST_MESSAGE_CHARS].split()) or type(error).__name__
