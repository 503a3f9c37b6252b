"""What becomes of questions that get no answer."""


class NoResponderError(Exception):
    """Nobody listens on the subject of a request."""


class RequestTimeoutError(Exception):
    """The answer to a request did not come in time."""
