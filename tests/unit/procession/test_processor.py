from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, Field, ValidationError

from procession.errors import BrokenComponentError, InvalidOptionsError
from procession.processor import INPUT_HOOKS, METHODS, OUTPUT_HOOKS, Hook, Options, Processor
from tests.unit.procession.making import processor


class LimitOptions(Options):
    """Options."""

    max_words: int = Field(default=5, gt=0)
    strategy: str = "block"


class Limit(Processor[LimitOptions]):
    """Has options and a hook."""

    id = "limit"

    def process_input(self, args):
        return None


class Derived(Limit):
    """Inherits both."""

    id = "derived"

    async def process_output_step(self, args):
        return None


T = TypeVar("T", bound=Options)


class Family(Processor[T], Generic[T]):
    """A base with an open option model."""

    def process_input(self, args):
        return None


class Member(Family[LimitOptions]):
    """Closes it."""

    id = "member"


def test_every_hook_has_a_method_that_the_base_does_not_implement():
    assert set(METHODS) == set(Hook)
    for method in METHODS.values():
        with pytest.raises(NotImplementedError):
            getattr(Processor(Options()), method)(None)


def test_the_hooks_are_those_that_are_overridden():
    """R-PR-1."""
    assert Limit.hooks_for({}) == {Hook.INPUT}
    assert Derived.hooks_for({}) == {Hook.INPUT, Hook.OUTPUT_STEP}
    assert processor().hooks_for({}) == frozenset()
    assert {*INPUT_HOOKS, *OUTPUT_HOOKS, Hook.API_ERROR} == set(Hook)


@pytest.mark.parametrize("named", [{Hook.INPUT}, {"processInput"}, ["process_input"]])
def test_hooks_may_be_named_in_either_spelling(named):
    kind = processor(hooks_for=classmethod(lambda cls, options: named))
    assert kind.traits({}).hooks == {Hook.INPUT}


@pytest.mark.parametrize(
    "named", [{"process_inputs"}, "process_input", None, {Hook.INPUT, 5}, [["process_input"]]]
)
def test_what_is_no_hook_is_refused(named):
    kind = processor("guard", hooks_for=classmethod(lambda cls, options: named))
    with pytest.raises(BrokenComponentError, match=r"^processor guard: TypeError: "):
        kind.traits({})


@pytest.mark.parametrize("method", ["hooks_for", "runs_parallel", "sees_data_parts"])
def test_what_a_processor_says_of_itself_may_fail(method):
    def fails(cls, options):
        return options["missing"]

    hooks = dict.fromkeys(("process_input", "process_output_stream"), lambda args: None)
    kind = processor("guard", **hooks, **{method: classmethod(fails)})
    with pytest.raises(BrokenComponentError, match=r"^processor guard: KeyError: 'missing'$"):
        kind.traits({})


def test_a_constructor_that_fails_names_its_processor_and_says_where():
    def connect(self, options):
        raise RuntimeError("no\ndatabase")

    kind: Any = type("Connected", (Limit,), {"__init__": connect, "__module__": __name__})
    with pytest.raises(BrokenComponentError, match=r"^processor limit: RuntimeError: no database$") as caught:
        kind.build()
    line = connect.__code__.co_firstlineno + 1
    assert caught.value.told == f"processor limit: RuntimeError: no database ({__file__}:{line})"


def test_the_option_model_is_found_through_bases():
    assert Limit.options_type() is LimitOptions
    assert Derived.options_type() is LimitOptions
    assert Member.options_type() is LimitOptions
    assert processor().options_type() is Options


class Plain(BaseModel):
    """Looks like an option model."""

    word: str = "x"


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (Plain, "which does not derive from procession.Options"),
        (dict, "dict, which does not derive"),
        (dict[str, int], "which does not derive"),
        ("LimitOptions", "the string 'LimitOptions'; name the class itself"),
    ],
)
def test_an_option_model_that_is_none_is_told(argument, told):
    """Its fields were unknown options, and the hooks met a model without any."""

    class Wrong(Processor[argument]):  # type: ignore[valid-type]
        id = "wrong"

    class Below(Wrong):
        id = "below"

    with pytest.raises(
        BrokenComponentError, match=rf"^processor below: the option model of Wrong is .*{told}"
    ):
        Below.build({"word": "y"})


def test_any_option_model_is_one_without_options():
    class Anything(Processor[Any]):
        id = "anything"

    assert Anything.options_type() is Options


@pytest.mark.parametrize("spelling", ["maxWords", "max_words"])
def test_options_come_in_both_spellings(spelling):
    assert Limit.build({spelling: 7}).options.max_words == 7


def test_without_options_the_defaults_count():
    assert Limit.build().options == LimitOptions()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"maxWords": 0}, "maxWords"),
        ({"maxWrods": 1}, "maxWrods"),
        ({"strategy": 5}, "strategy"),
        ({"maxWords": "x"}, "maxWords"),
    ],
)
def test_wrong_options_are_named(options, field):
    with pytest.raises(InvalidOptionsError, match=f"processor limit: {field}: ") as caught:
        Limit.build(options)
    assert list(caught.value.fields) == [field]


class Choice(Options):
    limit: int | float = 1
    kinds: list[str | LimitOptions] | None = None


def test_what_fits_no_branch_of_an_option_is_told_once_and_where_its_author_wrote_it():
    class Choosing(Processor[Choice]):
        id = "choosing"

    with pytest.raises(InvalidOptionsError) as caught:
        Choosing.build({"limit": "many", "kinds": ["a", {"max_wrods": 1}]})
    assert list(caught.value.fields) == ["limit", "kinds.1.max_wrods"]
    assert " or " in caught.value.fields["limit"]


def test_options_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Limit.build().options.max_words = 1  # type: ignore[misc]


def test_data_parts_are_for_those_who_ask():
    assert not Limit.sees_data_parts({})
    assert processor(process_data_parts=True).sees_data_parts({})


def test_nothing_listens_to_violations_unless_it_is_overridden():
    assert Limit.build().on_violation(None) is None  # type: ignore[arg-type]
