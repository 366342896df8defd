"""The objects with which Ebbtide gets its rights; what they do is tried in tests/live."""

from __future__ import annotations

import pytest

from ebbtide.errors import BadInput
from ebbtide.kube.rights import Account, Json, Right, manifests, path_of, rights


def _of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [each for each in objects if each["kind"] == kind]


def test_a_user_is_bound_everywhere() -> None:
    objects = manifests(Account.user("tide"))
    bindings = [each for each in objects if each["kind"].endswith("Binding") and "roleRef" in each]
    assert len(bindings) == 4
    for each in bindings:
        assert each["subjects"] == [{"kind": "User", "name": "tide", "apiGroup": "rbac.authorization.k8s.io"}]
    (flow,) = _of_kind(objects, "FlowSchema")
    assert flow["spec"]["rules"][0]["subjects"] == [{"kind": "User", "user": {"name": "tide"}}]
    assert not _of_kind(objects, "ServiceAccount")


def test_a_service_account_comes_with_its_token() -> None:
    objects = manifests(Account.service_account("tide/lender"), guard=True)
    assert [each["kind"] for each in objects[:3]] == ["Namespace", "ServiceAccount", "Secret"]
    assert objects[1]["metadata"] | {"name": "lender", "namespace": "tide"} == objects[1]["metadata"]
    assert objects[2]["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "lender"}
    (binding,) = _of_kind(objects, "ClusterRoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "lender", "namespace": "tide"}]
    limits, guard = _of_kind(objects, "ValidatingAdmissionPolicy")
    assert "system:serviceaccount:tide:lender" in limits["spec"]["matchConditions"][0]["expression"]
    assert "system:serviceaccount:tide:lender" in guard["spec"]["matchConditions"][0]["expression"]


def test_policies_are_there_when_asked_for() -> None:
    def kinds(**wanted: bool) -> set[str]:
        return {each["kind"] for each in manifests(Account(), **wanted)}

    assert "MutatingAdmissionPolicy" not in kinds(guard=True)
    assert "MutatingAdmissionPolicy" in kinds(explicit=True)
    names = {each["metadata"]["name"] for each in manifests(Account())}
    assert "ebbtide-limits" in names
    assert "ebbtide-guard" not in names
    assert "ebbtide-guard" in {each["metadata"]["name"] for each in manifests(Account(), guard=True)}


@pytest.mark.parametrize("name", ["", "a b", "x'", 'x"', "-x", "a\nb", "x" * 300])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(BadInput):
        Account.user(name)
    with pytest.raises(BadInput):
        Account.service_account(f"ns/{name}")


def test_paths() -> None:
    paths = {path_of(each) for each in manifests(Account.service_account("tide/lender"), explicit=True)}
    assert "/api/v1/namespaces/tide" in paths
    assert "/api/v1/namespaces/tide/secrets/lender-token" in paths
    assert "/apis/rbac.authorization.k8s.io/v1/clusterroles/ebbtide" in paths
    assert "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings/ebbtide" in paths
    assert "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/ebbtide" in paths
    policy = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/ebbtide-placement-explicit"
    assert policy in paths


def test_secrets_are_reached_in_one_namespace_only() -> None:
    found = rights()
    assert {each.namespace for each in found if each.resource == "secrets"} == {"kube-system"}
    assert Right("create", "", "pods", "eviction") in found
    assert len(found) == len(set(found))
    assert {each.verb for each in found if each.resource == "secrets"} == {"create", "patch", "delete"}
    assert not any("*" in (each.verb, each.group, each.resource) for each in found)
    assert str(Right("delete", "coordination.k8s.io", "leases", "", "kube-node-lease")) == (
        "delete leases in kube-node-lease"
    )


def test_bindings_of_others_stay_theirs() -> None:
    """What lets machines join is about groups of Kubernetes' own."""
    objects = manifests(Account.user("tide"), joining=True)
    groups = {
        subject["name"]
        for each in _of_kind(objects, "ClusterRoleBinding")
        if each["metadata"]["name"].startswith("kubeadm:")
        for subject in each["subjects"]
    }
    assert groups == {"system:bootstrappers:kubeadm:default-node-token", "system:nodes"}
    assert len(manifests(Account.user("tide"))) == len(objects) - 3
