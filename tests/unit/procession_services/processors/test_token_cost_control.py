import pytest

from procession.errors import InvalidOptionsError
from procession.services import NO_ENVIRONMENT, book_keys
from procession.testing import DictUsage, ProcessorKit, environment
from procession_services.processors.token_cost_control import TokenCostControl

ME = {"mastra__resourceId": "me"}
DAY = 86_400


class Broken:
    async def read(self, tenant, scope, key, window_seconds):
        raise ConnectionError("redis://secret@host does not answer")


def kit(
    spent=(),
    *,
    kind=TokenCostControl,
    books=None,
    now=lambda: 0.0,
    context=ME,
    log=lambda _text: None,
    **options,
):
    books = books or DictUsage(now)
    for scope, key, cost in spent:
        books.add(scope, key, cost)
    options = {"maxCost": 1, **options} if kind is TokenCostControl else options
    made = environment(usage=books, now=now, log=log)
    return ProcessorKit(kind, options, environment=made, request_context=context)


async def test_below_the_limit_nothing_happens():
    run = kit([("resource", "me", 0.99), ("resource", "you", 5.0), ("thread", "me", 5.0)])
    outcome = await run.input_step()
    assert (outcome.tripwire, run.violations) == (None, [])


async def test_at_the_limit_the_run_ends_and_the_violation_is_told():
    run = kit([("resource", "me", 0.7), ("resource", "me", 0.3)])
    tripwire = (await run.input_step()).tripwire
    assert not tripwire.retry
    assert tripwire.metadata == {
        "processorId": "token-cost-control",
        "usage": {"estimatedCost": 1.0, "costUnit": "usd"},
        "maxCost": 1,
        "scope": "resource",
        "scopeKey": "resource:me",
        "threshold": "hard",
    }
    assert len(run.violations) == 1


async def test_warnings_come_once_a_run_for_each_threshold():
    warnings: list[str] = []
    books = DictUsage()
    run = kit(books=books, strategy="warn", warnAtPercent=50, log=warnings.append)
    for cost in (0.4, 0.1, 0.1, 0.4, 0.4):
        books.add("resource", "me", cost)
        assert (await run.input_step()).tripwire is None
    assert [violation.detail["threshold"] for violation in run.violations] == ["soft", "hard"]
    assert len(warnings) == 2
    soft = run.violations[0].detail
    assert (soft["usage"], soft["limit"], soft["scopeKey"]) == (0.5, 1, "resource:me")
    assert soft["totalUsage"] == {"estimatedCost": 0.5, "costUnit": "usd"}


@pytest.mark.parametrize(
    ("scope", "context"),
    [
        ("thread", {"MastraMemory": {"thread": {"id": "k"}, "resourceId": "r"}}),
        ("resource", {"MastraMemory": {"thread": {"id": "t"}, "resourceId": "k"}}),
        ("user", {"userId": "k"}),
        ("organization", {"organizationId": "k"}),
        ("session", {"sessionId": "k"}),
    ],
)
async def test_each_scope_has_its_key_and_is_skipped_without_one(scope, context):
    spent = [(scope, book_keys(context, "")[scope], 2.0)]
    assert (await kit(spent, scope=scope, context=context).input_step()).tripwire.metadata[
        "scopeKey"
    ] == f"{scope}:k"
    assert (await kit(spent, scope=scope, context={}).input_step()).tripwire is None


async def test_threads_of_the_same_name_pay_for_themselves():
    """D-86: two resources have two threads, and neither is told what the other's cost."""
    spent = [("thread", book_keys(thread_of("ann"), "")["thread"], 2.0)]
    assert (await kit(spent, scope="thread", context=thread_of("ann")).input_step()).tripwire is not None
    assert (await kit(spent, scope="thread", context=thread_of("bob")).input_step()).tripwire is None


def thread_of(resource):
    return {"MastraMemory": {"thread": {"id": "chat"}, "resourceId": resource}}


async def test_a_run_is_summed_as_a_whole_and_a_tenant_over_all_its_calls():
    tripwire = (await kit([("run", "run-1", 2.0)], scope="run").input_step()).tripwire
    assert "scopeKey" not in tripwire.metadata
    assert (await kit([("tenant", "test", 2.0)], scope="tenant").input_step()).tripwire
    assert (await kit([("run", "run-2", 2.0)], scope="run").input_step()).tripwire is None


@pytest.mark.parametrize(
    ("window", "seconds"), [("1h", 3600), ("6h", 21_600), ("24h", DAY), ("7d", 7 * DAY), ("365d", 365 * DAY)]
)
async def test_costs_leave_the_window(window, seconds):
    now = [0.0]
    books = DictUsage(lambda: now[0])
    books.add("resource", "me", 2.0)
    run = kit(books=books, now=lambda: now[0], window=window, strategy="warn")
    now[0] = float(seconds)
    await run.input_step()
    assert len(run.violations) == 1
    now[0] += 1
    other = kit(books=books, now=lambda: now[0], window=window)
    assert (await other.input_step()).tripwire is None


# --- what is not known ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unknown", "blocked", "warned"), [("allow", False, 0), ("warn", False, 1), ("block", True, 0)]
)
async def test_the_policy_decides_about_an_unknown_price(unknown, blocked, warned):
    warnings: list[str] = []
    run = kit([("resource", "me", None)], unknown=unknown, log=warnings.append)
    assert bool((await run.input_step()).tripwire) == blocked
    await run.input_step()
    assert len(warnings) == warned


@pytest.mark.parametrize("unknown", ["allow", "block"])
async def test_known_costs_over_the_limit_count_whatever_else_is_unknown(unknown):
    run = kit([("resource", "me", None), ("resource", "me", 1.5)], unknown=unknown)
    assert (await run.input_step()).tripwire.metadata["threshold"] == "hard"


@pytest.mark.parametrize("spent", [[], [("resource", "me", 0.0)]])
async def test_a_cost_of_zero_is_known(spent):
    warnings: list[str] = []
    assert (await kit(spent, unknown="block", log=warnings.append).input_step()).tripwire is None
    assert not warnings


@pytest.mark.parametrize("books", [Broken(), NO_ENVIRONMENT.usage], ids=["broken", "none"])
async def test_a_cost_that_cannot_be_read_ends_the_run_unless_the_user_wants_otherwise(books):
    tripwire = (await kit(books=books).input_step()).tripwire
    assert "could not check" in tripwire.reason
    assert "secret" not in tripwire.reason
    warnings: list[str] = []
    assert (await kit(books=books, errorStrategy="warn", log=warnings.append).input_step()).tripwire is None
    assert len(warnings) == 1


# --- limits, texts, options ---------------------------------------------------------------------------


async def test_a_subclass_decides_the_limit():
    class ByTier(TokenCostControl):
        async def max_cost(self, request_context):
            return {"pro": 10, "free": 0.1, "broken": "much"}[request_context["tier"]]

    for tier, blocked in {"pro": False, "free": True, "broken": True, "unheard": True}.items():
        run = kit([("resource", "me", 2.0)], kind=ByTier, context={**ME, "tier": tier})
        tripwire = (await run.input_step()).tripwire
        assert bool(tripwire) == blocked
        assert not blocked or ("usage" in tripwire.metadata) == (tier == "free")


async def test_the_text_has_rounded_amounts_in_the_first_placeholders():
    run = kit([("resource", "me", 0.1 + 0.2)], maxCost=0.25, message="{usage} of {limit}; {usage}")
    assert (await run.input_step()).tripwire.reason == "0.3 of 0.25; {usage}"


async def test_the_text_is_of_the_limit_and_not_of_the_part_at_which_it_warns():
    run = kit([("resource", "me", 0.5)], warnAtPercent=50, message="used up: {usage} of {limit}")
    await run.input_step()
    assert [violation.message for violation in run.violations] == ["50% of the cost limit reached: 0.5 of 1"]


async def test_the_breakdown_names_the_dearest_ten_models():
    books = DictUsage()
    for number in range(12):
        books.add("resource", "me", float(number + 1), model=f"p/m{number}")
    run = kit(books=books, includeBreakdown=True)
    groups = (await run.input_step()).tripwire.metadata["breakdown"]
    assert len(groups) == 10
    assert groups[0] == {"provider": "p", "model": "m11", "estimatedCost": 12.0, "costUnit": "usd"}
    assert "breakdown" not in (await kit([("resource", "me", 2.0)]).input_step()).tripwire.metadata


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxCost": 0},
        {"maxCost": -1},
        {"maxCost": float("nan")},
        {"maxCost": float("inf")},
        {"maxCost": True},
        {"maxCost": 1, "warnAtPercent": 0},
        {"maxCost": 1, "warnAtPercent": 100},
        {"maxCost": 1, "window": "2h"},
        {"maxCost": 1, "scope": "planet"},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidOptionsError):
        TokenCostControl.build(options)
