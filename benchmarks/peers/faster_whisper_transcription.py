"""faster-whisper, in its process. Recordings at once are threads: with two or more, as many of its workers run side by
side as there are processors, of one thread each, which is faster than one worker with all threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.transcription_task import (
    LEAST_LOGPROB,
    MOST_COMPRESSION,
    MOST_NO_SPEECH,
    TEMPERATURES,
    Line,
    TranscriptionTask,
    drive,
)


class FasterWhisper:
    def __init__(self, task: TranscriptionTask) -> None:
        import ctranslate2
        import faster_whisper

        def model(threads: int, workers: int) -> Any:
            return faster_whisper.WhisperModel(
                task.weights,
                device="cpu",
                compute_type=task.precision,
                cpu_threads=threads,
                num_workers=workers,
                local_files_only=True,
            )

        self._alone = model(task.threads, 1)
        self._beside = model(1, task.threads)
        self.version = f"{faster_whisper.__version__}, CTranslate2 {ctranslate2.__version__}"

    def transcribe(self, paths: Sequence[str]) -> list[list[Line]]:
        if len(paths) == 1:
            return [_lines(self._alone, paths[0])]
        with ThreadPoolExecutor(len(paths)) as pool:
            return list(pool.map(lambda path: _lines(self._beside, path), paths))


def _lines(model: Any, path: str) -> list[Line]:
    segments, _ = model.transcribe(
        path,
        beam_size=1,
        best_of=1,
        temperature=TEMPERATURES,
        compression_ratio_threshold=MOST_COMPRESSION,
        log_prob_threshold=LEAST_LOGPROB,
        no_speech_threshold=MOST_NO_SPEECH,
        condition_on_previous_text=True,
        vad_filter=False,
    )
    return [(one.start, one.end, one.text) for one in segments]


if __name__ == "__main__":
    drive(FasterWhisper)
