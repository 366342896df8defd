"""`ebbtide kube manifests`: what a cluster's administrator applies so that Ebbtide may work in it."""

from __future__ import annotations

from typing import Annotated

import typer

from ebbtide.cli.exits import UsageError

_ACCOUNT_OF = "a client certificate with the common name {name} has these rights"
_KUBECONFIG = """\
with these lines the service account's kubeconfig is in ebbtide.kubeconfig:
  token() {{ kubectl -n {namespace} get secret {name}-token -o "jsonpath={{.data.$1}}" | base64 -d; }}
  token 'ca\\.crt' > ebbtide-ca.crt
  TOKEN="$(token token)"
  SERVER="$(kubectl config view --minify -o jsonpath='{{.clusters[0].cluster.server}}')"
  (umask 077; touch ebbtide.kubeconfig; export KUBECONFIG=ebbtide.kubeconfig
  kubectl config set-cluster it --server="$SERVER" --certificate-authority=ebbtide-ca.crt --embed-certs
  kubectl config set-credentials ebbtide --token="$TOKEN"
  kubectl config set-context it --cluster=it --user=ebbtide
  kubectl config use-context it)"""


def register(app: typer.Typer) -> None:
    """Add the command to the kube group."""
    app.command("manifests")(manifests)


def manifests(
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="Ebbtide is this user (a certificate's name)."),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            "--service-account",
            metavar="NAMESPACE/NAME",
            help="Ebbtide is this service account, which is made. Without either: ebbtide-system/ebbtide.",
        ),
    ] = None,
    placement: Annotated[
        str,
        typer.Option("--placement", metavar="HOW", help="explicit adds the policy of that placement."),
    ] = "open",
    guard: Annotated[
        bool, typer.Option("--guard", help="Add the policy that keeps Ebbtide's marks on nodes its own.")
    ] = False,
    joining: Annotated[
        bool,
        typer.Option("--joining", help="Add what lets machines join by a token, as kubeadm sets it up."),
    ] = False,
) -> None:
    """Print what gives Ebbtide its rights in a cluster, for `kubectl apply --filename=-`."""
    import yaml

    from ebbtide.kube import rights

    if user and service_account:
        raise UsageError("give --user or --service-account, not both")
    if placement not in ("open", "explicit"):
        raise UsageError(f"--placement {placement}: write open or explicit")
    account = (
        rights.Account.user(user)
        if user
        else rights.Account.service_account(service_account or "ebbtide-system/ebbtide")
    )
    objects = rights.manifests(account, explicit=placement == "explicit", guard=guard, joining=joining)
    told = _KUBECONFIG if account.namespace else _ACCOUNT_OF
    print("# Applied with `kubectl apply --filename=FILE`,")
    for line in told.format(name=account.name, namespace=account.namespace).splitlines():
        print(f"# {line}")
    print(yaml.safe_dump_all(objects, sort_keys=False, width=110, explicit_start=True), end="")
