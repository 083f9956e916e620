"""The chat template: turns a conversation into a prompt in the model's training format.

Templates come with model folders, which are not trusted. Jinja's sandbox limits a template to its own values; the text
worker, the process that renders it, limits its time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NoReturn

from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tessera.errors import ModelError, RequestError
from tessera.text.arrangement import Arrangement, Messages
from tessera.text.assistant_turns import AssistantTurns
from tessera.text.conversation import ContentForm, plain_value, prepare_messages

_MAX_TEMPLATE_CHARS = 256_000
_MAX_MESSAGE_CHARS = 500
_MAX_TEMPLATE_KWARGS = 64

# Set by `render` itself, arguments of transformers' apply_chat_template, and functions of the template.
_RESERVED_KWARGS = frozenset(DEFAULT_NAMESPACE) | frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations",
        "documents", "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict",
        "raise_exception", "return_tensors", "sanitize_control_tokens", "self", "strftime_now", "tokenize",
        "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip

# Appended to the final message to find where the template puts it. The space shows whether the template trims it.
_CONTINUE_MARK = "TESSERA_CONTINUES_HERE "
_PROBE = "tessera content probe"
_FORMS: Mapping[str, ContentForm] = {"string": "string", "openai": "parts"}
# A template is a single text, so there is nothing it could load.
_LOADING = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class _TemplateRaisedError(TemplateError):
    """The template called raise_exception; its message is for the author of the messages."""


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training. Here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012  (the name and type that Jinja's Extension declares)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


class _Namespace(Namespace):
    """Rejects private names, which would give access to Python's own attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the private name {str(name)[:80]!r}")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Replaces the type `dict`, whose methods a template does not need."""
    return dict(*args, **kwargs)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja with the settings, filters and functions that chat templates expect: the same as in transformers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "dict": _dict,
        "namespace": _Namespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it; Jinja's own filter escapes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise _TemplateRaisedError(str(message))


def _strftime_now(date_format: str) -> str:
    return datetime.now().astimezone().strftime(date_format)


@dataclass(frozen=True)
class _CompiledTemplate:
    code: Template
    content_form: ContentForm
    assistant: AssistantTurns
    arrangement: Arrangement


class ChatTemplate:
    """A model's chat template, or its named templates ("default", "tool_use"), compiled once.

    source: the template, or templates by name; None if the model has none, in which case `render` raises.
    special_tokens: variables of the template by name, such as bos_token.
    content_format: the form of content that the templates expect; None detects it.
    Raises ModelError for a template that does not compile. Has no limits of time or memory; the text worker does.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str] | None = None,
        content_format: Literal["string", "openai"] | None = None,
    ) -> None:
        self._environment = _environment()
        self._content_form: ContentForm | None = None if content_format is None else _FORMS[content_format]
        self._special_tokens = dict(special_tokens or {})
        sources = {"default": source} if isinstance(source, str) else dict(source or {})
        self._templates = {name: self._compile(text) for name, text in sources.items()}

    @property
    def content_format(self) -> Literal["string", "openai"]:
        """'openai' if the (default) template expects content as a list of parts, as detected at load."""
        template = self._templates.get("default")
        return "string" if template is None or template.content_form == "string" else "openai"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        placeholders: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Renders the prompt. It contains the special tokens the model expects, so encode it without adding any.
        placeholders: by the modalities that messages may have, what stands for an image or a sound where the template
        takes content as one string.

        Raises RequestError for messages that the template refuses.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "add_generation_prompt must be false where continue_final_message is true.",
                param="add_generation_prompt",
            )
        template = self._select(has_tools=tools is not None)
        prepared = template.arrangement.arrange(
            template.assistant.adapt(prepare_messages(messages, template.content_form, placeholders))
        )
        final_text = _mark_final_message(prepared[-1]) if continue_final_message else None
        variables = {
            **self._special_tokens,
            **_check_kwargs(template_kwargs or {}),
            "messages": prepared,
            "tools": plain_value(tools, "tools"),
            "documents": plain_value(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        prompt = self._run(template.code, variables)
        return prompt if final_text is None else _cut_at_mark(prompt, final_text)

    def _select(self, has_tools: bool) -> _CompiledTemplate:
        if has_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        if self._templates:
            names = ", ".join(sorted(self._templates))
            raise RequestError(f"The model has no default chat template, only: {names}. Give one with --chat-template.")
        raise RequestError("The model has no chat template. Give one with --chat-template, or use completions.")

    def _compile(self, source: str) -> _CompiledTemplate:
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise ModelError(f"The chat template is longer than {_MAX_TEMPLATE_CHARS} characters.")
        try:
            tree = self._environment.parse(source)
            for node in tree.find_all(_LOADING):
                kind = type(node).__name__.lower()
                raise TemplateSyntaxError(f"'{kind}' has no place in a chat template", node.lineno)
            code = self._environment.from_string(tree)
        except TemplateSyntaxError as error:
            message = f"The chat template has an error in line {error.lineno}: {_one_line(error.message or '')}"
            raise ModelError(message) from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # Python's limits on code: nested blocks and brackets, digits of a number.
            raise ModelError("The chat template nests too deeply or holds a number that is too long.") from error
        form = self._content_form or self._detect_content_form(code)

        def render(messages: Messages, tools: Messages | None = None) -> str:
            return self._probe(code, messages, tools)

        return _CompiledTemplate(code, form, AssistantTurns(render, form), Arrangement(render, form))

    def _detect_content_form(self, code: Template) -> ContentForm:
        """Renders a short message both ways. A template that expects a string prints the list with its quotes."""
        takes_string = _PROBE in self._probe(code, [{"role": "user", "content": _PROBE}])
        text = self._probe(code, [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        takes_parts = _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text
        if not takes_parts:
            return "string"
        return "either" if takes_string else "parts"

    def _probe(
        self,
        code: Template,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt; "" if the template refuses the messages."""
        variables = {
            **self._special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            return self._run(code, variables)
        except RequestError:
            return ""

    def _run(self, code: Template, variables: Mapping[str, Any]) -> str:
        try:
            return code.render(variables)
        except _TemplateRaisedError as error:
            raise RequestError(_one_line(error.message or ""), param="messages") from error
        except RecursionError as error:
            raise RequestError("The chat template was stopped: it calls itself too often.", param="messages") from error
        except MemoryError:  # handled by the process, which has the limit
            raise
        except Exception as error:
            # Untrusted code may raise anything. It means that template and messages do not fit, not that we failed.
            raise RequestError(
                f"The chat template cannot render these messages: {_one_line(str(error))}", param="messages"
            ) from error


def _one_line(text: str) -> str:
    return " ".join(text[:_MAX_MESSAGE_CHARS].split())


def _check_kwargs(template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    param = "chat_template_kwargs"
    if len(template_kwargs) > _MAX_TEMPLATE_KWARGS:
        raise RequestError(f"{param} holds more than {_MAX_TEMPLATE_KWARGS} fields.", param=param)
    plain: dict[str, Any] = plain_value(template_kwargs, param)
    for name in plain:
        if name in _RESERVED_KWARGS or name.startswith("_") or not name.isidentifier():
            raise RequestError(f"{param} cannot hold {name[:_MAX_MESSAGE_CHARS]!r}.", param=param)
    return plain


def _mark_final_message(message: dict[str, Any]) -> str:
    """Appends the mark to the text of the final message, and returns that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CONTINUE_MARK
        return content
    if content and content[-1]["type"] == "text":
        text: str = content[-1]["text"]
        content[-1]["text"] = text + _CONTINUE_MARK
        return text
    raise RequestError(
        "continue_final_message needs a final message with content that ends with text.", param="messages"
    )


def _cut_at_mark(prompt: str, final_text: str) -> str:
    """The prompt up to the end of the final message, without the end-of-turn tokens that the template adds."""
    position = prompt.rfind(_CONTINUE_MARK.strip())
    if position < 0 or final_text.strip() not in prompt:
        raise RequestError(
            "The chat template does not keep the final message as it is, so it cannot be continued.", param="messages"
        )
    is_untrimmed = prompt.startswith(_CONTINUE_MARK, position)
    return prompt[:position] if is_untrimmed else prompt[:position].rstrip()
