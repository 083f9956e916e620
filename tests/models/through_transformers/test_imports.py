"""Who loads transformers: a model that runs through its code, and no other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.models.loader.folders import config_only

LOAD = """
import dataclasses, sys
from tessera.config import build_config
from tessera.engine.engine import Engine
config = build_config(model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, max_num_seqs=2,
    platform="tessera.testing:ReferencePlatform", kv_cache_memory_bytes=2**20)
Engine(dataclasses.replace(config, embedded=True)).close()
print("transformers" in sys.modules)
"""


@pytest.mark.parametrize(("architecture", "loads"), [("LlamaForCausalLM", "False"), ("ArceeForCausalLM", "True")])
def test_transformers_is_loaded_for_its_own(tmp_path, architecture, loads):
    folder = config_only(tmp_path, architectures=[architecture])
    done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == loads
