"""Who works on a command that NATS has given to another replica, too (`procession.v1.holder.<service>.<replica>`)."""

from pydantic import Field

from procession_schemas.base import WireModel


class HolderQuestion(WireModel):
    """Asks whoever has claimed a command whether it works on it."""

    owner: str = Field(description="The name of its claim, which begins with the id of the replica.")
    others: list[str] = Field(default_factory=list, description="Further claims of the same replica.")


class HolderAnswer(WireModel):
    """Whether it does; else whoever asks takes the command over."""

    works: bool
    others: list[str] = Field(
        default_factory=list, description="Those of the further claims that it works on."
    )
