"""--config: a YAML file whose keys are flags; --models: a list of such, one for each model. Values are parsed by the
flags' own types, as on the command line, so that the API key 0123 stays text and numbers are range-checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import yaml  # type: ignore[import-untyped]  # it has neither annotations nor stubs

from tessera.errors import ConfigError

MAX_BYTES = 2**20
_NULL = "tag:yaml.org,2002:null"
_OFF = ("false", "no", "off")


def read_config_file(
    file: str,
    parameters: Mapping[str, click.Parameter],
    ignores: Callable[[str, str], bool],
    ctx: click.Context,
) -> dict[str, Any]:
    """Validated texts by parameter name. parameters: those that a key may name. ignores: whether an
    option that is no parameter has no effect at a value; raises click.UsageError if it may not be ignored. Raises
    ConfigError that names the file and line."""
    root = _compose("--config", file)
    return {} if root is None else _values("--config", file, root, parameters, ignores, ctx)


def read_model_file(
    file: str,
    parameters: Mapping[str, click.Parameter],
    ignores: Callable[[str, str], bool],
    ctx: click.Context,
) -> list[dict[str, Any]]:
    """The values of each entry by parameter name, converted as those of the command line are. The arguments are those
    of read_config_file(). Raises ConfigError that names the file and line."""
    root = _compose("--models", file)
    if not isinstance(root, yaml.SequenceNode):
        raise ConfigError(f"--models '{file}' must be a list of models, each with a name and a model.")
    entries = []
    for node in root.value:
        values = _values("--models", file, node, parameters, ignores, ctx)
        entries.append({name: parameters[name].process_value(ctx, value) for name, value in values.items()})
    return entries


def _values(
    option: str,
    file: str,
    root: yaml.Node,
    parameters: Mapping[str, click.Parameter],
    ignores: Callable[[str, str], bool],
    ctx: click.Context,
) -> dict[str, Any]:
    """The texts of a mapping, by parameter name."""
    values: dict[str, Any] = {}
    for key, node in _pairs(option, file, root):
        name = key.replace("-", "_")
        where = f"'{file}', line {node.start_mark.line + 1}"
        if name not in parameters:
            if not _is_ignored(name, node, ignores, where):
                raise ConfigError(f"{where}: {_unknown(key, parameters)}")
            continue
        if name in values:
            raise ConfigError(f"{where}: '{key}' appears twice.")
        values[name] = _value(node, parameters[name], ctx, f"{where}: '{key}'")
    return values


def _is_ignored(name: str, node: yaml.Node, ignores: Callable[[str, str], bool], where: str) -> bool:
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    option = name.replace("_", "-")
    try:
        return (text.lower() in _OFF and ignores(f"--no-{option}", "")) or ignores(f"--{option}", text)
    except click.UsageError as error:
        raise ConfigError(f"{where}: {error.message}") from error


def _read(option: str, file: str) -> str:
    try:
        with Path(file).expanduser().open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{option} '{file}' cannot be read: {error.strerror}.") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{option} '{file}' is larger than {MAX_BYTES} bytes.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} '{file}' is not UTF-8 text.") from error


def _compose(option: str, file: str) -> yaml.Node | None:
    """Only composes nodes; no objects are constructed from the file. None: it is empty."""
    try:
        return yaml.compose(_read(option, file), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigError(f"'{file}'{line}: invalid YAML: {error.problem}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{option} '{file}' is not valid YAML.") from error


def _pairs(option: str, file: str, root: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """Keys and the nodes of their values."""
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{option} '{file}' must have lines of the form flag: value.")
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"'{file}', line {key.start_mark.line + 1}: a key must be the name of a flag.")
        yield key.value, value


def _unknown(key: str, parameters: Mapping[str, click.Parameter]) -> str:
    near = get_close_matches(key.replace("-", "_"), parameters, n=1)
    return f"unknown flag '{key[:80]}'" + (f"; did you mean {near[0].replace('_', '-')}?" if near else ".")


def _value(node: yaml.Node, parameter: click.Parameter, ctx: click.Context, where: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{where} has nested keys; the flag takes {_what(parameter)}.")
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(item, yaml.ScalarNode) for item in items):
        raise ConfigError(f"{where} has nested lists or keys; the flag takes {_what(parameter)}.")
    if isinstance(node, yaml.SequenceNode) and not parameter.multiple:
        raise ConfigError(f"{where} is a list; the flag takes one value.")
    if any(item.tag == _NULL for item in items):
        raise ConfigError(f"{where} has no value; give one, or remove the line.")
    texts = [item.value for item in items]
    given = texts if parameter.multiple else texts[0]
    try:
        parameter.type_cast_value(ctx, given)
    except click.BadParameter as error:
        raise ConfigError(f"{where}: {error.message}") from error
    return given


def _what(parameter: click.Parameter) -> str:
    if parameter.type.name == "json":
        return "a quoted JSON string"
    return "a value or a list of values" if parameter.multiple else "one value"
