"""Routes HTTP requests to the three ways of answering and keeps the server's counters.

* `POST /v1/chat/completions`: answers; the model name chooses a script ("script:<id>"), synthetic load
  ("mock:...") or the demo (any other name)
* `POST /v1/embeddings`: deterministic vectors
* `GET /v1/models`: the names that can be asked for
* `GET /mock/stats`: the counters of `Stats`
* `POST /mock/reset`: forget counters, scripts and conversations
* `POST /mock/script`: {"id", "calls"} set a script
* `GET /mock/script/<id>`: {"requests"}, the bodies that the script has received
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, Final, Self
from urllib.parse import unquote

from procession_services.demo_model.answers import Answer, Refusal
from procession_services.demo_model.completions import CREATED, dump, error_body
from procession_services.demo_model.conversation import InvalidRequestError, messages_of
from procession_services.demo_model.demo import LABEL, FlakyConversations, demo_reply
from procession_services.demo_model.embeddings import embeddings
from procession_services.demo_model.playback import Stats, play
from procession_services.demo_model.protocol import Exchange, HttpProtocol, Request
from procession_services.demo_model.scripts import ScriptBook
from procession_services.demo_model.synthetic import SyntheticModel, load_of

DEFAULT_PACE_MS: Final = 15.0
_BACKLOG: Final = 4096
_SCRIPT_PATH: Final = "/mock/script/"
_ONLY_OPENAI: Final = ": this model speaks OpenAI's chat protocol: name it openai/..., such as openai/demo"
_OK: Final = dump({"ok": True})
_MODEL: Final = re.compile(r"(?:[^:]*/)?(?P<way>script|mock)(?::(?P<rest>.*))?", re.DOTALL)

OnRequest = Callable[[dict[str, Any], str | None], None]


class Server:
    """A model server on one port; `async with await serve(...)` closes it at the end.

    `on_request` is called with the body and the script's id (None without a script) of every chat request, at
    once when it arrives. `scripts` may be filled in process as well as over HTTP.
    """

    def __init__(self, *, pace_ms: float = DEFAULT_PACE_MS, on_request: OnRequest | None = None) -> None:
        self.scripts = ScriptBook()
        self.stats = Stats()
        self._synthetic = SyntheticModel()
        self._flaky = FlakyConversations()
        self._chunk_delay = pace_ms / 1000
        self._on_request = on_request
        self._connections: set[HttpProtocol] = set()
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on.

        Raises:
            RuntimeError: when it does not listen.
        """
        if self._listener is None or not self._listener.sockets:
            raise RuntimeError("the model server does not listen: await listen() first")
        return int(self._listener.sockets[0].getsockname()[1])

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Accept connections; port 0 picks a free one.

        Raises:
            OSError: when the address cannot be bound.
        """
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: HttpProtocol(self._handle, error_body, self._connections), host, port, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Stop listening, cut every connection and wait for their handlers; harmless when called again."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        listener.close()
        await asyncio.gather(*(connection.shut() for connection in tuple(self._connections)))
        await listener.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def reset(self) -> None:
        """Forget the counters, the scripts and the conversations."""
        self.stats.reset()
        self.scripts.clear()
        self._synthetic.clear()
        self._flaky.clear()

    async def _handle(self, request: Request, exchange: Exchange) -> None:
        try:
            await self._route(request, exchange)
        except InvalidRequestError as error:
            exchange.reply(400, error_body(400, str(error)))

    async def _route(self, request: Request, exchange: Exchange) -> None:
        match request.method, request.path.removeprefix("/v1"):
            case "POST", "/chat/completions":
                await self._chat(request, exchange)
            case "POST", "/embeddings":
                exchange.reply(200, embeddings(_json_object(request.body)))
            case "GET", "/models":
                exchange.reply(200, self._models())
            case "GET", "/mock/stats":
                exchange.reply(200, dump(self.stats.report()))
            case "POST", "/mock/reset":
                self.reset()
                exchange.reply(200, _OK)
            case "POST", "/mock/script":
                self._set_script(_json_object(request.body))
                exchange.reply(200, _OK)
            case "GET", path if path.startswith(_SCRIPT_PATH):
                self._tell_script(unquote(path.removeprefix(_SCRIPT_PATH)), exchange)
            case method, path:
                told = f"no route {method} {path}{_ONLY_OPENAI if method == 'POST' else ''}"
                exchange.reply(404, error_body(404, told))

    async def _chat(self, request: Request, exchange: Exchange) -> None:
        stats = self.stats
        stats.requests += 1
        stats.open += 1
        stats.max_open = max(stats.max_open, stats.open)
        try:
            body = _json_object(request.body)
            await play(self._answer(body, request.headers.get("x-mock")), body, exchange, stats)
        except asyncio.CancelledError:
            stats.cancelled += 1
            raise
        finally:
            stats.open -= 1
            stats.bytes += exchange.written

    def _answer(self, body: dict[str, Any], header: str | None) -> Answer:
        """Ask the model that the request names; an unknown name is the demo's."""
        messages = messages_of(body)
        match = _MODEL.fullmatch(str(body.get("model") or ""))
        rest = (match["rest"] or "") if match else ""
        script_id = rest if match and match["way"] == "script" else None
        if self._on_request is not None:
            self._on_request(body, script_id)
        if script_id is not None:
            return self.scripts.answer(script_id, body)
        load = load_of(rest if match else None, header, messages)
        if load is not None:
            return self._synthetic.answer(load, body)
        if self._flaky.fails(body):
            return Refusal(503, f"the {LABEL} is overloaded, as you asked; try again", {"retry-after": "0"})
        return demo_reply(body, self._chunk_delay)

    def _models(self) -> bytes:
        names = ("demo", "mock", *(f"script:{script_id}" for script_id in self.scripts.ids))
        models = [
            {"id": name, "object": "model", "created": CREATED, "owned_by": "procession"} for name in names
        ]
        return dump({"object": "list", "data": models})

    def _set_script(self, body: dict[str, Any]) -> None:
        if not isinstance(body.get("id"), str):
            raise InvalidRequestError("id: expected a string")
        self.scripts.add(body["id"], body.get("calls"))

    def _tell_script(self, script_id: str, exchange: Exchange) -> None:
        requests = self.scripts.requests(script_id)
        if requests is None:
            exchange.reply(404, error_body(404, f"no script {script_id!r}"))
        else:
            exchange.reply(200, dump({"requests": requests}))


async def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    pace_ms: float = DEFAULT_PACE_MS,
    on_request: OnRequest | None = None,
) -> Server:
    """Start a server and return it listening.

    Raises:
        OSError: when the address cannot be bound.
    """
    server = Server(pace_ms=pace_ms, on_request=on_request)
    await server.listen(host, port)
    return server


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("the body is not a JSON object")
    return value
