"""`memory-input-filter.json`: a thread, a request, and what of the request is left."""

from typing import Any

from procession_services.memory.input_filter import MemoryInputFilter
from tests.vectors.adapters.common import from_message, to_message
from tests.vectors.adapters.memory_run import MemoryRun, rows, thrown
from tests.vectors.adapters.memory_stage import DictMessages, memory_context, resource_of


async def observe(vector: dict[str, Any]) -> Any:
    """Runs the hook; the clients' messages are added as a request adds them, so neighbours may merge."""
    given = vector["input"]
    context = given.get("context")
    store = DictMessages()
    thread = (context or {}).get("threadId") or ((context or {}).get("thread") or {}).get("id") or "t1"
    for number, row in enumerate(rows(vector)):
        store.add_message(
            resource_of(context),
            row.get("threadId", thread),
            {"createdAt": _at(0, number), **to_message(row)},
        )
    if told := vector["expected"].get("throws"):  # nothing else says that the store fails
        store.fails = ConnectionError(str(told.get("message") if isinstance(told, dict) else told))
    run = MemoryRun(MemoryInputFilter.build(vector["options"]), store, memory_context(context))
    if given.get("messageListThreadId"):
        run.list.thread_id, run.list.resource_id = given["messageListThreadId"], "r1"
    for number, told in enumerate(given["incoming"]):
        run.list.add({"createdAt": _at(1, number), **to_message(told)}, "input")
    error = await run.input()
    observed: dict[str, Any] = {"input": [from_message(message) for message in run.list.get.input.db()]}
    return observed | ({"throws": thrown(error)} if error else {})


def _at(hour: int, number: int) -> str:
    return f"2024-01-01T{hour:02}:{number // 60:02}:{number % 60:02}.000Z"
