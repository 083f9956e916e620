"""Transcripts as subtitles: SubRip (.srt) and WebVTT (W3C)."""

from __future__ import annotations

from collections.abc import Iterable

from tessera.speech.segments import Segment


def srt(segments: Iterable[Segment]) -> str:
    """Numbered, with a comma before the thousandths."""
    return "".join(
        f"{number}\n{_time(one.start, ',', hours=True)} --> {_time(one.end, ',', hours=True)}\n{_line(one)}\n\n"
        for number, one in enumerate(segments, 1)
    )


def vtt(segments: Iterable[Segment]) -> str:
    """Hours are left out where there are none."""
    cues = (f"{_time(one.start, '.')} --> {_time(one.end, '.')}\n{_line(one)}\n\n" for one in segments)
    return "".join(["WEBVTT\n\n", *cues])


def _line(segment: Segment) -> str:
    """One line, without the arrow that would begin a cue."""
    return " ".join(segment.text.split()).replace("-->", "->")


def _time(seconds: float, point: str, *, hours: bool = False) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    whole, minute = divmod(minutes, 60)
    second, thousandth = divmod(rest, 1000)
    head = f"{whole:02d}:" if hours or whole else ""
    return f"{head}{minute:02d}:{second:02d}{point}{thousandth:03d}"
