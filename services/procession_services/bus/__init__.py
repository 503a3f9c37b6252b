"""The only package that speaks to NATS."""

from procession_services.bus.connection import Bus, NoResponderError, RequestTimeoutError
from procession_services.bus.worker import Delivery, LostError, Worker

__all__ = ["Bus", "Delivery", "LostError", "NoResponderError", "RequestTimeoutError", "Worker"]
