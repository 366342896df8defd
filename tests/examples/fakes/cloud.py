"""A cloud in a thread: as much of EC2's HTTP API as the example uses, its signatures and its bad habits."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

ID, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI", "eu-1"
_SPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_PAGE = 2  # small, so that pages are followed


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "as you like it") -> None:
        self.status, self.code, self.message = status, code, message


@dataclass
class Machine:
    instance_id: str
    token: str
    parameters: dict[str, str]
    tags: dict[str, str]
    state: str = "pending"
    seen_after: int = 0  # a launch is listed only some looks later
    reboots: int = 0


@dataclass
class Cloud(AbstractContextManager["Cloud"]):
    """slots: how many instances the reservation has room for. trouble: refuse the next calls of an action."""

    folder: Path
    slots: int = 8
    lag: int = 0  # looks for which a new instance is not found
    machines: dict[str, Machine] = field(default_factory=dict)
    trouble: dict[str, list[Refused]] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        self.host = f"127.0.0.1:{self._server.server_port}"
        keys = self.folder / "keys.json"
        keys.write_text(json.dumps({"id": ID, "secret": SECRET}))
        pool = {
            "reservation": "cr-1",
            "image": "ami-1",
            "instance_type": "p5.48xlarge",
            "subnet": "subnet-1",
            "security_group": "sg-1",
        }
        self.config = self.folder / "cloud.json"
        self.config.write_text(
            json.dumps(
                {
                    "endpoint": f"http://{self.host}",
                    "region": REGION,
                    "credentials_file": str(keys),
                    "pools": {"h100": pool, "another": pool},
                }
            )
        )

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def pass_time(self) -> None:
        with self._lock:
            after = {"pending": "running", "shutting-down": "terminated"}
            for machine in self.machines.values():
                machine.state = after.get(machine.state, machine.state)
                machine.seen_after = 0

    def live(self) -> list[Machine]:
        return [one for one in self.machines.values() if one.state != "terminated"]

    def act(self, action: str, asked: dict[str, str]) -> str:
        """The inside of the answer. Raises Refused."""
        with self._lock:
            self.actions.append(action)
            if self.trouble.get(action):
                raise self.trouble[action].pop(0)
            acts = {
                "RunInstances": self._run,
                "DescribeInstances": self._describe,
                "TerminateInstances": self._terminate,
                "RebootInstances": self._reboot,
            }
            return acts[action](asked)

    def _run(self, asked: dict[str, str]) -> str:
        for machine in self.machines.values():
            if machine.token == asked["ClientToken"]:
                if machine.parameters != asked:
                    raise Refused(400, "IdempotentParameterMismatch")
                return f"<instancesSet>{_told(machine)}</instancesSet>"
        if len(self.live()) >= self.slots:
            raise Refused(400, "ReservationCapacityExceeded", "the reservation is full")
        tags = {
            asked[f"TagSpecification.1.Tag.{number}.Key"]: asked[f"TagSpecification.1.Tag.{number}.Value"]
            for number in range(1, 9)
            if f"TagSpecification.1.Tag.{number}.Key" in asked
        }
        made = Machine(f"i-{len(self.machines):04}", asked["ClientToken"], asked, tags, seen_after=self.lag)
        self.machines[made.instance_id] = made
        return f"<instancesSet>{_told(made)}</instancesSet>"

    def _describe(self, asked: dict[str, str]) -> str:
        wanted = {
            asked[f"Filter.{number}.Name"].removeprefix("tag:"): asked[f"Filter.{number}.Value.1"]
            for number in range(1, 5)
            if f"Filter.{number}.Name" in asked
        }
        found = []
        for machine in self.machines.values():
            if machine.seen_after > 0:
                machine.seen_after -= 1
            elif all(machine.tags.get(key) == value for key, value in wanted.items()):
                found.append(machine)
        start = int(asked.get("NextToken", "0"))
        page = found[start : start + _PAGE]
        more = f"<nextToken>{start + _PAGE}</nextToken>" if start + _PAGE < len(found) else ""
        listed = "".join(f"<item><instancesSet>{_told(one)}</instancesSet></item>" for one in page)
        return f"<reservationSet>{listed}</reservationSet>{more}"

    def _terminate(self, asked: dict[str, str]) -> str:
        machine = self.machines[asked["InstanceId.1"]]
        if machine.state != "terminated":
            machine.state = "shutting-down"
        return ""

    def _reboot(self, asked: dict[str, str]) -> str:
        self.machines[asked["InstanceId.1"]].reboots += 1
        return ""


def _told(machine: Machine) -> str:
    tags = "".join(
        f"<item><key>{escape(key)}</key><value>{escape(value)}</value></item>"
        for key, value in machine.tags.items()
    )
    return (
        f"<item><instanceId>{machine.instance_id}</instanceId><instanceState><name>{machine.state}</name>"
        f"</instanceState><privateIpAddress>10.0.0.7</privateIpAddress><tagSet>{tags}</tagSet></item>"
    )


def _signed_rightly(headers: Any, body: bytes, host: str) -> bool:
    """Whether the request has the signature that its words ask for, made independently of the example."""
    scheme, _, rest = headers["authorization"].partition(" ")
    words = dict(part.strip().split("=", 1) for part in rest.split(","))
    key_id, day, region, service, end = words["Credential"].split("/")
    names = words["SignedHeaders"].split(";")
    given = {"host": host, **{name: headers[name] for name in names if name != "host"}}
    canonical = ["POST", "/", "", *(f"{name}:{given[name]}" for name in names), "", ";".join(names)]
    canonical.append(hashlib.sha256(body).hexdigest())
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    text = "\n".join([scheme, headers["x-amz-date"], f"{day}/{region}/{service}/{end}", digest])
    key = ("AWS4" + SECRET).encode()
    for part in (day, region, service, end):
        key = hmac.digest(key, part.encode(), "sha256")
    known = (scheme, key_id, region, service, end) == ("AWS4-HMAC-SHA256", ID, REGION, "ec2", "aws4_request")
    return known and hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), words["Signature"])


def _handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked = dict(parse_qsl(body.decode()))
            action = asked["Action"]
            try:
                if not _signed_rightly(self.headers, body, cloud.host):
                    raise Refused(401, "AuthFailure", "the signature is wrong")
                inside = cloud.act(action, asked)
                status, text = 200, f'<{action}Response xmlns="{_SPACE}">{inside}</{action}Response>'
            except Refused as refused:
                status = refused.status
                error = f"<Error><Code>{refused.code}</Code><Message>{refused.message}</Message></Error>"
                text = f"<Response><Errors>{error}</Errors></Response>" if refused.code else "<html>gateway"
            data = text.encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    return Handler
