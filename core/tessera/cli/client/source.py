"""Flags of commands that ask a server or an engine of their own, and the choice between the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tessera.cli.client.remote import DEFAULT_URL
from tessera.config.environment import read_environment
from tessera.config.flags import flag
from tessera.errors import ConfigError


@dataclass(frozen=True)
class SourceOptions:
    url: str | None = flag(
        None, f"Server to ask, such as {DEFAULT_URL}.", group="client", metavar="URL",
        shown_default="none: run the model here", common=True,
    )  # fmt: skip
    api_key: str | None = flag(
        None, "API key of the server.", group="client", metavar="KEY", common=True,
        variable="TESSERA_API_KEY or OPENAI_API_KEY",
    )  # fmt: skip
    model_name: str | None = flag(
        None, "Model of the server.", group="client", metavar="NAME", shown_default="its first", common=True
    )


def check_source(model: str | None, values: Mapping[str, Any], local: Iterable[str], called: str = "a MODEL") -> None:
    """Raises ConfigError for a flag of the source that is not asked. local: the flags of a model that runs here.
    called: what the command calls the model."""
    if values["url"] is None:
        for name in ("api_key", "model_name"):
            if values[name] is not None:
                raise ConfigError(f"{_option(name)} is for a server; add --url, or remove it.")
        return
    if model is not None:
        raise ConfigError(f"Give {called} to run here or the --url of a server, not both; see --model-name.")
    for name in sorted(local):
        if values.get(name) not in (None, ()):
            raise ConfigError(f"{_option(name)} is for a model that runs here; remove it, or --url.")


def key_of(api_key: str | None) -> str | None:
    """The API key to send: the flag's, otherwise one of the environment."""
    environment = read_environment()
    return api_key or environment.api_key or environment.openai_api_key


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
