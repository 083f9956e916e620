"""Generates the table of models that answer with numbers from the architectures that core has, and prints it or puts it
into docs/models.md. A test checks that it is up to date there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tessera.plugins.builtin import POOLING_MODELS

PAGE = Path(__file__).parents[1] / "docs/models.md"
BEGIN, END = "<!-- models that pool: python -m tools.pooling_table --write -->", "<!-- end of models that pool -->"
HEADS = ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification")
EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "Bert": "all-MiniLM, BGE, E5, mxbai-embed-large, the ms-marco-MiniLM rerankers",
        "DistilBert": "multi-qa-distilbert",
        "Electra": "ms-marco-electra",
        "Gemma3Text": "EmbeddingGemma",
        "JinaEmbeddingsV3": "jina-embeddings-v3 in transformers' form",
        "MPNet": "all-mpnet-base",
        "LlamaBidirectional": "llama-nemoretriever, its rerankers too",
        "Mistral": "E5-Mistral",
        "ModernBert": "gte-modernbert, modernbert-embed",
        "New": "gte-multilingual, gte-large-en-v1.5",
        "NomicBert": "nomic-embed-text-v1.5",
        "Qwen2": "gte-Qwen2 where it is causal",
        "Qwen3": "Qwen3-Embedding, Qwen3-Reranker",
        "Roberta": "all-distilroberta",
        "T5Encoder": "sentence-t5, GTR",
        "XLMRoberta": "BGE-M3, multilingual-E5, bge-reranker-v2-m3",
    }
)
"""Published models of a family's form."""


THROUGH_TRANSFORMERS: Mapping[str, str] = MappingProxyType(
    {
        "Data2VecText": "",
        "Ernie": "ERNIE 1, 2 and 3",
        "MegatronBert": "",
        "RemBert": "",
        "RobertaPreLayerNorm": "",
        "RoCBert": "",
        "RoFormer": "",
        "Ultrabert": "",
        "XLMRobertaXL": "",
        "Xmod": "its `default_language` alone",
    }
)
"""Encoders through transformers' code that tests compare with it, and what is to be said of them."""


def families() -> Mapping[str, frozenset[str]]:
    """The heads of each family, in the order of the names."""
    heads: dict[str, set[str]] = {}
    for architecture in POOLING_MODELS:
        head = next(head for head in HEADS if architecture.endswith(head))
        heads.setdefault(architecture.removesuffix(head), set()).add(head)
    return {name: frozenset(heads[name]) for name in sorted(heads, key=str.lower)}


def table() -> str:
    """One line per family, then one for each that runs through transformers' code."""
    lines = [f"| Family | {' | '.join(f'`*{head}`' for head in HEADS)} | Such as |", "|---" * (len(HEADS) + 2) + "|"]
    for name, heads in families().items():
        cells = ["yes" if head in heads else "" for head in HEADS]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {EXAMPLES.get(name, '')} |")
    lines += ["", "Through transformers' code:", "", "| Family | |", "|---|---|"]
    lines += [f"| `{name}` | {said} |" for name, said in THROUGH_TRANSFORMERS.items()]
    return "\n".join(lines) + "\n"


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.pooling_table", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    if parser.parse_args(arguments).write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
