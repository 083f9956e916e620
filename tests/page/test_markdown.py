"""What a model writes: Markdown becomes elements; whatever it may hold, nothing of it runs and nothing is loaded."""

from __future__ import annotations

import json
import time

import pytest

from tests.page.conftest import ended, send
from tests.page.stand_in import text

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><a href='javascript:alert(1)'>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe><style>body{display:none}</style>",
    "![x](x' onerror='alert(1))",
    "![loaded](https://page.example/pixel.png)",
    "![loaded][1]\n\n[1]: https://page.example/pixel.png",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java\tscript:alert(1)) [d](&#106;avascript:alert(1))",
    "[e](data:text/html,<script>alert(1)</script>) [f](vbscript:x) [g](//page.example) [h](/v1/models) [i](blob:x)",
    "<javascript:alert(1)> <data:text/html,x>",
    '[j](https://page.example "onclick=alert(1)" onclick=alert(1)) [k](https://page.example/"onclick="alert(1))',
    '```html"><script>alert(1)</script>\n<script>alert(1)</script>\n```',
    "`<script>alert(1)</script>`",
    "| <script>alert(1)</script> | b |\n|---|---|\n| <img src=x onerror=alert(1)> | c |",
    "# <script>alert(1)</script>\n> <script>alert(1)</script>\n- <script>alert(1)</script>",
    "\u202e<script>\u0000alert(1)</script>&lt;script&gt;alert(1)&lt;/script&gt;",
]
TAGS = {
    "h3", "h4", "h5", "h6", "p", "ul", "ol", "li", "blockquote", "hr", "div", "table", "thead", "tbody", "tr", "th",
    "td", "figure", "figcaption", "pre", "code", "a", "em", "strong", "del", "br", "span", "button",
}  # fmt: skip
ATTRIBUTES = {"class", "tabindex", "role", "aria-label", "type", "scope", "start", "href", "target", "rel", "title"}
DEPTH = """one => Math.max(0, ...[...one.querySelectorAll("*")].map(each => {
  let depth = 0;
  for (let at = each; at !== one; at = at.parentElement) depth++;
  return depth;
}))"""
LARGE = {
    "quotes": ">" * 20_000 + " x",
    "lists": "\n".join(" " * (2 * depth) + "- x" for depth in range(400)),
    "brackets": "[" * 20_000 + "](x)",
    "stars": "*a **b " * 40_000,
    "underscores": "_" * 20_001 + "x",
    "backticks": "".join("`" * (number % 90 + 1) + "x" for number in range(1_000)),
    "hashes": "# " + "#" * 20_000 + "x",
    "dots": "http://page.example" + "." * 20_000 + "x",
    "spaces": "[x](" + " " * 20_000 + "x",
    "columns": "|x" * 4_000 + "|\n" + "|-" * 4_000 + "|\n" + "|x|\n" * 2_000,
    "fences": "```\n" * 2_000,
    "one line": "x" * 100_000,
    "emphasis in emphasis": "**_" * 3_000 + "x" + "_**" * 3_000,
    "slashes": "```js\n" + "/*" * 10_000 + '"' * 5_000 + "\n```",
}
RICH = """\
# Title

A *soft*, **strong**, ***both***, ~~gone~~ and `code <b>` word, a_b_c, 2 * 3 * 4, \\*plain\\*, \\(x_1\\), a &amp; b.
Second line<br>third.

1. one
2. two
   - inner
   - [x] done

5. five

> quoted **text**
> - item

| Left | Right |
|:-----|------:|
| a \\| b | 1 |

---
See https://page.example/a_b_c(d), [named](https://page.example/x "title") or <me@page.example>.

```python
def f():  # comment
    return "s", 1.5
```
~~~
open
"""


def shown(page):
    return page.locator(".assistant > .markdown").last


def answered(page, stand_in, *pieces):
    stand_in.answer(*text(*pieces))
    send(page, "Hi")
    ended(page)
    return shown(page)


def test_nothing_that_a_model_writes_runs_or_is_loaded(chat, stand_in):
    for hostile in HOSTILE:
        markdown = answered(chat, stand_in, *hostile)
        tags, names = markdown.evaluate(
            "one => [...one.querySelectorAll('*')].reduce(([tags, names], each) =>"
            " [[...tags, each.localName], [...names, ...each.getAttributeNames()]], [[], []])"
        )
        assert set(tags) <= TAGS
        assert set(names) <= ATTRIBUTES
        for link in markdown.locator("a").all():
            assert link.get_attribute("href").startswith("https://page.example/")
            assert link.get_attribute("rel") == "noopener noreferrer"
            assert link.get_attribute("target") == "_blank"
    assert chat.locator(".assistant > .markdown").nth(2).inner_text().startswith("<svg onload=alert(1)>")
    assert chat.locator(".assistant > .markdown").nth(5).inner_text() == "Image: loaded"


def test_nor_what_is_in_the_name_of_a_tool_in_reasoning_or_in_an_error(chat, stand_in):
    script = HOSTILE[0] + HOSTILE[1]
    call = {"index": 0, "id": script, "function": {"name": script, "arguments": script}}
    stand_in.answer({"reasoning": script}, {"tool_calls": [call]}, {"error": {"message": script}})
    send(chat, script)
    ended(chat)
    for summary in chat.locator("article summary").all():
        summary.click()
    assert chat.locator("main script, main img").count() == 0
    assert chat.locator(".assistant .alert").inner_text() == script
    assert chat.locator(".bubble").inner_text() == script


@pytest.mark.parametrize("name", LARGE)
def test_no_text_holds_up_the_page(chat, stand_in, name):
    began = time.monotonic()
    markdown = answered(chat, stand_in, LARGE[name])
    assert time.monotonic() - began < 30
    assert markdown.inner_text().strip()
    assert markdown.evaluate(DEPTH) < 60


def test_markdown_as_models_write_it(chat, stand_in):
    markdown = answered(chat, stand_in, *RICH.splitlines(keepends=True))

    def texts(selector):
        return markdown.locator(selector).all_inner_texts()

    assert texts("h3") == ["Title"]
    assert texts("p > em") == ["soft", "both"]
    assert texts("strong") == ["strong", "both", "text"]
    assert texts("del") == ["gone"]
    assert texts("p code") == ["code <b>", "x_1"]
    first = markdown.locator("p").first.inner_text()
    assert "a_b_c, 2 * 3 * 4, *plain*, x_1, a & b.\nSecond line\nthird." in first
    assert markdown.locator("ol > li").count() == 3
    assert texts("ol ul > li") == ["inner", "\u2611 done"]
    assert texts("blockquote li") == ["item"]
    assert texts("th") == ["Left", "Right"]
    assert texts("td") == ["a | b", "1"]
    assert markdown.locator("td.right").count() == 1
    assert markdown.locator("hr").count() == 1
    assert [link.get_attribute("href") for link in markdown.locator("a").all()] == [
        "https://page.example/a_b_c(d)",
        "https://page.example/x",
        "mailto:me@page.example",
    ]
    assert texts("figcaption span") == ["python", "text"]
    assert texts(".keyword") == ["def", "return"]
    assert texts(".comment") == ["# comment"]
    assert texts(".string") == ['"s"']
    assert texts("figure code")[1] == "open"


def test_it_looks_the_same_however_it_arrives(chat, stand_in):
    for pieces in (list(RICH), [RICH]):
        answered(chat, stand_in, *pieces)
    one, other = (chat.locator(".assistant > .markdown").nth(number).inner_html() for number in (0, 1))
    assert one == other


def test_code_is_copied_as_it_was_written(chat, stand_in):
    code = 'if a < b:\n    print("<&>")\n\n    pass'
    answered(chat, stand_in, f"```python\n{code}\n```")
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.get_by_role("button", name="Copy this code").click()
    chat.locator("figcaption button", has_text="Copied").wait_for()
    assert chat.evaluate("navigator.clipboard.readText()") == code


def test_stored_chats_are_no_more_trusted(chat, stand_in):
    answered(chat, stand_in, HOSTILE[1])
    assert json.loads(chat.evaluate("sessionStorage.getItem('tessera.chats')"))[0]["nodes"][1]["content"] == HOSTILE[1]
    chat.reload()
    assert shown(chat).inner_text() == HOSTILE[1]
    assert chat.locator("main img").count() == 0
