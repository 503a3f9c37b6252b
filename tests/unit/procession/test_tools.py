"""Tools from functions: what the model is told, and what the function gets."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import BaseModel, Field, model_validator

from procession.errors import InvalidOptionsError
from procession.processor import Options
from procession.tools import InvalidArgumentsError, Tool, ToolContext, ToolSuspended, tool


class _Writer:
    async def custom(self, chunk: Any) -> None:
        raise AssertionError

    async def write(self, output: Any) -> None:
        raise AssertionError


def context() -> ToolContext:
    return ToolContext(tool_call_id="c1", tool_name="named", run_id="r1", tenant="t", writer=_Writer())


class Unit(Enum):
    METRE = "m"
    FOOT = "ft"


class Leg(BaseModel):
    to: str
    on: date


@dataclass
class Point:
    x: int
    y: int = 0


def test_signature_and_docstring_describe_the_tool() -> None:
    @tool
    def get_weather(
        city: Annotated[str, Field(description="Name of the city.")],
        days: Annotated[int, Field(ge=1)] = 1,
        unit: Literal["c", "f"] = "c",
    ) -> str:
        """Tells the weather."""
        return city

    assert issubclass(get_weather, Tool)
    assert get_weather.id == "get-weather"
    assert get_weather.description == "Tells the weather."
    assert get_weather.__module__ == __name__
    assert get_weather.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city."},
            "days": {"type": "integer", "minimum": 1, "default": 1},
            "unit": {"enum": ["c", "f"], "type": "string", "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_the_decorator_s_arguments() -> None:
    @tool(id="other", require_approval=True, resume_schema={"type": "object"})
    def named() -> None:
        pass

    assert (named.id, named.require_approval, named.resume_schema) == ("other", True, {"type": "object"})
    assert named.description == ""
    assert tool(lambda: None).resume_schema is None


def test_arguments_become_what_the_annotations_say() -> None:
    @tool
    def travel(legs: list[Leg], unit: Unit, start: Point, when: date | None = None) -> tuple[Any, ...]:
        return legs, unit, start, when

    args = {"legs": [{"to": "Oslo", "on": "2026-01-02"}], "unit": "ft", "start": {"x": 1}}
    assert travel().execute(args, context()) == (
        [Leg(to="Oslo", on=date(2026, 1, 2))],
        Unit.FOOT,
        Point(1, 0),
        None,
    )


def test_wrong_arguments_are_named_field_by_field() -> None:
    @tool
    def travel(legs: list[Leg], days: int) -> None:
        raise AssertionError

    with pytest.raises(InvalidArgumentsError) as caught:
        travel().execute({"legs": [{"to": "Oslo", "on": "soon"}], "days": "x", "more": 1}, context())
    assert set(caught.value.fields) == {"legs.0.on", "days", "more"}
    lines = str(caught.value).splitlines()
    assert lines[0] == "The arguments do not fit the tool 'named':"
    assert any(line.startswith("- legs.0.on: Input should be a valid date") for line in lines)
    with pytest.raises(InvalidArgumentsError, match="- arguments: "):
        travel().execute([], context())


def test_the_context_is_given_and_not_described() -> None:
    seen: list[ToolContext] = []

    @tool
    def look(x: int, told: ToolContext) -> None:
        seen.append(told)

    given = context()
    look().execute({"x": 1}, given)
    assert seen == [given]
    assert list(look.parameters["properties"]) == ["x"]


def test_a_context_that_may_be_none_is_given_too() -> None:
    @tool
    def optional(a: int, seen: ToolContext | None = None) -> str:
        return seen.run_id if seen else ""

    @tool
    def annotated(seen: Annotated[ToolContext | None, "ours"], a: int) -> str:
        return seen.run_id if seen else ""

    @tool
    def in_quotes(a: int, seen: "ToolContext | None" = None) -> str:
        return seen.run_id if seen else ""

    for kind in (optional, annotated, in_quotes):
        assert list(kind.parameters["properties"]) == ["a"]
        assert kind({}).execute({"a": 1}, context()) == "r1"


class NoJson:
    pass


def test_a_parameter_that_has_no_schema_is_named_with_its_tool() -> None:
    def unknown(a: int, link: NoJson) -> None: ...

    def calling(a: int, back: Callable[[], int]) -> None: ...

    def misspelt(a: int, seen: "ToolContxt") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, parameter in ((unknown, "link"), (calling, "back"), (misspelt, "seen")):
        with pytest.raises(TypeError, match=f"tool {function.__name__}: .*`{parameter}`"):
            tool(function)


async def test_a_coroutine_stays_one_so_that_others_can_run_in_a_thread() -> None:
    @tool
    async def later(x: int) -> int:
        return x

    @tool
    def now(x: int) -> int:
        return x

    assert inspect.iscoroutinefunction(later.execute)
    assert not inspect.iscoroutinefunction(now.execute)
    assert await later().execute({"x": 1}, context()) == 1
    assert now().execute({"x": 1}, context()) == 1


def test_parameters_may_have_any_name() -> None:
    @tool
    def odd(json: int, _private: int, schema: int, title: str, *, model_fields: int = 4) -> tuple[Any, ...]:
        return json, _private, schema, title, model_fields

    assert list(odd.parameters["properties"]) == ["json", "_private", "schema", "title", "model_fields"]
    args = {"json": 1, "_private": 2, "schema": 3, "title": "t"}
    assert odd().execute(args, context()) == (1, 2, 3, "t", 4)


def test_what_cannot_be_an_argument_is_refused_when_the_tool_is_made() -> None:
    def many(*args: int) -> None: ...
    def open_ended(**kwargs: int) -> None: ...
    def placed(x: int, /) -> None: ...
    def with_default(x: int = Field(ge=1)) -> None: ...

    for function in (many, open_ended, placed):
        with pytest.raises(TypeError, match=f"tool {function.__name__}: .* cannot be an argument"):
            tool(function)
    with pytest.raises(TypeError, match=r"write `x: Annotated\[..., Field\(...\)\]`"):
        tool(with_default)


def test_a_tool_without_options_refuses_them() -> None:
    made = tool(id="plain")(lambda: None)
    assert made({}).options == Options()
    with pytest.raises(
        InvalidOptionsError, match="tool plain: color: Extra inputs are not permitted"
    ) as caught:
        made({"color": 1})
    assert set(caught.value.fields) == {"color"}


def test_options_are_read_in_either_spelling() -> None:
    class ShopOptions(Options):
        max_items: int = 3

    class Shop(Tool):
        id = "shop"
        options_type = ShopOptions

    assert Shop({"maxItems": 5}).options.max_items == 5
    assert Shop({"max_items": 5}).options.max_items == 5
    assert Shop().options.max_items == 3
    with pytest.raises(InvalidOptionsError, match="tool shop: maxItems: "):
        Shop({"maxItems": "many"})


def test_options_that_do_not_go_together_are_wrong_as_a_whole() -> None:
    class RangeOptions(Options):
        low: int = 0
        high: int = 9

        @model_validator(mode="after")
        def _in_order(self) -> Self:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    class Range(Tool):
        id = "range"
        options_type = RangeOptions

    with pytest.raises(InvalidOptionsError, match=r"tool range: options: .*low is above high") as caught:
        Range({"low": 10})
    assert list(caught.value.fields) == [""]  # so that its path is that of the options


def test_suspend_ends_the_function() -> None:
    with pytest.raises(ToolSuspended) as caught:
        context().suspend({"question": 1})
    assert caught.value.payload == {"question": 1}


def test_a_base_tool_asks_nobody_shows_everything_and_does_nothing() -> None:
    class Bare(Tool):
        id = "bare"

    bare = Bare()
    assert bare.needs_approval({}, context().request_context) is False
    assert bare.model_output([1]) == [1]
    with pytest.raises(NotImplementedError):
        bare.execute({}, context())
