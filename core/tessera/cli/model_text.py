"""What a front process needs of a model's files beside its configuration: the tokenizer and the chat template."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tessera.config import EngineConfig
from tessera.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from tessera.text import ChatTemplate, Tokenizer

MAX_TEMPLATE_BYTES = 2**20


def tokenizer_of(config: EngineConfig) -> Tokenizer | None:
    """None with --skip-tokenizer-init. Raises ModelError."""
    from tessera.text import Tokenizer

    return Tokenizer.from_folder(config.model.tokenizer) if config.model.tokenizer else None


def chat_template_of(tokenizer: Tokenizer | None, file: str | None) -> ChatTemplate | None:
    """The model's, or that of --chat-template; None where there is none. Raises ConfigError, ModelError."""
    from tessera.text import ChatTemplate

    if tokenizer is None:
        if file is not None:
            raise ConfigError("--chat-template needs a tokenizer; leave --skip-tokenizer-init out.")
        return None
    source = tokenizer.chat_templates if file is None else _read_template(Path(file))
    return ChatTemplate(source, tokenizer.special_tokens) if source else None


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
