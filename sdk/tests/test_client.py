"""Callers: the async client, its synchronous twin, and what they say when there is no answer."""

import asyncio
import socket

import pytest
from fakes import FakeReach

from agent_reach import AsyncReachClient, NoAvailableNode, NotAgentReach, ReachClient, SetupError, Unreachable


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_dispatch_gives_a_result(reach: FakeReach):
    async with AsyncReachClient(reach.url, "k") as client:
        result = await client.dispatch("work", {"a": 1}, tags=["prod"])
    assert result.output == "the child's output" and result.succeeded
    assert reach.dispatched == [{"capability": "work", "payload": {"a": 1}, "tags": ["prod"]}]


async def test_the_synchronous_twin_does_the_same(reach: FakeReach):
    def use():
        with ReachClient(reach.url, "k") as client:
            return client.dispatch("work", {}).output, client.submit("work", {})

    assert await asyncio.to_thread(use) == ("the child's output", "c")
    assert reach.dispatched[1]["mode"] == "async"


async def test_a_refusal_is_its_exception(reach: FakeReach):
    reach.refuse["dispatch"] = (503, "no_available_node")
    async with AsyncReachClient(reach.url, "k") as client:
        with pytest.raises(NoAvailableNode, match="agent-reach nodes"):
            await client.dispatch("work", {})


def test_nobody_there_is_one_sentence(free_port):
    with (
        ReachClient(f"http://127.0.0.1:{free_port}", "k") as client,
        pytest.raises(Unreachable, match=r"nothing listens there\): start it \(`make run`\), or correct reach_addr"),
    ):
        client.dispatch("work", {})


def test_a_name_that_does_not_resolve_is_one_sentence():
    with (
        ReachClient("http://no-such-host.invalid:1", "k") as client,
        pytest.raises(Unreachable, match="does not resolve: correct reach_addr"),
    ):
        client.dispatch("work", {})


async def test_something_else_at_the_address_is_told(free_port):
    async def other(reader, writer):
        await reader.readline()
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", free_port)
    async with server, AsyncReachClient(f"http://127.0.0.1:{free_port}", "k") as client:
        with pytest.raises(NotAgentReach, match="does not speak HTTP"):
            await client.dispatch("work", {})


async def test_a_connection_that_breaks_leaves_the_outcome_unknown(free_port):
    async def breaks(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(breaks, "127.0.0.1", free_port)
    async with server, AsyncReachClient(f"http://127.0.0.1:{free_port}", "k") as client:
        with pytest.raises(Unreachable) as caught:
            await client.dispatch("work", {})
    assert caught.value.outcome_unknown


def test_the_address_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("REACH_ADDR", raising=False)
    monkeypatch.setenv("REACH_API", "http://article:8080/")
    assert ReachClient().address == "http://article:8080"
    monkeypatch.setenv("REACH_ADDR", "http://here:1")
    assert ReachClient().address == "http://here:1"
    with pytest.raises(SetupError, match="must be a URL"):
        ReachClient("here:1")
