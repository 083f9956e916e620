"""From `serve`'s flags to the server's settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.cli.address import is_loopback
from tessera.cli.tls import tls_context
from tessera.config import EngineConfig
from tessera.config.environment import Environment
from tessera.errors import ConfigError
from tessera.server.settings import AnswerLimits, CorsRules, ServerSettings

if TYPE_CHECKING:
    from tessera.engine.supervisor import Supervision

MAX_SECONDS = 86_400.0
MAX_RESTARTS = 1000
MAX_KEYS_BYTES = 2**20
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def server_settings(config: EngineConfig, flags: Mapping[str, Any], environment: Environment) -> ServerSettings:
    """Raises ConfigError, ModelError."""
    keys = api_keys(flags, environment)
    sampling, answers = generation_defaults(flags, config)
    return ServerSettings(
        served_model_names=flags["served_model_name"] or (config.model.served_name,),
        api_keys=keys,
        default_sampling=sampling,
        drain_seconds=_seconds(flags, "shutdown_timeout", 30.0),
        answers=answers,
        chat_template_kwargs=flags["default_chat_template_kwargs"] or {},
        force_include_usage=bool(flags["enable_force_include_usage"]),
        sse_keep_alive_seconds=_seconds(flags, "sse_keep_alive_interval", None) or None,
        max_requests_per_key=_per_key(flags["max_requests_per_key"], guarded=bool(keys)),
        vllm_metrics=bool(flags["vllm_metrics"]),
        docs=not flags["disable_fastapi_docs"],
        root_path=_root_path(flags["root_path"] or ""),
        allowed_hosts=allowed_hosts(flags, guarded=bool(keys)),
        cors=_cors(flags),
        tls=tls_context(
            flags["ssl_certfile"], flags["ssl_keyfile"], flags["ssl_ca_certs"], int(flags["ssl_cert_reqs"] or 0)
        ),
    )


def api_keys(flags: Mapping[str, Any], environment: Environment) -> tuple[str, ...]:
    """Those of the flags and of the file; that of the environment where there are none."""
    given = [*flags["api_key"], *(_keys_in(flags["api_key_file"]) if flags["api_key_file"] is not None else ())]
    if not given and environment.api_key:
        given = [environment.api_key]
    # A line's end that came along is none of the key.
    keys = tuple(key.strip() for key in given)
    if not all(keys):
        raise ConfigError("--api-key and TESSERA_API_KEY must not be empty.")
    return keys


def _keys_in(file: str) -> list[str]:
    """A key a line; empty lines and those with # in front are none."""
    try:
        content = Path(file).read_bytes()[:MAX_KEYS_BYTES]
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    except OSError as error:
        raise ConfigError(f"--api-key-file '{file}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--api-key-file '{file}' is not UTF-8 text.") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        # Else a file that is empty by mistake would open the server to everyone.
        raise ConfigError(f"--api-key-file '{file}' holds no key; write one a line.")
    return keys


def generation_defaults(flags: Mapping[str, Any], config: EngineConfig) -> tuple[dict[str, float], AnswerLimits]:
    """Sampling of requests that say nothing, and how long answers may be.

    As in vLLM: max_new_tokens of the model's own file is what a chat gets that does not say; of a folder or an override
    that the operator named, nobody gets more.
    """
    sampling = dict(config.model.sampling_defaults)
    limit = sampling.pop("max_tokens", None)
    if limit is None:
        return sampling, AnswerLimits()
    named = flags["generation_config"] not in (None, "auto")
    named = named or "max_new_tokens" in (flags["override_generation_config"] or {})
    return sampling, AnswerLimits(default=int(limit), most=int(limit) if named else None)


def allowed_hosts(flags: Mapping[str, Any], *, guarded: bool) -> tuple[str, ...]:
    """The names that were given; where none were, this machine's own names if nothing but its address guards it.

    A key guards it, and whoever listens on a network means to be reached under names that are not known here.
    """
    names: tuple[str, ...] = flags["allowed_hosts"]
    if names:
        return () if "*" in names else names
    host = flags["host"] or "127.0.0.1"
    if guarded or flags["uds"] is not None or not is_loopback(host):
        return ()
    return tuple(dict.fromkeys((*_LOCAL_NAMES, f"[{host}]" if ":" in host else host)))


def _per_key(most: int | None, *, guarded: bool) -> int | None:
    if most is not None and (most < 1 or not guarded):
        raise ConfigError("--max-requests-per-key must be at least 1, and needs --api-key.")
    return most


def _cors(flags: Mapping[str, Any]) -> CorsRules | None:
    given = {name: flags[f"allowed_{name}"] for name in ("origins", "methods", "headers") if flags[f"allowed_{name}"]}
    credentials = bool(flags["allow_credentials"])
    if "origins" not in given:
        if given or credentials:
            raise ConfigError("--allowed-methods, --allowed-headers and --allow-credentials need --allowed-origins.")
        return None
    if credentials and "*" in given["origins"]:
        raise ConfigError("--allow-credentials needs the origins by name: '*' would let every web page in.")
    return CorsRules(**given, credentials=credentials)


def _root_path(path: str) -> str:
    trimmed = path.rstrip("/")
    if trimmed and (not trimmed.startswith("/") or "//" in trimmed):
        raise ConfigError(f"--root-path must be a path such as /tessera, got '{path}'.")
    return trimmed


def supervision(flags: Mapping[str, Any]) -> Supervision:
    """Raises ConfigError."""
    from tessera.engine.supervisor import Supervision

    defaults = Supervision()
    restarts = defaults.max_restarts if flags["max_restarts"] is None else flags["max_restarts"]
    if not 0 <= restarts <= MAX_RESTARTS:
        raise ConfigError(f"--max-restarts must be from 0 to {MAX_RESTARTS}, got {restarts}.")
    return Supervision(restarts, stall_seconds=_seconds(flags, "stall_timeout", defaults.stall_seconds, least=2.0))


def _seconds(flags: Mapping[str, Any], name: str, default: Any, *, least: float = 0.0) -> Any:
    value = flags[name]
    if value is None:
        return default
    if not least <= value <= MAX_SECONDS:
        option = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{option} must be from {least:g} to {MAX_SECONDS:.0f} seconds, got {value:g}.")
    return value
