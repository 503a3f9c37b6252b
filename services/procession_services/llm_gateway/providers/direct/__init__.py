"""Streams at a plain reader's cost: LiteLLM's lower layers build the request and parse events, our client carries them.

LiteLLM has a configuration class for each provider that knows its parameters, URL, headers and body, and a parser for
one event of its stream. `acompletion` wraps them into machinery that costs more than all the rest of a run
(docs/adr/0012). Providers without these layers, and calls that need more than them, still go through it.
"""

from procession_services.llm_gateway.providers.direct.build import build_request
from procession_services.llm_gateway.providers.direct.gemini import mend_parser
from procession_services.llm_gateway.providers.direct.http import Connections, Request, direct_events
from procession_services.llm_gateway.providers.direct.media import limit_fetching, with_media

__all__ = [
    "Connections",
    "Request",
    "build_request",
    "direct_events",
    "limit_fetching",
    "mend_parser",
    "with_media",
]
