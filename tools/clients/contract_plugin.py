from __future__ import annotations
import os, json
import httpx2
import pytest

BASE = os.environ["TEST_API_BASE_URL"]

def made(path, **sent):
    answer = httpx2.post(f"{BASE}{path}", **sent)
    answer.raise_for_status()
    return answer.json()["id"]

def file(): 
    line = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {"input": "string"}}
    return made("/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", json.dumps(line))})

def batch():
    return made("/batches", json={"input_file_id": file(), "endpoint": "/v1/responses", "completion_window": "24h"})

def changed(o):
    path = o.url
    if "completion_id" in path:
        o.url = path.replace("completion_id", made("/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "store": True}))
    elif "resp_677efb5139a88190b512bc3fef8e535d" in path or "response_id" in path:
        i = made("/responses", json={"input": "string", "background": path.endswith("cancel")})
        o.url = path.replace("resp_677efb5139a88190b512bc3fef8e535d", i).replace("response_id", i)
    elif "conv_123" in path:
        conv = httpx2.post(f"{BASE}/conversations", json={"items": [{"type": "message", "role": "user", "content": "x"}]}).json()["id"]
        o.url = path.replace("conv_123", conv)
        if "msg_abc" in path:
            item = httpx2.get(f"{BASE}/conversations/{conv}/items").json()["data"][0]["id"]
            o.url = o.url.replace("msg_abc", item)
    elif path.startswith("/files/string"):
        o.url = path.replace("string", file())
    elif path.startswith("/batches/string"):
        o.url = path.replace("string", batch())
    elif path == "/batches" and o.method == "post":
        o.json_data = {**o.json_data, "input_file_id": file()}
    elif path in ("/responses", "/responses/input_tokens") and o.method == "post" and "input" not in (o.json_data or {}):
        o.json_data = {**(o.json_data or {}), "input": "string"}
    return o

@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    client = yield
    if fixturedef.argname == "client":
        own = client._prepare_options
        client._prepare_options = lambda o: own(changed(o))
    elif fixturedef.argname == "async_client":
        aown = client._prepare_options
        async def p(o): return await aown(changed(o))
        client._prepare_options = p
    return client
