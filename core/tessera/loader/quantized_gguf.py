"""Writes a model as a GGUF file, one tensor at a time: what `tessera quantize --scheme gguf:KIND` does."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tessera.errors import ConfigError, ModelError, printable
from tessera.gguf.architectures import architecture_of
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.model import GgufModel
from tessera.gguf.writing.block_types import KINDS, block_type
from tessera.gguf.writing.settings import Metadata, Settings, refuse_class, settings_of
from tessera.gguf.writing.tensors import WrittenTensor, values_of, written_tensors
from tessera.gguf.writing.vocabulary import vocabulary_of
from tessera.loader.complete_config import complete_config
from tessera.loader.quantized_folder import QuantizedWeights
from tessera.loader.source import CheckpointWeights, open_checkpoint
from tessera.quantization.encoders import encode
from tessera.text import Tokenizer

_LIBRARY = "gguf"
_AT_A_TIME = 1 << 20
"""Numbers that a thread rounds at a time."""
_PLAIN = ("F32", "F16", "BF16")
_NOT_MODEL = frozenset(
    {
        *("architectures", "model_type", "dtype", "transformers_version", "_name_or_path", "problem_type"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "is_encoder_decoder"),
        *("use_cache", "return_dict", "output_hidden_states", "output_attentions", "output_router_logits"),
        *("initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"),
        *("router_aux_loss_coef", "router_jitter_noise", "chunk_size_feed_forward", "pretraining_tp"),
        *("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"),
    }
)
"""Fields of config.json on which no answer depends, or that others say."""


def write_gguf(
    source: str,
    config: Mapping[str, Any],
    tokenizer: str,
    path: Path,
    kind: str,
    on_progress: Callable[[int, int], None],
) -> QuantizedWeights:
    """source: a model's folder or GGUF file. config: of it, as config.json has it. tokenizer: the folder or file with
    its tokenizer. path: of a file that is not there. kind: one of KINDS. on_progress: receives tensors done, and all.
    Raises ModelError for a model that a GGUF file cannot hold, ConfigError where the gguf package is not installed, and
    OSError where the file cannot be written."""
    refuse_class(str(config["architectures"][0]))
    library = _library()
    weights, chosen = open_checkpoint(source), KINDS[kind]
    settings = settings_of(complete_config(config))
    shapes = {name: tuple(weights.shape(name)) for name in weights.names()}
    tensors, tied = _tensors(settings, path, shapes)
    layers = config["num_hidden_layers"]
    metadata = {
        "general.name": _name(config, source),
        "general.file_type": chosen.number,
        "general.quantization_version": 2,
        **settings.metadata,
        **_vocabulary(tokenizer, config),
    }
    writer = library.GGUFWriter(path, settings.architecture)
    for key, value in metadata.items():
        _add(library, writer, key, value)
    types = {}
    for tensor in tensors:
        shape = _shape(tensor, shapes)
        types[tensor.name] = block_type(chosen, tensor.name, shape, layers, tied=tied)
        _announce(library, writer, tensor.name, shape, types[tensor.name])
    for name, factors in settings.factors.items():
        _announce(library, writer, name, (len(factors),), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    with _own_threads() as threads:
        for number, tensor in enumerate(tensors, 1):
            writer.write_tensor_data(_stored(weights, tensor, types[tensor.name], threads))
            on_progress(number, len(tensors))
    for factors in settings.factors.values():
        writer.write_tensor_data(np.array(factors, np.float32))
    writer.close()
    _refuse_difference(config, path)
    sizes = {tensor.name: prod(_shape(tensor, shapes)) for tensor in tensors}
    quantized = sum(size for name, size in sizes.items() if types[name] not in _PLAIN)
    undivided = [] if chosen.type in _PLAIN else [name for name, one in types.items() if one == "F16"]
    return QuantizedWeights(
        path.stat().st_size, sum(sizes.values()), quantized, 0, undivided, with_ends=True
    )  # fmt: skip


def _library() -> Any:
    try:
        return importlib.import_module(_LIBRARY)
    except ImportError as error:
        raise ConfigError("GGUF files are written with gguf: pip install 'tessera-llm[gguf]'.") from error


def _tensors(
    settings: Settings, path: Path, shapes: Mapping[str, Sequence[int]]
) -> tuple[Sequence[WrittenTensor], bool]:
    """Those of the file, and whether the embedding is the head too."""
    fields = GgufFields({"general.architecture": settings.architecture, **settings.metadata})
    form = architecture_of(fields, path)
    heads = {"attn_q": fields.count("attention.head_count"), "attn_k": fields.count("attention.head_count_kv")}
    return written_tensors(form, shapes, heads), form.ends["output.weight"] not in shapes


def _vocabulary(folder: str, config: Mapping[str, Any]) -> Metadata:
    tokenizer = Tokenizer.from_folder(folder)
    said = config.get("eos_token_id")
    ends = [said] if isinstance(said, int) else [*(said or [])]
    return vocabulary_of(
        tokenizer.document(), tokenizer.special_tokens, ends, config["vocab_size"], tokenizer.chat_templates
    )


def _name(config: Mapping[str, Any], source: str) -> str:
    return str(config.get("_name_or_path") or Path(source).stem).rpartition("/")[2]


def _add(library: Any, writer: Any, key: str, value: Any) -> None:
    kinds = library.GGUFValueType
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        by_type = {bool: kinds.BOOL, str: kinds.STRING, int: kinds.UINT32, float: kinds.FLOAT32}
        writer.add_key_value(key, value, by_type[type(value)])


def _shape(tensor: WrittenTensor, shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    shape = tuple(shapes[tensor.sources[0]])
    return (len(tensor.sources), *shape) if len(tensor.sources) > 1 or "_exps." in tensor.name else shape


def _announce(library: Any, writer: Any, name: str, shape: Sequence[int], kind: str) -> None:
    raw = library.GGMLQuantizationType[kind]
    elements, nbytes = library.GGML_QUANT_SIZES[raw]
    in_bytes = (*shape[:-1], shape[-1] // elements * nbytes)
    writer.add_tensor_info(name, in_bytes, np.dtype(np.uint8), prod(in_bytes), raw_dtype=raw)


@contextmanager
def _own_threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that round some rows each. Rounding is many small operations, on which torch's own threads wait longer
    than they work."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(number, thread_name_prefix="rounding") as threads:
            yield threads
    finally:
        torch.set_num_threads(number)


def _stored(
    weights: CheckpointWeights, tensor: WrittenTensor, kind: str, threads: ThreadPoolExecutor
) -> np.ndarray[Any, Any]:
    """Its bytes."""
    parts: list[np.ndarray[Any, Any]] = []
    for name in tensor.sources:
        values = values_of(tensor, weights.whole(name).float().numpy())
        if not np.isfinite(values).all():
            raise ModelError(f"'{printable(name)}' holds numbers that are not finite, so it cannot be written.")
        rows = torch.from_numpy(np.ascontiguousarray(values)).split(max(_AT_A_TIME // values.shape[-1], 1))
        parts += threads.map(lambda part: _encoded(part, kind).reshape(-1), rows)
    return np.concatenate(parts)


def _encoded(values: torch.Tensor, kind: str) -> np.ndarray[Any, Any]:
    match kind:
        case "F32":
            stored = values
        case "F16":
            stored = values.half()
        case "BF16":
            stored = values.bfloat16()
        case _:
            stored = encode(kind.lower(), values)
    return stored.contiguous().view(torch.uint8).numpy()


def _refuse_difference(config: Mapping[str, Any], path: Path) -> None:
    """Raises ModelError if the file, as it is read again, says another model."""
    before, after = complete_config(config), complete_config(GgufModel(GgufFile.open(path)).config())
    for name in sorted(before.keys() - _NOT_MODEL):
        if (name in after or before[name]) and not _same(before[name], after.get(name)):
            raise ModelError(
                f"a GGUF file of its architecture cannot say {name} = {printable(str(before[name]), 80)}; it "
                f"would be read as {printable(str(after.get(name)), 80)}."
            )


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) or isinstance(second, float):
        return (
            isinstance(first, int | float)
            and isinstance(second, int | float)
            and abs(first - second) <= 1e-6 * max(abs(first), abs(second))
        )
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        keys = {key for one in (first, second) for key, value in one.items() if value is not None}
        return all(_same(first.get(key), second.get(key)) for key in keys)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)
