"""ColQwen2's processor: it knows one prompt for images, and none that has text beside one. Here it reads an image in a
text as Qwen2-VL's does, of which its prompt is then one."""

from __future__ import annotations

from typing import Any

NAME = "ColQwen2Processor"


class ColQwen2Images:
    """Mixed into the class, whose own steps around an image are passed over."""

    def __call__(self, **arguments: Any) -> Any:
        return _passed_over(self).__call__(**arguments)

    def prepare_inputs_layout(self, **arguments: Any) -> Any:
        return _passed_over(self).prepare_inputs_layout(**arguments)

    def validate_inputs(self, **arguments: Any) -> None:
        _passed_over(self).validate_inputs(**arguments)


def _passed_over(processor: ColQwen2Images) -> Any:
    """The processor as its class's base has it."""
    classes = type(processor).__mro__
    own = next(place for place, one in enumerate(classes) if one.__name__ == NAME and place > 0)
    return super(classes[own], processor)
