"""What the operator configures: the environment first (`PROCESSION_*`), one file second; unknown keys are errors."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from procession.addresses import NATS_SCHEMES, WEB_SCHEMES, is_address, split_address, unread
from procession_schemas.agent import LONGEST_RUN
from procession_schemas.memory import EmbedderName
from procession_schemas.subjects import token
from procession_schemas.validation import plain
from procession_services.runtime.clock import new_token
from procession_services.runtime.problems import suggestion, unreadable
from procession_services.runtime.yaml_text import no_yaml, parsed

_PREFIX: Final = "PROCESSION_"
_CONFIG: Final = "PROCESSION_CONFIG"
_ENVIRONMENT_ONLY: Final = ("workspaces", "health_file")
"""Settings that are also read by what does not read the file."""
_YEAR: Final = 365 * 86_400
_MANY: Final = 1_000_000
"""No count is larger: NATS and Redis take it."""
_LARGEST: Final = 64 * 1_048_576
"""Bytes of the longest message that NATS can be set to take."""
SERVICE_NAME: Final = "{service}"
"""In users and password files: the name of the service, for processes that run several."""
_COPIES: Final = (1, 3, 5)
_DATABASE: Final = re.compile(r"/?\d*")
"""What Redis' client reads behind the address; of anything else it says nothing, and takes database 0."""
_HOST_ALONE: Final = re.compile(r"https?://[^/?#@]+/?")
_SCHEMES: Final = {"nats_url": NATS_SCHEMES, "redis_url": ("redis", "rediss", "unix")}


class SettingsError(Exception):
    """The settings are wrong; the message lists every problem."""


class Settings(BaseSettings):
    """Settings of one process."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    nats_url: str = Field(
        default="nats://127.0.0.1:4222", description="NATS server, or several separated by commas."
    )
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0", description="Redis with append-only persistence."
    )
    nats_user: str | None = Field(
        default=None,
        description=f"NATS user; answers come to `_INBOX.<user>`. `{SERVICE_NAME}`, here and in the three settings "
        "below, stands for the name of the service: a process of several services uses the user of each.",
    )
    nats_password_file: Path | None = Field(default=None, description="File with the password of that user.")
    redis_user: str | None = Field(default=None, description="Redis user.")
    redis_password_file: Path | None = Field(
        default=None,
        description="File with the password of that user, or of the default one (`requirepass`).",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="Certificate of the CA for `tls://` (NATS) and `rediss://` (Redis); default: those of the system.",
    )
    create_streams: bool = Field(
        default=True,
        description="Create and update streams; `false`: wait until another service has, in compose the orchestrator.",
    )
    stream_replicas: int = Field(
        default=1, description="Copies of every stream in a cluster of NATS servers: 1, 3 or 5."
    )
    health_file: Path | None = Field(
        default=None,
        description="File that a service touches every two seconds while it is ready; environment only.",
    )
    agents: Path | None = Field(default=None, description="YAML or Python file that defines the agents.")
    tenants: Path | None = Field(
        default=None, description="YAML file with the limits of tenants; the orchestrator reads it."
    )
    plugins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Modules with `register(registry)`, separated by commas."
    )
    tenant: str = Field(default="default", description="Tenant that the command line speaks for.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="WARNING", description="Level of the services' logs on stderr."
    )
    replica: str = Field(
        default_factory=lambda: new_token(10),
        description="Unique id of this process; default: generated.",
    )
    max_request_bytes: int = Field(
        default=1_048_576, gt=0, le=_LARGEST, description="Longest accepted run request."
    )
    run_timeout: float = Field(
        default=600, gt=0, le=LONGEST_RUN, description="Seconds until a run is ended with an error."
    )
    work_ack_wait: float = Field(
        default=30, gt=0, le=_YEAR, description="Seconds until unacknowledged work is redelivered."
    )
    max_deliver: int = Field(
        default=5, gt=0, le=_MANY, description="Deliveries of one work item before it is dead-lettered."
    )
    worker_concurrency: int = Field(
        default=128,
        gt=0,
        le=_MANY,
        description="Work items that one process handles at once; for a moment up to twice as many, while NATS and "
        "other processes give it some together. The sum over all gateways is how many runs are at work at once.",
    )
    waiting_runs: int = Field(
        default=10_000,
        ge=0,
        le=_MANY,
        description="Accepted runs of all tenants that may wait; further requests are refused.",
    )
    drain_timeout: float = Field(
        default=20, gt=0, le=_YEAR, description="Seconds a stopping service gives work in flight."
    )
    suspended_timeout: int = Field(
        default=30 * 86_400,
        gt=0,
        le=10 * _YEAR,
        description="Seconds that a run waits for a person; then it ends with an error.",
    )
    context_ttl: int = Field(
        default=86_400,
        gt=0,
        le=_YEAR,
        description="Seconds that a run's state stays in Redis after its last change, and after its deadline.",
    )
    finished_ttl: int = Field(
        default=120,
        gt=0,
        le=_YEAR,
        description="Seconds that a run's state stays after its end was announced.",
    )
    workspaces: str | None = Field(
        default=None,
        description="Directories that processors may read skills and instructions from, as in `PATH`; environment only;"
        " default: the directory in which the service was started.",
    )
    provider_keys_file: Path | None = Field(
        default=None,
        description="File with the keys of model providers, one VARIABLE=value per line, for the gateway; variables of "
        "the environment win.",
    )
    api_base: str | None = Field(
        default=None, description="Base URL for model calls of agents that name none."
    )
    api_bases: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Base URLs, separated by commas, that get a provider's key even if an agent that comes with a "
        "request names them; in addition to the one above and those of configured agents.",
    )
    unlisted_api_bases: bool = Field(
        default=True,
        description="Whether agents that come with a request may name other base URLs, which are called without a key; "
        "`false`: such a request is refused, so that nobody reaches hosts near the gateway.",
    )
    secrets_dir: Path | None = Field(
        default=None,
        description="Directory with one file for each key that processors need, such as `masking-key`.",
    )
    chroma_url: str | None = Field(
        default=None, description="Chroma server for semantic recall, such as `http://chroma:8000`."
    )
    chroma_path: Path | None = Field(
        default=None,
        description="Without a server: directory where the only memory process keeps embeddings.",
    )
    embedder: EmbedderName = Field(
        default="auto",
        description="What embeds messages: `provider/model`, `onnx` or `lexical`; `auto`: `onnx` if its weights are "
        "there, else `lexical`, with a warning.",
    )
    onnx_path: Path | None = Field(
        default=None,
        description="Directory with `model.onnx` and `tokenizer.json` of all-MiniLM-L6-v2 for the embedder `onnx`;"
        " without it, they are downloaded once.",
    )
    embed_concurrency: int = Field(
        default=4, gt=0, le=_MANY, description="Calls of embedders by one process at a time, for each tenant."
    )
    recall_timeout: float = Field(
        default=5,
        gt=0,
        le=_YEAR,
        description="Seconds that semantic recall may take before a run goes on without it.",
    )
    model: str | None = Field(default=None, description="Model for the demo instead of the demo model.")
    telemetry: Literal["off", "otlp", "console"] = Field(
        default="off",
        description="Where traces go: `otlp`, to the collector that the variables `OTEL_*` name, or `console`.",
    )
    telemetry_content: bool = Field(
        default=False, description="Puts prompts, answers, and arguments and results of tools into traces."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Serves Prometheus metrics on this port; several processes of one `procession up` take the ports "
        "that follow.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address on which metrics are served.")
    metrics_labels: Annotated[tuple[Literal["tenant", "agent"], ...], NoDecode] = Field(
        default=(),
        description="Optional labels of the metrics of runs, each with a series for every value: `tenant`, `agent`.",
    )

    @field_validator("plugins", "metrics_labels", "api_bases", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(p.strip() for p in value.split(",") if p.strip()) if isinstance(value, str) else value

    @field_validator("nats_url", "redis_url")
    @classmethod
    def _addresses(cls, value: str, info: ValidationInfo) -> str:
        name = str(info.field_name)
        schemes = _SCHEMES[name]
        for url in value.split(",") if name == "nats_url" else [value]:
            if not is_address(url, schemes):
                encoded = ", with user and password percent-encoded" if "@" in url else ""
                raise ValueError(f"should be like {cls.model_fields[name].default}{encoded}")
        return value

    @field_validator("redis_url")
    @classmethod
    def _database(cls, value: str) -> str:
        if not value.startswith("unix:") and not _DATABASE.fullmatch(split_address(value).path):
            raise ValueError("should end with the number of a database, such as /0, or have no path")
        return value

    @field_validator("api_base", "api_bases")
    @classmethod
    def _provider(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for url in (value,) if isinstance(value, str) else value or ():
            if url and not is_address(url, WEB_SCHEMES):
                raise ValueError("should be like https://api.openai.com/v1")
        return value

    @field_validator("chroma_url")
    @classmethod
    def _chroma(cls, value: str | None) -> str | None:
        # A user, a path or a query would not be sent to it.
        if value and not (is_address(value, WEB_SCHEMES) and _HOST_ALONE.fullmatch(value)):
            raise ValueError("should be like http://chroma:8000")
        return value

    @field_validator("stream_replicas")
    @classmethod
    def _copies(cls, value: int) -> int:
        if value not in _COPIES:
            raise ValueError("should be 1, 3 or 5 (with an even number, no more servers may fail)")
        return value

    @field_validator("replica", "tenant")
    @classmethod
    def _token(cls, value: str, info: ValidationInfo) -> str:
        return token(value, str(info.field_name))

    @classmethod
    def load(cls, file: Path | None = None, **overrides: Any) -> Self:
        """Reads the environment and the settings file (argument, or `PROCESSION_CONFIG`).

        Raises:
            SettingsError: A key is unknown or a value wrong; all problems at once.
        """
        given = {name.upper() for name in os.environ if name.upper().startswith(_PREFIX)}
        path = file or (Path(named) if (named := os.environ.get(_CONFIG)) else None)
        variables = {_CONFIG, *map(variable, cls.model_fields)}
        problems = [
            f"{name} is not a setting{suggestion(name, variables, _PREFIX)}"
            for name in sorted(given - variables)
        ]
        from_file = cls._from_file(path, problems) if path else {}
        from_file = {name: value for name, value in from_file.items() if variable(name) not in given}
        chosen = {name: value for name, value in overrides.items() if value is not None}
        try:
            settings = cls(**{**from_file, **chosen})
        except ValidationError as error:
            for wrong in error.errors():
                name = str(wrong["loc"][0])
                where = variable(name) if name in {*chosen} or name not in from_file else f"{path}: {name}"
                problems.append(f"{where}: {plain(wrong)}, not {unread(wrong['input'])}")
            raise SettingsError("\n".join(problems)) from error
        if problems:
            raise SettingsError("\n".join(problems))
        return settings

    @classmethod
    def _from_file(cls, path: Path, problems: list[str]) -> dict[str, Any]:
        """What the settings file says of known settings; what is wrong with it is added to the problems."""
        try:
            content = parsed(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: {unreadable(error)}")
            return {}
        except yaml.YAMLError as error:
            problems.append(str(no_yaml(path, error)))
            return {}
        if not isinstance(content, dict | None):
            problems.append(
                f"{path}: must be a mapping of settings, such as `nats_url: nats://127.0.0.1:4222`"
            )
            return {}
        known = {}
        for name, value in (content or {}).items():
            if name not in cls.model_fields:
                problems.append(f"{path}: {name} is not a setting{suggestion(str(name), cls.model_fields)}")
            elif name in _ENVIRONMENT_ONLY:
                problems.append(f"{path}: {name} can only be set in the environment: set {variable(name)}")
            else:
                known[name] = value
        return known


def variable(name: str) -> str:
    """The variable of the environment for a setting."""
    return f"{_PREFIX}{name.upper()}"
