"""Asks all replicas of a service which are alive (`procession.v1.offer.<service>`); the first answer is enough."""

from pydantic import Field

from procession_schemas.base import WireModel


class ReplicaOffer(WireModel):
    """A replica that is alive."""

    replica: str = Field(
        description="Token to append to the subject of a request so that only this replica gets it."
    )
