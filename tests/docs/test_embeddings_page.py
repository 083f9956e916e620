"""docs/embeddings.md is followed to its end; the table of fields in docs/api-compatibility.md is that of the routes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.server.pooling.classify import ClassifyRequest
from tessera.server.pooling.embeddings import EmbeddingRequest
from tessera.server.pooling.pool import PoolRequest
from tessera.server.pooling.rerank import RerankRequest
from tessera.server.pooling.score import ScoreRequest
from tessera.server.settings import Limits
from tests.docs.steps import Shell, follow
from tests.e2e.served import free_port
from tests.server.conftest import in_process
from tests.server.pooling_models import CLASSIFIER, EMBEDDER, pooling_engine

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "embeddings.md").read_text(encoding="utf-8")
APIS = (DOCS / "api-compatibility.md").read_text(encoding="utf-8")
REQUESTS: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/embeddings": (EmbeddingRequest, {"input": "Hi"}),
    "/score": (ScoreRequest, {"text_1": "Hi", "text_2": "there"}),
    "/rerank": (RerankRequest, {"query": "Hi", "documents": ["there"]}),
    "/classify": (ClassifyRequest, {"input": "Hi"}),
    "/pooling": (PoolRequest, {"input": "Hi"}),
}


def table() -> dict[str, dict[str, str]]:
    """By route, what becomes of each field."""
    rows = APIS.split("| Field | ")[1].split("\n\n")[0].splitlines()
    head, cells = rows[0], rows[2:]
    routes = [name.strip(" `") for name in head.strip("| ").split("|")]
    found: dict[str, dict[str, str]] = {route: {} for route in routes}
    for row in cells:
        names, *marks = row.removeprefix("|").removesuffix("|").split("|")
        for route, mark in zip(routes, marks, strict=True):
            found[route] |= {name.strip(" `"): mark.strip() for name in names.split(",") if mark.strip()}
    return found


def test_each_field_is_in_the_table() -> None:
    written = table()
    assert set(written) == set(REQUESTS)
    for route, (kind, _) in REQUESTS.items():
        served = {name for name, mark in written[route].items() if mark == "+"}
        assert served == {field.encode_name for field in msgspec.structs.fields(kind)}, route


@pytest.mark.parametrize("route", REQUESTS)
async def test_what_is_refused_is_refused_by_its_name(route: str) -> None:
    refused = [name for name, mark in table()[route].items() if mark == "400"]
    assert len(refused) >= 2
    async with in_process(pooling_engine(CLASSIFIER if route == "/classify" else EMBEDDER)) as api:
        _, body = REQUESTS[route]
        assert (await api.post(route, body)).status_code == 200
        for name in refused:
            response = await api.post(route, {**body, name: {"a": "b"}})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, begins in (("tessera", "-m tessera.cli"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {begins} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "NO_PROXY": "127.0.0.1"}
    page = PAGE.replace("--convert embed &", "--convert embed --port 8000 &").replace("8000", str(free_port()))
    for file in ("vector.py", "search.py", "offline.py"):
        (tmp_path / file).touch()
    with Shell(tmp_path, environment) as shell:
        assert follow(page, shell) == 12


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"One request may have {Limits.pooled_inputs} texts (`--max-inputs`)" in PAGE
