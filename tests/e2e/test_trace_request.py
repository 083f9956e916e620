"""The files that a request enters, found by sending one."""

from __future__ import annotations

from tools.trace_request import trace

BY_PROCESS = {
    "the front": ("server/openai/chat.py", "server/sse.py", "engine/async_engine.py", "text/workers.py"),
    "the text worker": ("text/worker.py", "text/template.py", "text/tokenizer.py"),
    "the engine": ("engine/engine.py", "scheduler/scheduler.py", "kvcache/manager.py", "runner/runner.py"),
}


def test_every_process_is_followed() -> None:
    processes, _ = trace()
    assert set(processes) == set(BY_PROCESS)
    for title, expected in BY_PROCESS.items():
        entered = {one.name: one for one in processes[title]}
        assert {f"core/tessera/{name}" for name in expected} <= set(entered)
        assert all(one.calls >= 1 and one.lines >= 1 for one in entered.values())
    engine = {one.name for one in processes["the engine"]}
    assert not [name for name in engine if "/server/" in name or "/cli/" in name]
