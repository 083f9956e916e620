"""Holds structured outputs against the JSON-Schema-Test-Suite (drafts 2020-12 and 7, required tests), which the source
archive of jsonschema holds: `python -m tools.json_schema_suite`. The archive is downloaded by pip into build/.

Of each schema that is accepted, no invalid text may be: a text is tried in each order of its properties, because an
answer has them in the schema's. All other schemas must be refused in a line that names their place."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar

ROOT = Path(__file__).parents[1]
VERSION = "4.26.0"
DRAFTS = ("draft2020-12", "draft7")
ORDERS = 200
"""Texts that are tried of one value."""


def archive() -> Path:
    """jsonschema's source archive. Raises CalledProcessError."""
    folder = ROOT / "build/jsonschema"
    path = folder / f"jsonschema-{VERSION}.tar.gz"
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        asked = ["--no-binary", ":all:", "--dest", str(folder), f"jsonschema=={VERSION}"]
        subprocess.run([*pip, *asked], check=True)
    return path


def groups(draft: str) -> Iterator[dict[str, Any]]:
    """The suite's groups: a schema, and tests of it. Required ones are in files right below the draft's folder."""
    begin = f"jsonschema-{VERSION}/json/tests/{draft}/"
    with tarfile.open(archive()) as files:
        for member in files:
            if member.name.startswith(begin) and "/" not in member.name.removeprefix(begin):
                found = files.extractfile(member)
                assert found is not None
                yield from json.load(found)


def texts(value: Any) -> Iterator[str]:
    """A value as JSON, with its properties in several orders and its characters both escaped and not."""
    if isinstance(value, dict):
        for made in itertools.product(*(list(texts(each)) for each in value.values())):
            members = [f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in zip(value, made, strict=True)]
            yield from ("{" + ",".join(order) + "}" for order in itertools.permutations(members))
    elif isinstance(value, list):
        yield from ("[" + ",".join(made) + "]" for made in itertools.product(*(list(texts(each)) for each in value)))
    else:
        yield from dict.fromkeys((json.dumps(value), json.dumps(value, ensure_ascii=False)))


def check(draft: str) -> tuple[Counter[str], list[str]]:
    """Counts for one draft, and what is wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    tokenizer = byte_tokenizer()
    for group in groups(draft):
        counts["schemas"] += 1
        try:
            matcher = compile_grammar(_open(group["schema"]), tokenizer)
        except RequestError as error:
            counts["refused"] += 1
            if not error.message.startswith("structured_outputs.json") or "\n" in error.message:
                wrong.append(f"{group['description']}: refused with {error.message!r}")
            continue
        for test in group["tests"]:
            tried = itertools.islice(texts(test["data"]), ORDERS)
            took = any(_takes(matcher, text) for text in tried)
            counts[f"{'valid' if test['valid'] else 'invalid'}, {'accepted' if took else 'not accepted'}"] += 1
            if took and not test["valid"]:
                wrong.append(f"{group['description']}, {test['description']}: {json.dumps(test['data'])} is accepted")
    return counts, wrong


def _open(schema: Any) -> StructuredOutputsParams:
    """The suite's objects are open where their schema does not say."""
    return StructuredOutputsParams(json=json.dumps(schema), strict=True, disable_additional_properties=False)


def _takes(matcher: Any, text: str) -> bool:
    own = matcher.deep_copy()
    return bool(own.consume_tokens(list(text.encode(errors="surrogatepass"))) and own.is_accepting())


def main() -> int:
    every = []
    for draft in DRAFTS:
        counts, wrong = check(draft)
        accepted = counts["schemas"] - counts["refused"]
        print(f"{draft}: {accepted} of {counts['schemas']} schemas accepted ({accepted / counts['schemas']:.0%})")
        for kind in ("valid", "invalid"):
            took, total = counts[f"{kind}, accepted"], counts[f"{kind}, accepted"] + counts[f"{kind}, not accepted"]
            print(f"  of their {total} {kind} texts, {took} are accepted")
        print("".join(f"  wrong: {line}\n" for line in wrong), end="")
        every += wrong
    return bool(every)


if __name__ == "__main__":
    sys.exit(main())
