"""Who lives, asked of all replicas of a service (`procession.v1.offer.<service>`); the first answer will do."""

from pydantic import Field

from procession_schemas.base import WireModel


class ReplicaOffer(WireModel):
    """A replica that lives."""

    replica: str = Field(description="The token behind the subject of a request that only this replica gets.")
