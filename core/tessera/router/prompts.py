"""What the body of a request has in common with others: the blocks of its prompt, as it is written."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from tessera.routing import hashed_blocks

TOKEN_BYTES = 4
"""Of text, about."""
BLOCK_BYTES = 256 * TOKEN_BYTES
"""Long enough that the blocks of a long prompt cost less than a tenth of a millisecond. A shorter prefix is cheap to
compute."""
_ROOT_BYTES = 16
_NOTHING = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    """The fields that a prompt begins with, in this order, of all APIs; undecoded."""

    tools: msgspec.Raw = _NOTHING
    system: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    model: msgspec.Raw = _NOTHING
    cache_salt: msgspec.Raw = _NOTHING
    prompt_cache_key: msgspec.Raw = _NOTHING


class PromptBlocks:
    """Hashes bodies. The text of a chat goes on where the chat before it ended, so its JSON does too, but for what
    closes it. sticky: requests with an equal cache_salt have their first block in common."""

    def __init__(self, *, sticky: bool) -> None:
        self._sticky = sticky
        # Nobody outside can make prompts whose blocks look alike.
        self._root = secrets.token_bytes(_ROOT_BYTES)
        self._decoder = msgspec.json.Decoder(_Body)

    def read(self, body: bytes, key: bytes) -> Sequence[bytes]:
        """key: of the client, whose prompts no other's share a cache with. Nothing for a body without a prompt."""
        try:
            fields = self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ()  # a server says what is wrong with it
        salt = bytes(fields.cache_salt) or bytes(fields.prompt_cache_key)
        identity = b"\n".join((bytes(fields.model), salt, key))
        root = self._root + sha256(identity).digest()
        parts = (fields.tools, fields.system, fields.instructions, fields.messages, fields.prompt, fields.input)
        blocks = hashed_blocks(b"".join(parts), BLOCK_BYTES, root)
        return [root, *blocks] if self._sticky and salt else blocks
