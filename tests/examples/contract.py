"""The provider suite, to be run by a module with a provider of its own: it defines the fixtures `rig` and
`machines`, and takes these tests into its names.
"""

from __future__ import annotations

import inspect
from typing import Any

from tests.contract import test_providers, test_volumes_and_restarts

SUITE: dict[str, Any] = {
    name: test
    for name, test in vars(test_providers).items()
    if name.startswith("test_") and "rig" in inspect.signature(test).parameters
}
RESTARTS: dict[str, Any] = {
    name: test
    for name, test in vars(test_volumes_and_restarts).items()
    if name.startswith("test_") and "machines" in inspect.signature(test).parameters
}
