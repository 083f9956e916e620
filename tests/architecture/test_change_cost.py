"""What a change costs: a dummy of each kind in CONTRIBUTING.md's table is added to a copy of the tree by editing as
many files as the table says, and then seen wherever it should show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.conftest import NOT_COPIED

ROOT = Path(__file__).parents[2]


class Change:
    """A copy of the tree under way to a dummy. edited: the files that a person had to touch; what a tool writes is not
    counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.edited: set[str] = set()
        for name in ("core", "docs", "tools"):
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_COPIED)

    def after(self, path: str, line: str, text: str) -> None:
        """Inserts lines into a file behind the one line that begins so."""
        lines = (self.folder / path).read_text(encoding="utf-8").splitlines(keepends=True)
        (place,) = [number for number, one in enumerate(lines) if one.startswith(line)]
        lines.insert(place + 1, text)
        (self.folder / path).write_text("".join(lines), encoding="utf-8")
        self.edited.add(path)

    def write(self, path: str, text: str) -> None:
        """A new file."""
        (self.folder / path).write_text(text, encoding="utf-8")
        self.edited.add(path)

    def read(self, path: str) -> str:
        return (self.folder / path).read_text(encoding="utf-8")

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python that sees the copy and nothing installed of Tessera's but its libraries."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        variables |= {"PYTHONPATH": str(self.folder / "core"), "TESSERA_LOAD_PLUGINS": ""}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def tessera(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "tessera.cli", *arguments)


@pytest.fixture
def change(tmp_path: Path) -> Change:
    return Change(tmp_path)


ENGINE_FLAG = """\
    dummy_limit: int | None = flag(
        None, "A dummy.", low=1, high=9, metavar="DUMMIES", shown_default="no dummies", plan=True
    )
"""
LLM_TAKES_IT = """
import inspect
from tessera.llm import LLM
from tessera.config import build_config
print("dummy_limit" in inspect.signature(LLM).parameters)
config = build_config(platform="a.module:P", load_format="dummy", dummy_limit=3)
print(config.scheduler.dummy_limit, "scheduler.dummy_limit" in config.explicit_fields)
try:
    LLM(platform="a.module:P", dummy_limit=10)
except Exception as error:
    print(error)
"""


def test_a_flag_of_the_engine_is_one_field_in_one_file(change: Change) -> None:
    change.after(
        "core/tessera/config/engine.py", "class SchedulerConfig", '    """A dummy\'s record."""\n\n' + ENGINE_FLAG
    )
    assert change.edited == {"core/tessera/config/engine.py"}

    for command in (["serve"], ["chat"], ["plan"], ["bench", "latency"]):
        help_text = change.tessera(*command, "--help-all").stdout
        assert "--dummy-limit DUMMIES" in help_text, command
        assert "A dummy. [no dummies]" in help_text
    assert change.python("-c", LLM_TAKES_IT).stdout.splitlines() == [
        "True",
        "3 True",
        "dummy_limit must be from 1 to 9, got 10.",
    ]
    (change.folder / "flags.yaml").write_text("port: 0\nplatform: a.module:P\ndummy_limit: 0\n", encoding="utf-8")
    refused = change.tessera("serve", "--config", "flags.yaml")
    assert (refused.returncode, refused.stderr) == (2, "error: dummy_limit must be from 1 to 9, got 0.\n")
    assert "Did you mean" in change.tessera("serve", "--dummy-limt", "3").stderr

    assert change.python("-m", "tools.cli_reference").returncode == 0
    assert "| `--dummy-limit DUMMIES` | A dummy. | no dummies |" in change.read("docs/cli.md")
    assert "| `dummy_limit` | A dummy. | no dummies |" in change.read("docs/llm.md")


SERVER_FLAG = """\
    dummy_seconds: float = flag(0.5, "A dummy.", low=0, high=9, unit="seconds", metavar="SECONDS")
"""
SERVER_HAS_IT = """
from tessera.config.flags import given_values, record_of
from tessera.server.settings import SERVER_FLAGS, ServerSettings
print(record_of(ServerSettings, SERVER_FLAGS, given_values(SERVER_FLAGS, {"dummy_seconds": 2.5})).dummy_seconds)
"""


def test_a_flag_of_the_server_is_one_field_in_one_file(change: Change) -> None:
    change.after("core/tessera/server/settings.py", "    max_requests: int", SERVER_FLAG)
    assert change.edited == {"core/tessera/server/settings.py"}

    assert "--dummy-seconds SECONDS" in change.tessera("serve", "--help", "server").stdout
    assert "--dummy-seconds" not in change.tessera("chat", "--help-all").stdout
    assert change.python("-c", SERVER_HAS_IT).stdout == "2.5\n"
    (change.folder / "flags.yaml").write_text("port: 0\ndummy-seconds: 10\n", encoding="utf-8")
    refused = change.tessera("serve", "--config", "flags.yaml")
    assert refused.stderr == "error: --dummy-seconds must be from 0 to 9 seconds, got 10.\n"
    assert change.python("-m", "tools.cli_reference").returncode == 0
    assert "| `--dummy-seconds SECONDS` | A dummy. | 0.5 |" in change.read("docs/cli.md")


SAMPLED = """
import msgspec
from tessera import LLM, SamplingParams
from tessera.errors import RequestError
from tessera.server.openai.protocol import CompletionRequest
from tessera.server.generation.sampling import sampling_params

body = msgspec.json.decode(b'{"model": "m", "prompt": "", "dummy_pick": 5}', type=CompletionRequest)
asked = sampling_params(body, {}, max_tokens=4, logprobs=None, detokenize=False)
with LLM(platform="tessera.testing:ReferencePlatform", load_format="dummy", dtype="float32", max_num_seqs=2) as llm:
    outputs = llm.generate(
        prompt_token_ids=[[1, 2, 3], [1, 2, 3]], sampling_params=[asked, SamplingParams(max_tokens=4)], use_tqdm=False
    )
print([output.outputs[0].token_ids == [5, 5, 5, 5] for output in outputs])
try:
    SamplingParams(dummy_pick=9)
except RequestError as error:
    print(error.message)
"""


def test_a_sampling_parameter_is_at_most_five_files(change: Change) -> None:
    """A parameter that the device knows: the token to draw instead of the one that was drawn."""
    change.after("core/tessera/sampling_params.py", "    min_p: float = 0.0", "    dummy_pick: int = 0\n")
    change.after("core/tessera/sampling_params.py", '        "top_k": (', '        "dummy_pick": (0, 7),\n')
    change.after("core/tessera/runner/input_batch.py", '        "min_p": (', '        "dummy_pick": (np.int32, 0),\n')
    change.after("core/tessera/runner/input_batch.py", "    min_p: Array", "    dummy_pick: Array\n")
    change.after("core/tessera/ops/sampling.py", "    min_p: Tensor", "    dummy_pick: Tensor\n")
    change.after(
        "core/tessera/ops/sampling.py",
        "    drawn = tokens.to(torch.int32)",
        "    drawn = torch.where(rows.dummy_pick > 0, rows.dummy_pick, drawn)\n",
    )
    change.after("core/tessera/server/generation/fields.py", "    min_p: _Share", "    dummy_pick: int | None = None\n")
    change.after("docs/sampling.md", "| `stream_interval`", "| `dummy_pick` | a dummy | 0 |\n")
    assert len(change.edited) <= 5

    done = change.python("-c", SAMPLED)
    assert done.stdout.splitlines() == [
        "[True, False]",
        "dummy_pick must be at least 0 and at most 7, got 9.",
    ], done.stderr


SERVES_IT = """
import sys
from tessera import LLM, SamplingParams

options = dict(platform="tessera.testing:ReferencePlatform", load_format="dummy", skip_tokenizer_init=True)
with LLM(sys.argv[1], **options) as llm:
    params = SamplingParams(max_tokens=3, detokenize=False, ignore_eos=True)
    (output,) = llm.generate(prompt_token_ids=[[1, 2]], sampling_params=params, use_tqdm=False)
print(len(output.outputs[0].token_ids))
"""
LLAMA = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip


def test_a_model_is_a_file_and_a_row(change: Change) -> None:
    (change.folder / "model").mkdir()
    config = {"architectures": ["DummyForCausalLM"], **LLAMA}
    (change.folder / "model/config.json").write_text(json.dumps(config), encoding="utf-8")
    change.write("core/tessera/models/dummy.py", "from tessera.models.llama import llama\n\ndummy = llama\n")
    change.after(
        "core/tessera/plugins/builtin.py",
        '    "FalconForCausalLM"',
        '    "DummyForCausalLM": "tessera.models.dummy:dummy",\n',
    )
    assert len(change.edited) == 2

    done = change.python("-c", SERVES_IT, "model")
    assert done.stdout == "3\n", done.stderr


FORMAT = """
from tessera.platform.quantization import Part, QuantSpec, Scheme, StoredWeight, TensorSpec, WeightFormat

SCHEME = Scheme(
    QuantSpec("int8", "channel"), parts={"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))}
)


class Dummy(WeightFormat):
    def __init__(self, config):
        self.heads = config["heads"]

    def stored(self, weight, module, dtype):
        if weight.name == "lm_head.weight" and not self.heads:
            return "it is the head"
        name, (n, k) = weight.name.removesuffix(".weight"), weight.whole
        elements = Part(f"{name}.qweight", (n, k), weight.rows, weight.columns, dtype="int8")
        return StoredWeight(
            SCHEME, {"weight": elements, "scale": Part(f"{name}.scales", (n,), weight.rows, fill=0.01, dtype="float32")}
        )
"""


def test_a_quantization_format_is_a_file_and_a_row(change: Change) -> None:
    (change.folder / "model").mkdir()
    config = {"architectures": ["LlamaForCausalLM"], **LLAMA, "quantization_config": {"quant_method": "dummy"}}
    config["quantization_config"]["heads"] = False
    (change.folder / "model/config.json").write_text(json.dumps(config), encoding="utf-8")
    change.write("core/tessera/quantization/formats/dummy.py", FORMAT)
    change.after(
        "core/tessera/plugins/builtin.py",
        '    "compressed-tensors"',
        '    "dummy": "tessera.quantization.formats.dummy:Dummy",\n',
    )
    assert len(change.edited) == 2

    done = change.python("-c", SERVES_IT, "model")
    assert done.stdout == "3\n", done.stderr
    explained = change.tessera("plan", "model", "--platform", "tessera.testing:ReferencePlatform", "--explain")
    assert "int8, one scale per row" in explained.stdout, explained.stderr
    assert "it is the head" in explained.stdout
