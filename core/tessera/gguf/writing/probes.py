"""Texts that tokenizers of different families cut differently: digits, contractions, spaces, lines, scripts, marks."""

from __future__ import annotations

from collections.abc import Sequence

PROBES: Sequence[str] = (
    "",
    " ",
    "  ",
    "   a",
    "\n",
    "\n\n a\n \n\n\n b",
    "\t\ta\t b \r\n\r\n c",
    "Hello world",
    " Hello  world   again    .",
    "HelloWorld helloWORLD iPhone McDonald's USA's XMLHttpRequest",
    "I'm you're he'll we've she'd it's DON'T WE'RE I'LL o'clock 'tis rock'n'roll",
    "1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 1e-5 0x1F 2026-12-01",
    "a1b22c333 x=1;y=22 v2.0.1 A4 7th ½ ² Ⅷ ٤٥ \uff11\uff12",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A(B):\n\tpass\n",
    "if (a != b && c >= d) { e->f[0] += g; } // ... ---- ==== ++++",
    "!!! ??? ... … --- —",
    "“quoted” \u2018single\u2019 (a) [b] {c} <d> `e` ~f~ ^g^ |h| \\i\\ /j/ @k #l $5 %6 &7 *8 _9_",
    "https://example.org/a-b_c?d=e%20f&g=h#i user.name+tag@example.co.uk C:\\dir\\file.txt",
    "café cafe\u0301 naïve Ångström ẞß œuvre ¿qué? ¡sí!",
    "Привет, мир! Γειά \u03c3\u03bf\u03c5 Κόσμε.",
    "你好\uff0c世界。我有3个苹果和12345元。",
    "こんにちは、世界\uff01カタカナと漢字 안녕하세요 세계 123원",
    "مرحبا بالعالم؟ שלום עולם",
    "नमस\u094dत\u0947 द\u0941न\u093fय\u093e। สว\u0e31สด\u0e35ชาวโลก",
    "😀 👨\u200d👩\u200d👧\u200d👦 🇫🇷 ❤\ufe0f a🚀b 👍🏽👍",
    "zero\u200bwidth no\u00a0break \u2003em thin\u2009 \u3000ideographic \ufeffbom",
    "a" * 70 + " " * 40 + "=" * 33 + "\n" * 5 + "0" * 20,
    "lower UPPER Title mIxEd ÉCOLE école İstanbul ǅ ʰ ª",
    "x\u0301y\u0308 क\u094dष e\u0301\u0302 \u0301 alone",
    "The quick brown fox jumps over the lazy dog. It isn't 100% sure; is it?\nYes/No\n/path\n",
)
