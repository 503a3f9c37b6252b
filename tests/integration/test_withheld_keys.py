"""Where a request says where its call goes, the operator's key stays here, whatever LiteLLM knows of a provider."""

import asyncio

import pytest

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers.keys import NO_KEY, WITHHOLDABLE
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider

pytestmark = pytest.mark.integration
SECRET = "sk-of-the-operator"
OTHER_NAMES = {
    "gemini": ["GOOGLE_API_KEY"],
    "huggingface": ["HF_TOKEN"],
    "openai": ["OPENAI_ORG_ID", "OPENAI_PROJECT_ID"],
    "openrouter": ["OR_APP_NAME"],
    "perplexity": ["PERPLEXITYAI_API_KEY"],
    "together_ai": ["TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN", "TOGETHER_API_KEY"],
}
PROMPT = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
REFUSAL = b"HTTP/1.1 400 X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


@pytest.mark.filterwarnings("ignore:Items")  # LiteLLM's own types
@pytest.mark.parametrize("provider", sorted(WITHHOLDABLE))
async def test_no_key_of_ours_is_sent(provider, monkeypatch):
    for name in [f"{provider.upper()}_API_KEY", f"{provider.upper()}_TOKEN", *OTHER_NAMES.get(provider, [])]:
        monkeypatch.setenv(name.replace("_CHAT", ""), SECRET)
    heads = []

    async def serve(reader, writer):
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(REFUSAL)
        writer.close()

    async def ask(key):
        call = ModelCall(f"{provider}/m", PROMPT, api_base=base, api_key=key)
        with pytest.raises(ProviderError) as caught:
            async for _ in LiteLLMProvider().stream(call):
                pass
        assert heads, caught.value
        return heads.pop()

    async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1") as server:
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        assert SECRET in await ask(None)  # else this test shows nothing
        assert SECRET not in await ask(NO_KEY)
