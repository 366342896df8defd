"""Finding the server and the key, and the file that `ebbtide up` writes."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from ebbtide.cli.connection import Connection, find, read, write
from ebbtide.cli.exits import UsageError

HERE = Connection("http://127.0.0.1:8080", "ebb_file")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "connection.env", HERE, "p-1")
    return tmp_path


class TestFind:
    def test_flags_win(self, data: Path) -> None:
        environment = {"EBBTIDE_URL": "http://env", "EBBTIDE_API_KEY": "env"}
        assert find("http://flag", "flag", data, environment) == Connection("http://flag", "flag")

    def test_then_the_environment(self, data: Path) -> None:
        environment = {"EBBTIDE_URL": "http://env", "EBBTIDE_API_KEY": "env"}
        assert find(None, None, data, environment) == Connection("http://env", "env")

    def test_then_the_data_folder(self, data: Path) -> None:
        assert find(None, None, data, {}) == HERE

    def test_empty_variables_count_as_absent(self, data: Path) -> None:
        assert find(None, None, data, {"EBBTIDE_URL": "", "EBBTIDE_API_KEY": ""}) == HERE

    def test_another_key_for_the_same_server(self, data: Path) -> None:
        assert find(None, "mine", data, {}) == Connection(HERE.url, "mine")

    def test_the_same_server_said_otherwise(self, data: Path) -> None:
        assert find(f"{HERE.url}/", None, data, {}).key == HERE.key

    def test_a_servers_key_is_not_sent_to_another(self, data: Path) -> None:
        with pytest.raises(UsageError, match="no key for http://elsewhere is known"):
            find("http://elsewhere", None, data, {})

    def test_nothing_known_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="start one with `ebbtide up`"):
            find(None, None, tmp_path, {})

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "connection.env").write_bytes(b"\xff\xfe")
        with pytest.raises(UsageError, match=r"connection\.env cannot be read"):
            find(None, None, tmp_path, {})


class TestFile:
    def test_it_is_its_owners_alone(self, data: Path) -> None:
        assert stat.S_IMODE((data / "connection.env").stat().st_mode) == 0o600

    def test_a_looser_file_before_it_does_not_stay(self, data: Path) -> None:
        (data / "connection.env").chmod(0o644)
        write(data / "connection.env", HERE, "p-1")
        assert stat.S_IMODE((data / "connection.env").stat().st_mode) == 0o600
        assert [path.name for path in data.iterdir()] == ["connection.env"]

    def test_a_shell_reads_the_official_clients_variables(self, data: Path) -> None:
        script = f". {data}/connection.env && env"
        run = subprocess.run(["sh", "-c", script], env={}, capture_output=True, text=True, check=True)
        found = dict(line.split("=", 1) for line in run.stdout.splitlines())
        assert found["TOGETHER_BASE_URL"] == found["EBBTIDE_URL"] == HERE.url
        assert found["TOGETHER_API_KEY"] == found["EBBTIDE_API_KEY"] == HERE.key
        assert found["TOGETHER_PROJECT_ID"] == "p-1"
        assert found["TOGETHER_TELEMETRY_DISABLED"] == found["TOGETHER_DISABLE_VERSION_CHECK"] == "1"
        assert not Path(found["TOGETHER_CREDENTIALS_PATH"]).exists()

    def test_odd_values_survive_shell_and_reader(self, tmp_path: Path) -> None:
        odd = 'it\'s $HOME `x` "y"'
        write(tmp_path / "connection.env", Connection("http://x", odd), "p")
        assert read(tmp_path / "connection.env")["EBBTIDE_API_KEY"] == odd

    def test_the_key_is_not_in_a_repr(self) -> None:
        assert "ebb_file" not in repr(HERE)
