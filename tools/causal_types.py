"""A table of all causal types of the installed transformers: native, through its code, or refused and why.

Each type that is not native is built as it would be at load, from the default configuration of its class with few
layers, so the table is decided by the code that decides at load. `--write` puts the table into docs/models.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING
from transformers.utils import logging

from tessera.errors import TesseraError
from tessera.layers.build import Build
from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.model import through_transformers
from tessera.models.through_transformers.types import causal_types
from tessera.ops import REFERENCE
from tessera.platform.ops import BoundOps
from tessera.plugins import load_registry
from tessera.reference.attention import ReferenceAttention
from tessera.testing import ReferencePlatform
from tools.type_table import Page, read_cells, rendered, version

PAGE = Page(
    Path(__file__).parents[1] / "docs/models.md",
    "<!-- causal types: python -m tools.causal_types --write -->",
    "<!-- end of causal types -->",
)
NATIVE, THROUGH, REFUSED = "native", "through transformers", "refused"
LAYERS = 8
POSITIONS = 16

_DECODERS = (
    "bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert", "roberta",
    "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
)  # fmt: skip
"""Types that encode by default; a checkpoint of the class that generates says is_decoder."""

_TYPICAL: Mapping[str, dict[str, Any]] = {
    **{name: {"is_decoder": True} for name in _DECODERS},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 4,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 5e5}},
    "dots1": {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 4},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 4},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 4},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
}
"""Fields that a class leaves out but published models have."""


@dataclass(frozen=True)
class Row:
    model_type: str
    architecture: str
    how: str
    reason: str = ""


def decide(model_type: str, architecture: str, native: frozenset[str]) -> Row:
    """native: the architectures with a native implementation."""
    if architecture in native:
        return Row(model_type, architecture, NATIVE)
    try:
        built = through_transformers(_build(), typical_config(model_type, architecture), POSITIONS)
    except RefusedTypeError as refused:
        return Row(model_type, architecture, REFUSED, str(refused))
    except TesseraError as error:
        return Row(model_type, architecture, REFUSED, str(error).rstrip("."))
    return Row(model_type, architecture, REFUSED if built is None else THROUGH)


def typical_config(model_type: str, architecture: str) -> dict[str, Any]:
    """A config.json of the type, with LAYERS layers if the class allows it."""
    typical = _TYPICAL.get(model_type, {})
    config = _default(model_type, {"num_hidden_layers": LAYERS, **typical}) or _default(model_type, typical) or typical
    return {**config, "architectures": [architecture], "model_type": model_type}


def _default(model_type: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The class's default configuration with these fields; empty if the class does not accept them."""
    try:
        made: dict[str, Any] = CONFIG_MAPPING[model_type](**fields).to_dict()
    except Exception:  # noqa: BLE001 - a class may raise anything for fields it does not accept
        return {}
    return made


def native_architectures() -> frozenset[str]:
    return frozenset(entry.name for entry in load_registry().models)


def _build() -> Build:
    device = ReferencePlatform().open(0)
    return Build(BoundOps(REFERENCE, device), device, "float32", [ReferenceAttention()])


# ---- the page --------------------------------------------------------------------------------------------------------


def render(rows: Sequence[Row], version: str) -> str:
    count = Counter(row.how for row in rows)
    heading = (
        f"Of the {len(rows)} causal types of transformers {version}, {count[NATIVE]} are native, {count[THROUGH]} run "
        f"through transformers' code and {count[REFUSED]} are refused."
    )
    cells = [(row.model_type, f"`{row.architecture}`", _verdict(row)) for row in rows]
    return rendered(heading, ("`model_type`", "`architectures`", ""), cells)


def _verdict(row: Row) -> str:
    return f"refused: {row.reason}" if row.how == REFUSED else row.how


def written() -> str:
    return PAGE.written()


def read_rows(text: str) -> list[Row]:
    """The rows of a rendered table."""
    return [_row(*cells) for cells in read_cells(text)]


def _row(model_type: str, architecture: str, verdict: str) -> Row:
    how, _, reason = verdict.partition(": ")
    return Row(model_type, architecture.strip("`"), how, reason)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.causal_types", description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*", help="model types; default: all")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.path.name}")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = list(_decided(options.types or causal_types()))
    text = render(rows, version())
    if options.write and not options.types:
        PAGE.write(text)
    else:
        print(text)
    return 0


def _decided(types: Iterable[str]) -> Iterable[Row]:
    native, known = native_architectures(), causal_types()
    for model_type in types:
        row = decide(model_type, known[model_type], native)
        sys.stderr.write(f"{row.model_type}: {_verdict(row)}\n")
        yield row


if __name__ == "__main__":
    sys.exit(main())
