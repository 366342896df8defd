"""Keys, quotas, the audit log and credentials on the command line: what is sent, what is written."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.samples import CLUSTER_ID
from tests.cli.stub import Stub

Run = Callable[..., Ran]
KUBECONFIG = "apiVersion: v1\nkind: Config\n"


class TestKeysAndQuotas:
    def test_a_keys_name_and_end_are_sent(self, stub: Stub, online: Run) -> None:
        stub.on("POST /v1/keys", samples.KEY)
        online("keys", "create", "--project", "lab", "--name", "ci", "--expires-in-days", "90")
        assert stub.last.body == {"project": "lab", "role": "member", "name": "ci", "expires_in_days": 90}

    def test_none_takes_a_quota_away_and_the_rest_stays(self, stub: Stub, online: Run) -> None:
        stub.on("PATCH /v1/fleet/projects/lab", samples.PROJECT)
        online("projects", "set", "lab", "--preemptible-gpus-limit", "none")
        assert stub.last.body == {"preemptible_gpus_limit": -1}
        online("projects", "set", "lab", "--standard-gpus-limit", "0", "--weight", "2")
        assert stub.last.body == {"standard_gpus_limit": 0, "weight": 2}

    def test_the_overlap_is_sent(self, stub: Stub, online: Run) -> None:
        stub.on("POST /v1/keys/k1/rotate", samples.KEY)
        online("keys", "rotate", "k1", "--overlap", "0")
        assert stub.last.body == {"overlap_s": 0}


class TestAudit:
    def test_pages_are_followed_up_to_the_limit(self, stub: Stub, online: Run) -> None:
        def page(*numbers: int, more: int | None) -> dict[str, object]:
            entries = [samples.AUDIT_ENTRY | {"number": number} for number in numbers]
            return {"entries": entries, "next_before": more}

        stub.on("GET /v1/audit?before=9&limit=3", page(8, 7, more=7))
        stub.on("GET /v1/audit?before=7&limit=1", page(6, more=6))
        ran = online("audit", "--before", "9", "--limit", "3")
        assert [line.split()[0] for line in ran.lines] == ["NO", "8", "7", "6"]
        assert "older ones: ebbtide audit --before 6" in ran.err
        stub.on("GET /v1/audit?before=9&limit=3", page(8, more=None))
        assert online("audit", "--before", "9", "--limit", "3").err == ""

    def test_wide_shows_every_column(self, stub: Stub, online: Run) -> None:
        stub.on("GET /v1/audit?limit=50", {"entries": [samples.AUDIT_ENTRY], "next_before": None})
        assert "req-1" not in online("audit").out
        assert "req-1" in online("audit", "--output", "wide").out

    def test_the_servers_own_changes_have_no_key(self, stub: Stub, online: Run) -> None:
        entry = samples.AUDIT_ENTRY | {"key_id": None, "before": None, "after": {"done": list("abcde")}}
        own = entry | {"role": None}
        stub.on("GET /v1/audit?limit=50", {"entries": [own, entry], "next_before": None})
        _, first, second = online("audit").out.splitlines()
        assert "the server" in first
        assert "an operator" in second
        assert "done a; b; c; and 2 more" in first


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"delivered_at": "2026-01-02T03:05:00Z", "next_try_at": None}, "delivered"),
        ({"next_try_at": None}, "given up"),
        ({"next_try_at": None, "tries": 0}, "waiting"),
    ],
)
def test_a_deliverys_state(stub: Stub, online: Run, changes: dict[str, object], state: str) -> None:
    stub.on("GET /v1/webhooks/w/deliveries?limit=50", {"deliveries": [samples.DELIVERY | changes]})
    assert f"  {state}  " in online("webhooks", "deliveries", "w").out


class TestCredentials:
    @pytest.fixture
    def known(self, stub: Stub) -> Stub:
        ready = samples.cluster(kube_config=base64.b64encode(KUBECONFIG.encode()).decode())
        stub.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", ready)
        return stub

    def test_the_file_is_private(self, known: Stub, online: Run, offline: Path) -> None:
        ran = online("clusters", "credentials", CLUSTER_ID)
        written = offline / "reef.kubeconfig"
        assert (ran.code, written.read_text()) == (0, KUBECONFIG)
        assert written.stat().st_mode & 0o777 == 0o600
        assert "kubectl --kubeconfig reef.kubeconfig" in ran.out
        assert [path.name for path in offline.iterdir()] == ["reef.kubeconfig"]

    def test_dash_prints_it(self, known: Stub, online: Run, offline: Path) -> None:
        assert online("clusters", "credentials", CLUSTER_ID, "--file", "-").out == KUBECONFIG
        assert list(offline.iterdir()) == []

    def test_another_file_is_not_overwritten(self, known: Stub, online: Run, offline: Path) -> None:
        (offline / "mine").write_text("other contexts\n")
        ran = online("clusters", "credentials", CLUSTER_ID, "--file", "mine")
        assert (ran.code, (offline / "mine").read_text()) == (2, "other contexts\n")
        assert "--force" in ran.err
        assert online("clusters", "credentials", CLUSTER_ID, "--file", "mine", "--force").code == 0
        assert (offline / "mine").read_text() == KUBECONFIG
        assert online("clusters", "credentials", CLUSTER_ID, "--file", "mine", "--json").json == {
            "cluster_id": CLUSTER_ID,
            "file": "mine",
        }

    def test_a_name_that_is_no_file_name(self, known: Stub, online: Run, offline: Path) -> None:
        text = base64.b64encode(KUBECONFIG.encode()).decode()
        odd = samples.cluster(kube_config=text, cluster_name="../../etc")
        known.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", odd)
        online("clusters", "credentials", CLUSTER_ID)
        assert [path.name for path in offline.iterdir()] == [f"{CLUSTER_ID}.kubeconfig"]

    def test_not_there_yet(self, stub: Stub, online: Run, offline: Path) -> None:
        stub.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", samples.cluster())
        ran = online("clusters", "credentials", CLUSTER_ID)
        assert (ran.code, list(offline.iterdir())) == (1, [])
        assert "reef has no kubeconfig yet" in ran.err

    def test_a_folder_that_is_not_there(self, known: Stub, online: Run) -> None:
        ran = online("clusters", "credentials", CLUSTER_ID, "--file", "nowhere/x")
        assert (ran.code, "nowhere/x cannot be written" in ran.err) == (2, True)
