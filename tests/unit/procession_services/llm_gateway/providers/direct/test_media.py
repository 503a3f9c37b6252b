"""Files by URL: fetched for those providers for which LiteLLM would, while others go on."""

import asyncio
import base64
import threading
from collections.abc import Iterator
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any, Final

import pytest

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers import litellm_provider
from procession_services.llm_gateway.providers.direct import with_media
from procession_services.llm_gateway.providers.direct.lower import Target
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import Answer, ModelServer
from tests.unit.procession_services.llm_gateway.providers.replay import ANTHROPIC, outcome, recorded

FILE: Final = b"%PDF-1.7"
DATA: Final = f"data:application/pdf;base64,{base64.b64encode(FILE).decode()}"
PART: Final = {"type": "file", "file": {"file_data": DATA, "filename": "my_file.pdf"}}
PICTURE: Final = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(FILE).decode()}
WAYS: Final = ["direct", "wrapped"]


@pytest.fixture(params=WAYS)
def provider(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def _loopback_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm_provider._litellm(), "user_url_allowed_hosts", ["127.0.0.1"])


class SlowFiles(ThreadingHTTPServer):
    """Gives its file when it is told to, or after five seconds."""

    def __init__(self) -> None:
        self.told, self.was_told = threading.Event(), list[bool]()
        super().__init__(("127.0.0.1", 0), _SlowFile)


class _SlowFile(BaseHTTPRequestHandler):
    server: SlowFiles

    def do_GET(self) -> None:
        self.server.was_told.append(self.server.told.wait(5))
        self.send_response(200)
        self.send_header("content-type", "image/png" if self.path.endswith("png") else "application/pdf")
        self.send_header("content-length", str(len(FILE)))
        self.end_headers()
        self.wfile.write(FILE)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def slow_files() -> Iterator[SlowFiles]:
    with SlowFiles() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def prompt(url: str, kind: str = "application/pdf") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "file", "data": url, "mediaType": kind}]}]


@pytest.mark.parametrize("model", ["openai/gpt-4o", "mistral/mistral-large-latest", "groq/x", ANTHROPIC])
async def test_others_go_on_while_a_file_is_fetched(
    provider: LiteLLMProvider, slow_files: SlowFiles, model: str
) -> None:
    await provider.prepare()
    name, kind, answer = (
        ("a.png", "image/png", "anthropic-text.sse")
        if model == ANTHROPIC
        else ("a.pdf", "application/pdf", "openai-text.sse")
    )
    url = f"http://127.0.0.1:{slow_files.server_port}/{model}/{name}"
    waiting = asyncio.create_task(outcome(provider, model, recorded(answer), prompt=prompt(url, kind)))
    other = await outcome(provider, "hosted_vllm/demo", recorded("openai-text.sse"))
    slow_files.told.set()
    answered = await waiting
    assert not other.failure
    assert not answered.failure
    assert slow_files.was_told == [True]
    sent = answered.request.body["messages"][0]["content"][0]
    assert sent == ({"type": "image", "source": PICTURE} if model == ANTHROPIC else PART)


async def ending(provider: LiteLLMProvider, call: ModelCall) -> str:
    try:
        await anext(provider.stream(call))
    except ProviderError as error:
        return f"{error.kind}: {error}"
    return ""


async def test_a_call_that_is_cancelled_or_late_leaves_the_file_alone(provider: LiteLLMProvider) -> None:
    await provider.prepare()
    for cancelled in (True, False):
        settings = {} if cancelled else {"timeout": 50}
        async with asyncio.timeout(10), ModelServer(Answer([FILE], end="hang")) as files:
            asked = ModelCall(
                "openai/gpt-4o", prompt(f"{files.base}/{cancelled}.pdf"), model_settings=settings
            )
            task = asyncio.create_task(ending(provider, asked))
            if cancelled:
                await files.arrived.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                assert (await task).startswith("timeout: ")
            if files.requests:  # a machine that is busy may not have got so far
                await files.left.wait()


async def test_a_file_that_is_too_large_is_not_read_to_its_end(provider: LiteLLMProvider) -> None:
    await provider.prepare()
    async with asyncio.timeout(30), ModelServer(Answer([bytes(2**20)] * 60, end="hang")) as files:
        asked = ModelCall("openai/gpt-4o", prompt(f"{files.base}/large.pdf"), api_key="k")
        ended = await ending(provider, asked)
        assert len(files.requests) == 1
    assert ended.startswith("api: the file http://127.0.0.1:")
    assert "exceeds the configured size limit (50 MB)" in ended


async def test_a_link_may_be_asked_whether_it_is_a_document(
    direct: LiteLLMProvider, slow_files: SlowFiles
) -> None:
    await direct.prepare()
    slow_files.told.set()
    serves_pdf = import_module(f"litellm.{PROBING}").async_serves_pdf
    assert await serves_pdf(f"http://127.0.0.1:{slow_files.server_port}/a.pdf")
    assert not await serves_pdf(f"http://127.0.0.1:{slow_files.server_port}/a.png")


async def test_what_is_not_public_is_not_fetched(
    provider: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    await provider.prepare()
    monkeypatch.setattr(litellm_provider._litellm(), "user_url_allowed_hosts", [])
    async with ModelServer(Answer([FILE])) as files:
        asked = ModelCall("openai/gpt-4o", prompt(f"{files.base}/inner.pdf"), api_key="k")
        ended = await ending(provider, asked)
        assert not files.requests
    assert "URL policy rejected it" in ended


@pytest.mark.filterwarnings("ignore:Items .* using the `ReadOnly` qualifier")
async def test_only_those_files_are_fetched_that_litellm_would_fetch(
    direct: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    await direct.prepare()
    fetched: list[str] = []

    def at_once(url: str, **_: Any) -> str:
        fetched.append(url)
        return "data:image/png;base64,QUJD" if url.endswith("png") else DATA

    async def meanwhile(url: str, **_: Any) -> str:
        return at_once(url)

    for module in FETCHING:
        monkeypatch.setattr(f"litellm.{module}.convert_url_to_base64", at_once)
        monkeypatch.setattr(f"litellm.{module}.async_convert_url_to_base64", meanwhile, raising=False)
    monkeypatch.setattr(f"litellm.{PROBING}.serves_pdf", lambda url: bool(at_once(url)))
    monkeypatch.setattr(f"litellm.{PROBING}.async_serves_pdf", meanwhile)
    litellm = litellm_provider._litellm()
    wrong: list[Any] = []
    taken = 0
    for provider in litellm.LlmProviders:
        call = ModelCall(f"{provider.value}/some-model", [], api_base="http://127.0.0.1:9", api_key="k")
        for part in PARTS:
            kwargs: dict[str, Any] = {"messages": _messages(part)}
            try:
                target = Target.of(litellm, call, deepcopy(kwargs))
                theirs = await asyncio.to_thread(_request, target)  # in the loop's it would not look at links
            except litellm.BadRequestError:  # nobody has logged in there
                continue
            if theirs is None:
                continue
            wanted = fetched.copy()
            fetched.clear()
            kwargs = await with_media(litellm, call, kwargs)
            before, ours = fetched.copy(), _request(Target.of(litellm, call, kwargs))
            if (set(before), fetched, ours) != (set(wanted), before, theirs):
                wrong.append((call.model, part, before, fetched.copy()))
            taken += bool(wanted)
            fetched.clear()
    assert wrong == []
    assert taken > 20


FETCHING: Final = [
    "litellm_core_utils.prompt_templates.factory",
    "litellm_core_utils.prompt_templates.image_handling",
    "llms.openai.chat.gpt_transformation",
]
PROBING: Final = "litellm_core_utils.prompt_templates.image_handling"
PARTS: Final = [
    {"type": "image_url", "image_url": {"url": "http://x.example/a.png"}},
    {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
    {"type": "image_url", "image_url": {"url": "https://x.example/a.pdf"}},
    {"type": "file", "file": {"file_id": "https://x.example/a.pdf", "format": "application/pdf"}},
    {"type": "file", "file": {"file_id": "https://x.example/a.mp4", "format": "video/mp4"}},
]


def _messages(part: dict[str, Any]) -> list[dict[str, Any]]:
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, deepcopy(part)]},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": [deepcopy(part)]},
    ]


def _request(target: Target) -> Any:
    """What LiteLLM makes of the call at once; None for a provider for which it does not."""
    config = target.config()
    if not isinstance(config, target.litellm.OpenAIGPTConfig | target.litellm.AnthropicConfig):
        return None
    try:
        return config.transform_request(target.model, target.messages, {"max_tokens": 5}, {}, {})
    except Exception:  # noqa: BLE001 - some cannot at once, or not this
        return None
