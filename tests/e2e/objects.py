"""The Kubernetes objects of this ring."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

STANDARD = {"e2e.example/standing": "true"}  # marks the cluster's own node
PREEMPTIBLE = {"together.ai/compute-class": "preemptible"}
PODS = "/opt/e2e/pods"
CLAIM = "data"


def claim(volume: str) -> Json:
    """Binds the volume that Ebbtide made."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "volumeName": volume,
            "storageClassName": "",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Ti"}},
        },
    }


def job(name: str, image: str, arguments: list[str], *, gpus: int, grace_s: int) -> Json:
    """A Job that may not fail once, on a preemptible node, with the volume at /data."""
    container = _container(image, arguments) | {
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    container["env"].append({"name": "EBBTIDE_GRACE_S", "value": str(grace_s)})
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}
    pod = _pod(PREEMPTIBLE, container) | {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "volumes": [volume],
    }
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": {"job": name}}, "spec": pod},
        },
    }


def serving(image: str) -> Json:
    """The Deployment that stands on the cluster's own node."""
    labels = {"app": "serving"}
    container = _container(image, [f"{PODS}/serve.py"])
    container["readinessProbe"] = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serving"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(STANDARD, container)},
        },
    }


def _pod(selector: dict[str, str], container: Json) -> Json:
    return {
        "nodeSelector": selector,
        "dnsPolicy": "Default",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [container],
    }


def _container(image: str, arguments: list[str]) -> Json:
    name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    here = {"name": "PYTHONPATH", "value": "/opt/e2e"}
    quiet = {"name": "EBBTIDE_KUBERNETES", "value": "0"}  # pods here cannot reach the API server
    return {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["-u", *arguments],
        "env": [name, here, quiet],
    }
