"""The bodies of the Files and Batch APIs (https://platform.openai.com/docs/api-reference/batch), and the lines of their
files."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tessera.server.openapi import field_schema

ENDPOINTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    *("/v1/embeddings", "/v1/rerank", "/v1/score"),
)
"""The routes that a batch may ask."""
WINDOW = "24h"
PURPOSES = ("batch", "assistants", "evals", "fine-tune", "user_data", "vision")
"""What OpenAI's clients upload files for. All are kept; only those for a batch are read here."""

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


# ---- files -----------------------------------------------------------------------------------------------------------


class FileUpload(msgspec.Struct):
    """The parts of the form that uploads a file."""

    purpose: Annotated[str, field_schema(enum=list(PURPOSES))]
    file: Annotated[str, field_schema(format="binary")]


class FileObject(msgspec.Struct, kw_only=True):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    expires_at: int | None = None
    status_details: str | None = None


class FileList(msgspec.Struct):
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


# ---- batches ---------------------------------------------------------------------------------------------------------


class BatchRequest(msgspec.Struct):
    """What to run."""

    input_file_id: str
    endpoint: Annotated[str, field_schema(enum=list(ENDPOINTS))]
    completion_window: Annotated[str, field_schema(enum=[WINDOW])]
    metadata: dict[str, str] | None = None


class BatchError(msgspec.Struct):
    """What is wrong with a line of an input file; line: from 1, None if it is not one line alone."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct):
    data: list[BatchError]
    object: str = "list"


class RequestCounts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct):
    """The tokens of all answers together."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """Times are in seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    object: str = "batch"
    completion_window: str = WINDOW
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None


class BatchList(msgspec.Struct):
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


# ---- the lines of files ----------------------------------------------------------------------------------------------


class RequestLine(msgspec.Struct):
    """A line of an input file. body: that of the request, as it is."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class LineResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    code: str
    message: str


class ResultLine(msgspec.Struct):
    """A line of an output file or error file. error: why there is no response."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None = None
