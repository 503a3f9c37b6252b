"""The values of `error.code`: in failed requests and runs, and in answers to questions about threads or chunks.

Processors may fail with codes of their own; docs/processors lists those of the built-in ones.
"""

from typing import Final

__all__ = ["ERROR_CODES"]

ERROR_CODES: Final[dict[str, str]] = {
    "INVALID_JSON": "The body is not JSON.",
    "INVALID_REQUEST": "A field is wrong; `field` is the first one, the message lists the first 20.",
    "INVALID_MESSAGE_CONTENT": "A message in the request, or one that a processor returned, is not valid.",
    "INVALID_OPTIONS": "The options of a processor, a tool or a stop condition are wrong.",
    "REQUEST_TOO_LARGE": "The request is longer than `PROCESSION_MAX_REQUEST_BYTES`, or than the longest message that "
    "NATS accepts.",
    "UNKNOWN_AGENT": "There is no agent with the name in the subject.",
    "UNKNOWN_COMPONENT": "There is no processor, tool, stop condition or factory with that id.",
    "UNKNOWN_MODEL": "LiteLLM does not know the model's provider.",
    "UNSAFE_PLACE": "A processor cannot work at its place in the array, or would lose parts of a stream there; "
    "the message says why.",
    "UNSUPPORTED_HOST": "A processor runs in a service that does not call the hooks of its array.",
    "COMPONENT_FAILED": "A stop condition raised an exception, or a processor or tool did when it was created; "
    "the message names it.",
    "FACTORY_FAILED": "A factory of processors raised an exception, or did not return a list.",
    "AGENT_MEMORY_MISSING_RESOURCE_ID": "Memory needs a thread and a resource, and one of them is missing.",
    "ANSWER_TOO_LONG": "The answer of the memory service does not fit into one message; ask for a smaller page.",
    "NO_VECTOR_STORE": "Semantic recall needs Chroma, which is not configured.",
    "THREAD_BUSY": "Another run is active on the thread, and `memory.concurrency` is `reject`.",
    "RUN_ID_CONFLICT": "The run id already belongs to another request.",
    "RATE_LIMITED": "The tenant's limit `requestsPerSecond` is reached; send the request again after `retryAfter` "
    "seconds.",
    "TOO_MANY_RUNS": "The same, for the tenant's limit `waitingRuns`.",
    "BUDGET_EXCEEDED": "The same, for the tenant's limit `tokensPerDay` or `costPerDay`.",
    "OVERLOADED": "Too many requests or runs of all tenants are waiting, or a service has too many open requests.",
    "STORE_UNAVAILABLE": "Redis does not answer, or denies a service a permission that it needs; the same request can "
    "be sent again later.",
    "DEADLINE_EXCEEDED": "The run took longer than its timeout, or nobody decided on a waiting tool call in time; "
    "the message says which of the two, and names the limit.",
    "MODEL_FAILED": "The provider failed, after all retries; see `statusCode` and `isRetryable`.",
    "AGENT_STREAM_ERROR": "The model's answer ended badly, but the provider reported no error. Only error processors "
    "see this code; clients get `MODEL_FAILED`.",
    "PROCESSOR_FAILED": "A hook raised an exception; `processorId` and `hook` say which.",
    "PROCESSOR_TIMEOUT": "A hook took longer than its `timeout`; or `processOutputResult` did not end soon after the "
    "run was cancelled, so its result has no text.",
    "STRUCTURED_OUTPUT_FAILED": "The second model did not return an object that fits the schema.",
    "PROCESSOR_RETURNED_INVALID_VALUE": "A hook returned a value that it may not return; the message says what it may "
    "return.",
    "PROCESSOR_RETURNED_EXTERNAL_MESSAGE_LIST": "A hook returned a message list that is not the run's.",
    "PROCESSOR_RETURNED_MESSAGES_AND_MESSAGE_LIST": "A step hook returned both messages and a message list.",
    "PROCESSOR_RETURNED_UNSUPPORTED_MODEL": "A step hook chose a model that LiteLLM does not know.",
    "PARALLEL_PROCESSOR_CHANGED_INPUT": "A processor that runs beside the model call changed messages, which it may "
    "only read.",
    "UNSUPPORTED": "A step sets something that only an agent or a request can set; or the request names its own base "
    "URL for a provider whose key cannot be withheld. The message says which.",
    "STATE_NOT_JSON": "A processor put something into its state that is not JSON.",
    "CONTEXT_NOT_JSON": "Messages or the request context contain something that is not JSON.",
    "CONTEXT_TOO_LONG": "The states, messages and steps of the run exceed 128 MB as JSON; the message says which of "
    "them has the most.",
    "CHUNK_NOT_SENDABLE": "A chunk is not JSON, or is too long for a NATS message.",
    "COMMAND_TOO_LONG": "The next command for a service is too long for a NATS message, for example because of very "
    "long options.",
    "WORK_FAILED": "A service gave up a part of the run after several attempts, by default five deliveries.",
    "STATE_LOST": "Redis has lost the state of the run; or the state could not be read until the deadline of the run.",
    "INTERNAL": "The request could not be handled; the log of the service says why.",
    "UNKNOWN_OPERATION": "Threads: the memory service has no such operation.",
    "UNKNOWN_THREAD": "Threads: the resource has no such thread.",
    "THREAD_EXISTS": "Threads: the resource already has a thread of that name.",
    "INVALID_UPDATE": "Threads: working memory cannot be changed in this way.",
    "NOTE_CHANGED": "Threads: working memory has been changed in the meantime, and is not what the request expects.",
}
"""Codes and what they mean."""
