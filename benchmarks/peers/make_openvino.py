"""Exports a model's folder for OpenVINO: python -m benchmarks.peers.make_openvino FOLDER TARGET FORM

FORM is optimum-cli's weight format: fp32, fp16, int8 or int4. OpenVINO's pipeline requires a tokenizer, so a model
without one gets bytes and fillers up to its vocabulary size.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.byte_tokenizer import link


def export(folder: Path, target: Path, form: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / folder.name
        link(folder, copy)
        # optimum-cli is next to the interpreter of its environment.
        command = [str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino", "--model", str(copy)]
        command += ["--task", "text-generation-with-past", "--weight-format", form, str(target)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
