"""What a processor keeps between hooks that have no place in a stream, where another one shares its id and state."""

from hashlib import sha256
from typing import Any

from procession.args import State, own
from procession.processor import Options


def own_by_options(state: State, name: str, options: Options) -> dict[str, Any]:
    """What the processor with these options keeps under a name; one with the same options would keep the same."""
    return own(
        state, name, sha256(options.model_dump_json().encode("utf-8", "surrogatepass")).hexdigest()[:16]
    )
