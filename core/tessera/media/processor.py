"""transformers' processor of a model, for images, videos and sounds alone: from one of them to the inputs of the
model's tower, and to the text that stands for it in a prompt.

Each is processed by itself, so that its inputs are the same whatever else a prompt holds. Processors whose outcome for
one depends on the others of its prompt (LLaVA-OneVision does not cut the images of a prompt with several into tiles;
batches are padded) so give what they give for one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.arrays import Array, encode_array
from tessera.config.modalities import missing_libraries
from tessera.config.tiled_encoder import TiledEncoder
from tessera.errors import ModelError, RequestError
from tessera.media import dual_encoder, ovis2, retriever, voxtral
from tessera.media.image_processors import COMPLETIONS
from tessera.media.item import MAX_INPUT_BYTES, MediaPlaces, MediaReady, ProcessedMedia, digest_of, input_bytes
from tessera.media.kinds import IMAGE, SOUND, VIDEO, MediaKind
from tessera.media.messages import MAX_SECONDS
from tessera.media.video import SeenFrames, VideoFacts

if TYPE_CHECKING:
    from PIL.Image import Image

_NAMING_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
# What a request may not choose: how the outcome is held, and where it is computed.
_OWN_OPTIONS = frozenset(
    {"return_tensors", "data_format", "input_data_format", "device", "disable_grouping", "return_metadata"}
    | {"video_metadata", "use_image_id"}
)
_SAMPLING = ("do_sample_frames", "fps", "num_frames")
_FRAMES_PER_SECOND = 2
"""That a model sees, if its processor takes all unless it is told otherwise."""
_MOST_FRAMES = 8
"""The same, of a model that does not say how many it takes."""
_MOST_OPTION_BYTES = 4096
_MOST_MESSAGE_CHARS = 300
_PROBE_SIZE = (96, 64)
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True)
class _Part:
    """What of a processor is for one modality, by its names."""

    kind: MediaKind
    # The argument of the processor as a whole, and what it gives its own method.
    argument: str
    arguments: str
    method: str
    # Its method for the text that takes a placeholder's place.
    replace: str
    # Its attributes: the placeholder, the tokens that it counts as this modality's, and the one of them with features.
    placeholder: str
    token_ids: str
    token_id: str
    # The part itself, by the first of its names that there is.
    part: tuple[str, ...]
    # What arrays it makes: those for videos and sounds are written for torch alone, and some for images.
    tensors: str
    # What place its contents have among those of prepare_inputs_layout().
    place: int

    def loaded(self, processor: Any) -> Any:
        return next((own for name in self.part if (own := getattr(processor, name, None)) is not None), None)

    def tensors_of(self, processor: Any) -> str:
        """As transformers calls the arrays that a processor's part makes."""
        return "pt" if getattr(self.loaded(processor), "backend", "") == "torchvision" else self.tensors


_PARTS: Mapping[str, _Part] = MappingProxyType(
    {
        "image": _Part(
            IMAGE, "images", "images_kwargs", "_process_images", "replace_image_token", "image_token",
            "image_token_ids", "image_token_id", ("image_processor",), "np", 0,
        ),
        "video": _Part(
            VIDEO, "videos", "videos_kwargs", "_process_videos", "replace_video_token", "video_token",
            "video_token_ids", "video_token_id", ("video_processor",), "pt", 2,
        ),
        "audio": _Part(
            SOUND, "audio", "audio_kwargs", "_process_audio", "replace_audio_token", "audio_token",
            "audio_token_ids", "audio_token_id", ("audio_processor", "feature_extractor"), "pt", 3,
        ),
    }
)  # fmt: skip


class MediaProcessor:
    """A model's processor. Raises ModelError."""

    def __init__(
        self,
        folder: str | Path,
        options: Mapping[str, Any] | None = None,
        modalities: Sequence[str] = ("image",),
        tiled: TiledEncoder | None = None,
    ) -> None:
        """options: arguments of the processor, besides its own. modalities: what it is to process. tiled:
        MediaPlaces.tiled of images."""
        self._tiled = tiled
        self._parts = {name: _PARTS[name] for name in modalities}
        for part in self._parts.values():
            _check_libraries(part)
        try:
            self._processor = _loaded(Path(folder), modalities)
        except (ModelError, MemoryError):
            raise
        except Exception as error:
            raise ModelError(f"The processor of this model cannot be loaded: {_one_line(error)}") from error
        self._options = dict(options or {})
        self._check_options(self._options)
        self.ready = MediaReady({name: self._places(part) for name, part in self._parts.items()})
        # By modality, inputs that the whole processor keeps to itself; the model takes all others, of which a small
        # image may lack some.
        self._own_names: dict[str, frozenset[str]] = {}
        # The longest sound that it takes to its end, in samples; None if there is no such limit.
        self._most_samples: int | None = None
        for part in self._parts.values():
            self._check(part)
        if "audio" in self._parts:
            self._most_samples = self._longest()

    def image(self, image: Image, options: Mapping[str, Any] | None = None) -> ProcessedMedia:
        """Processes an image. options: further arguments of the processor. Raises RequestError or MemoryError."""
        return self._media(_PARTS["image"], image, dict(options or {}))

    def sound(self, samples: Array, options: Mapping[str, Any] | None = None) -> ProcessedMedia:
        """As image(), of a sound at the rate that ready names, [samples] float32."""
        if self._most_samples is not None and len(samples) > self._most_samples:
            rate = self.ready.places["audio"].rate
            raise RequestError(
                f"The sound has {len(samples) / rate:.1f} seconds, and this model takes {self._most_samples / rate:g}; "
                "send it in parts."
            )
        return self._media(_PARTS["audio"], samples, dict(options or {}))

    def chosen_frames(self, facts: VideoFacts, options: Mapping[str, Any] | None = None) -> list[int]:
        """Which frames of a video the model sees: those that transformers' processor chooses, or all that it takes of
        frames without times. Raises RequestError."""
        processor, said = self._processor.video_processor, {**self._options, **(options or {})}
        self._check_options(said)
        chooses, *rates = _SAMPLING
        asked = {name: said[name] for name in rates if said.get(name) is not None}
        own = any(getattr(processor, name, None) is not None for name in rates)
        without_times = facts.rate is None and not asked and not processor.do_sample_frames
        if said.get(chooses) is False or (said.get(chooses) is None and without_times):
            return list(range(facts.frames))
        if not asked and not own:
            by_time = hasattr(processor, "max_frames")
            asked = {"fps": _FRAMES_PER_SECOND} if by_time else {"num_frames": min(facts.frames, _MOST_FRAMES)}
        try:
            numbers: list[int] = self._processor.sampled(facts, asked)
        except MemoryError:
            raise
        except ZeroDivisionError:
            return []
        except Exception as error:
            raise RequestError(f"The model's processor does not take this video: {_one_line(error)}") from error
        return numbers

    def video(self, seen: SeenFrames, options: Mapping[str, Any] | None = None) -> ProcessedMedia:
        """As image(), of the frames that chosen_frames() says."""
        return self._media(_PARTS["video"], seen, dict(options or {}))

    def _media(self, part: _Part, content: Any, options: Mapping[str, Any]) -> ProcessedMedia:
        self._check_options(options)
        noun = part.kind.noun
        try:
            inputs, replacement = self._processed(part, content, options)
        except MemoryError:
            raise
        except Exception as error:
            # A processor raises what it likes for a size or an option that does not suit it.
            raise RequestError(f"The model's processor does not take this {noun}: {_one_line(error)}") from error
        if input_bytes(inputs) > MAX_INPUT_BYTES:
            raise RequestError(f"The model's processor makes too much of this {noun}; make it smaller.")
        if not all(np.isfinite(array).all() for array in inputs.values() if array.dtype.kind == "f"):
            raise RequestError(f"The model's processor makes no numbers of this {noun}.")
        modality = part.kind.modality
        rows = int(np.isin(self._tokens(replacement), self.ready.places[modality].feature_ids).sum())
        if not rows:
            raise RequestError(f"This {noun} is too small for the model; send a larger one.")
        return ProcessedMedia(modality, digest_of(inputs), replacement, rows, inputs)

    def _processed(self, part: _Part, content: Any, options: Mapping[str, Any]) -> tuple[dict[str, Array], str]:
        """The inputs of the tower, and the replacement."""
        processed, replacement = self._processor.process_part(part, content, {**self._options, **options})
        names = set(processed).difference(
            self._processor.unused_input_names, self._own_names.get(part.kind.modality, ())
        )
        return {name: _array(processed[name]) for name in sorted(names)}, replacement

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    def _places(self, part: _Part) -> MediaPlaces:
        placeholder = getattr(self._processor, part.placeholder, None)
        if placeholder is None or part.loaded(self._processor) is None or not self._processor.replaces(part):
            raise ModelError(
                f"{part.kind.noun.capitalize()}s cannot be put into the prompts of this model: "
                f"{type(self._processor).__name__} of the installed transformers names no text that stands for one."
            )
        rate = int(part.loaded(self._processor).sampling_rate) if part.kind is SOUND else 0
        ids = _feature_ids(self._processor, part, self._tokens(placeholder))
        if part.kind is not IMAGE:
            return MediaPlaces(placeholder, ids, rate)
        return MediaPlaces(placeholder, ids, rate, getattr(self._processor, "image_number", None), self._tiled)

    def _probe(self, part: _Part) -> Any:
        if part.kind is SOUND:
            rate = self.ready.places["audio"].rate
            return np.sin(np.arange(rate, dtype=np.float32) / 25) / 2
        import PIL.Image

        if part.kind is VIDEO:
            frames = np.arange(4 * _PROBE_SIZE[0] * _PROBE_SIZE[1] * 3).astype(np.uint8)
            facts = VideoFacts(4, 2.0, *_PROBE_SIZE)
            return SeenFrames(frames.reshape(4, *_PROBE_SIZE, 3), range(4), facts)
        return PIL.Image.linear_gradient("L").resize(_PROBE_SIZE).convert("RGB")

    def _check(self, part: _Part) -> None:
        """Processes an image or a sound as image() or sound() does and by the processor as a whole, which must be the
        same. Raises ModelError."""
        kind, noun, content = type(self._processor).__name__, part.kind.noun, self._probe(part)
        try:
            whole = self._processor(
                text=[self.ready.places[part.kind.modality].placeholder],
                **self._processor.arguments_of(part, content, self._options),
            )
            processed, replacement = self._processed(part, content, {})
            self._own_names[part.kind.modality] = frozenset(processed).difference(whole)
            inputs = {name: array for name, array in processed.items() if name in whole}
            if not all(np.array_equal(_array(whole[name]), array) for name, array in inputs.items()):
                raise ValueError(
                    f"the inputs of {part.kind.with_article} are not those that it makes of {noun} and text"
                )
            tokenizer, ids = self._processor.tokenizer, np.asarray(whole["input_ids"])[0].tolist()
            tokens = tokenizer(self.ready.places[part.kind.modality].with_number(replacement, 0))["input_ids"]
            # Some put the token that begins a text in front; here a chat template does.
            if tokens != ids and [tokenizer.bos_token_id, *tokens] != ids:
                raise ValueError(
                    f"the tokens of {part.kind.with_article} are not those that it makes of {noun} and text"
                )
            if not inputs:
                raise ValueError(f"it makes nothing of {part.kind.with_article}")
            for array in inputs.values():
                encode_array(array)
        except MemoryError:
            raise
        except Exception as error:
            raise ModelError(
                f"{noun.capitalize()}s of this model cannot be processed: {kind}: {_one_line(error)}"
            ) from error

    def _longest(self) -> int | None:
        """Some processors cut a long sound without a word: those whose features are no more for a longer one than for
        one of the length that their configuration names."""
        part, places = _PARTS["audio"], self.ready.places["audio"]
        seconds = getattr(self._processor, "max_audio_len", None)
        if seconds is None:
            seconds = getattr(part.loaded(self._processor), "chunk_length", None)
        if not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
            return None
        samples = int(seconds * places.rate)
        if hasattr(self._processor, "max_audio_len"):
            return samples
        texts = [self._processed(part, np.zeros(size, np.float32), {})[1] for size in (samples, samples + places.rate)]
        return samples if texts[0] == texts[1] else None

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Raises RequestError."""
        if not options:
            return
        if len(json.dumps(options)) > _MOST_OPTION_BYTES:
            raise RequestError(f"mm_processor_kwargs has at most {_MOST_OPTION_BYTES} bytes of JSON.")
        owner, known = self._known_options()
        for name in options:
            if name not in known:
                raise RequestError(
                    f"mm_processor_kwargs has {name[:40]!r}, which {owner} does not take; it takes: "
                    f"{', '.join(sorted(known))}."
                )

    def _known_options(self) -> tuple[str, set[str]]:
        """Those of the image and the video processor; parts for sounds have none that a request could choose."""
        parts = [self._parts[name].loaded(self._processor) for name in ("image", "video") if name in self._parts]
        if not parts:
            return type(self._processor).__name__, set()
        known = {name for part in parts for name in part.valid_kwargs.__annotations__}
        return " and ".join(type(part).__name__ for part in parts), known - _OWN_OPTIONS


class _SomeParts:
    """Mixed into a class of processors: loads a tokenizer and the parts for `modalities`, of those for images Pillow's,
    and none of the others, which may need libraries that these do not."""

    modalities: Sequence[str]
    get_attributes: Any
    prepare_inputs_layout: Any
    video_processor: Any
    _merge_kwargs: Any

    @classmethod
    def _get_arguments_from_pretrained(cls, path: str, processor_dict: object = None, **_: object) -> list[Any]:
        from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer

        arguments: list[Any] = []
        for name in cls.get_attributes():
            if name == "tokenizer":
                arguments.append(AutoTokenizer.from_pretrained(path, **_LOCAL))
            elif name == "image_processor" and "image" in cls.modalities:
                arguments.append(AutoImageProcessor.from_pretrained(path, backend="pil", **_LOCAL))
            elif name == "video_processor" and "video" in cls.modalities:
                arguments.append(_video_processor(path))
            elif name in _PARTS["audio"].part and "audio" in cls.modalities:
                arguments.append(AutoFeatureExtractor.from_pretrained(path, **_LOCAL))
            else:
                arguments.append(None)
        return arguments

    def check_argument_for_proper_class(self, name: str, argument: object) -> object:
        if argument is None:
            return None
        return super().check_argument_for_proper_class(name, argument)  # type: ignore[misc]  # of what it is mixed into

    def replaces(self, part: _Part) -> bool:
        """Whether the class says what takes the place of a placeholder."""
        from transformers import ProcessorMixin

        ways = (part.method, part.replace)
        return any(getattr(type(self), way, None) is not getattr(ProcessorMixin, way, None) for way in ways)

    def process_part(self, part: _Part, content: Any, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """What the processor makes of an image or a sound, and the text for it, before it makes tokens of a prompt."""
        tokenizer = getattr(self, "tokenizer", None)
        arguments = self.arguments_of(part, content, options)
        contents = self.prepare_inputs_layout(text=None, **{part.argument: arguments.pop(part.argument)})[part.place]
        merged = self._merge_kwargs(
            tokenizer_init_kwargs={} if tokenizer is None else tokenizer.init_kwargs, **arguments
        )
        processed, (replacement,) = getattr(self, part.method)(contents, **merged[part.arguments])
        return processed, replacement

    def arguments_of(self, part: _Part, content: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """For the processor as a whole."""
        known = getattr(part.loaded(self), "valid_kwargs", None)
        own = dict(options) if known is None else {name: options[name] for name in options if name in _names(known)}
        if part.kind is VIDEO:
            own = {name: value for name, value in own.items() if name not in _SAMPLING}
            own |= {"do_sample_frames": False, "video_metadata": [_metadata(content.facts, content.numbers)]}
            content = content.pixels
        return {part.argument: [content], **own, "return_tensors": part.tensors_of(self)}

    def sampled(self, facts: VideoFacts, options: Mapping[str, Any]) -> list[int]:
        """The numbers of the frames that the video processor chooses. Raises what it raises."""
        processor = self.video_processor
        own = {name: getattr(processor, name, None) for name in _names(processor.valid_kwargs)}
        if options:
            own |= {"fps": None, "num_frames": None, **options}
        others = {name: value for name, value in own.items() if name not in _NOT_SAMPLING}
        numbers = processor.sample_frames(metadata=_metadata(facts, range(facts.frames)), **others)
        return sorted(int(number) for number in numbers)


_NOT_SAMPLING = frozenset({"input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata"})
"""What transformers keeps from sample_frames()."""


def _names(fields: Any) -> set[str]:
    """Of a typed dictionary's fields."""
    return set(fields.__annotations__)


def _metadata(facts: VideoFacts, numbers: Sequence[int]) -> Any:
    """As load_video() describes a video with these frames."""
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=facts.frames,
        fps=facts.rate,
        duration=facts.seconds if facts.rate else None,
        video_backend="pyav",
        height=facts.height,
        width=facts.width,
        frames_indices=list(numbers),
    )


def _video_processor(path: str) -> Any:
    from transformers import AutoVideoProcessor

    return AutoVideoProcessor.from_pretrained(path, **_LOCAL)


def _array(value: Any) -> Array:
    """Numbers of Python, as torch would have them, and those that NumPy lacks in float32."""
    array = np.asarray(value.float() if str(getattr(value, "dtype", "")) == "torch.bfloat16" else value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _check_libraries(part: _Part) -> None:
    """Raises ModelError."""
    missing = missing_libraries(part.kind.modality)
    if missing:
        raise ModelError(f"This model takes {part.kind.noun}s, and {missing}")


def _loaded(folder: Path, modalities: Sequence[str]) -> Any:
    known = _processor_class(folder)
    bases: tuple[Any, ...] = (_SomeParts, known)
    fields: dict[str, Any] = {"modalities": tuple(modalities)}
    if known.__name__ == voxtral.NAME:
        bases = (_SomeParts, voxtral.VoxtralSounds, known)
        fields["window"] = voxtral.window_of(folder)
    if known.__name__ == ovis2.NAME:
        bases = (_SomeParts, ovis2.Ovis2Images, known)
    if known.__name__ in COMPLETIONS:
        bases = (_SomeParts, COMPLETIONS[known.__name__], known)
    if known.__name__ in retriever.NAMES:
        bases = (_SomeParts, retriever.RetrieverImages, known)
    if known.__name__ in dual_encoder.NAMES:
        bases = (_SomeParts, dual_encoder.DualEncoderImages, known)
    some_parts: Any = type(known.__name__, bases, fields)
    return some_parts.from_pretrained(str(folder), **_LOCAL)


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


def _feature_ids(processor: Any, part: _Part, placeholder: Sequence[int]) -> tuple[int, ...]:
    """Some processors count the tokens around features among their own: these name the one of features. placeholder:
    its tokens, for a processor that names none."""
    ids: list[int] = [token for token in getattr(processor, part.token_ids) if token is not None] or list(placeholder)
    single: int | None = getattr(processor, part.token_id, None)
    return tuple(token for token in ids if token == single) or tuple(ids)


def _one_line(error: Exception) -> str:
    return " ".join(str(error)[:_MOST_MESSAGE_CHARS].split()) or type(error).__name__
