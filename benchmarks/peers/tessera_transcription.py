"""A server of Tessera, in its process and its children: what recordings take over HTTP, with the times and the figures
of each segment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
from benchmarks.http_load import HOST
from benchmarks.served import free_port
from benchmarks.soak import until_ready
from benchmarks.transcription_task import Line, TranscriptionTask, drive

import tessera

MOST_SECONDS = 3600
KV_CACHE = "2GiB"


class Tessera:
    def __init__(self, task: TranscriptionTask) -> None:
        port = free_port()
        quantized = task.precision == "int8"
        command = [sys.executable, "-m", "tessera.cli", "serve", task.weights, "--host", HOST, "--port", str(port)]
        command += ["--threads", str(task.threads), "--max-num-seqs", str(max(task.streams))]
        command += ["--kv-cache-memory-bytes", KV_CACHE, "--disable-log-requests"]
        command += ["--stall-timeout", str(MOST_SECONDS)]  # the front end is stopped while others are timed
        command += ["--dtype", "bfloat16", "--quantization", "int8"] if quantized else ["--dtype", task.precision]
        self._server = subprocess.Popen(command)  # ends with this process's group
        self._url = f"http://{HOST}:{port}"
        self.version = tessera.__version__
        asyncio.run(self._until_ready())

    def transcribe(self, paths: Sequence[str]) -> list[list[Line]]:
        return asyncio.run(self._all([(Path(path).name, Path(path).read_bytes()) for path in paths]))

    async def _until_ready(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=20) as http:
            await until_ready(http)

    async def _all(self, files: Sequence[tuple[str, bytes]]) -> list[list[Line]]:
        async with httpx.AsyncClient(base_url=self._url, timeout=MOST_SECONDS) as http:
            return await asyncio.gather(*(self._lines(http, file) for file in files))

    async def _lines(self, http: httpx.AsyncClient, file: tuple[str, bytes]) -> list[Line]:
        form = {"response_format": "verbose_json"}
        response = await http.post("/v1/audio/transcriptions", files={"file": file}, data=form)
        response.raise_for_status()
        return [(one["start"], one["end"], one["text"]) for one in response.json()["segments"]]


if __name__ == "__main__":
    drive(Tessera)
