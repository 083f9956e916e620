"""`tessera quantize MODEL OUT --scheme NAME`: writes a model anew with quantized weights, as a folder or a GGUF file,
and says what that costs."""

from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.flag_command import MODEL_FORMS, FlagCommand, FlagTable, model_argument
from tessera.cli.report import ProgressLine
from tessera.config import EngineConfig, build_config
from tessera.config.engine import ENGINE_FLAGS
from tessera.config.flags import flag, flags_of, given_values, record_of
from tessera.config.mmproj import NONE as NO_TOWER
from tessera.engine.scores import Loss, loss, scores_of
from tessera.errors import ConfigError, ModelError, printable
from tessera.gguf.writing.block_types import KINDS
from tessera.log import LastingStream
from tessera.platform import Progress
from tessera.plugins.builtin import NATIVE_MODELS
from tessera.sizes import show_bytes
from tessera.text import Tokenizer
from tessera.text.scored_texts import WINDOW, ScoredText, library_windows, other_library_windows, windows

if TYPE_CHECKING:
    from tessera.loader.quantized_folder import QuantizedWeights

# They load torch, so they are imported when they run.
_FOLDER_WRITER = "tessera.loader.quantized_folder"
_GGUF_WRITER = "tessera.loader.quantized_gguf"
_CALIBRATION = "tessera.loader.calibration"
_FORMS = "tessera.quantization.compressed_weights"

GPTQ = "gptq"
_INT4 = MappingProxyType({"kind": "int", "bits": 4, "group": -1, "activations": False})
SCHEMES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "int8": {"kind": "int", "bits": 8},
        "int4": _INT4,
        GPTQ: _INT4,
        "fp8": {"kind": "float", "bits": 8},
    }
)
"""By the value of --scheme, the fields of CompressedForm; a group of -1 is chosen by the model's sizes."""
GGUF = "gguf:"
"""What --scheme has before the kind of a GGUF file."""
_ENDING = ".gguf"
_MAX_TEXT = 64 << 20  # bytes of --text


@dataclass(frozen=True)
class QuantizeOptions:
    """How weights are stored."""

    scheme: str = flag(
        "int8", "How weights are stored: int8 and fp8 with a scale per row, and activations rounded to the same; int4 "
        "with a scale per group of inputs; gptq as int4, each input making up for the errors of those before it in "
        f"texts; gguf:KIND in a GGUF file of that kind ({', '.join(KINDS)}).",
        choices=(*SCHEMES, *(f"{GGUF}{kind}" for kind in KINDS)), metavar="SCHEME", common=True,
    )  # fmt: skip
    group_size: int | None = flag(
        None, "Inputs that share a scale, with int4 and gptq.", low=8, high=4096, common=True,
        shown_default="the first of 128, 64 and 32 that divides all inputs",
    )  # fmt: skip
    zero_points: bool = flag(False, "With int4 and gptq, groups have a zero point too.", common=True)


@dataclass(frozen=True)
class CalibrationOptions:
    """What the model reads while it is rounded."""

    calibration: str | None = flag(
        None, "Text file that the model reads with --scheme gptq, like what it will be used for.", metavar="FILE",
        shown_default="Python's help and library, other parts than the loss is measured on", common=True,
    )  # fmt: skip
    calibration_windows: int = flag(
        32, f"Windows of {WINDOW} tokens that it reads, all of them at once.", low=1, high=1000, common=True
    )


@dataclass(frozen=True)
class MeasureOptions:
    """How the loss is measured."""

    text: str | None = flag(
        None, "Text file to measure the loss on.", metavar="FILE", shown_default="Python's help and code", common=True
    )
    windows: int = flag(
        8, f"Windows of {WINDOW} tokens to measure on; 0 measures nothing.", low=0, high=1000, common=True
    )


_MODEL_FLAGS = tuple(
    dataclasses.replace(one, common=False)
    for one in ENGINE_FLAGS
    if one.name in ("revision", "download_dir", "hf_token", "platform", "dtype")
)
TABLE = FlagTable(
    usage="quantize MODEL OUT [FLAGS]",
    summary="Write MODEL with quantized weights into the new folder OUT, which vLLM and transformers read too, or with "
    "--scheme gguf:KIND into the new file OUT, which llama.cpp reads too, and measure what it costs. MODEL is "
    f"{MODEL_FORMS}.",
    flags=(
        *flags_of(QuantizeOptions, "scheme"),
        *flags_of(CalibrationOptions, "calibration"),
        *flags_of(MeasureOptions, "loss"),
        *_MODEL_FLAGS,
    ),
    groups={"scheme": "Scheme", "calibration": "Calibration", "loss": "Loss", "model": "Model", "platform": "Platform"},
)


@click.command(
    cls=FlagCommand,
    table=TABLE,
    params=[model_argument(required=True), click.Argument(["out"], type=click.Path(file_okay=False, path_type=Path))],
)
def quantize(model: str, out: Path, **flags: Any) -> int:
    """Write a model with quantized weights."""
    values = given_values(TABLE.flags, flags, as_options=True)
    options = record_of(QuantizeOptions, TABLE.flags, values)
    measure, reading = (
        record_of(MeasureOptions, TABLE.flags, values),
        record_of(CalibrationOptions, TABLE.flags, values),
    )
    form = _fields(options)
    _refuse_name(out, options.scheme)
    text = None if measure.text is None else _read_text(measure.text, "text")
    if reading.calibration is not None and options.scheme != GPTQ:
        raise ConfigError(f"--calibration is for --scheme {GPTQ}; {options.scheme} reads no text.", param="calibration")
    read = None if reading.calibration is None else _read_text(reading.calibration, "calibration")
    settings = {**{one.name: flags[one.name] for one in _MODEL_FLAGS}, "mmproj": NO_TOWER}
    config = build_config(model=model, **settings)
    _refuse(config, options.scheme)
    began = time.monotonic()
    with _new(out) as unfinished:
        texts = _calibration(config, read, reading.calibration_windows) if options.scheme == GPTQ else ()
        written = _write(config, unfinished, options.scheme, form, texts)
        seconds = time.monotonic() - began
        cost = _measure(config, unfinished, settings, text, measure.windows) if measure.windows else None
    click.echo("\n".join(_report(out, written, seconds, cost)))
    return 0


def _fields(options: QuantizeOptions) -> dict[str, Any]:
    """The fields of CompressedForm. Raises ConfigError for flags that do not fit the scheme."""
    fields = dict(SCHEMES.get(options.scheme, {}))
    if "group" not in fields:
        why = "has blocks of its own" if options.scheme.startswith(GGUF) else "has a scale per row"
        for name, value in (("group_size", options.group_size), ("zero_points", options.zero_points)):
            if value:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is for --scheme int4; {options.scheme} {why}.", param=name
                )
        return fields
    if options.group_size is not None:
        if options.group_size % 8:
            raise ConfigError("group_size must be a multiple of 8.", param="group_size")
        fields["group"] = options.group_size
    return {**fields, "zero_points": options.zero_points}


def _refuse_name(out: Path, scheme: str) -> None:
    """Raises ConfigError for a name that is taken, or that would be read as another kind of model."""
    if os.path.lexists(out):
        kind = "file" if scheme.startswith(GGUF) else "folder"
        raise ConfigError(f"'{printable(out)}' is there already; name a {kind} that is not.")
    if scheme.startswith(GGUF) != (out.suffix.lower() == _ENDING):
        if scheme.startswith(GGUF):
            raise ConfigError(f"--scheme {scheme} writes one file, so OUT must end in {_ENDING}.")
        raise ConfigError(
            f"--scheme {scheme} writes a folder; for a GGUF file, give --scheme {GGUF}Q4_K_M or the like."
        )


def _refuse(config: EngineConfig, scheme: str) -> None:
    """Raises ModelError for a model that cannot be quantized."""
    name = printable(config.model.served_name)
    architecture = config.model.checkpoint["architectures"][0]
    if scheme == GPTQ and Path(config.model.path).is_file():
        raise ModelError(f"'{name}' is a GGUF file; --scheme {GPTQ} needs the folder of a model that is not quantized.")
    if not scheme.startswith(GGUF) and architecture not in NATIVE_MODELS:
        raise ModelError(
            f"'{name}' is a {printable(architecture, 60)}, which is not quantized; docs/models.md lists the native "
            "models, which are."
        )
    if config.model.checkpoint.get("quantization_config") is not None:
        raise ModelError(f"'{name}' is quantized already; give the model that it was made from.")


@contextmanager
def _new(out: Path) -> Iterator[Path]:
    """A name in a folder beside `out`, for what becomes `out` at the end; after an error nothing is left. Raises
    ConfigError if it cannot be written."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            unfinished = folder / out.name
            yield unfinished
            unfinished.rename(out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"'{printable(out)}' cannot be written: {os.strerror(error.errno or 0)}.") from error


def _calibration(config: EngineConfig, text: str | None, count: int) -> list[list[int]]:
    """Windows of equally many tokens."""
    tokenizer = Tokenizer.from_folder(config.model.tokenizer)
    size = min(WINDOW, config.model.max_model_len)
    made = other_library_windows(tokenizer, size, count) if text is None else windows(tokenizer, text, size, count)
    whole = [one.ids for one in made if len(one.ids) == size]
    if not whole:
        raise ConfigError(f"the text holds fewer than {size} tokens; name another.", param="calibration")
    return whole


def _write(
    config: EngineConfig, out: Path, scheme: str, fields: Mapping[str, Any], texts: Sequence[Sequence[int]]
) -> QuantizedWeights:
    model = config.model
    with _progress("weights") as on_progress:
        written: QuantizedWeights
        if scheme.startswith(GGUF):
            written = importlib.import_module(_GGUF_WRITER).write_gguf(
                model.path, model.checkpoint, model.tokenizer, out, scheme.removeprefix(GGUF), on_progress
            )
        else:
            out.mkdir()
            form = importlib.import_module(_FORMS).CompressedForm(**fields)
            written = importlib.import_module(_FOLDER_WRITER).write_folder(
                model.path, model.checkpoint, str(out), form, on_progress, _calibrate(config, texts)
            )
    return written


def _calibrate(config: EngineConfig, texts: Sequence[Sequence[int]]) -> Any:
    """Rounds weights by texts, in as many groups as the form has."""

    def calibrate(chosen: Collection[str], form: Any) -> Any:
        with _progress("calibration") as on_progress:
            return importlib.import_module(_CALIBRATION).rounded_by_texts(
                config.model.path, texts, chosen, form, on_progress
            )

    return calibrate if texts else lambda chosen, form: {}


@dataclass(frozen=True)
class _Cost:
    """Of the quantized model beside the source, on the same texts."""

    # Of the source beside itself.
    source: Loss
    # Of the quantized model beside the source.
    quantized: Loss
    # That were scored.
    num_tokens: int


def _measure(
    config: EngineConfig, folder: Path, settings: Mapping[str, Any], text: str | None, count: int
) -> _Cost | None:
    """None for a model without a tokenizer of its own."""
    tokenizer = Tokenizer.from_folder(config.model.tokenizer)
    first = _scored(build_config(model=config.model.path, **{**settings, "revision": None}))
    size = first.model.max_model_len - 1
    texts: list[ScoredText] = (
        library_windows(tokenizer, size, count) if text is None else [*windows(tokenizer, text, size, count)]
    )
    if not texts:
        raise ConfigError("the text holds no tokens; name another with --text.", param="text")
    second = _scored(build_config(model=str(folder), **{**settings, "revision": None}))
    with tempfile.TemporaryDirectory(prefix="tessera-scores-") as kept, _progress("loss") as on_progress:
        plain = scores_of(first, texts, Path(kept))
        on_progress(1, 2)
        other = scores_of(second, texts)
        on_progress(2, 2)
        return _Cost(loss(texts, plain, plain), loss(texts, plain, other), sum(len(one.ids) - 1 for one in texts))


def _scored(config: EngineConfig) -> EngineConfig:
    """The configuration of an engine in this process that scores windows one at a time."""
    context = min(config.model.max_model_len, WINDOW + 1)
    return dataclasses.replace(
        config,
        embedded=True,
        model=dataclasses.replace(config.model, max_model_len=context),
        cache=dataclasses.replace(config.cache, memory_bytes=256 << 20),
    )


def _read_text(path: str, param: str) -> str:
    """param: the flag that names it."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_TEXT).decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"'{printable(path)}' cannot be read: {error.strerror}.", param=param) from error


@contextmanager
def _progress(phase: str) -> Iterator[Any]:
    """Yields a function that shows how many are done, of how many."""
    line = ProgressLine(LastingStream(sys.stderr))
    try:
        yield lambda done, total: line(Progress(phase, done, total))
    finally:
        line.close()


def _report(out: Path, written: QuantizedWeights, seconds: float, cost: _Cost | None) -> Iterator[str]:
    kind = f", groups of {written.group}" if written.group else ""
    share = written.quantized / written.count
    yield f"{printable(out)}: {show_bytes(written.nbytes)}, {written.bits:.2f} bits per weight, in {seconds:.1f} s"
    apart = "" if written.with_ends else "; embedding and head as they were"
    yield f"quantized    {share:.0%} of {written.count:,} weights{kind}{apart}"
    if written.undivided:
        yield f"as they were {len(written.undivided)} weights that groups do not divide, such as {written.undivided[0]}"
    if cost is not None:
        before, after = cost.source.perplexity, cost.quantized.perplexity
        yield f"perplexity   {before:.4g} -> {after:.4g} ({after / before - 1:+.1%}) on {cost.num_tokens:,} tokens"
        yield f"KL           {cost.quantized.divergence:.4f} nats per token"
        yield f"same choice  {cost.quantized.agreement:.1%} of the most likely tokens"
