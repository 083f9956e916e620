"""docs/clients.md: its settings are those that the agents are run with, and its table names what is run and held."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.server.recorded_turns import FOLDER, turns
from tools.clients import embedding_programs
from tools.clients.coding_agents import CODEX, HERE, claude_code
from tools.clients.programs import PROGRAMS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "clients.md").read_text(encoding="utf-8")
EMBEDDINGS_PAGE = (DOCS / "embeddings.md").read_text(encoding="utf-8")
BASE = "http://127.0.0.1:8000"
PROGRAM_NAMES = {
    "instructor": "instructor",
    "litellm": "LiteLLM",
    "langchain": "LangChain",
    "openai_agents": "OpenAI Agents SDK",
    "pydantic_ai": "Pydantic AI",
    "llama_index": "LlamaIndex",
}

EMBEDDING_NAMES = {
    "openai_embeddings": "OpenAI",
    "cohere": "Cohere",
    "langchain_embeddings": "LangChain",
    "llama_index_embeddings": "LlamaIndex",
    "litellm_embeddings": "LiteLLM",
    "open_webui": "Open WebUI (its requests alone)",
}


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_settings_of_codex_are_those_that_it_is_run_with():
    shown, run = tomllib.loads(block("toml")), tomllib.loads(CODEX.replace("BASE", BASE))
    for only_here in ("analytics", "check_for_update_on_startup"):
        del run[only_here]
    assert shown == {**run, "model": "MODEL"}


def test_the_settings_of_claude_code_are_those_that_it_is_run_with(tmp_path: Path):
    shown = dict(re.findall(r"^export (\w+)=(\S+)$", block("bash"), re.MULTILINE))
    run = claude_code(BASE, tmp_path, tmp_path).environment
    assert shown == {name: "MODEL" if "MODEL" in name else value for name, value in run.items()}


def test_the_settings_of_librechat_are_whole():
    (endpoint,) = yaml.safe_load(block("yaml"))["endpoints"]["custom"]
    assert endpoint["baseURL"] == f"{BASE}/v1"
    assert endpoint["models"] == {"default": ["MODEL"], "fetch": True}


def test_each_program_that_is_run_is_named():
    assert PROGRAM_NAMES.keys() == PROGRAMS.keys()
    assert [name for name in PROGRAM_NAMES.values() if name not in PAGE] == []


def test_each_client_that_embeds_has_its_lines():
    assert EMBEDDING_NAMES.keys() == embedding_programs.PROGRAMS.keys()
    assert [name for name in EMBEDDING_NAMES.values() if f"| {name} | " not in EMBEDDINGS_PAGE] == []
    source = Path(embedding_programs.__file__).read_text(encoding="utf-8")
    written = ("check_embedding_ctx_length=False", "model_name=MODEL, api_base=", 'ClientV2(api_key="any", base_url=')
    for part in written:
        assert part in source
        assert part.replace("=MODEL", '="MODEL"') in EMBEDDINGS_PAGE


@pytest.mark.parametrize(
    ("package", "name", "fixture"),
    [("@openai/codex", "Codex", "codex"), ("@anthropic-ai/claude-code", "Claude Code", "claude_code")],
)
def test_versions_are_those_that_are_installed_and_recorded(package, name, fixture):
    version = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["dependencies"][package]
    assert f"| {name} {version} |" in PAGE
    recorded = json.loads((FOLDER / f"{fixture}.json").read_text(encoding="utf-8"))
    assert recorded["client"] == f"{package} {version}"


def test_recorded_versions_are_named():
    clients = {turn.client for _, turn in turns()}
    for part in ("`@librechat/agents` 3.9.2", "Open WebUI 0.12.4"):
        assert part in PAGE
        assert any(part.replace("`", "") in client for client in clients)
