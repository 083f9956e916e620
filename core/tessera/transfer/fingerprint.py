"""Whether two engines have the same model: a digest of all that keys and values depend on, apart from their form."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

from tessera.config import EngineConfig

_SAMPLES = 64
_SAMPLE_BYTES = 4096
_WEIGHTS = ("*.safetensors", "*.gguf")


def model_digest(config: EngineConfig) -> str:
    """Of the checkpoint's configuration, how it is quantized, and bytes from all over its weight files: two trainings
    of one architecture differ nearly everywhere. Not of names or paths, which differ between hosts."""
    model = config.model
    digest = sha256(msgspec.json.encode(dict(model.checkpoint), order="sorted"))
    random = (model.load_format, config.seed) if model.load_format == "dummy" else ()
    digest.update(msgspec.json.encode((model.quantization, model.dtype, random)))
    if not random:
        for file in _weight_files(Path(model.path)):
            digest.update(_sampled(file))
    return digest.hexdigest()


def _weight_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for pattern in _WEIGHTS for file in path.glob(pattern))


def _sampled(file: Path) -> bytes:
    size = file.stat().st_size
    digest = sha256(size.to_bytes(8, "little"))
    with file.open("rb") as opened:
        for place in range(_SAMPLES):
            opened.seek(max(size - _SAMPLE_BYTES, 0) * place // (_SAMPLES - 1))
            digest.update(opened.read(_SAMPLE_BYTES))
    return digest.digest()
