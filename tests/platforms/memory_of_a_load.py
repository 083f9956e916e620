"""`python -m tests.platforms.memory_of_a_load FOLDER PLATFORM SCHEME`: bytes, as JSON, of the weights that an engine
has loaded, and of what was resident beyond the start at most."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from tessera.config import build_config
from tessera.engine.engine import Engine
from tests.platforms.engine_run import PLATFORMS

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(what: str) -> int:
    """Bytes: VmRSS now, VmHWM the most since it was reset."""
    line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def main(folder: str, platform: str, scheme: str) -> None:
    config = build_config(
        model=folder, platform=PLATFORMS[platform], quantization=scheme, dtype="bfloat16", load_format="dummy",
        skip_tokenizer_init=True, threads=1, max_num_seqs=1, max_num_batched_tokens=16, max_model_len=16,
        kv_cache_memory_bytes=4 << 20,
    )  # fmt: skip
    small = dataclasses.replace(config.model, checkpoint={**config.model.checkpoint, "num_hidden_layers": 1})
    Engine(dataclasses.replace(config, model=small, embedded=True)).close()  # imports, threads, pools
    before = resident("VmRSS")
    RESET.write_text("5", encoding="ascii")
    engine = Engine(dataclasses.replace(config, embedded=True))
    print(json.dumps([engine.info.weight_bytes, resident("VmHWM") - before]))


if __name__ == "__main__":
    main(*sys.argv[1:])
