"""Whether a replica works on a command that another one was given (`procession.v1.holder.<service>.<replica>`)."""

from pydantic import Field

from procession_schemas.base import WireModel


class HolderQuestion(WireModel):
    """Asks the replica that has claimed a command whether it still works on it."""

    owner: str = Field(description="Name of the claim; it begins with the id of the replica.")
    others: list[str] = Field(default_factory=list, description="Further claims of the same replica.")


class HolderAnswer(WireModel):
    """Whether it still works on the command; if not, the asker takes the command over."""

    works: bool
    others: list[str] = Field(
        default_factory=list, description="Those of the further claims whose commands it works on."
    )
