"""A control plane's life, with servers that only look real. `tests/live` has it with the real ones."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from ebbtide.clock import monotonic
from ebbtide.errors import StartupError
from ebbtide.kube.controlplane import ControlPlane, FolderInUse, NotAnswering, ServerEnded
from ebbtide.kube.places import MissingPrograms, Places
from ebbtide.kube.programs import CONTROL_PLANE
from ebbtide.kube.servers import Options
from tests.kube.conftest import start, write_program

WAITS = "import signal; print('up', flush=True); signal.pause()\n"
# Speaks TLS with the certificates it is given, to clients of that authority, and says yes to everything.
API_SERVER = """
import http.server, ssl, sys
given = dict(each[2:].split("=", 1) for each in sys.argv[1:])
class Yes(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind = "ready" if self.path == "/readyz" else "other"
        self.send_response(int(given.get(kind, "200")))
        self.end_headers()
try:
    server = http.server.ThreadingHTTPServer((given["bind-address"], int(given["secure-port"])), Yes)
except OSError:
    sys.exit("listen: bind: address already in use")
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=given["client-ca-file"])
context.verify_mode = ssl.CERT_REQUIRED
context.load_cert_chain(given["tls-cert-file"], given["tls-private-key-file"])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture
def doubles(where: Places) -> Places:
    """Places with a double of each server."""
    folder = where.folders[0][1]
    for name in CONTROL_PLANE:
        write_program(folder / name, API_SERVER if name == "kube-apiserver" else WAITS)
    return where


@pytest.fixture
async def plane(doubles: Places, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """One that is stopped at the end, whatever the test did."""
    one = ControlPlane(tmp_path / "plane", where=doubles, start_limit_s=30)
    yield one
    await one.stop()


async def answers(plane: ControlPlane) -> int:
    async with httpx.AsyncClient(verify=plane.ssl_context(), trust_env=False) as client:
        return (await client.get(plane.url + "/readyz")).status_code


async def test_it_starts_answers_and_stops(plane: ControlPlane) -> None:
    with pytest.raises(StartupError, match="has not been started"):
        _ = plane.url
    url = await plane.start()
    assert url == plane.url
    assert await plane.start() == url
    assert await answers(plane) == 200
    assert plane.ended == ()
    assert plane.url in plane.kubeconfig.read_text()
    assert plane.folder.stat().st_mode & 0o777 == 0o700
    await plane.stop()
    with pytest.raises(httpx.ConnectError):
        await answers(plane)
    await plane.stop()


async def test_started_again_it_is_where_it_was(plane: ControlPlane, doubles: Places) -> None:
    url = await plane.start()
    config = plane.kubeconfig.read_text()
    await plane.stop()
    async with ControlPlane(plane.folder, where=doubles) as again:
        assert again.url == url
        assert again.kubeconfig.read_text() == config
        assert again.log("etcd").with_suffix(".log.1").exists()


async def test_a_port_that_was_taken_meanwhile_is_left_to_its_taker(
    plane: ControlPlane, doubles: Places
) -> None:
    url = await plane.start()
    await plane.stop()
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        taker.listen()
        assert await plane.start() != url
    assert await answers(plane) == 200


async def test_a_port_lost_between_choosing_and_listening_is_replaced(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = plane._choose_port
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        taken = taker.getsockname()[1]
        choices = iter([taken])
        monkeypatch.setattr(plane, "_choose_port", lambda: next(choices, None) or choose())
        await plane.start()
    assert not plane.url.endswith(f":{taken}")


async def test_a_folder_has_one_user(plane: ControlPlane, doubles: Places) -> None:
    await plane.start()
    with pytest.raises(FolderInUse, match="in use by another process"):
        await ControlPlane(plane.folder, where=doubles).start()
    assert await answers(plane) == 200


@pytest.mark.parametrize("name", CONTROL_PLANE)
async def test_a_server_that_ends_at_once_is_named_with_its_last_words(
    doubles: Places, tmp_path: Path, name: str
) -> None:
    write_program(doubles.folders[0][1] / name, "import sys; sys.exit('unknown flag: --colour')\n")
    until_then = "--ready=503" if name == "etcd" else "--other=404"
    plane = ControlPlane(
        tmp_path / "plane", Options(arguments={"kube-apiserver": (until_then,)}), where=doubles
    )
    with pytest.raises(ServerEnded, match="unknown flag: --colour") as error:
        await plane.start()
    assert error.value.name == name
    assert plane._running == {}


async def test_a_server_that_ends_later_is_told_of(plane: ControlPlane, doubles: Places) -> None:
    write_program(doubles.folders[0][1] / "kube-scheduler", "import time; time.sleep(2)\n")
    await plane.start()
    late = monotonic() + 20
    while not plane.ended:
        assert monotonic() < late
        await asyncio.sleep(0.02)
    assert plane.ended == ("kube-scheduler",)
    assert await answers(plane) == 200
    await plane.stop()
    assert not plane.ended


async def test_an_api_server_that_says_no_is_not_waited_for_forever(doubles: Places, tmp_path: Path) -> None:
    options = Options(arguments={"kube-apiserver": ("--ready=503",)})
    plane = ControlPlane(tmp_path / "plane", options, where=doubles, start_limit_s=1.5)
    with pytest.raises(NotAnswering, match="it said last: 503"):
        await plane.start()
    with pytest.raises(httpx.ConnectError):
        await answers(plane)


async def test_missing_programs_are_told_before_anything_is_made(where: Places, tmp_path: Path) -> None:
    with pytest.raises(MissingPrograms):
        await ControlPlane(tmp_path / "plane", where=where).start()
    assert not (tmp_path / "plane").exists()


async def test_cancelled_while_starting_it_leaves_nothing_running(doubles: Places, tmp_path: Path) -> None:
    options = Options(arguments={"kube-apiserver": ("--ready=503",)})
    plane = ControlPlane(tmp_path / "plane", options, where=doubles)
    task = asyncio.create_task(plane.start())
    late = monotonic() + 20
    while not plane.log("kube-apiserver").exists():
        assert monotonic() < late
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert plane._running == {}
    async with ControlPlane(plane.folder, where=doubles):  # and the folder is free
        pass


async def test_one_server_can_be_missing_for_a_while(plane: ControlPlane) -> None:
    await plane.start()
    await plane.stop_server("kube-apiserver")
    assert plane.ended == ()  # it was told to
    with pytest.raises(httpx.ConnectError):
        await answers(plane)
    await plane.start_server("kube-apiserver")
    assert await answers(plane) == 200


async def test_only_what_is_wanted_runs(doubles: Places, tmp_path: Path) -> None:
    options = Options(scheduler=False, controller_manager=False)
    async with ControlPlane(tmp_path / "plane", options, where=doubles) as plane:
        assert sorted(path.stem for path in (plane.folder / "logs").iterdir()) == ["etcd", "kube-apiserver"]


async def test_deleted_it_is_gone(plane: ControlPlane) -> None:
    await plane.start()
    await plane.delete()
    assert not plane.folder.exists()


async def test_its_servers_end_when_their_process_is_killed(doubles: Places, tmp_path: Path) -> None:
    folder = tmp_path / "plane"
    script = (
        "import asyncio, pathlib, sys, time; from ebbtide.kube.controlplane import ControlPlane\n"
        "asyncio.run(ControlPlane(pathlib.Path(sys.argv[1])).start())\n"
        "print('up', flush=True); time.sleep(60)"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    environment["EBBTIDE_KUBE_DIR"] = str(doubles.folders[0][1])
    process = start([sys.executable, "-c", script, str(folder)], environment)
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "up\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    port = int((folder / "port").read_text())
    late = monotonic() + 20
    while _listens(port):
        assert monotonic() < late
        await asyncio.sleep(0.05)
    async with ControlPlane(folder, where=doubles) as again:
        assert again.url.endswith(f":{port}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
