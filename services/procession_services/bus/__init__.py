"""The only package that speaks to NATS."""

from procession_services.bus.connection import Bus, NoResponderError, RequestTimeoutError
from procession_services.bus.worker import Delivery, Worker

__all__ = ["Bus", "Delivery", "NoResponderError", "RequestTimeoutError", "Worker"]
