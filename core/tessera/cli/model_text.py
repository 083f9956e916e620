"""What a front process needs from a model's files besides its configuration: tokenizer and chat template, in the text
workers, the processor of images, in the media worker, and the defaults of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.config.flags import flag, flags_of
from tessera.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from tessera.config import EngineConfig
    from tessera.media.workers import MediaWorkers
    from tessera.server.settings import AnswerLimits
    from tessera.text.workers import TextWorkers

MAX_TEMPLATE_BYTES = 2**20


@dataclass(frozen=True)
class TemplateOptions:
    """The user's chat template. file: None uses the model's own. kwargs: template variables, which a request can
    override."""

    file: str | None = flag(
        None, "File with a chat template to use instead of the model's.", name="chat_template", metavar="FILE",
        common=True,
    )  # fmt: skip
    content_format: str = flag(
        "auto", "Form in which the template takes message content.", name="chat_template_content_format",
        choices=("auto", "string", "openai"),
    )  # fmt: skip
    kwargs: Mapping[str, Any] | None = flag(
        None, 'Variables for the chat template, such as \'{"enable_thinking": false}\'.',
        name="default_chat_template_kwargs",
    )  # fmt: skip
    parse_special_tokens: bool = flag(
        False, "Special tokens in a chat's messages are tokens. By default they are text.", name="parse_special_tokens",
    )  # fmt: skip


TEMPLATE_FLAGS = flags_of(TemplateOptions, "model")


def text_workers_of(config: EngineConfig, options: TemplateOptions) -> TextWorkers | None:
    """Starts the text workers without waiting for them; None with --skip-tokenizer-init. Raises ConfigError, ModelError
    or TextWorkerError."""
    from pathlib import Path

    from tessera.text.worker import Start
    from tessera.text.workers import TextWorkers

    if not config.model.tokenizer:
        if options.file is not None:
            raise ConfigError("--chat-template needs a tokenizer; remove --skip-tokenizer-init.")
        return None
    template = None if options.file is None else _read_template(Path(options.file))
    content_format: Any = None if options.content_format == "auto" else options.content_format
    return TextWorkers(
        Start(
            config.model.tokenizer,
            template,
            content_format,
            options.parse_special_tokens,
            config.allow_additional_properties,
            config.model.eos_token_ids,
            None if config.model.pooler is None else config.model.pooler.pair_instruction,
        )
    )


def media_workers_of(config: EngineConfig) -> MediaWorkers | None:
    """Starts the media worker without waiting for it; None for a model whose prompts have no images, or no text. Raises
    MediaWorkerError."""
    from tessera.media.messages import MediaStart
    from tessera.media.workers import MediaWorkers

    start = MediaStart.from_model(config.model) if config.model.tokenizer else None
    return None if start is None else MediaWorkers(start)


def _read_template(path: Path) -> str:
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"--chat-template '{path}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"--chat-template '{path}' is not UTF-8 text.") from error
    if len(content) > MAX_TEMPLATE_BYTES:
        raise ModelError(f"--chat-template '{path}' is larger than {MAX_TEMPLATE_BYTES} bytes.")
    return text


def generation_defaults(flags: Mapping[str, Any], config: EngineConfig) -> tuple[dict[str, float], AnswerLimits]:
    """The default sampling parameters, and limits on the length of completions. flags: the command's, by name.

    As in vLLM, max_new_tokens in the model's own file is the default for chats, but in a folder or override that the
    operator named it is a limit for all requests.
    """
    from tessera.server.settings import AnswerLimits

    sampling = dict(config.model.sampling_defaults)
    limit = sampling.pop("max_tokens", None)
    if limit is None:
        return sampling, AnswerLimits()
    named = flags["generation_config"] not in (None, "auto")
    named = named or "max_new_tokens" in (flags["override_generation_config"] or {})
    return sampling, AnswerLimits(default=int(limit), maximum=int(limit) if named else None)
