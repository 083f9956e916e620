"""The fields of requests that pool, as msgspec structs. The requests of each route extend these."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tessera.errors import RequestError
from tessera.pooling_params import MAX_DIMENSIONS
from tessera.sampling_params import TRUNCATION_SIDES
from tessera.server.context import ServerContext
from tessera.server.decode import Envelope, RequestDecoder, Values
from tessera.server.generation.chat import ChatMessage, ContentPart
from tessera.server.generation.fields import Priority, RequestId, Salt
from tessera.server.generation.prompt import check_chat_sizes
from tessera.server.openapi import field_schema
from tessera.server.pooling.encoding import DTYPES, ENDIANNESSES, FORMATS
from tessera.server.prompt_field import PromptField, prompt_schema
from tessera.server.settings import Limits

R = TypeVar("R", bound="InputFields")
UNSERVED: Mapping[str, Values] = MappingProxyType(
    {
        "chat_template": (),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
        "padding": ("do_not_pad",),
        "prompt_embeds": (),
    }
)
"""Known fields that are not supported yet, with the values, besides null, that ask for nothing."""
Dimensions = Annotated[int, field_schema(minimum=1, maximum=MAX_DIMENSIONS)]
_ITEM: Mapping[str, Any] = MappingProxyType(
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "image": {"type": "string"},
            "content": {"type": "array", "items": {"type": "object"}},
        },
    }
)
"""The schema of InputItem."""
PromptName = Annotated[str, field_schema(maxLength=Limits.salt_chars)]


class PoolingFields(msgspec.Struct, kw_only=True):
    """What all of these requests have in common. null is the same as leaving a field out. model: if it is left out, the
    first name served."""

    model: str | None = None
    user: Salt | None = None
    cache_salt: Salt | None = None
    prompt_cache_key: Salt | None = None
    priority: Priority | None = None
    request_id: RequestId | None = None
    truncate_prompt_tokens: Annotated[int, field_schema(minimum=-1)] | None = None
    truncation_side: Annotated[str, field_schema(enum=[*TRUNCATION_SIDES])] | None = None
    use_activation: bool | None = None


class InputItem(msgspec.Struct):
    """One input: a text, an image, or both together. image: a URL as of image_url. content: parts of a chat's message
    in their place."""

    text: str | None = None
    image: str | None = None
    content: list[ContentPart] | None = None


class InputFields(PoolingFields, kw_only=True):
    """Texts and images by themselves: `input`, or the chat in `messages` as one text."""

    input: Annotated[Raw, prompt_schema(Limits.pooled_inputs, _ITEM)] | UnsetType = UNSET
    messages: Annotated[list[ChatMessage], field_schema(minItems=1, maxItems=Limits.messages)] | None = None
    add_special_tokens: bool | None = None
    prompt_name: PromptName | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def adds_special_tokens(self) -> bool:
        """To a text; the template of a chat has already written them."""
        return self.add_special_tokens is not False


class VectorFields(InputFields, kw_only=True):
    """The same, with how their numbers are written. normalize: an older name of use_activation."""

    encoding_format: Annotated[str, field_schema(enum=[*FORMATS])] | None = None
    embed_dtype: Annotated[str, field_schema(enum=[*DTYPES])] | None = None
    endianness: Annotated[str, field_schema(enum=[*ENDIANNESSES])] | None = None
    dimensions: Dimensions | None = None
    normalize: bool | None = None

    @property
    def activates(self) -> bool | None:
        """PoolingParams.use_activation. Raises RequestError for two fields that contradict each other."""
        if None not in (self.normalize, self.use_activation) and self.normalize != self.use_activation:
            raise RequestError("normalize is another name of use_activation; send one of them.", param="normalize")
        return self.normalize if self.use_activation is None else self.use_activation


def input_decoder(context: ServerContext, kind: type[R]) -> RequestDecoder[R]:
    """Decodes requests that have the fields of InputFields."""
    limits = context.settings.limits
    field = PromptField("input", limits.pooled_inputs, "inputs")

    def check(envelope: Envelope) -> None:
        field.check(envelope, limits, context.engine.info.max_model_len)
        check_chat_sizes(envelope, limits)

    return RequestDecoder(
        context,
        kind,
        UNSERVED,
        large={"input": limits.body_bytes, "messages": limits.body_bytes},
        further=check,
        also=("chat_template_kwargs", "truncate_prompt_tokens"),
    )
