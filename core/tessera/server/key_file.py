"""The file of API keys with names and limits, which is read again while the server runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml  # type: ignore[import-untyped]  # it has neither annotations nor stubs

from tessera.errors import ConfigError
from tessera.server.keys import ApiKey, Quota, digest

SUFFIXES = (".yaml", ".yml", ".json")
"""How the names of files end that KeyFile reads; any other has one key a line."""
MAX_FILE_BYTES = 4 * 2**20
_MAX_KEYS = 10_000
_LOG = logging.getLogger(__name__)

_Limit = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._\-]{1,64}$")]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")]


class _KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: _Name
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    sha256: _Sha256 | None = None
    requests_per_minute: _Limit | None = None
    tokens_per_minute: _Limit | None = None
    concurrent_requests: _Limit | None = None
    models: list[str] | None = None
    admin: bool = False


class _KeyList(msgspec.Struct, forbid_unknown_fields=True):
    keys: Annotated[list[_KeyEntry], msgspec.Meta(min_length=1, max_length=_MAX_KEYS)]


class KeyFile:
    """A file of keys with names and limits, as it was last read without an error."""

    def __init__(self, path: str, concurrent_requests: int | None = None) -> None:
        """concurrent_requests: of keys that set none. Raises ConfigError for a file that cannot be used."""
        self._path = path
        self._concurrent = concurrent_requests
        self.by_digest: Mapping[bytes, ApiKey] = self._read()

    @property
    def keys(self) -> Sequence[ApiKey]:
        return list(self.by_digest.values())

    def of_tenant(self, tenant: str) -> ApiKey | None:
        """The key whose requests belong to a tenant; None if there is none any more."""
        return next((key for key in self.by_digest.values() if key.tenant == tenant), None)

    def read_again(self) -> None:
        """Keeps the keys as they are if the file cannot be used now. The log says what came of it."""
        try:
            self.by_digest = self._read()
        except ConfigError as error:
            _LOG.error("The keys stay as they were: %s", error.message)
        else:
            _LOG.info("Read %d keys from '%s'.", len(self.by_digest), self._path)

    def _read(self) -> Mapping[bytes, ApiKey]:
        entries = _decoded(self._path).keys
        keys = [self._key(entry) for entry in entries]
        for values, what in (([key.name for key in keys], "name"), ([key.digest for key in keys], "key")):
            if len(set(values)) < len(values):
                second = next(number for number, value in enumerate(values) if value in values[:number])
                raise self._error(f"'{entries[second].name}' has the {what} of another entry")
        return {key.digest: key for key in keys}

    def _key(self, entry: _KeyEntry) -> ApiKey:
        if (entry.key is None) == (entry.sha256 is None):
            raise self._error(f"'{entry.name}' needs either key or sha256")
        hashed = digest(entry.key.encode()) if entry.key is not None else bytes.fromhex(entry.sha256 or "")
        concurrent = self._concurrent if entry.concurrent_requests is None else entry.concurrent_requests
        return ApiKey(
            name=entry.name,
            digest=hashed,
            tenant=entry.name,
            quota=Quota(entry.requests_per_minute, entry.tokens_per_minute, concurrent),
            models=None if entry.models is None else frozenset(entry.models),
            admin=entry.admin,
        )

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"--api-key-file '{self._path}': {what}.")


def _decoded(path: str) -> _KeyList:
    where = f"--api-key-file '{path}'"
    data = read_key_file(path)
    try:
        if path.endswith(".json"):
            return msgspec.json.decode(data, type=_KeyList)
        return msgspec.convert(_yaml(data), _KeyList)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigError(f"{where}{line}: invalid YAML: {error.problem}.") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}.") from error
    except (yaml.YAMLError, msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{where} is not valid YAML or JSON.") from error


def _yaml(data: bytes) -> Any:
    """Plain values alone: no tag of the file makes an object."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(data, Loader=loader)  # noqa: S506 - both are safe loaders


def read_key_file(path: str) -> bytes:
    """Raises ConfigError."""
    try:
        with Path(path).expanduser().open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--api-key-file '{path}' cannot be read: {error.strerror}.") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"--api-key-file '{path}' is larger than {MAX_FILE_BYTES} bytes.")
    return data
