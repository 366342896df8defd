"""Which fleets import clusters, and what they make of a kubeconfig."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ebbtide.backends.base import Backend, server_of
from ebbtide.errors import BadInput
from ebbtide.services.imports import no_imports

CONFIG = (
    "{clusters: [{name: c, cluster: {server: 'https://reef.example:6443/'}}], current-context: c, "
    "contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: abc}}]}"
)


def test_a_fleet_imports_nothing_unless_its_backend_says_so() -> None:
    (check,) = [each for each in fields(Backend) if each.name == "check_kubeconfig"]
    assert check.default is no_imports
    with pytest.raises(BadInput, match="EBBTIDE_PROVIDER=exec") as refusal:
        no_imports(CONFIG)
    assert refusal.value.code == "no_imports"


def test_the_server_of_a_kubeconfig() -> None:
    assert server_of(CONFIG) == "https://reef.example:6443"


@pytest.mark.parametrize(
    "bad",
    ["", "x", CONFIG.replace("token: abc", "exec: {command: rm}"), CONFIG.replace("token", "tokenFile")],
)
def test_kubeconfigs_that_are_none_or_reach_into_the_servers_machine(bad: str) -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        server_of(bad)
