"""What a flag may be: numbers within bounds, words out of a list."""

from __future__ import annotations

from tessera.errors import ConfigError

MAX_TOKENS = 2**24


def within(name: str, value: int, low: int, high: int) -> int:
    """The value. Raises ConfigError where it is no whole number or lies outside low to high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number.", param=name)
    if not low <= value <= high:
        raise ConfigError(f"{name} must be from {low} to {high}, got {value}.", param=name)
    return value


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError where a value is none of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got '{value[:40]}'.", param=name)
