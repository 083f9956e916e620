"""Models of nothing but Mamba or Mamba 2, and what other models share with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tessera.gguf.architectures.architecture import GgufArchitecture, Names, Settings
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.tensors import ComputedTensor, GgufWeight, NamedTensor, depthwise, log_decay

Changes = Mapping[str, Callable[[NamedTensor], GgufWeight]]

BACKBONE: Names = {
    "token_embd.weight": "backbone.embeddings.weight",
    "output_norm.weight": "backbone.norm_f.weight",
    "output.weight": "lm_head.weight",
}
"""Those that are of no layer, where all layers are Mamba's or alike."""


def mamba_names(mixer: str) -> Names:
    """mixer: where they are in a layer."""
    return {
        "ssm_in": f"{mixer}.in_proj",
        "ssm_conv1d": f"{mixer}.conv1d",
        "ssm_x": f"{mixer}.x_proj",
        "ssm_dt": f"{mixer}.dt_proj",
        "ssm_a": f"{mixer}.A_log",
        "ssm_d": f"{mixer}.D",
        "ssm_out": f"{mixer}.out_proj",
    }


def mamba_changes(fields: GgufFields) -> Changes:
    return {"ssm_a": _log_decays, "ssm_conv1d": depthwise}


def mamba2_names(mixer: str) -> Names:
    """mixer: where they are in a layer."""
    return {
        "ssm_in": f"{mixer}.in_proj",
        "ssm_conv1d": f"{mixer}.conv1d",
        "ssm_dt.bias": f"{mixer}.dt_bias",
        "ssm_a": f"{mixer}.A_log",
        "ssm_d": f"{mixer}.D",
        "ssm_norm": f"{mixer}.norm",
        "ssm_out": f"{mixer}.out_proj",
    }


def mamba2_changes(fields: GgufFields) -> Changes:
    return {"ssm_a": log_decay, "ssm_d": _vector, "ssm_norm": _vector, "ssm_conv1d": depthwise}


def _log_decays(weight: NamedTensor) -> ComputedTensor:
    """A_log of each channel and element of a state."""
    return ComputedTensor(weight.shape, (weight,), lambda values: np.log(-values))


def _vector(weight: NamedTensor) -> ComputedTensor:
    """The file has a dimension more."""
    return ComputedTensor((math.prod(weight.shape),), (weight,), lambda values: values)


def _alone(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "state_size": fields.count("ssm.state_size"),
        "conv_kernel": fields.count("ssm.conv_kernel"),
        "expand": fields.count("ssm.inner_size") // fields.count("embedding_length"),
        "layer_norm_epsilon": fields.epsilon,
        "use_bias": "blk.0.ssm_in.bias" in file.tensors,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in file.tensors,
    }


def _mamba(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        **_alone(fields, file),
        "intermediate_size": fields.count("ssm.inner_size"),
        "time_step_rank": fields.count("ssm.time_step_rank"),
    }


def _mamba2(fields: GgufFields, file: GgufFile) -> Settings:
    heads = fields.count("ssm.time_step_rank")
    return {
        **_alone(fields, file),
        "num_heads": heads,
        "head_dim": fields.count("ssm.inner_size") // heads,
        "n_groups": fields.count("ssm.group_count", 1),
    }


def _architecture(name: str, model_type: str) -> GgufArchitecture:
    return GgufArchitecture(
        name,
        model_type,
        {"attn_norm": "norm", **mamba_names("mixer")},
        _mamba,
        sizes=lambda fields, file: {},
        changes=mamba_changes,
        ends=BACKBONE,
        layers="backbone.layers",
    )


_MAMBA = _architecture("MambaForCausalLM", "mamba")
_FALCON_MAMBA = _architecture("FalconMambaForCausalLM", "falcon_mamba")


def mamba(fields: GgufFields) -> GgufArchitecture:
    """Mamba, or Falcon Mamba, which norms what selects."""
    return _FALCON_MAMBA if fields.get("ssm.dt_b_c_rms") else _MAMBA


MAMBA: Mapping[str, GgufArchitecture] = {
    "mamba": _MAMBA,
    "mamba2": GgufArchitecture(
        "Mamba2ForCausalLM",
        "mamba2",
        {"attn_norm": "norm", **mamba2_names("mixer")},
        _mamba2,
        sizes=lambda fields, file: {},
        changes=mamba2_changes,
        ends=BACKBONE,
        layers="backbone.layers",
    ),
}
"""By general.architecture. A file of `mamba` is what mamba() says."""
