"""What is chosen once for a length is said when the model is loaded."""

from __future__ import annotations

import pytest

from tessera.engine.engine import Engine
from tests.models.loader.folders import config_only, dummy_config

PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "original_max_position_embeddings": 16,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 3.0]},
}
DYNAMIC = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
LONG = "rotary embedding: the long_factors of longrope for every request, since max_model_len (32) exceeds"
SHORT = "rotary embedding: the short_factors of longrope for every request, since max_model_len (16) is within"
FIXED = "rotary embedding: dynamic scaling is fixed at 48 tokens (max_model_len) for every request"


@pytest.mark.parametrize(
    ("differs", "length", "begins"), [(PHI3, 32, LONG), (PHI3, 16, SHORT), (DYNAMIC, 48, FIXED), ({}, 32, None)]
)
def test_it_is_said(tmp_path, differs, length, begins):
    engine = Engine(dummy_config(config_only(tmp_path, **differs), max_model_len=length))
    engine.close()
    assert len(engine.info.notes) == (0 if begins is None else 1)
    assert all(note.startswith(begins) for note in engine.info.notes)
