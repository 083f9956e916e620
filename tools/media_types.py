"""A table of all types of the installed transformers that read images or hear: with what they are served, how their
text model runs, and as which family they are compared, or why they are not.

The model of each type that is served is made by an engine with random weights, from the configuration of its family of
tools/parity, so the table is decided by the code that decides at load. `--write` puts the table into docs/models.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)
from transformers.utils import logging

from tessera.config import build_config
from tessera.config.modalities import NOUNS, TOWERS
from tessera.config.unserved_media import UNSERVED_MEDIA
from tessera.engine.engine import Engine
from tessera.errors import TesseraError
from tessera.models.through_transformers.model import NOTE
from tools import causal_types
from tools.causal_types import NATIVE, REFUSED, THROUGH
from tools.parity.encoder_decoders import ENCODER_DECODERS
from tools.parity.family import Family
from tools.parity.sounds import WITH_SOUNDS
from tools.parity.vision import WITH_IMAGES
from tools.type_table import Page, read_cells, rendered, version

PAGE = Page(
    Path(__file__).parents[1] / "docs/models.md",
    "<!-- types with images or sounds: python -m tools.media_types --write -->",
    "<!-- end of types with images or sounds -->",
)
TEXT_ALONE = "text alone"
FAMILIES: Mapping[str, Family] = {**WITH_IMAGES, **WITH_SOUNDS, **ENCODER_DECODERS}
IMAGES: Mapping[str, str] = dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
SPEECH: Mapping[str, str] = dict(MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES)
_PUBLISHED_WITHIN: Mapping[str, str] = {"mistral4": "mistral4-vision"}
"""Types whose checkpoints with images are of another type that has them as its text model, and their family."""
_SIZES: Mapping[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "platform": "tessera.testing:ReferencePlatform",
    "dtype": "float32",
    "kv_cache_memory_bytes": 2**24,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 128,
}


@dataclass(frozen=True)
class Row:
    model_type: str
    architecture: str
    # Of its text model.
    how: str
    # What its prompts may hold beside text.
    reads: str = ""
    # As which it is compared with transformers; "" if it is not served with what it reads.
    family: str = ""
    # Why it is not.
    reason: str = ""


def decide(model_type: str, architecture: str, family: str | None, causal: Mapping[str, str]) -> Row:
    """family: of tools/parity with models of this type; None if there is none. causal: how the causal types run."""
    if family is not None:
        try:
            return _served(model_type, architecture, family)
        except TesseraError as error:
            return Row(model_type, architecture, REFUSED, reason=str(error).rstrip("."))
    alone = causal.get(model_type, REFUSED) != REFUSED
    reason = UNSERVED_MEDIA.get(architecture, "no model of it is compared with transformers")
    return Row(model_type, architecture, TEXT_ALONE if alone else REFUSED, reason=reason)


def _served(model_type: str, architecture: str, family: str) -> Row:
    """Raises TesseraError for a model that is refused."""
    model = FAMILIES[family].make()
    named = type(model).__name__
    assert named in (architecture, type_names(family)[1]), f"{family} is a {named}"
    assert named in TOWERS, f"{named} is not in TOWERS"
    with tempfile.TemporaryDirectory() as folder:
        model.config.architectures = [named]
        model.config.save_pretrained(folder)
        config = build_config(model=folder, max_model_len=FAMILIES[family].max_model_len, **_SIZES)
        engine = Engine(dataclasses.replace(config, embedded=True))
        notes, modalities = engine.info.notes, config.model.modalities
        engine.close()
    through = any(NOTE in note for note in notes)
    reads = ", ".join(f"{NOUNS[name]}s" for name in modalities)
    return Row(model_type, architecture, THROUGH if through else NATIVE, reads, family)


def type_names(family: str) -> tuple[str, str]:
    """The model_type and the class of a family's model."""
    model = FAMILIES[family].make()
    return str(model.config.model_type), type(model).__name__


def families_by_type() -> dict[str, str]:
    """The first family of each type."""
    found: dict[str, str] = dict(_PUBLISHED_WITHIN)
    for family in FAMILIES:
        found.setdefault(type_names(family)[0], family)
    return found


def causal_rows() -> dict[str, str]:
    """How each causal type runs, as its table says."""
    return {row.model_type: row.how for row in causal_types.read_rows(causal_types.written())}


# ---- the page --------------------------------------------------------------------------------------------------------


def render(rows: Sequence[Row], version: str) -> str:
    titles = ("`model_type`", "`architectures`", "Reads", "Text model", "Compared as, or why not")
    cells = [
        (row.model_type, f"`{row.architecture}`", row.reads, row.how, f"`{row.family}`" if row.family else row.reason)
        for row in rows
    ]
    parts = (_counted(rows, IMAGES, "read images"), _counted(rows, SPEECH, "write down or answer speech"))
    return rendered(f"In transformers {version} {' '.join(parts)}", titles, cells)


def _counted(rows: Sequence[Row], types: Mapping[str, str], do: str) -> str:
    mine = [row for row in rows if row.model_type in types]
    count = Counter(row.how for row in mine if row.family), Counter(row.how for row in mine if not row.family)
    served, others = count
    return (
        f"{len(mine)} types {do}: {served.total()} are served ({served[NATIVE]} with a native text model and "
        f"{served[THROUGH]} with one through transformers' code), {others[TEXT_ALONE]} with text alone, and "
        f"{others[REFUSED]} are refused."
    )


def read_rows(table: str) -> list[Row]:
    """The rows of a rendered table."""
    return [_row(*cells) for cells in read_cells(table)]


def _row(model_type: str, architecture: str, reads: str, how: str, last: str) -> Row:
    family = last.strip("`") if last.startswith("`") else ""
    return Row(model_type, architecture.strip("`"), how, reads, family, "" if family else last)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.media_types", description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*", help="model types; default: all")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.path.name}")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    table = render(list(_decided(options.types or [*IMAGES, *SPEECH])), version())
    if options.write and not options.types:
        PAGE.write(table)
    else:
        print(table)
    return 0


def _decided(types: Sequence[str]) -> Iterator[Row]:
    known, families, causal = {**IMAGES, **SPEECH}, families_by_type(), causal_rows()
    for model_type in types:
        row = decide(model_type, known[model_type], families.get(model_type), causal)
        sys.stderr.write(f"{row.model_type}: {row.how}, {row.family or row.reason}\n")
        yield row


if __name__ == "__main__":
    sys.exit(main())
