"""What all tests share: a PostgreSQL of their own, no way out to the network, printed randomness."""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from ebbtide.store.embedded import EmbeddedPostgres

SEED_VARIABLE = "EBBTIDE_TEST_SEED"
_TEMPLATE = "ebbtide_template"

# "ci" finds the same examples every time; HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


class NetworkBlocked(RuntimeError):
    """A test tried to leave this machine."""


def _is_local(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode("ascii", errors="replace")
    if host is None or host in ("", "localhost") or (isinstance(host, str) and host.endswith(".localhost")):
        return True
    try:
        address = ipaddress.ip_address(str(host))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _block_network(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect":
        address = args[1]
        if isinstance(address, tuple) and not _is_local(address[0]):
            raise NetworkBlocked(f"tests reach this machine only, not {address}")
    elif event == "socket.getaddrinfo" and not _is_local(args[0]):
        raise NetworkBlocked(f"tests look up no names but localhost, not {args[0]!r}")


def pytest_configure(config: pytest.Config) -> None:
    # In the environment, so that the workers of a parallel run share it.
    os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))
    sys.addaudithook(_block_network)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]} (set it to repeat this run)"


@pytest.fixture
def seed() -> int:
    """The run's random seed, printed at the top of the run. Samples are drawn with it, never without."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Randomness for one test: the run's seed and the test's name decide it, the order of tests does not."""
    return random.Random(f"{seed}/{request.node.nodeid}")


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _administer(server: EmbeddedPostgres, statement: str) -> None:
    parts = urlsplit(server.url)
    host = parse_qs(parts.query)["host"][0]
    with psycopg.connect(host=host, user=parts.username, dbname="postgres", autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One private PostgreSQL server for this process (about 0.6 s, once)."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def _database_template(postgres_server: EmbeddedPostgres) -> str:
    from ebbtide.store.migrate import upgrade

    _administer(postgres_server, f"CREATE DATABASE {_TEMPLATE}")
    upgrade(_with_database(postgres_server.url, _TEMPLATE))
    return _TEMPLATE


_numbers = itertools.count(1)


@pytest.fixture
def database_url(postgres_server: EmbeddedPostgres, _database_template: str) -> Iterator[str]:
    """The URL of a fresh database with all migrations, for one test (about 30 ms)."""
    name = f"test_{next(_numbers)}"
    _administer(postgres_server, f"CREATE DATABASE {name} TEMPLATE {_database_template}")
    yield _with_database(postgres_server.url, name)
    _administer(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_database_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a database without any table, for tests of the migrations themselves."""
    name = f"empty_{next(_numbers)}"
    _administer(postgres_server, f"CREATE DATABASE {name}")
    yield _with_database(postgres_server.url, name)
    _administer(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return Path(__file__).resolve().parent.parent
