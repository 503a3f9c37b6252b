"""The model server that Procession ships: OpenAI's chat protocol with scripted, synthetic or demo answers."""

from procession_services.demo_model.server import Server, serve

__all__ = ["Server", "serve"]
