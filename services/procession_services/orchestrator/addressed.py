"""Whom a message is about, by its subject and its body."""

from procession_schemas import subjects
from procession_schemas.run_ids import asked_id, derived_id
from procession_services.bus import Delivery, HopelessError

__all__ = ["addressed", "derived_run_id", "run_id_of"]


def addressed(delivery: Delivery) -> tuple[str, str]:
    """The tenant, and the agent of a request or the run of a control; older streams also took other subjects.

    Raises:
        HopelessError: The subject lacks these tokens, or they have characters that no subject of ours has.
    """
    kind, *tokens = subjects.parse(delivery.subject)
    last = "run" if kind == "control" else "agent"
    try:
        tenant, name = tokens
        subjects.token(tenant, "tenant")
        if kind == "control":
            subjects.token(name, "run id")
    except ValueError as error:
        told = f"the subject must be {subjects.ROOT}.{kind}.<tenant>.<{last}>"
        raise HopelessError(f"{told}: {error}") from error
    return tenant, name


def derived_run_id(delivery: Delivery) -> str:
    """The id of the run that a request without a run id begins."""
    return derived_id(delivery.message_id, delivery.sequence)


def run_id_of(delivery: Delivery) -> str:
    """The id of the run that a request begins, though it may be unreadable."""
    return asked_id(delivery.body) or derived_run_id(delivery)
