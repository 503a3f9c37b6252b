"""Where the values behind tokens are kept: sealed, in the tenant's store, under their conversation."""

from typing import Any, Self

from procession.args import HookArgs
from procession.errors import ProcessionError
from procession_services.processors.core.pii.tokens import LEAST_KEY, ConversationKey, bare
from procession_services.processors.loaded import scope_of

_STATE = "sealed"


class MaskingKeyError(ProcessionError):
    """Reversible masking has no key, or one that is too short."""


class Vault:
    """The tokens of one conversation, for one hook call.

    Sealed values are in the store and, for the run, in `args.state`; what is unsealed lives as long as the call.
    """

    def __init__(self, key: ConversationKey, sealed: dict[str, str], store_key: str) -> None:
        self._key, self._sealed, self._store_key = key, sealed, store_key
        self._fresh: dict[str, str] = {}

    @classmethod
    async def open(cls, args: HookArgs, secret_name: str) -> Self:
        """The vault of the run's conversation: its thread, or the run itself.

        Raises:
            MaskingKeyError: There is no usable key.
        """
        secret = args.services.secret(secret_name)
        if secret is None or len(secret) < LEAST_KEY:
            what = (
                "is missing"
                if secret is None
                else f"has {len(secret)} bytes, and at least {LEAST_KEY} are needed"
            )
            raise MaskingKeyError(
                f"redactionMethod 'token' needs a key, but the secret {secret_name!r} {what}: put a file of that name "
                "with random bytes into the directory that PROCESSION_SECRETS_DIR names, for every service"
            )
        scope = scope_of(args)
        store_key = f"pii-detector:tokens:{scope}"
        if _STATE not in args.state:
            members = await args.services.store.members(store_key)
            args.state[_STATE] = dict(member.split(" ", 1) for member in sorted(members))
        return cls(ConversationKey(secret, args.services.tenant, scope), args.state[_STATE], store_key)

    def token(self, kind: str, value: str) -> str:
        """The token for a value; `keep` decides whether it can be opened later."""
        choices = self._key.tokens(kind, value)
        token = next((each for each in choices if self._value(each) in (None, value)), choices[-1])
        return f"<{token}>"

    def keep(self, kind: str, value: str) -> str:
        """The token for a value that can be had back from it."""
        token = self.token(kind, value)
        if bare(token) not in self._sealed:
            self._fresh[bare(token)] = self._sealed[bare(token)] = self._key.seal(bare(token), value)
        return token

    def value(self, token: str) -> str:
        """The value behind a token, or the token itself where none is known."""
        known = self._value(bare(token))
        return token if known is None else known

    def values(self) -> dict[str, str]:
        """All tokens, with brackets, by their values."""
        known = {token: self._value(token) for token in self._sealed}
        return {value: f"<{token}>" for token, value in known.items() if value}

    async def save(self, args: HookArgs, ttl: float) -> None:
        """Stores what `keep` added; the conversation's tokens live for `ttl` seconds from now."""
        members = [f"{token} {sealed}" for token, sealed in self._fresh.items()]
        if members:
            await args.services.store.insert(self._store_key, *members, ttl=ttl)
            self._fresh.clear()

    def _value(self, token: str) -> str | None:
        sealed: Any = self._sealed.get(token)
        return None if sealed is None else self._key.unseal(token, sealed)
