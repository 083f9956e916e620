"""/openapi.json says what the structs that decode requests say; /docs shows it and asks nobody else."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import pytest
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tessera import sampling_params
from tessera.server.app import FORMS, create_app
from tessera.server.generation.chat import ChatMessage
from tessera.server.openai.protocol import ChatCompletionRequest, CompletionRequest
from tessera.server.openapi import JsonRoute, openapi
from tessera.server.settings import Limits, ServerSettings
from tessera.server.tokenization import DetokenizeRequest, TokenizeRequest
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server.test_errors import check_error

BODIES = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
JSON_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}
JSON_NAMES = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.ListType: "array",
    msgspec.inspect.DictType: "object",
    msgspec.inspect.NoneType: "null",
}
MINIMAL = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": MODEL, "prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/tokenize": {"prompt": "Hi"},
}


def document(**settings):
    app = create_app(FakeEngine(), ServerSettings(**settings))
    errors = {begin: form.kind for begin, form in FORMS.items()}
    guarded, root_path = bool(settings.get("api_keys")), settings.get("root_path", "")
    return openapi(app.routes, errors=errors, guarded=guarded, root_path=root_path)


DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]


def operations(document=DOCUMENT):
    return {(path, method): value for path, item in document["paths"].items() for method, value in item.items()}


def nodes(value):
    """Every object of a JSON value."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(child)


def body_schema(path):
    reference = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return SCHEMAS[reference.rpartition("/")[2]]


def alternatives(schema):
    return schema.get("anyOf", [schema])


# ---- the document ----------------------------------------------------------------------------------------------------


async def test_it_is_openapi_3_1_and_what_the_server_serves(api):
    response = await api.client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == DOCUMENT
    assert re.fullmatch(r"3\.1\.\d", DOCUMENT["openapi"])
    assert DOCUMENT["info"]["title"]
    assert DOCUMENT["info"]["version"]
    assert set(DOCUMENT) <= {"openapi", "info", "servers", "paths", "components", "security"}


def test_each_operation_is_whole():
    ids = [operation["operationId"] for operation in operations().values()]
    assert len(set(ids)) == len(ids)
    for (path, method), operation in operations().items():
        assert path.startswith("/")
        assert operation["summary"].endswith(".")
        declared = {parameter["name"] for parameter in operation.get("parameters", ())}
        assert declared == set(re.findall(r"{(\w+)}", path))
        assert all(parameter["in"] == "path" and parameter["required"] for parameter in operation.get("parameters", ()))
        assert set(operation["responses"]) == {"200", "default"}
        assert all(answer["description"] and answer["content"] for answer in operation["responses"].values())
        without = ("/ping", "/v1/responses/{id}/cancel", "/v1/batches/{id}/cancel")
        assert ("requestBody" in operation) == (method == "post" and path not in without)


def test_each_reference_leads_somewhere_and_each_type_is_json_s():
    for node in nodes(DOCUMENT):
        if isinstance(node.get("$ref"), str):
            assert node["$ref"].removeprefix("#/components/schemas/") in SCHEMAS
    for node in nodes(SCHEMAS):
        if isinstance(node.get("type"), str) and "type" not in node.get("properties", {}):
            assert node["type"] in JSON_TYPES


def test_each_route_is_in_it():
    routes = create_app(FakeEngine(), ServerSettings()).routes
    shown = {(path, method.upper()) for path, method in operations()}
    assert shown == {
        (route.path_format, method)
        for route in routes
        for method in route.methods - {"HEAD"}
        if route.path not in ("/docs", "/openapi.json", "/")
    }


@pytest.mark.parametrize("path", BODIES)
def test_each_field_of_a_request_is_in_it_with_its_type(path):
    schema, kind = body_schema(path), BODIES[path]
    fields = msgspec.structs.fields(kind)
    assert set(schema["properties"]) == {field.encode_name for field in fields}
    assert set(schema.get("required", ())) == {field.encode_name for field in fields if field.required}
    for field in msgspec.inspect.type_info(kind).fields:
        types = {one.get("type") for one in alternatives(schema["properties"][field.encode_name])}
        kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        plain = {type(one.type if isinstance(one, msgspec.inspect.Metadata) else one) for one in kinds}
        assert {JSON_NAMES[one] for one in plain if one in JSON_NAMES} <= types, field.name


def test_limits_are_the_numbers_of_the_checks():
    properties = body_schema("/v1/completions")["properties"]
    assert properties["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": Limits.n}
    assert properties["stop"]["anyOf"][0]["maxLength"] == sampling_params.MAX_STOP_CHARS
    assert properties["cache_salt"]["anyOf"][0]["maxLength"] == Limits.salt_chars
    assert [one.get("type") for one in properties["prompt"]["anyOf"]] == ["string", "array", "array", "array"]
    assert SCHEMAS["ChatCompletionRequest"]["properties"]["messages"]["maxItems"] == Limits.messages


def over(schema):
    """Values just beyond each limit of a schema."""
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if "exclusiveMinimum" in schema:
        yield schema["exclusiveMinimum"]
    if schema.get("minLength"):
        yield ""
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "maxProperties" in schema:
        yield {str(number): 1 for number in range(schema["maxProperties"] + 1)}
    if "maxItems" in schema:
        item = schema.get("items", {})
        message = {"role": "user", "content": "x"}
        for_number = {"string": "{}".format, "integer": int, "array": lambda number: [number]}
        make = for_number.get(item.get("type"), lambda _number: message)
        yield [make(number) for number in range(schema["maxItems"] + 1)]
    if schema.get("minItems"):
        yield []


@pytest.mark.parametrize("path", BODIES)
async def test_a_value_beyond_a_limit_of_the_document_is_refused(api, path):
    extra = {"logprobs": True} if "chat" in path else {}
    for name, schema in body_schema(path)["properties"].items():
        for one in alternatives(schema):
            for value in over(one):
                search = {"use_beam_search": True} if name in ("length_penalty", "best_of") else {}
                response = await api.post(path, {**MINIMAL[path], **extra, **search, name: value})
                assert response.status_code == 400, (name, str(value)[:40])
                assert response.json()["error"]["param"].partition("[")[0] == name


def test_a_field_that_is_added_is_in_it():
    class Wider(CompletionRequest, kw_only=True):
        """A request with one more field."""

        volume: Annotated[int, msgspec.Meta(ge=1, le=11)] | None = None

    async def endpoint(_request: Request) -> Response:
        return Response()

    route = JsonRoute("/v1/louder", endpoint, "Louder.", methods=("POST",), body=Wider, answer=ChatMessage)
    made = openapi([route], errors={}, guarded=False, root_path="")
    properties = made["components"]["schemas"]["Wider"]["properties"]
    assert properties["volume"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 11}
    assert set(properties) == {"volume", *SCHEMAS["CompletionRequest"]["properties"]}
    assert set(made["paths"]) == {"/v1/louder"}


def test_keys_and_a_prefix_are_in_it():
    assert not [operation for operation in operations().values() if operation.get("security")]
    guarded = document(api_keys=("key",), root_path="/llm")
    assert guarded["security"] == [{"key": []}]
    assert guarded["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    open_to_all = {path for (path, _), operation in operations(guarded).items() if operation.get("security") == []}
    assert open_to_all == {"/health", "/livez", "/readyz"}
    assert guarded["servers"] == [{"url": "/llm"}]


async def test_a_plugin_s_fastapi_route_is_in_it_and_errs_in_openai_s_form():
    router = APIRouter()

    @router.get("/plugin/twice")
    async def twice(number: int) -> int:
        """Twice the number."""
        return 2 * number

    async with in_process(FakeEngine()) as api:
        api.client._transport.app.router.routes.extend(router.routes)
        made = (await api.client.get("/openapi.json")).json()
        assert made["paths"]["/plugin/twice"]["get"]["parameters"][0]["name"] == "number"
        assert (await api.client.get("/plugin/twice?number=4")).json() == 8
        check_error(await api.client.get("/plugin/twice?number=x"), 400, "number")


# ---- the page --------------------------------------------------------------------------------------------------------


async def test_the_page_asks_nobody_but_this_server(api):
    response = await api.client.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "connect-src 'self'" in response.headers["content-security-policy"]
    assert not re.search(r"(https?:|wss?:|[\"'(=]\s*)//", response.text)
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)", response.text)
    assert re.findall(r'fetch\("([^"]+)"', response.text) == ["openapi.json", "./v1/models"]
    assert "innerHTML" not in response.text


async def test_both_can_be_switched_off():
    async with in_process(FakeEngine(), ServerSettings(disable_fastapi_docs=True)) as api:
        for path in ("/docs", "/openapi.json", "/redoc"):
            check_error(await api.client.get(path), 404, code="unknown_url")


async def test_fastapi_s_own_pages_are_not_there(api):
    for path in ("/redoc", "/docs/oauth2-redirect"):
        check_error(await api.client.get(path), 404, code="unknown_url")
