"""The only package that speaks to NATS."""

from procession_services.bus.connection import Bus
from procession_services.bus.delivery import AGAIN, Delivery, Hold, LostError
from procession_services.bus.errors import NoResponderError, RequestTimeoutError, oversized
from procession_services.bus.inbox import Inbox
from procession_services.bus.nearby import Nearby
from procession_services.bus.worker import HopelessError, Worker

__all__ = [
    "AGAIN", "Bus", "Delivery", "Hold", "HopelessError", "Inbox", "LostError", "Nearby", "NoResponderError",
    "RequestTimeoutError", "Worker", "oversized",
]  # fmt: skip
