"""Where new names come from. A port, so that tests and simulations are repeatable by seed."""

from __future__ import annotations

import random
import secrets
import uuid
from typing import Protocol

# Kubernetes names its generated parts from an alphabet without vowels and look-alikes, so that they never
# spell words.
_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NAME_PART_LENGTH = 5


class Ids(Protocol):
    """A source of identifiers."""

    def uuid4(self) -> str:
        """A lower-case version 4 UUID; the `tg clusters <id>` shorthand accepts nothing else."""

    def name_part(self) -> str:
        """Five characters for a node's name."""

    def secret(self) -> str:
        """A bearer key's secret part, 32 random bytes in URL-safe base64. Never repeatable outside tests."""


class SystemIds:
    """Identifiers from the operating system's randomness."""

    def uuid4(self) -> str:
        return str(uuid.uuid4())

    def name_part(self) -> str:
        return "".join(secrets.choice(_NAME_ALPHABET) for _ in range(_NAME_PART_LENGTH))

    def secret(self) -> str:
        return secrets.token_urlsafe(32)


class SeededIds:
    """Repeatable identifiers for tests and simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid4(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def name_part(self) -> str:
        return "".join(self._random.choice(_NAME_ALPHABET) for _ in range(_NAME_PART_LENGTH))

    def secret(self) -> str:
        return f"{self._random.getrandbits(256):064x}"


def is_uuid4(text: str) -> bool:
    """Whether `text` is a lower-case version 4 UUID. Anything else cannot be one of our ids."""
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return False
    return str(parsed) == text and parsed.version == 4
