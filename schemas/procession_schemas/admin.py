"""What operators ask of the processes of a deployment; every replica answers, none is stored.

Subjects `procession.v1.admin.status`, `.reload` and `.models`.
"""

from pydantic import Field

from procession_schemas.base import WireModel


class Finding(WireModel):
    """Something that is wrong, as the replica that tells it sees it."""

    where: str = Field(description="A file, a setting or a server.")
    path: str = Field(default="", description="What in it, such as `agents.demo.model`.")
    message: str = Field(description="What is wrong, and how to mend it.")
    warning: bool = Field(default=False, description="The system works all the same.")


class ModelUse(WireModel):
    """A model that agents of the configuration name, and where it is reached."""

    model: str = Field(description="`provider/name`.")
    api_base: str | None = Field(default=None, description="Base URL; default: the provider's own.")


class ModelsRequest(WireModel):
    """Asks the LLM gateway whether it could call these models."""

    models: list[ModelUse]
    call: bool = Field(
        default=False, description="Also ask each of them something, which costs a few tokens."
    )


class ServiceStatus(WireModel):
    """How one replica of a service is doing."""

    service: str
    replica: str
    version: str = Field(description="Of the package.")
    configuration: dict[str, str] = Field(
        default_factory=dict,
        description="Digests of the files that count, by what they hold, such as `agents`.",
    )
    models: list[ModelUse] = Field(
        default_factory=list, description="Models of the configured agents; the orchestrator knows them."
    )
    redis: str = Field(default="", description="Which Redis it has; empty where nobody can tell.")
    findings: list[Finding] = Field(default_factory=list)
