"""What is written wrongly is refused at once, with one sentence that says what to change."""

import builtins
import dataclasses
import functools
from typing import Literal, NotRequired, TypedDict

import pydantic
import pytest

from agent_reach import AgentClient, Capability, InvalidPayload, SetupError, _schema
from agent_reach._handlers import bind, bound

SCHEMA = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "content_type": {"type": "string", "enum": ["report", "email"]}},
    "required": ["content_type"],
}


def a_capability(**facts):
    return Capability(**({"name": "file_summary", "input_schema": SCHEMA} | facts))


async def summarise(payload, ctx): ...


@pytest.fixture
def client():
    return AgentClient("doc-summarizer", "http://127.0.0.1:1", api_key="k")


def test_a_handler_without_ctx_is_refused_at_decoration(client):
    with pytest.raises(SetupError, match=r"must take \(payload, ctx\).*ctx carries call_id"):

        @client.handle("file_summary")
        async def handle_file_summary(payload): ...


def test_a_handler_that_wants_more_is_refused(client):
    with pytest.raises(SetupError, match=r"must take \(payload, ctx\)"):

        @client.handle("file_summary")
        def handle(payload, ctx, model): ...


def test_a_handler_that_yields_is_refused(client):
    with pytest.raises(SetupError, match="a function that returns its result"):

        @client.handle("file_summary")
        async def handle(payload, ctx):
            yield 1


@pytest.mark.parametrize("function", [lambda *both: None, lambda payload, ctx, extra=1: None, summarise])
def test_what_can_be_called_with_both_is_taken(client, function):
    assert client.handle("file_summary")(function) is function


def test_two_handlers_for_one_capability_are_refused(client):
    client.handle("file_summary")(summarise)
    with pytest.raises(SetupError, match="two handlers"):
        client.handle("file_summary")(summarise)


def test_a_partial_of_an_async_function_is_async():
    async def with_model(model, payload, ctx): ...

    assert bind(a_capability(), functools.partial(with_model, "m")).is_async


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"service_id": "Doc Summarizer"}, "service_id 'Doc Summarizer' must be"),
        ({"reach_addr": "reach:8080"}, "reach_addr must be a URL"),
        ({"heartbeat_interval": 0.1}, "heartbeat_interval is seconds"),
        ({"advertise": "10.0.0.1:9001"}, "advertise must be a URL"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1"),
        ({"node_id": "a/b"}, "node_id 'a/b' must be"),
    ],
    ids=str,
)
def test_arguments_are_checked_at_once(facts, sentence):
    with pytest.raises(SetupError, match=sentence):
        AgentClient(**({"service_id": "s", "reach_addr": "http://127.0.0.1:1"} | facts))


async def test_without_a_key_the_start_is_refused(client, monkeypatch):
    monkeypatch.delenv("REACH_API_KEY", raising=False)
    client = AgentClient("doc-summarizer", "http://127.0.0.1:1")
    client.register_capability(a_capability())
    client.handle("file_summary")(summarise)
    with pytest.raises(SetupError, match=r"REACH_API_KEY.*reach_key create --service doc-summarizer"):
        await client.run()


def test_nothing_offered_is_refused():
    with pytest.raises(SetupError, match="call register_capability"):
        bound({}, {})


def test_a_capability_without_handler_is_refused():
    with pytest.raises(SetupError, match=r"@client.handle\('file_summary'\)"):
        bound({"file_summary": a_capability()}, {})


def test_a_handler_without_capability_names_the_near_one():
    with pytest.raises(SetupError, match="did you mean 'file_summary'"):
        bound({"file_summary": a_capability()}, {"file_sumary": summarise})


def test_start_outside_the_main_thread_raises(client):
    with pytest.raises(SystemExit, match="doc-summarizer cannot start: nothing is offered"):
        client.start()


# --- Schemas ---------------------------------------------------------------------------------------------------------


def test_an_example_that_does_not_fit_is_named():
    with pytest.raises(SetupError, match="example 2 of file_summary does not fit its input_schema: /content_type"):
        bind(a_capability(examples=[{"content_type": "report"}, {"content_type": "novel"}]), summarise)


def test_a_schema_that_is_none_is_refused():
    with pytest.raises(SetupError, match="input_schema of file_summary is no JSON Schema"):
        bind(a_capability(input_schema={"type": "objekt"}), summarise)


def test_without_the_validator_nothing_is_checked_here(monkeypatch):
    imported = builtins.__import__

    def without(name, *rest):
        if name == "jsonschema":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    _schema.has_validator.cache_clear()
    try:
        assert bind(a_capability(examples=[{"content_type": "novel"}]), summarise).check is None
    finally:
        monkeypatch.undo()
        _schema.has_validator.cache_clear()


def test_payloads_are_checked_before_the_handler():
    handler = bind(a_capability(), summarise)
    with pytest.raises(InvalidPayload) as caught:
        handler.accept({"content_type": 3})
    assert caught.value.errors[0]["path"] == "/payload/content_type"


# --- Hints -----------------------------------------------------------------------------------------------------------


class Fitting(TypedDict):
    content_type: Literal["report", "email"]
    file_path: NotRequired[str]


class WrongName(TypedDict):
    path: str
    content_type: str


class WrongType(TypedDict):
    content_type: int


class TooSure(TypedDict):
    content_type: str
    file_path: str


@dataclasses.dataclass
class Plain:
    content_type: str
    file_path: str | None = None


@dataclasses.dataclass
class TooNarrow:
    content_type: str


class Model(pydantic.BaseModel):
    content_type: Literal["report", "email"]
    file_path: str = ""


class Aliased(pydantic.BaseModel):
    kind: str = pydantic.Field(validation_alias="content_type")


def hinted(annotation):
    async def handle(payload, ctx): ...

    handle.__annotations__ = {"payload": annotation}
    return handle


@pytest.mark.parametrize("annotation", [Fitting, Plain, Model, Aliased, dict, dict[str, str], "Nowhere", None])
def test_a_hint_that_fits_is_taken(annotation):
    bind(a_capability(), hinted(annotation))


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        (WrongName, r"WrongName needs 'path', which the schema does not have \(it has 'file_path', 'content_type'\)"),
        (WrongType, "'content_type' may be string by the schema, and WrongType takes integer"),
        (TooSure, "TooSure needs 'file_path', and the schema does not require it"),
        (TooNarrow, "the schema has 'file_path', which TooNarrow does not know"),
    ],
)
def test_a_hint_that_does_not_fit_is_explained(annotation, sentence):
    with pytest.raises(SetupError, match=f"handle and the input_schema of file_summary do not fit: {sentence}"):
        bind(a_capability(), hinted(annotation))


def test_a_schema_without_properties_does_not_fit_a_model():
    with pytest.raises(SetupError, match="the schema declares no properties"):
        bind(a_capability(input_schema={"type": "object"}), hinted(Model))


@pytest.mark.parametrize("annotation", [Plain, Model])
def test_the_handler_gets_the_model_it_asks_for(annotation):
    payload = bind(a_capability(), hinted(annotation)).accept({"content_type": "report"})
    assert isinstance(payload, annotation) and payload.content_type == "report"
