"""Where the server is and which key it takes: flags, then the environment, then a data folder's file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.cli.exits import UsageError

DEFAULT_DATA = Path("ebbtide-data")
FILE_NAME = "connection.env"
_HEADER = """\
# Written by `ebbtide up`, private to you. In a shell:  source {path}
# Then `ebbtide ...` and the official client (`tg clusters ...`, the `together` SDK) speak to this server.
"""


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's address and a key (kept out of logs)."""

    url: str
    key: str = field(repr=False)


def find(
    url: str | None, key: str | None, data: Path, environment: Mapping[str, str] | None = None
) -> Connection:
    """Each part from the first that has it: the flag, the environment, `connection.env` in `data`.

    A key from the file is only ever sent to the file's own server. Raises UsageError saying what to do.
    """
    known = os.environ if environment is None else environment
    url = url or known.get("EBBTIDE_URL") or None
    key = key or known.get("EBBTIDE_API_KEY") or None
    if url and key:
        return Connection(url, key)
    written = read(data / FILE_NAME)
    from_file = Connection(written.get("EBBTIDE_URL", ""), written.get("EBBTIDE_API_KEY", ""))
    if not from_file.url or not from_file.key:
        missing = "no server" if not url else f"no key for {url}"
        raise UsageError(
            f"{missing} is known; start one with `ebbtide up`, or give --url and --key, "
            f"or set EBBTIDE_URL and EBBTIDE_API_KEY (looked for {data / FILE_NAME} too)"
        )
    if url and not key and url.rstrip("/") != from_file.url:
        raise UsageError(
            f"no key for {url} is known ({data / FILE_NAME} is about {from_file.url}); give --key"
        )
    return Connection(url or from_file.url, key or from_file.key)


def read(path: Path) -> dict[str, str]:
    """The variables of an environment file; empty when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.removeprefix("export ").partition("=")
        if equals and not line.startswith("#"):
            found[name.strip()] = "".join(shlex.split(value))
    return found


def write(path: Path, connection: Connection, project_id: str) -> None:
    """Write the file, readable by its owner alone, whole or not at all.

    Besides ours it has the official clients' variables. Python's takes the address without `/v1`; Terraform,
    Go and TypeScript expect it with, but the API answers them under both.
    """
    variables = {
        "EBBTIDE_URL": connection.url,
        "EBBTIDE_API_KEY": connection.key,
        "TOGETHER_BASE_URL": connection.url,
        "TOGETHER_API_KEY": connection.key,
        "TOGETHER_PROJECT_ID": project_id,
        "TOGETHER_TELEMETRY_DISABLED": "1",
        "TOGETHER_DISABLE_VERSION_CHECK": "1",
        # A login stored for the public service would win over the key above.
        "TOGETHER_CREDENTIALS_PATH": str(path.resolve().parent / "no-stored-login.json"),
    }
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_HEADER.format(path=path) + "".join(lines))
    draft.replace(path)
