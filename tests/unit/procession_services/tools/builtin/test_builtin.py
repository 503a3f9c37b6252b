"""The tools that come with Procession, run as a model would have them run."""

from typing import Any

import pytest

from procession_schemas.agent import ToolRef
from procession_schemas.work import ToolsOp
from procession_services.tools.builtin.calculator import calculator
from procession_services.tools.builtin.client import ClientTool
from procession_services.tools.builtin.weather import weather
from procession_services.tools.execute import run_tools
from procession_services.tools.execution import Executions
from tests.unit.procession_services.tools.jobs import FakeJob, call


async def outcome(name: str, **args: Any) -> dict[str, Any]:
    job = FakeJob([weather, calculator], [call("c1", name, **args)])
    await run_tools(ToolsOp(), job, Executions())
    return job.outcomes[0]


async def test_the_weather_of_a_city_is_always_the_same() -> None:
    paris = (await outcome("weather", city="Paris"))["result"]
    assert paris == (await outcome("weather", city=" paris "))["result"] | {"city": "Paris"}
    assert paris == {
        "city": "Paris",
        "temperature": paris["temperature"],
        "unit": "celsius",
        "conditions": paris["conditions"],
        "humidity": paris["humidity"],
        "source": "demonstration data",
    }
    cities = ["Paris", "Berlin", "Oslo", "Lima", "Cairo", "Quito", "Seoul", "Accra"]
    told = [(await outcome("weather", city=city))["result"] for city in cities]
    assert len({(t["temperature"], t["conditions"]) for t in told}) > 4
    assert all(-8 <= t["temperature"] <= 37 and 30 <= t["humidity"] <= 95 for t in told)


async def test_the_weather_comes_in_either_unit_and_no_other() -> None:
    celsius = (await outcome("weather", city="Paris"))["result"]["temperature"]
    fahrenheit = (await outcome("weather", city="Paris", unit="fahrenheit"))["result"]["temperature"]
    assert fahrenheit == round(celsius * 9 / 5 + 32)
    told = (await outcome("weather", city="", unit="kelvin"))["error"]["message"]
    assert "- city: " in told
    assert "- unit: 'kelvin' is not one of ['celsius', 'fahrenheit']" in told


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("-2 ** 2", -4),
        ("+7 // 2 - 7 % 4", 0),
        ("1 / 4", 0.25),
        ("2 ** 100", 2**100),
        ("2 ** -1", 0.5),
        (" 1e3 ", 1000.0),
        ("0.1 + 0.2", 0.1 + 0.2),
    ],
)
async def test_the_calculator_calculates(expression: str, value: float) -> None:
    assert (await outcome("calculator", expression=expression))["result"] == value


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("1 +", "not an arithmetic expression"),
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("2 ** 2000", "too large"),
        ("2 ** 1000 * 2 ** 1000", "too large"),
        ("1e308 * 10", "too large"),
        ("10.0 ** 400", "too large"),
        ("1e999", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("True + 1", "not `True`"),
        ("'a' * 3", "not `'a'`"),
        ("__import__('os')", "not `__import__('os')`"),
        ("().__class__", "not `().__class__`"),
        ("1 if 2 else 3", "not `1 if 2 else 3`"),
        ("1 & 3", "not `1 & 3`"),
        ("~1", "not `~1`"),
        ("2j", "not `2j`"),
        ("x", "not `x`"),
        ("(" * 250 + ")" * 250, "not an arithmetic expression"),
    ],
)
async def test_the_calculator_refuses_everything_else(expression: str, told: str) -> None:
    error = (await outcome("calculator", expression=expression))["error"]
    assert error["name"] == "ValueError"
    assert told in error["message"]


async def test_a_deep_expression_is_no_danger() -> None:
    assert (await outcome("calculator", expression="-" * 498 + "1"))["result"] == 1


async def test_numbers_that_json_cannot_hold_exactly_are_rounded() -> None:
    assert (await outcome("calculator", expression="2 ** 53"))["result"] == 2**53
    large = (await outcome("calculator", expression="-(2 ** 900)"))["result"]
    assert isinstance(large, float)
    assert large == -float(2**900)


async def test_the_caller_s_own_tool_is_described_and_left_alone() -> None:
    ref = ToolRef.checked(
        {
            "id": "client",
            "as": "pick-date",
            "description": "Opens a calendar.",
            "parameters": {"required": ["month"]},
        }
    )
    job = FakeJob([ClientTool], [call("c1", "pick-date", month=1), call("c2", "pick-date")], refs=[ref])
    await run_tools(ToolsOp(), job, Executions())
    assert [o["toolCallId"] for o in job.outcomes] == ["c2"]
    assert "- month: is required" in job.outcomes[0]["error"]["message"]
