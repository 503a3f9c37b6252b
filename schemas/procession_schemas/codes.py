"""What `error.code` may say: to a client whose request or run failed, and to whoever asks about threads or chunks.

Processors may fail with codes of their own; docs/processors has those of ours.
"""

from typing import Final

__all__ = ["ERROR_CODES"]

ERROR_CODES: Final[dict[str, str]] = {
    "INVALID_JSON": "The body is no JSON.",
    "INVALID_REQUEST": "A field is wrong; `field` is the first one, the message names all.",
    "INVALID_MESSAGE_CONTENT": "A message of the request, or of a processor, is none.",
    "INVALID_OPTIONS": "Options of a processor, a tool or a stop condition are wrong.",
    "REQUEST_TOO_LARGE": "The request is longer than `PROCESSION_MAX_REQUEST_BYTES`, or than NATS has room for.",
    "UNKNOWN_AGENT": "There is no agent of the name in the subject.",
    "UNKNOWN_COMPONENT": "There is no processor, tool, stop condition or factory of that id.",
    "UNKNOWN_MODEL": "LiteLLM knows no such provider.",
    "UNSAFE_PLACE": "A processor cannot do its work where it stands, or would lose "
    "parts of a stream; the message says why.",
    "UNSUPPORTED_HOST": "A processor runs in a service that has not the hooks of its array.",
    "COMPONENT_FAILED": "A stop condition raised an exception, or a processor or tool did where it is made; the "
    "message names it.",
    "FACTORY_FAILED": "A factory of processors raised an exception, or returned what is no list.",
    "AGENT_MEMORY_MISSING_RESOURCE_ID": "Of thread and resource one is missing.",
    "ANSWER_TOO_LONG": "What was asked of the memory service does not fit into a message; ask for a smaller page.",
    "NO_VECTOR_STORE": "Semantic recall is wanted, and no Chroma is configured.",
    "THREAD_BUSY": "Another run is at work on the thread, and `memory.concurrency` is `reject`.",
    "RUN_ID_CONFLICT": "The run id belongs to another request.",
    "RATE_LIMITED": "`requestsPerSecond` of the tenant; `retryAfter` says when to come back.",
    "TOO_MANY_RUNS": "`waitingRuns` of the tenant, likewise.",
    "BUDGET_EXCEEDED": "`tokensPerDay` or `costPerDay` of the tenant, likewise.",
    "OVERLOADED": "Too much waits, of all tenants, or at the gateway.",
    "STORE_UNAVAILABLE": "Redis is away, or does not allow a service its work; the same request may come again.",
    "DEADLINE_EXCEEDED": "The run took longer than its timeout, or nobody decided about a tool call in time; "
    "the message says which, and how long that is.",
    "MODEL_FAILED": "The provider failed, after all retries; `statusCode` and `isRetryable` say how.",
    "AGENT_STREAM_ERROR": "The same where an answer ended badly, without a word of why: error processors are told so, "
    "clients `MODEL_FAILED`.",
    "PROCESSOR_FAILED": "A hook raised an exception; `processorId` and `hook` say where.",
    "PROCESSOR_TIMEOUT": "A hook took longer than its `timeout`; or a `processOutputResult` did not end soon after the "
    "run was cancelled, which then has no text.",
    "STRUCTURED_OUTPUT_FAILED": "The second model gave no object that fits.",
    "PROCESSOR_RETURNED_INVALID_VALUE": "A hook returned what it may not; the message says what it may.",
    "PROCESSOR_RETURNED_EXTERNAL_MESSAGE_LIST": "A hook returned a message list that is not the run's.",
    "PROCESSOR_RETURNED_MESSAGES_AND_MESSAGE_LIST": "A step hook returned messages and a message list.",
    "PROCESSOR_RETURNED_UNSUPPORTED_MODEL": "A step hook chose a model that LiteLLM does not know.",
    "PARALLEL_PROCESSOR_CHANGED_INPUT": "A processor beside the model call changed messages, which it may only read.",
    "UNSUPPORTED": "A step was given what only an agent or a request can have, or the request a place of its own for "
    "a provider whose key cannot be withheld; the message says which.",
    "STATE_NOT_JSON": "A processor put into its state what is no JSON.",
    "CONTEXT_NOT_JSON": "The same, into messages or the request context.",
    "CONTEXT_TOO_LONG": "States, messages and steps of the run have more than 128 MB as JSON; the message says whose.",
    "CHUNK_NOT_SENDABLE": "A chunk is no JSON, or longer than a message of NATS.",
    "COMMAND_TOO_LONG": "What a service is to do next is longer than a message of NATS, as with very long options.",
    "WORK_FAILED": "A service gave up a part of the run, after five deliveries.",
    "STATE_LOST": "Redis has lost its data, and with them what it knew of the run; or nobody could read what it knows, "
    "up to the deadline of the run.",
    "INTERNAL": "The request could not be handled, after five deliveries; the log of the service says why.",
    "UNKNOWN_OPERATION": "Threads: there is no such operation.",
    "UNKNOWN_THREAD": "Threads: the resource has no such thread.",
    "THREAD_EXISTS": "Threads: it has one of that name already.",
    "INVALID_UPDATE": "Threads: working memory cannot be changed so.",
    "NOTE_CHANGED": "Threads: working memory is not what was expected.",
}
"""Codes and what they mean."""
