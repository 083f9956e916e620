"""A grammar within a JSON string allows what JSON writes of the texts that the grammar allows, and nothing else."""

from __future__ import annotations

import json
import random

import pytest
from llguidance import LLMatcher

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar

PATCH = """start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " name LF ("+" /(.*)/ LF)+
name: /(.+)/
%import common.LF
"""
GRAMMARS = [
    (PATCH, '*** Begin Patch\n*** Add File: a\\b "c".py\n+x = "é\\n"\n+\n*** End Patch\n'),
    ('start: "say " /"[^"]*"/ NL?\nNL: /\\r?\\n/', 'say "a\\b\tc"\r\n'),
    ('start: A+\nA: "\\x00".."\\x21" | "#".."~"', "\t\n !#a\\~"),
    ('start: "AB\\n"i "c"i', "aB\nC"),
    ("start: /(?s:.)+/", 'a\n"\\\x07\u2028😀'),
    ("start: /.+/", 'a"\\\t\u2028😀'),
    (r"start: /[[:alpha:]&&[^x]]+[^\]\[]?\d{2,3}\x22\u{5c}\t?/", 'abc\n12"\\\t'),
    (r"start: /(?i:a\nb)|(?P<n>[\n\r]+)|\p{Lu}\S\W/", "A\nB"),
    (r"start: /(?i:a\nb)|(?P<n>[\n\r]+)|\p{Lu}\S\W/", "\r\n\n"),
    (r"start: /(?i:a\nb)|(?P<n>[\n\r]+)|\p{Lu}\S\W/", 'É"\\'),
    ('start: a ~ 2..3\na: INT "," WS? // a comment with "quotes"\n%import common (WS, INT)', "12,\n2,\t"),
    ('root ::= "a\\n" [^x\\n]* "\\"" ', 'a\n\\\t"'),
]


def matcher(grammar: str, *, quoted: bool, kind: str = "grammar") -> LLMatcher:
    form = {"type": kind, {"grammar": "grammar", "regex": "pattern"}[kind]: grammar, "quoted": quoted}
    return compile_grammar(StructuredOutputsParams(structural_tag={"format": form}), byte_tokenizer())


def accepts(whole: LLMatcher, text: bytes) -> bool:
    tried = whole.deep_copy()
    return all(tried.consume_token(byte) for byte in text) and tried.is_accepting()


@pytest.mark.parametrize(("grammar", "text"), GRAMMARS, ids=range(len(GRAMMARS)))
def test_what_is_allowed_is_what_json_writes_of_it(grammar: str, text: str) -> None:
    """Of a text of the grammar, and of it with a character changed, left out or doubled."""
    plain, quoted = matcher(grammar, quoted=False), matcher(grammar, quoted=True)
    draw, allowed = random.Random(7), 0
    assert accepts(plain, text.encode())
    for _ in range(150):
        place, other = draw.randrange(len(text)), draw.choice(text + "\"\\\n\t/\x01aé'x")
        changed = text[:place] + draw.choice(("", other, text[place] * 2, text[place])) + text[place + 1 :]
        written = json.dumps(changed, ensure_ascii=False)[1:-1].encode()
        expected = accepts(plain, changed.encode())
        assert accepts(quoted, written) is expected, changed
        allowed += expected
        if written != changed.encode():
            assert not accepts(quoted, changed.encode()), changed
    assert allowed > 10


def test_there_is_one_way_to_write_a_character() -> None:
    quoted = matcher("start: /[\\n\\/é]+/", quoted=True)
    assert accepts(quoted, "\\n/é".encode())
    for other in ("\\u000a", "\\/", "\\u00e9", "\n"):
        assert not accepts(quoted, other.encode())


def test_a_regular_expression_too() -> None:
    quoted = matcher(r'[a-z]+ "\w*"\n?', quoted=True, kind="regex")
    assert accepts(quoted, b'say \\"hi\\"\\n')
    assert not accepts(quoted, b'say "hi"')


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start: %json {"type": "object"}', "%json is not supported there"),
        ("start: A\nA: ~/[a-z]/", "~ is not supported there"),
        ('start: "a" "b"\n%ignore " "', "%ignore is not supported there"),
        ("start: COMMENT\n%import common.SH_COMMENT -> COMMENT", "common.SH_COMMENT is not supported there"),
        ("start: /(?x: a b)/", "the flag x of regular expressions is not supported there"),
        ("start: x", "unknown name"),
        ("start: /[a/", "regex"),
    ],
)
def test_what_has_no_counterpart_is_named(grammar: str, reason: str) -> None:
    with pytest.raises(RequestError, match=r"structural_tag\.format\.grammar cannot be used") as raised:
        matcher(grammar, quoted=True)
    assert reason in raised.value.message
