import pytest

from procession.errors import ProcessionError
from procession.services import NO_ENVIRONMENT
from procession.testing import DictUsage
from procession.usage import ModelUsage, UsageSum, scope_keys


def test_the_reserved_keys_come_before_the_memory_entry():
    memory = {"MastraMemory": {"thread": {"id": "t"}, "resourceId": "r"}}
    assert scope_keys(memory, "run-1") == {"run": "run-1", "thread": "t", "resource": "r"}
    reserved = {**memory, "mastra__threadId": "t2", "mastra__resourceId": "r2"}
    assert scope_keys(reserved, "run-1") == {"run": "run-1", "thread": "t2", "resource": "r2"}


@pytest.mark.parametrize(
    "context", [{}, {"MastraMemory": None}, {"MastraMemory": {"thread": None}}, {"MastraMemory": 5}]
)
def test_what_is_not_named_is_no_scope(context):
    assert scope_keys(context, "run-1") == {"run": "run-1"}


def test_only_strings_name_users_organizations_and_sessions():
    named = {"userId": "u", "organizationId": "o", "sessionId": "s"}
    assert scope_keys(named, "") == {"user": "u", "organization": "o", "session": "s"}
    assert scope_keys({"userId": 5, "organizationId": "", "sessionId": ["s"]}, "") == {}


def test_a_sum_of_nothing_is_known_and_one_of_unknowns_is_not():
    unknown = ModelUsage(model="a/b", cost=None, calls=2, unpriced_calls=2)
    assert UsageSum.of([]).cost == 0.0
    assert UsageSum.of([unknown]).cost is None
    assert UsageSum.of([unknown, ModelUsage(model="a/c", cost=0.0, calls=1)]).cost == 0.0


async def test_books_in_memory_forget_what_left_the_window():
    now = [1000.0]
    books = DictUsage(lambda: now[0])
    books.add("user", "u", 1.0, model="a/b", input_tokens=5)
    now[0] = 1100.0
    books.add("user", "u", None, model="a/b")
    books.add("user", "other", 7.0)
    assert (await books.read("t", "user", "u", 100)).cost == 1.0
    spent = await books.read("t", "user", "u", 99)
    assert (spent.cost, spent.calls, spent.unpriced_calls) == (None, 1, 1)
    assert (await books.read("t", "user", "u", None)).breakdown[0].input_tokens == 5


async def test_without_a_service_there_are_no_books():
    with pytest.raises(ProcessionError, match="usage is not available"):
        await NO_ENVIRONMENT.usage.read("t", "user", "u", None)
