"""What `message_list.get` and `message_list.clear` offer (R-ML-2..4)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from procession.prompt import conversation_entries
from procession.ui_messages import to_ui
from procession_schemas.messages import Message, Source


class View:
    """Some of the messages, in the format asked for (R-ML-2)."""

    def __init__(self, read: Callable[[], list[Message]]) -> None:
        self._read = read

    def db(self) -> list[Message]:
        """Returns the live stored messages, oldest first, in a list of its own (R-AR-5, R-AR-6)."""
        return self._read()

    def ui(self) -> list[dict[str, Any]]:
        """Returns copies as UI messages of the AI SDK."""
        return [to_ui(message) for message in self._read()]

    def core(self) -> list[dict[str, Any]]:
        """Returns copies as prompt entries (core.md 6.1)."""
        return conversation_entries(self._read())


class _From:
    """The view of the messages of a source."""

    def __init__(self, source: Source | None) -> None:
        self._source = source

    def __get__(self, views: "Views", _type: type) -> View:
        return View(partial(views.read, self._source))


class Views:
    """The views, each made when it is asked for: `remembered` has the messages of source `memory`."""

    all, remembered, context = _From(None), _From("memory"), _From("context")
    input, response = _From("input"), _From("response")

    def __init__(self, read: Callable[[Source | None], list[Message]]) -> None:
        self.read = read


class Clearing:
    """One thing that can be cleared."""

    def __init__(self, remove: Callable[[], list[Message]]) -> None:
        self._remove = remove

    def db(self) -> list[Message]:
        """Removes the messages and returns them, oldest first."""
        return self._remove()


class Clear:
    """What can be cleared: `all`, `input`, `response` (R-ML-4)."""

    def __init__(self, remove: Callable[[Source | None], list[Message]]) -> None:
        self.all = Clearing(lambda: remove(None))
        self.input = Clearing(lambda: remove("input"))
        self.response = Clearing(lambda: remove("response"))
