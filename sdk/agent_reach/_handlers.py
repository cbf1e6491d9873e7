"""Handlers: what they must look like, what they are checked against at start, and how they are run."""

import asyncio
import contextlib
import inspect
import threading
import typing
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from agent_reach import _schema, _wire
from agent_reach.errors import InvalidPayload, SetupError
from agent_reach.models import Capability


@dataclass(frozen=True, slots=True)
class Handler:
    """A capability with the function that does it."""

    capability: Capability
    function: Callable[..., Any]
    is_async: bool
    check: _schema.Check | None
    build: Callable[[Any], Any] | None

    def accept(self, payload: Any) -> Any:
        """The payload as the function takes it. Raises InvalidPayload."""
        if self.check is not None and (errors := self.check(payload)):
            raise InvalidPayload("the payload does not fit the input schema", errors=tuple(errors))
        if self.build is None:
            return payload
        try:
            return self.build(payload)
        except (TypeError, ValueError) as exc:
            raise InvalidPayload(f"the payload does not fit the handler: {exc}") from exc


def check_signature(capability: str, function: Callable[..., Any]) -> None:
    """Raise SetupError unless it can be called with (payload, ctx)."""
    name = name_of(function)
    if not callable(function) or inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise SetupError(f"the handler of {capability} must be a function that returns its result, and {name} does not")
    signature = inspect.signature(function)
    try:
        signature.bind(None, None)
    except TypeError:
        raise SetupError(
            f"{name} takes {signature}, and a handler must take (payload, ctx): write `def {name}(payload, ctx)`. "
            "ctx carries call_id, trace_id, the time that is left and the logger; without it nobody can follow the call"
        ) from None


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def bound(capabilities: Mapping[str, Capability], functions: Mapping[str, Callable[..., Any]]) -> dict[str, Handler]:
    """Every capability with its handler, checked. Raises SetupError with the first mistake."""
    if not capabilities:
        raise SetupError("nothing is offered: call register_capability(Capability(…)) before start()")
    for name, function in functions.items():
        if name not in capabilities:
            near = get_close_matches(name, capabilities, 1)
            raise SetupError(
                f"{name_of(function)} handles {name!r}, and no such capability is registered: "
                + (f"did you mean {near[0]!r}?" if near else f"call register_capability(Capability(name={name!r}, …))")
            )
    for name in capabilities:
        if name not in functions:
            raise SetupError(f"{name} has no handler: write one under @client.handle({name!r})")
    return {name: bind(capability, functions[name]) for name, capability in capabilities.items()}


def bind(capability: Capability, function: Callable[..., Any]) -> Handler:
    """Check examples and hints against the schema. Raises SetupError."""
    _wire.encode(_wire.capability_document(capability), f"the declaration of {capability.name}")
    check = _schema.payload_check(capability)
    _schema.check_examples(capability, check)
    hint = _schema.hint_of(payload_annotation(function))
    if hint is not None:
        _schema.check_hint(capability, hint, name_of(function))
    return Handler(capability, function, is_async(function), check, hint.build if hint else None)


def payload_annotation(function: Callable[..., Any]) -> Any:
    """The hint of the first parameter, or None."""
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(called, include_extras=True)
    except (NameError, TypeError):  # a hint that only a type checker can see
        return None
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return hints.get(first.name) if first is not None else None


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a blocking function in a daemon thread of its own, so that one that hangs cannot keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(result: Any, failure: BaseException | None) -> None:
        if done.done():
            return
        if failure is None:
            done.set_result(result)
        else:
            done.set_exception(failure)

    def work() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = context.run(function, *arguments)
        except StopIteration as exc:  # a future cannot carry it
            failure = RuntimeError(f"StopIteration {exc}")
        except BaseException as exc:
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name=f"agent-reach {name_of(function)}", daemon=True).start()
    return await done
