"""What a front process needs of a model's files beside its configuration: the tokenizer and the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tessera.config import EngineConfig
from tessera.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from tessera.text import ChatTemplate, Tokenizer

MAX_TEMPLATE_BYTES = 2**20


@dataclass(frozen=True)
class AskedTemplate:
    """The chat template that was asked for: None is the model's own. content_format: None where it shall show."""

    file: str | None = None
    content_format: Literal["string", "openai"] | None = None

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> AskedTemplate:
        content_format = flags["chat_template_content_format"]
        return cls(flags["chat_template"], None if content_format == "auto" else content_format)


def tokenizer_of(config: EngineConfig) -> Tokenizer | None:
    """None with --skip-tokenizer-init. Raises ModelError."""
    from tessera.text import Tokenizer

    return Tokenizer.from_folder(config.model.tokenizer) if config.model.tokenizer else None


def chat_template_of(tokenizer: Tokenizer | None, asked: AskedTemplate) -> ChatTemplate | None:
    """None where there is none. Raises ConfigError, ModelError."""
    from tessera.text import ChatTemplate

    if tokenizer is None:
        if asked.file is not None:
            raise ConfigError("--chat-template needs a tokenizer; leave --skip-tokenizer-init out.")
        return None
    source = tokenizer.chat_templates if asked.file is None else _read_template(Path(asked.file))
    return ChatTemplate(source, tokenizer.special_tokens, content_format=asked.content_format) if source else None


def _read_template(path: Path) -> str:
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"--chat-template '{path}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"--chat-template '{path}' is not UTF-8 text.") from error
    if len(content) > MAX_TEMPLATE_BYTES:
        raise ModelError(f"--chat-template '{path}' has more than {MAX_TEMPLATE_BYTES} bytes.")
    return text
