"""The flags of `tessera bench`. Names are vLLM's where the same thing exists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.cli.client.remote import DEFAULT_URL
from tessera.cli.engine_flags import engine_flags, groups_of
from tessera.cli.flags import Flag, FlagTable

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "batch_size": 8,
        "num_iters_warmup": 2,
        "num_iters": 10,
        "num_prompts": 100,
        "num_warmups": 1,
        "input_len": 256,
        "output_len": 64,
        "random_range_ratio": 0.0,
        "seed": 0,
        "url": DEFAULT_URL,
        "request_rate": math.inf,
        "burstiness": 1.0,
        "temperature": 0.0,
        "timeout": 600.0,
        "log_level": "warning",
    }
)
"""What holds where a flag is not given."""


def _flag(name: str, group: str, text: str, kind: Any = "text", **more: Any) -> Flag:
    default = more.pop("default", None)
    known = DEFAULTS.get(name)
    shown = f"{known:g}" if isinstance(known, float) else str(known)
    return Flag(name, group, text, kind, default=default or ("" if known is None else shown), common=True, **more)


_SEED = _flag("seed", "work", "Seed of prompts, lengths, arrivals and random weights.", "int")
_INPUT = _flag("input_len", "work", "Tokens of a prompt.", "int", aliases=("--random-input-len",))
_OUTPUT = _flag("output_len", "work", "Tokens of an answer.", "int", aliases=("--random-output-len",))
_SEVERAL = (
    _flag("num_prompts", "work", "Requests to time.", "int"),
    _INPUT,
    _OUTPUT,
    _flag("random_range_ratio", "work", "Lengths are drawn from this share below to this share above.", "float",
          metavar="SHARE"),
    _SEED,
    _flag("num_warmups", "work", "Requests before those that are timed.", "int"),
)  # fmt: skip
_RESULT = (
    _flag("json", "result", "File for the result as JSON, with all settings, versions and the machine.",
          metavar="FILE", aliases=("--output-json",)),
    _flag("log_level", "result", "Least severe messages to write.", "choice",
          choices=("debug", "info", "warning", "error"), metavar="LEVEL"),
)  # fmt: skip
_DETAILED = _flag("save_detailed", "result", "The times and lengths of each request in the JSON as well.", "switch")
_DETOKENIZE = _flag("disable_detokenize", "work", "Leave the time to turn tokens into text out.", "switch")
_ENGINE = engine_flags(without={"seed"})

LATENCY = FlagTable(
    usage="bench latency [MODEL] [FLAGS]",
    summary="Time one batch from its start to its last token, again and again. MODEL, a folder or ORGANIZATION/NAME on "
    "the hub, or the bundled demo.",
    flags=(
        _flag("batch_size", "work", "Requests of a batch.", "int"),
        _INPUT,
        _OUTPUT,
        _flag("num_iters_warmup", "work", "Batches before those that are timed.", "int"),
        _flag("num_iters", "work", "Batches to time.", "int"),
        _SEED,
        _DETOKENIZE,
        *_RESULT,
        *_ENGINE,
    ),
    groups={"work": "What is asked", "result": "What is written", **groups_of(_ENGINE)},
)

THROUGHPUT = FlagTable(
    usage="bench throughput [MODEL] [FLAGS]",
    summary="Time requests given to an engine all at once. MODEL, a folder or ORGANIZATION/NAME on the hub, or the "
    "bundled demo.",
    flags=(*_SEVERAL, _DETOKENIZE, *_RESULT, _DETAILED, *_ENGINE),
    groups={"work": "What is asked", "result": "What is written", **groups_of(_ENGINE)},
)

SERVE = FlagTable(
    usage="bench serve [FLAGS]",
    summary="Time requests to a running server with an OpenAI API (/v1/completions, streaming, token ids).",
    flags=(
        _flag("url", "server", "Address of the server.", metavar="URL", aliases=("--base-url",)),
        _flag("api_key", "server", "Key for the server. Or set TESSERA_API_KEY or OPENAI_API_KEY.", metavar="KEY"),
        _flag("model_name", "server", "Which of the server's models.", metavar="NAME", default="its first",
              aliases=("--model",)),
        *_SEVERAL,
        _flag("tokenizer", "work", "Folder or hub repository of a tokenizer whose ordinary tokens prompts are drawn "
              "from, in place of --vocab-size.", metavar="MODEL"),
        _flag("vocab_size", "work", "Prompts are drawn from token ids below it.", "int", default="1000"),
        _flag("temperature", "work", "Of all answers; 0 always takes the likeliest token.", "float"),
        _flag("request_rate", "arrival", "Requests sent a second, in a Poisson process; inf sends all at once.",
              "float", metavar="RATE"),
        _flag("burstiness", "arrival", "1 is Poisson; less comes in bursts, more comes evenly.", "float"),
        _flag("max_concurrency", "arrival", "Most requests in work at once; the others are sent as these end.", "int",
              default="all"),
        _flag("timeout", "arrival", "Seconds after which a request counts as failed.", "float", metavar="SECONDS"),
        _flag("goodput", "result", "Promises that a good request keeps, in milliseconds: ttft:200,tpot:50,e2el:5000.",
              metavar="METRIC:MS", multiple=True),
        *_RESULT,
        _DETAILED,
    ),
    groups={
        "server": "Who answers",
        "work": "What is asked",
        "arrival": "When it is asked",
        "result": "What is written",
    },
)  # fmt: skip


def filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """With the defaults where nothing was given."""
    return {name: DEFAULTS.get(name) if value is None else value for name, value in values.items()}
