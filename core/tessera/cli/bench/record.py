"""What was seen of one request, and the times that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.errors import TesseraError


@dataclass
class Record:
    """Seconds of one clock. prompt_len, asked: tokens. sent: when it was. received: when each piece with tokens came.
    output_len: tokens of the answer. error: why there is no whole answer."""

    prompt_len: int
    asked: int
    sent: float = 0.0
    received: list[float] = field(default_factory=list)
    output_len: int = 0
    error: TesseraError | None = None

    @property
    def completed(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.received[0] - self.sent

    @property
    def e2el(self) -> float:
        """End-to-end latency: to the last token."""
        return self.received[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None where there is no second."""
        return (self.e2el - self.ttft) / (self.output_len - 1) if self.output_len > 1 else None

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies: the gaps between pieces. A piece is one token unless the client was slow."""
        return [later - earlier for earlier, later in zip(self.received, self.received[1:], strict=False)]


def peak_concurrency(records: list[Record]) -> int:
    """Most requests between their sending and their last token at one moment; those that got no token count nowhere."""
    changes = [change for r in records if r.received for change in ((r.sent, 1), (r.received[-1], -1))]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak
