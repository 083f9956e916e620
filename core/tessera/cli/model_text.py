"""What a front process needs of a model's files beside its configuration: its tokenizer and its chat template, in the
text workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tessera.config import EngineConfig
from tessera.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from tessera.text.workers import TextWorkers

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


def text_workers_of(config: EngineConfig, asked: AskedTemplate) -> TextWorkers | None:
    """Begun and not ready yet; None with --skip-tokenizer-init. Raises ConfigError, ModelError, TextWorkerError."""
    from tessera.text.worker import Start
    from tessera.text.workers import TextWorkers

    if not config.model.tokenizer:
        if asked.file is not None:
            raise ConfigError("--chat-template needs a tokenizer; leave --skip-tokenizer-init out.")
        return None
    template = None if asked.file is None else _read_template(Path(asked.file))
    return TextWorkers(Start(config.model.tokenizer, template, asked.content_format))


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
