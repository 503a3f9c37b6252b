"""Models and a store for processors under test: scripted answers, values in a dict."""

from collections.abc import Callable
from typing import Any

from procession.services import Environment, KeyValueStore, ModelAnswer, ModelCallError, ModelRequest
from procession.usage import ModelUsage, Scope, UsageBooks, UsageSum

Reply = str | ModelAnswer | ModelCallError
"""What a scripted model says: a text (JSON where a schema was asked for), a whole answer, or a failure."""


class ScriptedModels:
    """Answers with `replies`, in order (the last one again and again), or with what `replies(request)` gives.

    `requests` are the questions so far.
    """

    def __init__(self, replies: "list[Reply] | Callable[[ModelRequest], Reply]" = ()) -> None:  # type: ignore[assignment]
        self._replies = replies if callable(replies) else list(replies)
        self.requests: list[ModelRequest] = []

    async def generate(self, request: ModelRequest, *, tenant: str) -> ModelAnswer:  # noqa: ARG002 - the port's
        """The next reply; raises ModelCallError when the reply is one, or when none was scripted."""
        self.requests.append(request)
        if callable(self._replies):
            reply = self._replies(request)
        elif self._replies:
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        else:
            raise ModelCallError("no reply was scripted")
        if isinstance(reply, ModelCallError):
            raise reply
        return ModelAnswer(text=reply) if isinstance(reply, str) else reply


class DictStore:
    """A `KeyValueStore` in memory; `now` decides what has expired."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = now
        self._values: dict[str, tuple[Any, float | None]] = {}

    async def get(self, key: str) -> Any:
        """The value, or None."""
        value, until = self._values.get(key, (None, None))
        return None if until is not None and until <= self._now() else value

    async def put(self, key: str, value: Any, *, ttl: float | None = None, only_new: bool = False) -> bool:
        """Stores a value."""
        if only_new and await self.get(key) is not None:
            return False
        self._values[key] = (value, None if ttl is None else self._now() + ttl)
        return True

    async def delete(self, *keys: str) -> None:
        """Removes values and sets."""
        for key in keys:
            self._values.pop(key, None)

    async def add(self, key: str, amount: float, *, ttl: float | None = None) -> float:
        """Adds to a number."""
        have = await self.get(key)
        if have is None:
            await self.put(key, amount, ttl=ttl)
            return amount
        self._values[key] = (have + amount, self._values[key][1])
        return float(have + amount)

    async def insert(self, key: str, *members: str, ttl: float | None = None) -> None:
        """Puts strings into a set."""
        await self.put(key, (await self.members(key)) | set(members), ttl=ttl)

    async def members(self, key: str) -> set[str]:
        """The strings of a set."""
        return set(await self.get(key) or ())


class DictUsage:
    """Books of usage in memory: calls are entered with `add`; a window counts from `now`. One for all tenants."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = now
        self._calls: list[tuple[float, Scope, str, ModelUsage]] = []

    def add(
        self,
        scope: Scope,
        key: str,
        cost: float | None,
        *,
        model: str = "test/model",
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """Enters one call; a cost of None is not known."""
        usage = ModelUsage(
            model=model,
            cost=cost,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            calls=1,
            unpriced_calls=int(cost is None),
        )
        self._calls.append((self._now(), scope, key, usage))

    async def read(self, tenant: str, scope: Scope, key: str, window_seconds: float | None) -> UsageSum:  # noqa: ARG002 - the port's
        """The sum of the calls in the window."""
        since = float("-inf") if window_seconds is None else self._now() - window_seconds
        by_model: dict[str, list[ModelUsage]] = {}
        for at, *of, usage in self._calls:
            if at >= since and of == [scope, key]:
                by_model.setdefault(usage.model, []).append(usage)
        return UsageSum.of([_sum(model, calls) for model, calls in by_model.items()])


def _sum(model: str, calls: list[ModelUsage]) -> ModelUsage:
    total = UsageSum.of(calls)
    return ModelUsage(
        model=model,
        cost=total.cost,
        input_tokens=total.input_tokens,
        output_tokens=total.output_tokens,
        calls=total.calls,
        unpriced_calls=total.unpriced_calls,
    )


def environment(
    models: ScriptedModels | None = None,
    store: KeyValueStore | None = None,
    now: Callable[[], float] = lambda: 0.0,
    log: Callable[[str], None] = lambda _text: None,
    usage: UsageBooks | None = None,
) -> Environment:
    """An environment for a kit: one store and one set of books for all tenants."""
    kept = store or DictStore(now)
    return Environment(
        models=models or ScriptedModels(),
        store=lambda _tenant: kept,
        now=now,
        log=log,
        usage=usage or DictUsage(now),
    )
