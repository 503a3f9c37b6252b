"""Whom a call reaches, and with whose key: where the call says neither, environment variables do, as in LiteLLM."""

import ssl
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.core.request import litellm_kwargs
from procession_services.llm_gateway.providers import litellm_provider
from procession_services.llm_gateway.providers.direct import build_request
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.support.certificates import certificate
from tests.unit.procession_services.llm_gateway.loopback import ModelServer
from tests.unit.procession_services.llm_gateway.providers.replay import (
    ANTHROPIC,
    BEDROCK,
    GEMINI,
    asked,
    recorded,
)

MODELS: Final = {model.partition("/")[0]: model for model in (ANTHROPIC, BEDROCK, GEMINI, "openai/gpt-4o")}
KEYS: Final = ("x-api-key", "api-key", "x-goog-api-key", "authorization")
SIGNED: Final = "AWS4-HMAC-SHA256"
OTHER_PLACES: Final = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "AWS_BEDROCK_RUNTIME_ENDPOINT")
WELL_KNOWN: Final = {
    "openai", "anthropic", "gemini", "bedrock", "groq", "mistral", "deepseek", "xai", "together_ai", "fireworks_ai",
}  # fmt: skip


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """What LiteLLM would send: place and key. Nobody answers."""
    requests: list[tuple[str, str | None]] = []

    async def send(_client: Any, request: httpx.Request, **_: Any) -> httpx.Response:
        requests.append((str(request.url), _key(request.headers)))
        return httpx.Response(400, json={"error": {"message": "no"}}, request=request)

    monkeypatch.setattr(httpx.AsyncClient, "send", send)
    return requests


def _key(headers: Any) -> str | None:
    lower = {name.lower(): value for name, value in headers.items()}
    key = next((lower[name] for name in KEYS if name in lower), None)
    return SIGNED if key and key.startswith(SIGNED) else key


def _key_names(litellm: Any, providers: list[str]) -> set[str]:
    missing = [litellm.validate_environment(model=_model(each))["missing_keys"] for each in providers]
    told = {name for names in missing for name in names if name.endswith(("_KEY", "_TOKEN"))}
    return told | {f"{_prefix(each)}_API_KEY" for each in providers}


def _place_names(providers: list[str]) -> set[str]:
    return {*OTHER_PLACES, *(f"{_prefix(each)}_API_BASE" for each in providers)}


def _prefix(provider: str) -> str:
    return provider.upper().replace("-", "_")


def _model(provider: str) -> str:
    return MODELS.get(provider, f"{provider}/some-model")


@pytest.mark.parametrize("said", ["OpenAI's key", "the place", "keys", "keys and places"])
async def test_both_ways_reach_the_same_with_the_same_key_also_where_the_environment_changes(
    direct: LiteLLMProvider,
    wrapped: LiteLLMProvider,
    monkeypatch: pytest.MonkeyPatch,
    sent: list[tuple[str, str | None]],
    said: str,
) -> None:
    await direct.prepare()
    litellm = litellm_provider._litellm()
    providers = [provider.value for provider in litellm.LlmProviders]
    monkeypatch.setenv("OPENAI_API_KEY", "openai-key")
    if said != "OpenAI's key":
        for name in _key_names(litellm, providers):
            monkeypatch.setenv(name, name.lower())
    if said == "keys and places":
        for name in _place_names(providers):
            monkeypatch.setenv(name, f"http://place/{name}")
    place = "http://given/v9" if said == "the place" else None
    ours: dict[str, tuple[str, str | None] | None] = {}
    theirs: dict[str, tuple[str, str | None] | None] = {}
    for provider in providers:
        call = ModelCall(_model(provider), [{"role": "user", "content": "hi"}], api_base=place)
        try:
            request = await build_request(litellm, call, litellm_kwargs(call))
        except Exception:  # noqa: BLE001 - whatever LiteLLM raises; then its own way must send nothing either
            ours[provider] = None
        else:
            if request is None:
                continue
            ours[provider] = request.url, _key(request.headers)
        sent.clear()
        with pytest.raises(ProviderError):
            async for _ in wrapped.stream(call):
                pass
        theirs[provider] = sent[0] if sent else None
    assert ours == theirs
    assert (WELL_KNOWN if said != "OpenAI's key" else {"openai"}) <= ours.keys()


@pytest.mark.parametrize("provider", ["openai", "azure", "perplexity"])
async def test_models_without_a_chat_api_are_litellms(direct: LiteLLMProvider, provider: str) -> None:
    await direct.prepare()
    litellm = litellm_provider._litellm()
    names = [
        name if name.startswith(f"{provider}/") else f"{provider}/{name}"
        for name, price in litellm.model_cost.items()
        if (price.get("litellm_provider"), price.get("mode")) == (provider, "responses")
    ]
    assert names
    for name in names:
        call = ModelCall(name, [{"role": "user", "content": "hi"}], api_base="http://given/v9", api_key="k")
        assert await build_request(litellm, call, litellm_kwargs(call)) is None, name


async def test_xais_web_search_is_litellms(direct: LiteLLMProvider) -> None:
    await direct.prepare()
    litellm = litellm_provider._litellm()
    options: dict[str, Any] = {"xai": {"webSearchOptions": {"search_context_size": "low"}}}
    built = []
    for given in ({}, options):
        call = ModelCall(
            "xai/grok-4", [{"role": "user", "content": "hi"}], api_key="k", provider_options=given
        )
        built.append(await build_request(litellm, call, litellm_kwargs(call)))
    assert [request is None for request in built] == [False, True]


@pytest.mark.parametrize(
    ("settings", "trusted"),
    [({}, False), ({"SSL_CERT_FILE": "{}"}, True), ({"SSL_VERIFY": "False"}, True)],
    ids=["nothing", "authority", "anybody"],
)
async def test_both_ways_trust_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str], *, trusted: bool
) -> None:
    chain, key = certificate(tmp_path, "gateway")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(chain, key)
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(chain))
    for way in (LiteLLMProvider(), LiteLLMProvider(direct=False)):
        async with ModelServer(recorded("openai-text.sse"), tls=tls) as server:
            with nullcontext() if trusted else pytest.raises(ProviderError):
                async for _ in way.stream(asked(server, "openai/gpt-4o")):
                    pass
            assert bool(server.requests) == trusted
        await way.aclose()
