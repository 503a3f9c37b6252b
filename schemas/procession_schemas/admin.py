"""What operators ask the processes of a deployment; every replica answers, and nothing is stored.

Subjects `procession.v1.admin.status`, `.reload` and `.models`.
"""

from pydantic import Field

from procession_schemas.base import WireModel


class Finding(WireModel):
    """Something that is wrong, as the replica that reports it sees it."""

    where: str = Field(description="A file, a setting or a server.")
    path: str = Field(default="", description="The place in it, such as `agents.demo.model`.")
    message: str = Field(description="What is wrong, and how to mend it.")
    warning: bool = Field(default=False, description="True: the system works anyway.")


class ModelUse(WireModel):
    """A model that configured agents use, and where to reach it."""

    model: str = Field(description="`provider/name`.")
    api_base: str | None = Field(default=None, description="Base URL; default: the provider's own.")


class ModelsRequest(WireModel):
    """Asks the LLM gateway whether it can call these models."""

    models: list[ModelUse]
    call: bool = Field(
        default=False, description="Also send each of them a short prompt, which costs a few tokens."
    )


class ServiceStatus(WireModel):
    """How one replica of a service is doing."""

    service: str
    replica: str
    version: str = Field(description="Version of the package.")
    configuration: dict[str, str] = Field(
        default_factory=dict,
        description="Digests of the files that the replica uses, by what they hold, such as `agents`.",
    )
    models: list[ModelUse] = Field(
        default_factory=list, description="Models of the configured agents; only the orchestrator lists them."
    )
    redis: str = Field(default="", description="Which Redis the replica uses; empty if unknown.")
    findings: list[Finding] = Field(default_factory=list)
