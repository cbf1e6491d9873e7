import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from fakes import FakeReach, until

from agent_reach import AgentClient


@pytest.fixture
async def reach() -> AsyncIterator[FakeReach]:
    fake = FakeReach()
    await fake.listen()
    yield fake
    await fake.close()


@pytest.fixture
async def running() -> AsyncIterator[Callable[[AgentClient], Awaitable[asyncio.Task[None]]]]:
    """`await running(agent)`: started, registered, and stopped at the end of the test."""
    started: list[tuple[AgentClient, asyncio.Task[None]]] = []

    async def start(agent: AgentClient) -> asyncio.Task[None]:
        task = asyncio.create_task(agent.run())
        started.append((agent, task))
        await until(lambda: agent.is_registered or task.done(), "registered")
        if task.done():
            task.result()
        return task

    yield start
    for agent, task in started:
        agent.stop()
        try:
            await asyncio.wait_for(task, 5)
        except TimeoutError:
            pytest.fail("the agent did not stop")
