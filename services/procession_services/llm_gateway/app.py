"""The LLM gateway service, put together."""

from procession_schemas import subjects
from procession_services.llm_gateway.embed import BUSY as EMBEDDINGS_BUSY
from procession_services.llm_gateway.embed import EmbeddingAnswers
from procession_services.llm_gateway.generate import BUSY as GENERATOR_BUSY
from procession_services.llm_gateway.generate import Generator
from procession_services.llm_gateway.guards import Guards
from procession_services.llm_gateway.handlers import ModelRunner
from procession_services.llm_gateway.models import ModelsAnswers
from procession_services.llm_gateway.observed import observed
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from procession_services.processor_host.offering import offer_places
from procession_services.processor_host.service import Host
from procession_services.processor_host.sinks import StreamSinks
from procession_services.runtime.secrets import load_keys

SERVICE = "llm_gateway"


async def start(host: Host) -> None:
    """Loads LiteLLM, then starts taking commands."""
    load_keys(host.settings.provider_keys_file)
    provider = LiteLLMProvider()
    host.on_stop.append(provider.aclose)
    await provider.prepare()
    sinks = await StreamSinks.of(host)
    models = observed(provider)
    runner = ModelRunner(models, sinks.streams, host.ledger, Guards(host.bus))
    await host.work_on_commands(sinks.sink, {"model": runner.run}, sinks.lend)
    await offer_places(host)
    base, limit = host.settings.api_base, host.bus.max_payload
    generator = Generator(models, host.ledger, host.bus.publish, base, max_reply=limit)
    embeddings = EmbeddingAnswers(provider, host.ledger, host.bus.publish, base, max_reply=limit)
    await host.answer_alive(
        generate=(generator.answer, GENERATOR_BUSY), embed=(embeddings.answer, EMBEDDINGS_BUSY)
    )
    checked = ModelsAnswers(host.admin, provider, provider.missing_keys)
    await host.answer(subjects.admin("models"), checked.answer)
