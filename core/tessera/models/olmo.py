"""OLMo 2: norms after attention and after the MLP but not before, and queries and keys normalized over all heads."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.norm import Norm, NormAdd
from tessera.models.decoder import Decoder, DecoderConfig, build_decoder, mlp_of
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.reading import read_attention, read_biases, read_decoder, repeated
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_OLMO2 = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}


class PostNormBlock:
    """Norms after attention and the MLP only. The whole sum is passed from block to block. first: the name of the norm
    after attention."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        number: int,
        tables: RotaryTable,
        first: str = "post_attention_layernorm",
    ) -> None:
        prefix, norm = f"model.layers.{number}", Norm(config.eps)
        self.attention = config.layers[number].block(build, f"{prefix}.self_attn", None, tables)
        self.after_attention = NormAdd(build, f"{prefix}.{first}", config.hidden, norm)
        self.mlp = mlp_of(build, config, number)
        self.after_mlp = NormAdd(build, f"{prefix}.post_feedforward_layernorm", config.hidden, norm)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.attention(x, None, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, x = states
        x = self.after_attention(self.attention.output(mixed), x)
        return self.after_mlp(self.mlp(x), x), None


def olmo2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _OLMO2)
    shape = read_attention(fields, max_model_len, whole_norm=True, **read_biases(fields))
    return build_decoder(build, read_decoder(fields, repeated(fields, shape)), PostNormBlock, whole=True)
