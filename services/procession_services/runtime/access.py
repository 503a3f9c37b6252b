"""How a process gets into NATS and Redis: user, password, and the authority that vouches for the servers.

Passwords come from files, as container platforms mount them, so they are in no environment and in no URL.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from procession_services.runtime.settings import SERVICE_NAME, Settings, SettingsError

__all__ = ["Access"]


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """What `nats.connect` and redis-py are given besides an address; empty: an open server.

    The inbox prefix is where a NATS user may listen for answers: only its own.
    """

    nats_user: str | None = None
    nats_password: str | None = None
    redis_user: str | None = None
    redis_password: str | None = None
    authority: Path | None = None

    @classmethod
    def of(cls, settings: Settings, service: str = SERVICE_NAME) -> Self:
        """Reads the password files that the settings name; `{service}` in users and files is the service's name.

        Raises:
            SettingsError: One cannot be read or has no user, or the authority's certificate is invalid.
        """
        if settings.nats_password_file and not settings.nats_user:
            raise SettingsError(
                "PROCESSION_NATS_PASSWORD_FILE: also set PROCESSION_NATS_USER, the user with that password"
            )
        access = cls(
            settings.nats_user and settings.nats_user.replace(SERVICE_NAME, service),
            _secret("PROCESSION_NATS_PASSWORD_FILE", settings.nats_password_file, service),
            settings.redis_user and settings.redis_user.replace(SERVICE_NAME, service),
            _secret("PROCESSION_REDIS_PASSWORD_FILE", settings.redis_password_file, service),
            settings.tls_ca,
        )
        try:
            access.tls()
        except OSError as error:  # ssl's are such, too, and name no file
            told = f"PROCESSION_TLS_CA: cannot use {settings.tls_ca}: {error.strerror or error}"
            raise SettingsError(told) from error
        return access

    def tls(self) -> ssl.SSLContext | None:
        """Checks servers against the given authority; None: the system's authorities, and only where a URL asks."""
        return ssl.create_default_context(cafile=str(self.authority)) if self.authority else None

    def nats(self, url: str) -> dict[str, Any]:
        """Options of `nats.connect` for that address."""
        options: dict[str, Any] = {}
        if self.nats_user:
            options |= {"user": self.nats_user, "password": self.nats_password or ""}
            options["inbox_prefix"] = f"_INBOX.{self.nats_user}".encode()
        if url.startswith("tls://") and (tls := self.tls()):
            options["tls"] = tls
        return options

    def redis(self, url: str) -> dict[str, Any]:
        """Options of `Redis.from_url` for that address."""
        options: dict[str, Any] = {}
        if self.redis_user:
            options["username"] = self.redis_user
        if self.redis_user or self.redis_password:
            options["password"] = self.redis_password or ""
        if url.startswith("rediss://") and self.authority:
            options["ssl_ca_certs"] = str(self.authority)
        return options


def _secret(name: str, named: Path | None, service: str) -> str | None:
    if named is None:
        return None
    file = Path(str(named).replace(SERVICE_NAME, service))
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{name}: cannot read {file}: {told}") from error
