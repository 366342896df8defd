"""The command lines of a local control plane's servers.

etcd listens on a Unix socket in the data folder, the API server on one port of loopback, the other two
nowhere: so one port is all that can be in somebody's way, and the folder's mode (0700) keeps other users of
the machine from the data. Sockets are named relative to that folder, in which all servers run: it may lie
deep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.kube.certificates import Authority, Pair, Subject, signing_key
from ebbtide.kube.kubeconfig import Access

HOST = "127.0.0.1"
_SERVICES = "10.96.0.0/16"
_SERVICE_ADDRESS = "10.96.0.1"  # the first of them: how pods reach the API server
_SOCKET = "unix://etcd.sock"
_PEER_SOCKET = "unix://peer.sock"

API_SERVER_NAMES = (
    HOST,
    "localhost",
    _SERVICE_ADDRESS,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class Options:
    """What one control plane has that another has not.

    name:       what kubeconfigs call it
    durable:    False trades safety for speed, for tests: a crash of the machine may lose everything
    scheduler, controller_manager: whether they run
    arguments:  more arguments for a server, by its program's name; they come last, so they win
    """

    name: str = "ebbtide"
    durable: bool = True
    scheduler: bool = True
    controller_manager: bool = True
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs it needs, in the order in which they start."""
        names = ["etcd", "kube-apiserver"]
        names += ["kube-scheduler"] if self.scheduler else []
        names += ["kube-controller-manager"] if self.controller_manager else []
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Keys:
    """Every certificate and key of a control plane."""

    authority: Pair
    api_server: Pair
    service_accounts: Pair
    admin: Pair
    scheduler: Pair
    controller_manager: Pair


def make_keys(authority: Authority, folder: Path) -> Keys:
    """All pairs, in this folder; those that are there stay, unless they end soon."""
    return Keys(
        authority=authority.pair,
        api_server=authority.issue("kube-apiserver", Subject("kube-apiserver", names=API_SERVER_NAMES)),
        service_accounts=signing_key(folder, "service-accounts"),
        admin=authority.issue("admin", Subject("ebbtide-admin", organization="system:masters")),
        scheduler=authority.issue("kube-scheduler", Subject("system:kube-scheduler")),
        controller_manager=authority.issue(
            "kube-controller-manager", Subject("system:kube-controller-manager")
        ),
    )


def commands(
    programs: Mapping[str, Path], keys: Keys, options: Options, folder: Path, port: int
) -> dict[str, list[str]]:
    """Each server's command line. Writes the kubeconfigs that they need into `folder`."""
    arguments = {"etcd": _etcd(options), "kube-apiserver": _api_server(keys, port)}
    pairs = {"kube-scheduler": keys.scheduler, "kube-controller-manager": keys.controller_manager}
    for name in options.programs[2:]:
        access = Access(name, f"https://{HOST}:{port}", keys.authority.certificate, pairs[name])
        config = access.write(folder / f"{name}.kubeconfig")
        more = _controller_manager(keys) if name == "kube-controller-manager" else []
        arguments[name] = [f"--kubeconfig={config}", "--secure-port=0", "--leader-elect=false", *more]
    return {
        name: [str(programs[name]), *arguments[name], *options.arguments.get(name, ())]
        for name in options.programs
    }


def _etcd(options: Options) -> list[str]:
    return [
        "--name=ebbtide",
        "--data-dir=etcd",
        f"--listen-client-urls={_SOCKET}",
        f"--advertise-client-urls={_SOCKET}",
        f"--listen-peer-urls={_PEER_SOCKET}",
        f"--initial-advertise-peer-urls={_PEER_SOCKET}",
        f"--initial-cluster=ebbtide={_PEER_SOCKET}",
        "--log-level=warn",
        *([] if options.durable else ["--unsafe-no-fsync"]),
    ]


def _api_server(keys: Keys, port: int) -> list[str]:
    return [
        f"--etcd-servers={_SOCKET}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        "--endpoint-reconciler-type=none",  # no Service may point to loopback, and nothing in here needs it
        f"--secure-port={port}",
        f"--tls-cert-file={keys.api_server.certificate}",
        f"--tls-private-key-file={keys.api_server.key}",
        f"--client-ca-file={keys.authority.certificate}",
        f"--service-account-key-file={keys.service_accounts.certificate}",
        f"--service-account-signing-key-file={keys.service_accounts.key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-cluster-ip-range={_SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]


def _controller_manager(keys: Keys) -> list[str]:
    return [
        f"--root-ca-file={keys.authority.certificate}",
        f"--service-account-private-key-file={keys.service_accounts.key}",
        f"--cluster-signing-cert-file={keys.authority.certificate}",
        f"--cluster-signing-key-file={keys.authority.key}",
        "--use-service-account-credentials=true",
    ]
