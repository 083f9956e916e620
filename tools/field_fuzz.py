"""Sends a server bodies with one or two fields at their limits or of a wrong kind: `python -m tools.field_fuzz --cases
20000`. tools/http_fuzz.py follows the schemas of the OpenAPI document; this follows its names and ignores its schemas.

A case takes a body that is right, and puts numbers beyond 64 bits and beyond floats, NaN, texts that are no Unicode,
long and deep values, wrong types and doubled keys into fields that the document declares, or that the body has. No
request may be answered with a 5xx, with a path or a traceback, or later than after two seconds. Afterwards no request
runs, the log has no error, and the server answers as before. Ends with 1 if any of this does not hold.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.http_fuzz import SLOWEST_SECONDS
from tools.local_server import LIMITED, TESSERA, free_port, started

HOST = "127.0.0.1"
THREADS = 4
AT_ONCE = 500
"""Cases that are drawn, sent and reported together: a body may have half a million characters."""
REST_SECONDS = 30.0
BODIES_SHARE = 0.85
"""Of the cases that have a body."""
EXCERPT = 300
"""Characters of a case and of its answer that are printed."""
PRIVATE = re.compile(r"/(?:root|usr|home|work|tmp|var|opt|proc)/|site-packages|Traceback|\bFile \"|\w\.py\b")
"""What no answer may have: a path of the server's, or a part of a traceback."""


class Raw(str):
    """Text that goes into a body as it is."""


# ---- values ---------------------------------------------------------------------------------------------------------


def nested(opening: str, closing: str, depth: int) -> Raw:
    return Raw(opening * depth + closing * depth)


INTEGERS = [
    *(0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1),
    *(10**400, -(10**400)),
    Raw(f"1{'0' * 5000}"),
]
FLOATS = [
    *map(Raw, ("1e308", "-1e308", "1e309", "-1e309", "5e-324", "-0.0", "1e-400", "16.0", "NaN", "Infinity")),
    Raw(f"1{'0' * 400}.5"), Raw(f"0.{'3' * 400}"),
]  # fmt: skip
TEXTS = [
    *("", "x", "a" * 100_000, "é" * 1000, "\u2028", "\x7f", "<|im_start|>"),
    *map(Raw, (r'"\ud800"', r'"\udc00x"', r'"\u0000"', r'"\ud83d\ude00"', '"\x01"', '"unclosed')),
]
WRONG: list[Any] = [None, True, False, [], {}, [None], [[]], {"": None}, {"a": 1}, [True]]
_LONG: list[Any] = [[1] * 100_000, ["a"] * 10_000, [{}] * 1000, {f"key {number}": number for number in range(5000)}]
LONG = [Raw(json.dumps(value)) for value in _LONG]
INSIDE = [[2**64], [10**400], [-1], {"a": 2**64}, {"a": 10**400}, {"a": {"b": Raw("1e999")}}, [Raw(r'"\ud800"')]]
DEEP = [nested("[", "]", 60), nested("[", "]", 1000), nested("[", "]", 100_000), nested('{"a":', "}", 100)]
KINDS: Sequence[Sequence[Any]] = (INTEGERS, FLOATS, TEXTS, WRONG, LONG, INSIDE, DEEP)
"""A case first chooses one of these, so that long ones are no rarer than short ones."""
NAMES = ("x", "x" * 300, "%00", "..%2f..%2fx", "%F0%9F%92%A5", "0", "-1", "%ff", "a%20b")
"""Of objects in paths, encoded."""
QUERIES = ("limit", "after", "before", "order", "purpose", "include", "model", "starting_after", "stream")

# ---- bodies that are right, by the name of their schema -------------------------------------------------------------

USER = {"role": "user", "content": "Name a city."}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": PARAMETERS, "strict": True}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
SAMPLED = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 1, "frequency_penalty": 0.1,
    "presence_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "stop": ["\n"], "min_tokens": 1,
    "stop_token_ids": [3], "bad_words": ["bad"], "allowed_token_ids": [4, 5, 6, 7, 8, 9], "vllm_xargs": {},
}  # fmt: skip
TURNS = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"},
]  # fmt: skip
QUESTION = {"type": "predicate", "name": "warm", "instructions": "Is it warm?"}
BODIES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "ChatCompletionRequest": (
        {"messages": [USER], "max_tokens": 3},
        {"messages": TURNS, "max_completion_tokens": 3, "tools": [{"type": "function", "function": FUNCTION}]},
        {"messages": [USER], "max_tokens": 3, "n": 2, "logprobs": True, "top_logprobs": 2, **SAMPLED},
        {"messages": [USER], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}},
        {
            "messages": [USER], "max_tokens": 20, "response_format": {
                "type": "json_schema", "json_schema": {"name": "city", "schema": PARAMETERS, "strict": True},
            },
        },
        {"messages": [USER], "max_tokens": 5, "store": True, "metadata": {"a": "b"}},
        {
            "messages": [USER], "max_tokens": 20, "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}}, "stream": True,
        },
    ),
    "CompletionRequest": (
        {"prompt": "Once", "max_tokens": 3, **SAMPLED},
        {"prompt": [[5, 6], [7]], "max_tokens": 3, "logprobs": 2, "echo": True, "prompt_logprobs": 1},
        {"prompt": ["a", "b"], "max_tokens": 3, "n": 2, "stream": True},
        {"prompt": "x", "max_tokens": 8, "structured_outputs": {"json": PARAMETERS}},
        {"prompt": "x", "max_tokens": 8, "structured_outputs": {"regex": "a{1,3}"}},
        {"prompt": "x", "max_tokens": 2, "use_beam_search": True, "n": 2},
    ),
    "MessagesRequest": (
        {"messages": [USER], "max_tokens": 3},
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12"}]},
            ],
            "max_tokens": 3, "system": [{"type": "text", "text": "Be brief."}], "stream": True,
            "tools": [{"name": "weather", "description": "Tells.", "input_schema": PARAMETERS}],
            "thinking": {"type": "disabled"}, "stop_sequences": ["\n"], "temperature": 0.5, "top_k": 3,
        },
    ),
    "CountTokensRequest": ({"messages": [USER], "system": "Be brief."},),
    "DecisionRequest": (
        {"input": "It is 30 degrees.", "questions": [QUESTION]},
        {"input": [USER], "questions": [
            {"type": "choice", "instructions": "Where?", "choices": [{"value": "Oslo"}, {"value": False}]},
            {"type": "score", "instructions": "How hot?", "levels": [{"label": "cold"}, {"label": "hot"}]},
        ]},
    ),
    "SystemOneRequest": (
        {"state": "It is 30 degrees.", "questions": {"warm": {"type": "noul", "instructions": "Is it warm?"}}},
        {"state": {"degrees": [30]}, "questions": {
            "where": {"type": "choice", "instructions": "Where?", "criteria": {"Oslo": "in the north", "Rome": None}},
            "how hot": {"type": "score", "criteria": ["cold", {"degrees": 30}]},
            "dry": {"type": "noul", "criteria": {"true": "No rain.", "false": ["Rain."]}},
        }},
    ),
    "TokenizeRequest": ({"prompt": "Hello"}, {"messages": TURNS, "add_generation_prompt": True}),
    "DetokenizeRequest": ({"tokens": [5, 6, 7]},),
    "ChatRequest": (
        {"model": "tessera-demo", "messages": [USER], "stream": False, "options": {"num_predict": 3, "seed": 1}},
        {"model": "tessera-demo", "messages": [USER], "options": {"num_predict": 20}, "format": PARAMETERS},
    ),
    "GenerateRequest": ({"model": "tessera-demo", "prompt": "Once", "stream": False, "options": {"num_predict": 3}},),
    "ShowRequest": ({"model": "tessera-demo"},),
    "ResponsesRequest": (
        {"input": "Name a city.", "max_output_tokens": 16},
        {
            "input": [
                USER, {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "12"},
            ],
            "instructions": "Be brief.", "max_output_tokens": 16, "stream": True,
            "tools": [{"type": "function", **FUNCTION}],
            "text": {"format": {"type": "text"}}, "metadata": {"a": "b"}, "store": False, "top_logprobs": 1,
        },
    ),
    "InputTokensRequest": ({"input": "Name a city."},),
    "ConversationRequest": ({"items": [{"type": "message", **USER}], "metadata": {"a": "b"}},),
    "MetadataRequest": ({"metadata": {"a": "b"}},),
    "BatchRequest": (
        {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"}},
    ),
    "EmbeddingRequest": (
        {"input": "Once", "encoding_format": "base64", "dimensions": 8},
        {"input": [[5, 6], [7]], "truncate_prompt_tokens": 1, "user": "a"},
        {"messages": [USER], "encoding_format": "base64", "embed_dtype": "float16", "endianness": "big"},
    ),
    "PoolRequest": (
        {"input": ["a", "b"], "task": "token_embed", "normalize": False},
        {"input": "Once", "task": "embed"},
    ),
    "ScoreRequest": ({"text_1": "a", "text_2": ["b", "c"]}, {"queries": "a", "items": ["b"], "use_activation": True}),
    "RerankRequest": ({"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True},),
    "ClassifyRequest": ({"input": ["a", "b"], "use_activation": False}, {"messages": [USER]}),
    "CohereEmbedRequest": (
        {"input_type": "search_query", "texts": ["a"], "embedding_types": ["float", "ubinary"]},
        {"inputs": [{"content": [{"type": "text", "text": "a"}]}], "output_dimension": 8, "truncate": "END"},
    ),
    "TeiEmbedRequest": ({"inputs": ["a", "b"], "normalize": True, "truncate": True, "dimensions": 8},),
    "TeiEmbedAllRequest": ({"inputs": "a", "truncation_direction": "Left"},),
    "TeiSimilarityRequest": (
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncate": True}},
    ),
    "TeiPredictRequest": ({"inputs": [["a"], ["b", "c"]], "raw_scores": True},),
    "EmbedRequest": ({"model": "tessera-demo", "input": ["a", "b"], "truncate": True, "dimensions": 8, "options": {}},),
    "OldEmbedRequest": ({"model": "tessera-demo", "prompt": "a"},),
}  # fmt: skip
OF_CLASSIFIERS = ("ClassifyRequest", "TeiPredictRequest")
"""Bodies that a model takes which classifies. The demo generates and embeds, and says so once it has read them."""
CLASSIFIES_NOT = "does not classify texts"


# ---- the document ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """schema: the name of the body's; "" without one."""

    method: str
    path: str
    schema: str


class Document:
    """The server's OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        self.operations = [
            Operation(method.upper(), path, self._name(found.get("requestBody", {}).get("content", {})))
            for path, item in document["paths"].items()
            for method, found in item.items()
            if "multipart/form-data" not in found.get("requestBody", {}).get("content", {})
        ]

    def _name(self, content: Mapping[str, Any]) -> str:
        reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        return str(reference).rpartition("/")[2]

    def fields(self, schema: Any) -> dict[str, Any]:
        """The members that any of a schema's forms declares, with their schemas."""
        if "$ref" in schema:
            return self.fields(self._schemas[schema["$ref"].rpartition("/")[2]])
        found = dict(schema.get("properties", {}))
        for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            found |= self.fields(form)
        return found

    def items(self, schema: Any) -> Any:
        """The schema of a list's items; {} if none is declared."""
        if "$ref" in schema:
            return self.items(self._schemas[schema["$ref"].rpartition("/")[2]])
        forms = [self.items(form) for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
        return schema.get("items") or next((form for form in forms if form), {})

    def places(self, value: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
        """Every object or list within a value, with the key of each member that it has or may have."""
        if isinstance(value, dict):
            declared = self.fields(schema)
            for name in {**declared, **value}:
                yield value, name
            for name, inner in value.items():
                yield from self.places(inner, declared.get(name, {}))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield value, index
                yield from self.places(inner, self.items(schema))

    def body(self, operation: Operation, draw: random.Random) -> str:
        """A body that is right but for one to three fields."""
        value = deepcopy(draw.choice(BODIES[operation.schema]))
        doubled: list[tuple[Any, Any]] = []
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            inside, key = draw.choice([*self.places(value, {"$ref": f"#/{operation.schema}"})])
            if draw.random() < 0.04:
                doubled.append((inside, key))
            elif draw.random() < 0.04 and key in (inside if isinstance(inside, dict) else ()):
                del inside[key]
            else:
                inside[key] = deepcopy(draw.choice(draw.choice(KINDS)))
        return written(value, doubled)

    def request(self, draw: random.Random) -> tuple[str, str, str]:
        """A method, a path and a body."""
        bodies = draw.random() < BODIES_SHARE
        operation = draw.choice([one for one in self.operations if bool(one.schema) == bodies])
        path = re.sub(r"\{\w+\}", lambda _: draw.choice(NAMES), operation.path)
        if operation.method == "GET" and draw.random() < 0.7:
            values = [written(draw.choice(draw.choice((INTEGERS, FLOATS, WRONG)))) for _ in QUERIES]
            pairs = [pair for pair in zip(QUERIES, values, strict=True) if draw.random() < 0.3]
            path += f"?{urllib.parse.urlencode(pairs)}"
        return operation.method, path, self.body(operation, draw) if operation.schema else ""


def written(value: Any, doubled: Sequence[tuple[Any, Any]] = ()) -> str:
    """JSON, but for Raw texts. doubled: objects and their keys that are written twice."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)}:{written(inner, doubled)}" for key, inner in value.items()]
        pairs += [f"{json.dumps(key)}:1" for inside, key in doubled if inside is value]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(inner, doubled) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


# ---- the server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """status: 0 without an answer, of which text says why."""

    status: int
    text: str
    seconds: float

    @property
    def fault(self) -> str:
        """What is wrong with it; "" if nothing is."""
        if self.status == 0 or self.status >= 500:
            return f"status {self.status}"
        if self.seconds > SLOWEST_SECONDS:
            return f"{self.seconds:.1f} s"
        found = PRIVATE.search(self.text)
        return f"it has {found[0]!r}" if found else ""


def ask(port: int, method: str, path: str, body: str = "") -> Answer:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    began = time.monotonic()
    try:
        data = body.encode(errors="surrogatepass")
        connection.request(method, path, data or None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return Answer(response.status, response.read().decode(errors="replace"), time.monotonic() - began)
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, f"{type(error).__name__}: {error}", time.monotonic() - began)
    finally:
        connection.close()


def probes(port: int) -> list[Any]:
    """What the server answers to a few greedy requests and a text to be encoded."""
    asked = (
        ("/v1/chat/completions", {"messages": [USER], "max_tokens": 20, "temperature": 0}),
        ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "logprobs": 1}),
        ("/tokenize", {"prompt": "Ein Käse für 3 €"}),
    )
    answers = [json.loads(ask(port, "POST", path, json.dumps(body)).text) for path, body in asked]
    return [answer.get("choices", answer) for answer in answers]


def at_rest(port: int) -> str:
    """What still runs after a while; "" if nothing does."""
    deadline = time.monotonic() + REST_SECONDS
    while True:
        text = ask(port, "GET", "/metrics").text
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        busy = [line for line in text.splitlines() if any(line.startswith(f"tessera:{name}{{") for name in names)]
        assert len(busy) == len(names), busy
        busy = [line for line in busy if float(line.rpartition(" ")[2])]
        if not busy or time.monotonic() > deadline:
            return "; ".join(busy)
        time.sleep(0.2)


def fuzzed(port: int, cases: int, seed: str) -> tuple[Counter[int], int]:
    """Answers by status, and how many were not as they should be."""
    document = Document(json.loads(ask(port, "GET", "/openapi.json").text))
    missing = {one.schema for one in document.operations if one.schema} - BODIES.keys()
    if missing:
        raise SystemExit(f"tools/field_fuzz.py has no body that is right for {', '.join(sorted(missing))}")
    draw = random.Random(seed)
    found, faults = Counter[int](), 0
    with ThreadPoolExecutor(THREADS) as pool:
        while found.total() < cases:
            requests = [document.request(draw) for _ in range(min(AT_ONCE, cases - found.total()))]
            for request, answer in zip(requests, pool.map(lambda request: ask(port, *request), requests), strict=True):
                found[answer.status] += 1
                if answer.fault:
                    faults += 1
                    method, path, body = (part[:EXCERPT] for part in request)
                    print(f"{answer.fault}: {method} {path} {body}\n    {answer.text[:EXCERPT]}", flush=True)
            print(f"{found.total()} of {cases} cases", flush=True)
    return found, faults


def right_bodies(port: int) -> list[str]:
    """The bodies of the table that the server does not take."""
    refused = []
    document = Document(json.loads(ask(port, "GET", "/openapi.json").text))
    for operation in document.operations:
        for body in BODIES.get(operation.schema, ()) if "{" not in operation.path else ():
            answer = ask(port, operation.method, operation.path, json.dumps(body))
            taken = CLASSIFIES_NOT in answer.text if operation.schema in OF_CLASSIFIERS else answer.status == 200
            if not taken and operation.path != "/v1/batches":  # whose file would have to exist
                refused.append(f"{operation.path}: {answer.status} {answer.text[:EXCERPT]}")
    return refused


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", default="1", help="any text")
    asked = parser.parse_args()
    port = free_port()
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        with started((*TESSERA, *LIMITED, "--convert", "embed", "--port", str(port)), port, log=log) as server:
            wrong = [f"refused, though it is right: {line}" for line in right_bodies(port)]
            before = probes(port)
            found, faults = fuzzed(port, asked.cases, asked.seed)
            wrong += [f"still runs: {busy}" for busy in [at_rest(port)] if busy]
            wrong += ["answers differ from those before"] if probes(port) != before else []
            wrong += ["the server has ended"] if server.poll() is not None else []
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"Traceback| (?:ERROR|CRITICAL) ", line)]
    wrong += [f"in the log: {line}" for line in errors[:5]]
    print("\n".join(wrong))
    print(f"{found.total()} cases: {dict(sorted(found.items()))}; {faults} answers not as they should be")
    return bool(wrong or faults)


if __name__ == "__main__":
    sys.exit(main())
