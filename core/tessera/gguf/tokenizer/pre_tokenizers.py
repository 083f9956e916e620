"""How each family of byte-level vocabularies cuts text into words, by the name that GGUF files give it
(tokenizer.ggml.pre).

The expressions are those of the models' own tokenizer.json files, in the order in which they are applied; merges never
cross a cut. A name that is not here is refused: with another family's expressions a model would read other tokens than
it was trained on, and nothing would show it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera.gguf.tokenizer.components import Component, byte_level, digits, split


@dataclass(frozen=True)
class PreTokenizer:
    """One family's way from a text to words."""

    # Pre-tokenizers of tokenizer.json in the order in which they are applied. One writes bytes in GPT-2's alphabet, and
    # those after it read that.
    steps: tuple[Component, ...]
    # Whether text is composed (Unicode's NFC) first.
    nfc: bool = False
    # Whether a word that is a token is taken whole, whatever the merges say.
    ignore_merges: bool = False
    # Whether BOS is added where the file does not say.
    add_bos: bool = False


def _regex(*patterns: str) -> PreTokenizer:
    return PreTokenizer((*map(split, patterns), byte_level(use_regex=False)))


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CJK = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_CJK_WIDE = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(upper: str, lower: str, suffix: str, number: str, symbols: str) -> str:
    """Words that end where an upper case letter follows a lower case one."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}|{number}| ?[^\\s\\p{{L}}\\p{{N}}]+{symbols}"
        f"|{_LINES}|{_SPACES}"
    )


_LLAMA_3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}|{_SPACES}"
_QWEN_2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES}|{_SPACES}"
_QWEN_35 = _QWEN_2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_GPT_4O = _cased(_UPPER, _LOWER, rf"{_CONTRACTION}?", r"\p{N}{1,3}", r"[\r\n/]*")
_TEKKEN = _cased(_UPPER, _LOWER, "", r"\p{N}", r"[\r\n/]*")
_KIMI = r"[\p{Han}]+|" + _cased(
    _UPPER[:-1] + r"&&[^\p{Han}]]", _LOWER[:-1] + r"&&[^\p{Han}]]", rf"{_CONTRACTION}?", r"\p{N}{1,3}", r"[\r\n]*"
)
_DEEPSEEK_3 = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_BLOOM = r" ?[^(\s|[.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C}])]+"
_YOUTU = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+"
    rf"|[\x{{3105}}-\x{{312F}}]+|{_CJK}"
)
_JAIS_2 = "".join(rf"|\s{{{length}}}(?!\S)" for length in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))

# The cased letters that DeepSeek's first vocabularies write out; not all that Unicode has.
_CASED_LETTERS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 "
    "1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 "
    "2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B "
    "2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF "
    "1E900-1E943"
)


def _ranges(points: str) -> str:
    """Code points and ranges of them, in hexadecimal, as the inside of a character class."""
    return "".join("-".join(rf"\x{{{point}}}" for point in entry.split("-")) for entry in points.split())


_GPT_2 = PreTokenizer((byte_level(use_regex=True),))
_STARCODER = PreTokenizer((digits(individual=True), byte_level(use_regex=True)))
_FALCON = PreTokenizer(
    (
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(use_regex=True),
        digits(individual=False),
        split("[0-9][0-9][0-9]"),
    )
)
_DEEPSEEK_LLM = PreTokenizer(
    (
        split(r"[\r\n]"),
        split(rf"\s?[{_ranges(_CASED_LETTERS)}]+"),
        split(rf"\s?[!-/:-~{_ranges('FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+"),
        split(r"\s+$"),
        split(_CJK_WIDE),
        digits(individual=True),
        byte_level(use_regex=False),
    )
)
_DEEPSEEK_CODER = PreTokenizer(
    (
        split(r"[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split(_CJK_WIDE),
        digits(individual=True),
        byte_level(use_regex=False),
    )
)
_SPARK = PreTokenizer(
    (
        split(r"\p{N}{1,3}"),
        split(_CJK),
        split(rf"{_DEEPSEEK_3}|[\r\n]|{_SPACES}"),
        digits(individual=True),
        byte_level(use_regex=False),
    )
)
_LAGUNA = PreTokenizer((split(r"(?:\r?\n)+(?!\r?\n)", "MergedWithNext"), split(_QWEN_2), byte_level(use_regex=False)))
# Files of models that nobody had named yet when they were written.
_DEFAULT = PreTokenizer(
    (
        split(r"[\p{P}\$\+<=>\^~\|]+"),
        split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
        split(r"\p{N}+"),
        split("[0-9][0-9][0-9]"),
        byte_level(use_regex=False),
    )
)

_PLAIN_GPT_2 = (
    "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling roberta-bpe jina-es jina-de jina-v1-en "
    "jina-v2-es jina-v2-de jina-v2-code"
)

_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", _DEFAULT),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        replace(_regex(_LLAMA_3), ignore_merges=True, add_bos=True),
    ),
    ("glm4 chatglm-bpe", replace(_regex(_LLAMA_3), ignore_merges=True)),
    ("dbrx smaug-bpe", _regex(_LLAMA_3)),
    ("qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan", replace(_regex(_QWEN_2), nfc=True)),
    ("kormo f2llmv2 solar-open grok-2", _regex(_QWEN_2)),
    ("qwen35", replace(_regex(_QWEN_35), nfc=True)),
    (_PLAIN_GPT_2, _GPT_2),
    ("mpt olmo modern-bert", replace(_GPT_2, nfc=True)),
    ("starcoder refact smollm codeshell exaone minerva-7b mellum2", _STARCODER),
    ("command-r", replace(_STARCODER, nfc=True)),
    ("falcon", _FALCON),
    ("tekken", replace(_regex(_TEKKEN), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 granite-embed-multi-97m", replace(_regex(_GPT_4O), ignore_merges=True)),
    ("kanana2 talkie minimax-m2", _regex(_GPT_4O)),
    ("tiny_aya cohere2moe", replace(_regex(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O), nfc=True)),
    ("deepseek-llm", _DEEPSEEK_LLM),
    ("deepseek-coder", _DEEPSEEK_CODER),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        _regex(r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK_3}[\r\n]*|{_LINES}|{_SPACES}"),
    ),
    ("spark2_5", _SPARK),
    ("youtu", replace(_regex(_YOUTU, _GPT_4O.replace("{1,3}", "")), ignore_merges=True)),
    ("kimi-k2", replace(_regex(_KIMI), ignore_merges=True)),
    (
        "bailingmoe bailingmoe2 llada-moe",
        _regex(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
    ),
    ("seed-coder", _regex(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACES}")),
    ("ufakzeka", _regex(rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES}|{_SPACES}")),
    ("minicpm5", replace(_regex(r"\p{N}{1,3}", _LLAMA_3.replace("{1,3}", "+")), ignore_merges=True)),
    ("laguna", _LAGUNA),
    ("jais-2", _regex(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}{_JAIS_2}|\s{{1}}")),
    (
        "exaone-moe",
        _regex(
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
        ),
    ),
    ("bloom poro-chat gpt3-finnish", _regex(_BLOOM)),
    ("viking", PreTokenizer((split(_BLOOM), digits(individual=True), byte_level(use_regex=False)))),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: family for names, family in _FAMILIES for name in names.split()}
