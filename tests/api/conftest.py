"""The app in-process over doubles, and on a real socket in a thread."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from ebbtide.api import server
from ebbtide.api.app import create_app
from ebbtide.clock import ManualClock
from ebbtide.ids import SeededIds
from ebbtide.settings import Settings

from .doubles import NOW, Doubles, World
from .living import FLEET
from .stories import Story, client_of, tell

CREATE = {
    "billing_type": "ON_DEMAND",
    "cluster_name": "demo",
    "gpu_type": "H100_SXM",
    "num_gpus": 8,
    "region": "local-1",
    "nvidia_version_id": "local-1-570-128",
}


@pytest.fixture
def services() -> Doubles:
    return Doubles()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def _one_app() -> FastAPI:
    """Building an app takes longer than a test that uses it."""
    settings = replace(Settings(), rate_limit_per_s=0)  # shared by hundreds of tests and one key
    return create_app(Doubles(), settings, playground=World(), clock=ManualClock(NOW), ids=SeededIds(1))


@pytest.fixture
def app(_one_app: FastAPI, services: Doubles, world: World) -> FastAPI:
    """The app over doubles that are fresh for each test."""
    _one_app.state.context = replace(_one_app.state.context, services=services, playground=world)
    return _one_app


@pytest.fixture
async def story(database_url: str) -> AsyncIterator[Story]:
    async with tell(database_url, FLEET) as told:
        yield told


@pytest.fixture
async def member(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


@pytest.fixture
async def operator(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, "operator-key") as client:
        yield client


@pytest.fixture
async def stranger(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, None) as client:
        yield client


@pytest.fixture
def serve() -> Iterator[Callable[[FastAPI], str]]:
    """Serve an app on a free port of this machine, in a thread of its own; gives the base URL."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: FastAPI) -> str:
        listener = server.bind("127.0.0.1", 0)
        made = uvicorn.Server(server.config(app, "127.0.0.1", listener.getsockname()[1]))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((made, thread))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for made, thread in running:
        made.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


def error_of(answer: httpx.Response) -> dict[str, object]:
    """The error inside an answer, after checking that it has the shape that the official CLI reads."""
    body = answer.json()
    assert set(body) == {"error"}, body
    error = body["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert "x-request-id" in answer.headers
    return dict(error)
