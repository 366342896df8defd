"""Secrets at rest: sealed with the first key, opened with any. A new key is put in front; old ones go after a
reseal.

Fernet (AES-128-CBC with HMAC-SHA256) of the `cryptography` library. What is sealed: kubeconfigs, webhook
secrets.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from ebbtide.errors import StartupError


def new_key() -> str:
    """A fresh key in its text form, 32 random bytes in URL-safe base64."""
    return Fernet.generate_key().decode()


class Sealer:
    """Seals and opens texts.

    keys: text keys, the newest first. Raises StartupError when one is malformed, or there is none.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise StartupError("no secret key: set EBBTIDE_SECRET_KEYS; `ebbtide secrets new-key` makes one")
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except ValueError:
            raise StartupError(
                "EBBTIDE_SECRET_KEYS holds something that is no key; `ebbtide secrets new-key` makes one"
            ) from None

    def seal(self, plain: str) -> str:
        return self._fernet.encrypt(plain.encode()).decode()

    def open(self, sealed: str) -> str:
        """The text again.

        Raises StartupError when none of the keys fits: a key that was dropped too early.
        """
        try:
            return self._fernet.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise StartupError(
                "a stored secret was sealed with a key that is not in EBBTIDE_SECRET_KEYS; "
                "add the old key behind the new one and run `ebbtide secrets reseal`"
            ) from None

    def open_optional(self, sealed: str | None) -> str | None:
        return None if sealed is None else self.open(sealed)

    def reseal(self, sealed: str) -> str:
        """The same text under the newest key."""
        return self._fernet.rotate(sealed.encode()).decode()
