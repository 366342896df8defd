#!/usr/bin/env python3
"""A cloud's capacity reservations for Ebbtide's provider `exec`, by EC2's own HTTP API. All verbs.

    cloud_reservation.py CONFIG < question.json

The fleet's hosts are slots of a reservation: none is a certain machine, each is one instance that may run.
The client token of a launch is the node's uid, so a launch whose answer was lost finds the same instance; a
tag with the uid says whose it is ever after.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shlex
import sys
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

NO_CAPACITY, LATER, NEVER = 69, 75, 78
UID_TAG, HOST_TAG, POOL_TAG = "ebbtide-node-uid", "ebbtide-host", "ebbtide-pool"
# Error codes of the cloud by what they mean for us; every other is tried again.
NONE_LEFT = {"InsufficientInstanceCapacity", "ReservationCapacityExceeded", "InstanceLimitExceeded"}
WRONG = {"InvalidAMIID.NotFound", "InvalidParameterValue", "InvalidCapacityReservationId.NotFound",
         "InvalidSubnetID.NotFound", "UnauthorizedOperation", "AuthFailure", "MissingParameter"}  # fmt: skip
STATES = {"pending": "starting", "running": "up", "stopping": "failed", "shutting-down": "failed",
          "stopped": "stopped", "terminated": "stopped"}  # fmt: skip
Json = dict[str, Any]


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    asked = json.load(sys.stdin)
    print(json.dumps(VERBS[asked["verb"]](Cloud(config), asked)))


def give_up(code: int, why: str) -> NoReturn:
    print(why, file=sys.stderr)
    sys.exit(code)


# --- the cloud's API


class Cloud:
    def __init__(self, config: Json) -> None:
        self.config = config
        keys = json.loads(Path(config["credentials_file"]).read_text(encoding="utf-8"))
        self._id, self._secret, self._session = keys["id"], keys["secret"], keys.get("session_token")

    def call(self, action: str, **parameters: str) -> ET.Element:
        """One action; its answer without XML namespaces."""
        body = urllib.parse.urlencode({"Action": action, "Version": "2016-11-15", **parameters}).encode()
        request = urllib.request.Request(self.config["endpoint"], body, self._signed(body))  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:  # noqa: S310  # the operator's URL
                return _plain(answer.read())
        except urllib.error.HTTPError as refusal:
            self._refused(action, refusal)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            give_up(LATER, f"the cloud does not answer: {error}")

    def _refused(self, action: str, refusal: urllib.error.HTTPError) -> NoReturn:
        try:
            error = _plain(refusal.read()).find(".//Error")
        except ET.ParseError:
            error = None
        code = error.findtext("Code", "") if error is not None else ""
        said = (
            f"{action}: {code or refusal.code}: {error.findtext('Message', '') if error is not None else ''}"
        )
        give_up(NO_CAPACITY if code in NONE_LEFT else NEVER if code in WRONG else LATER, said)

    def _signed(self, body: bytes) -> dict[str, str]:
        """Headers with the cloud's signature, version 4."""
        now = datetime.now(timezone.utc)  # noqa: UP017  # any Python from 3.9 on
        day, instant = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
        host = urllib.parse.urlsplit(self.config["endpoint"]).netloc
        headers = {"content-type": "application/x-www-form-urlencoded", "host": host, "x-amz-date": instant}
        if self._session:
            headers["x-amz-security-token"] = self._session
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        asked = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
        scope = f"{day}/{self.config['region']}/ec2/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{instant}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
        key = f"AWS4{self._secret}".encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._id}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers

    def instances(self, **filters: str) -> Iterator[ET.Element]:
        """Instances that have these tags, ended ones left out once they are forgotten."""
        parameters = {}
        for number, (name, value) in enumerate(filters.items(), 1):
            parameters[f"Filter.{number}.Name"] = f"tag:{name.replace('_', '-')}"
            parameters[f"Filter.{number}.Value.1"] = value
        token = ""
        while True:
            more = {"NextToken": token} if token else {}
            answer = self.call("DescribeInstances", MaxResults="500", **parameters, **more)
            yield from answer.iterfind("./reservationSet/item/instancesSet/item")
            token = answer.findtext("nextToken", "")
            if not token:
                return

    def of_node(self, uid: str) -> ET.Element | None:
        """The node's instance; one that has ended is still told for an hour."""
        return next(self.instances(ebbtide_node_uid=uid), None)


def _plain(text: bytes) -> ET.Element:
    root = ET.fromstring(text)  # noqa: S314  # the cloud's own answer, over TLS
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _state(instance: ET.Element) -> str:
    return instance.findtext("./instanceState/name", "")


def _tag(instance: ET.Element, key: str) -> str:
    for item in instance.iterfind("./tagSet/item"):
        if item.findtext("key") == key:
            return item.findtext("value", "")
    return ""


def _seen(instance: ET.Element | None) -> Json:
    """An instance as an answer to create and status."""
    if instance is None:
        return {"state": "not_found"}
    return {
        "state": STATES[_state(instance)],
        "instance_id": instance.findtext("instanceId", ""),
        "address": instance.findtext("privateIpAddress", ""),
        "why": instance.findtext("./stateReason/message", ""),
    }


# --- verbs


def create(cloud: Cloud, asked: Json) -> Json:
    pool = cloud.config["pools"].get(asked["pool"])
    if pool is None:
        give_up(NEVER, f"pool {asked['pool']} is not in the configuration")
    if (found := cloud.of_node(asked["node_uid"])) is not None:
        return _answer(asked, found)
    # One that was launched a moment ago may not be found yet. Then the token finds it, or, where the join
    # data is another by now, the cloud refuses and the next try finds it by its tag.
    parameters = {
        "MinCount": "1",
        "MaxCount": "1",
        "ClientToken": asked["node_uid"],  # the same token again launches nothing new
        "ImageId": pool["image"],
        "InstanceType": pool["instance_type"],
        "SubnetId": pool["subnet"],
        "SecurityGroupId.1": pool["security_group"],
        "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId": pool[
            "reservation"
        ],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpPutResponseHopLimit": "1",  # pods cannot read the token in the user data
        "UserData": base64.b64encode(_user_data(asked).encode()).decode(),
        "TagSpecification.1.ResourceType": "instance",
    }
    tags = {
        "Name": asked["node_name"],
        UID_TAG: asked["node_uid"],
        HOST_TAG: asked["host_name"],
        POOL_TAG: asked["pool"],
    }
    for number, (key, value) in enumerate(tags.items(), 1):
        parameters[f"TagSpecification.1.Tag.{number}.Key"] = key
        parameters[f"TagSpecification.1.Tag.{number}.Value"] = value
    launched = cloud.call("RunInstances", **parameters).find("./instancesSet/item")
    return _answer(asked, launched)


def _answer(asked: Json, instance: ET.Element | None) -> Json:
    wiped_by = "a new instance with new volumes" if asked["wipe_first"] else None
    return {**_seen(instance), "wiped_by": wiped_by}


def _user_data(asked: Json) -> str:
    """What the instance runs at its first boot: kubeadm, with the cluster's own authority to trust."""
    join = asked["join"]
    taints = []
    for text in asked["taints"]:
        mark, _, effect = text.rpartition(":")
        key, _, value = mark.partition("=")
        taints.append({"key": key, "value": value, "effect": effect})
    labels = ",".join(f"{key}={value}" for key, value in asked["labels"].items())
    authority = base64.b64encode(join["ca"].encode()).decode()
    discovery = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "join", "cluster": {"server": join["server"], "certificate-authority-data": authority}}
        ],
        "contexts": [{"name": "join", "context": {"cluster": "join", "user": ""}}],
        "current-context": "join",
    }
    config = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "file": {"kubeConfigPath": "/run/discovery.json"},
            "tlsBootstrapToken": join["token"],
        },
        "nodeRegistration": {
            "name": asked["node_name"],
            "taints": taints,
            "kubeletExtraArgs": [{"name": "node-labels", "value": labels}],
        },
    }
    files = {"/run/discovery.json": discovery, "/run/join.json": config}
    lines = ["#!/bin/sh", "set -eu", "umask 077"]
    lines += [f"printf %s {shlex.quote(json.dumps(value))} >{path}" for path, value in files.items()]
    lines += ["kubeadm join --config /run/join.json", "rm /run/join.json"]
    return "\n".join(lines) + "\n"


def status(cloud: Cloud, asked: Json) -> Json:
    return _seen(cloud.of_node(asked["node_uid"]))


def stop(cloud: Cloud, asked: Json) -> Json:
    """An instance that is taken back is ended for good: its volumes go with it."""
    return {"stopped": _end(cloud, asked), "why": "the instance is shutting down"}


def delete(cloud: Cloud, asked: Json) -> Json:
    if not _end(cloud, asked):
        return {"gone": False, "why": "the instance is shutting down"}
    return {"gone": True, "wiped_by": "the instance was terminated, its volumes deleted with it"}


def _end(cloud: Cloud, asked: Json) -> bool:
    """Terminate the node's instance; whether it has ended."""
    instance = cloud.of_node(asked["node_uid"])
    if instance is None or _state(instance) == "terminated":
        return True
    if _state(instance) != "shutting-down":
        cloud.call("TerminateInstances", **{"InstanceId.1": instance.findtext("instanceId", "")})
    return False


def list_(cloud: Cloud, asked: Json) -> Json:
    return {
        "instances": [
            {**_seen(one), "node_uid": _tag(one, UID_TAG), "host_name": _tag(one, HOST_TAG)}
            for one in cloud.instances(ebbtide_pool=asked["pool"])
            if _state(one) != "terminated"
        ]
    }


def reboot(cloud: Cloud, asked: Json) -> Json:
    """A restart once for each `ref`; the cloud says nothing of its end, so Ebbtide looks at the node."""
    instance = cloud.of_node(asked["node_uid"])
    if instance is None or asked["handle"] == asked["ref"]:
        return _seen(instance)
    cloud.call("RebootInstances", **{"InstanceId.1": instance.findtext("instanceId", "")})
    return {**_seen(instance), "state": "starting", "handle": asked["ref"]}


VERBS: dict[str, Callable[[Cloud, Json], Json]] = {
    "create": create,
    "status": status,
    "stop": stop,
    "delete": delete,
    "list": list_,
    "reboot": reboot,
}

if __name__ == "__main__":
    os.umask(0o077)
    main()
