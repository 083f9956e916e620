"""An error is the same in the process that it gets to."""

from __future__ import annotations

from tessera import errors
from tessera.processes.error_message import ErrorMessage


class PluginError(errors.ModelError):
    """A class that only the process that raises it has."""


def test_an_error_of_a_class_that_others_lack_arrives_as_the_nearest_they_have() -> None:
    back = ErrorMessage.from_error(PluginError("It is odd.", param="model", code="odd")).error()
    assert (type(back), back.message, back.param, back.code) == (errors.ModelError, "It is odd.", "model", "odd")
    assert back.exit_code == errors.ModelError.exit_code


def test_a_class_that_this_process_lacks_is_an_engines_error() -> None:
    for kind in ("NoSuchError", "EXIT_CODES", "annotations"):
        back = ErrorMessage(kind, "It is odd.").error()
        assert (type(back), back.message) == (errors.EngineDeadError, "It is odd.")
