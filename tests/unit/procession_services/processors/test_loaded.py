"""Names in the store, by conversation."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from procession.testing import DictStore
from procession_services.processors.loaded import LoadedNames, scope_of


@dataclass
class Run:
    run_id: str = "r"
    request_context: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("context", "scope"),
    [
        ({"mastra__threadId": "a", "MastraMemory": {"thread": {"id": "b"}}}, "thread:a:a"),
        ({"MastraMemory": {"thread": {"id": "b"}}}, "thread:b:b"),
        ({"MastraMemory": {"thread": {"id": "c"}, "resourceId": "a:b"}}, "thread:a%3Ab:c"),
        ({"MastraMemory": {"thread": {"id": "b:c"}, "resourceId": "a"}}, "thread:a:b%3Ac"),
        ({"mastra__threadId": "", "MastraMemory": {}}, "run:r"),
        ({"mastra__threadId": 1, "MastraMemory": "x"}, "run:r"),
        ({}, "run:r"),
    ],
)
def test_whose_names_they_are(context, scope):
    assert scope_of(Run(request_context=context)) == scope


async def test_order_and_renewal_and_keeping():
    now = [0.0]
    clock = lambda: now[0]  # noqa: E731
    loaded = LoadedNames(DictStore(clock), clock, "owner", "scope", 10)
    await loaded.add(["b", "a"])
    now[0] = 1
    await loaded.add(["c", "b"])
    assert await loaded.names() == ["b", "a", "c"]
    now[0] = 10
    assert len(await loaded.names()) == 3  # and renews
    await loaded.keep(["c"])
    now[0] = 19
    assert await loaded.names() == ["c"]
    now[0] = 30
    assert await loaded.names() == []
    await loaded.keep([])
    assert await loaded.names() == []
