"""Processors of late interaction (ColQwen2, ColPali): they know one prompt for images, and none that has text beside
one. Here they read an image in a text as those of the models within do, of which their prompt is then one."""

from __future__ import annotations

from typing import Any

NAMES = ("ColPaliProcessor", "ColQwen2Processor")


class RetrieverImages:
    """Mixed into the class, whose own steps around an image are passed over."""

    def __call__(self, **arguments: Any) -> Any:
        return _passed_over(self).__call__(**arguments)

    def prepare_inputs_layout(self, **arguments: Any) -> Any:
        return _passed_over(self).prepare_inputs_layout(**arguments)

    def validate_inputs(self, **arguments: Any) -> None:
        _passed_over(self).validate_inputs(**arguments)


def _passed_over(processor: RetrieverImages) -> Any:
    """The processor as its class's base has it."""
    classes = type(processor).__mro__
    own = next(place for place, one in enumerate(classes) if one.__name__ in NAMES and place > 0)
    return super(classes[own], processor)
