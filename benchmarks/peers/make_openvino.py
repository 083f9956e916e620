"""Exports a model's folder for OpenVINO: python -m benchmarks.peers.make_openvino FOLDER TARGET FORM

FORM is what optimum-cli calls the weights' format: fp32, fp16, int8 or int4. Its pipeline insists on a tokenizer, so a
model that comes without one is given bytes and fillers up to its vocabulary.
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
        # The command line of optimum lies beside the interpreter of its environment.
        command = [str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino", "--model", str(copy)]
        command += ["--task", "text-generation-with-past", "--weight-format", form, str(target)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
