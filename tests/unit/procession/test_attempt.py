"""The output of an attempt is found again in whatever processors made of its message (R-AB-28)."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.attempt import Attempt

STEP: Any = {"type": "step-start"}


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def tool(call_id: str, **rest: Any) -> Any:
    call = {"state": "result", "toolCallId": call_id, "toolName": "t", "args": {}, "result": 1, **rest}
    return {"type": "tool-invocation", "toolInvocation": call}


def data(value: int) -> Any:
    return {"type": "data-x", "data": value}


S0, C0, BAD = text("s0"), tool("c0"), text("BAD")


def message(*parts: Any) -> Any:
    return {"id": "r", "role": "assistant", "content": {"format": 2, "parts": [*parts]}}


def begun(accepted: Any = (S0, C0), output: Any = (BAD,)) -> tuple[Attempt, Any]:
    attempt, made = Attempt(), message(*accepted)
    attempt.write(made, output, {})
    return attempt, made


def test_a_message_whose_metadata_somebody_has_set_to_none_takes_output() -> None:
    """In place; what comes in has no such field then."""
    attempt, made = Attempt(), message(S0)
    made["content"]["metadata"] = None
    attempt.write(made, [BAD], {"modelId": "m"})
    assert made["content"]["metadata"] == {"modelId": "m"}
    assert left(attempt, made) == [S0]


def copied(value: Any) -> Any:
    return json.loads(json.dumps(value))


def travelled(attempt: Attempt, made: Any) -> tuple[Attempt, Any]:
    """The attempt as the next service has it."""
    attempt.follow(made)
    made = copied(made)
    return Attempt.from_dict(copied(attempt.to_dict()), made), made


def left(attempt: Attempt, made: Any) -> list[Any]:
    attempt.undo(made)
    return list(made["content"]["parts"])


REWRITTEN: dict[str, tuple[list[Any], list[Any]]] = {
    "nothing": ([S0, C0, STEP, BAD], [S0, C0]),
    "an earlier part is gone": ([C0, STEP, BAD], [C0]),
    "so is the separator": ([C0, BAD], [C0]),
    "a separator more": ([STEP, S0, C0, STEP, BAD], [STEP, S0, C0]),
    "separators in between": ([S0, STEP, C0, STEP, STEP, BAD], [S0, STEP, C0]),
    "the answer is gone": ([S0, C0], [S0, C0]),
    "the answer comes first": ([BAD, STEP, S0, C0], [STEP, S0, C0]),
    "all texts first": ([S0, BAD, C0], [S0, C0]),
    "all texts are others": ([text("S0"), C0, STEP, text("bad")], [text("S0"), C0]),
    "and the separator is gone": ([text("S0"), C0, text("bad")], [text("S0"), C0]),
    "a result is another": ([S0, tool("c0", result="[x]"), STEP, BAD], [S0, tool("c0", result="[x]")]),
    "notes everywhere": ([text("n"), S0, text("n"), C0, text("n"), STEP, BAD, text("n")],
                         [text("n"), S0, text("n"), C0, text("n")]),
    "one text in place of all": ([text("bad, rewritten")], [S0, C0]),
    "nothing in place of all": ([], [S0, C0]),
    "all texts in one": ([text("s0 BAD"), C0], [S0, C0]),
    "all texts in one, and a separator": ([text("s0 BAD"), C0, STEP], [S0, C0]),
}  # fmt: skip


@pytest.mark.parametrize("how", ["new parts", "in place", "in another service"])
@pytest.mark.parametrize("case", REWRITTEN)
def test_the_output_goes_and_what_was_accepted_stays(case: str, how: str) -> None:
    parts, expected = REWRITTEN[case]
    attempt, made = begun()
    if how == "in place":
        made["content"]["parts"][:] = copied(parts)
    else:
        made = message(*copied(parts))
    if how == "in another service":
        attempt, made = travelled(attempt, made)
    assert left(attempt, made) == expected


@pytest.mark.parametrize("edited", [data(2), data(1)])
def test_an_accepted_part_behind_the_last_call_stays(edited: Any) -> None:
    attempt, _ = begun((S0, C0, data(1)))
    assert left(attempt, message(S0, C0, edited, STEP, text("bad"))) == [S0, C0, edited]


def test_a_text_that_was_said_before_is_taken_out_once() -> None:
    attempt, _ = begun((text("ok"), C0), (text("ok"),))
    assert left(attempt, message(text("ok"), C0, text("ok"))) == [text("ok"), C0]
    attempt, _ = begun((text("ok"), C0), (text("ok"),))
    assert left(attempt, message(C0, STEP, text("ok"))) == [C0]


def test_a_call_of_the_attempt_goes_although_the_text_was_drawn_together() -> None:
    attempt, _ = begun(output=(BAD, tool("c1")))
    assert left(attempt, message(text("s0 BAD"), C0, tool("c1", result="other"))) == [S0, C0]


def test_parts_that_come_behind_a_rewriting_go_too() -> None:
    attempt, made = begun()
    del made["content"]["parts"][0]
    attempt, made = travelled(attempt, made)
    attempt.write(made, [data(1)], {})
    attempt, made = travelled(attempt, made)
    assert left(attempt, made) == [C0]


def test_what_takes_the_place_of_all_goes_in_a_later_service_too() -> None:
    attempt, made = begun()
    made["content"]["parts"] = [text("rewritten")]
    attempt, made = travelled(attempt, made)
    attempt.write(made, [data(1)], {})
    attempt, made = travelled(attempt, made)
    made["content"]["parts"].append(text("more"))
    assert left(attempt, made) == [S0, C0]


def test_what_was_there_before_the_first_output_stays() -> None:
    attempt, made = Attempt(), message(S0)
    attempt.follow(made)
    made["content"]["parts"][:] = [text("edited"), C0]
    attempt, made = travelled(attempt, made)
    attempt.write(made, [BAD], {})
    assert left(attempt, made) == [text("edited"), C0]


def test_an_untouched_message_keeps_nothing_twice() -> None:
    attempt, made = begun([part for n in range(50) for part in (text(f"s{n}"), tool(f"c{n}"), STEP)])
    attempt.follow(message(*copied(made["content"]["parts"])))
    stored = attempt.to_dict()
    assert (stored["output"], stored["answers"], stored["accepted"]) == ([150, 151], [], None)
    assert "c0" not in json.dumps(stored)


@given(st.randoms(use_true_random=False), st.integers(0, 3), st.integers(1, 3))
def test_whatever_is_dropped_edited_or_added_in_order_no_output_stays(
    chance: random.Random, steps: int, written: int
) -> None:
    attempt, made = begun(
        [part for n in range(steps) for part in (text(f"s{n}"), tool(f"c{n}"))],
        [text(f"BAD {n}") for n in range(written)],
    )
    for _ in range(chance.randint(1, 3)):
        parts = [again for part in made["content"]["parts"] for again in _changed(part, chance)]
        attempt, made = travelled(attempt, message(*parts))
    calls = [part for part in made["content"]["parts"] if "toolInvocation" in part]
    parts = left(attempt, made)
    assert "BAD" not in str(parts)
    assert all(call in parts for call in calls)


def _changed(part: Any, chance: random.Random) -> list[Any]:
    edited = text(part["text"] + "!") if part["type"] == "text" else part
    return chance.choice([[part], [part], [part], [part, STEP], [edited], []])


def test_the_cost_of_finding_it_is_linear() -> None:
    """Every text of a long run is rewritten: what took the square of it would take minutes."""
    accepted = [part for n in range(20_000) for part in (text(f"s{n}"), tool(f"c{n}"), STEP)]
    attempt, made = begun(accepted[:-1])
    parts = [text(p["text"].upper()) if p["type"] == "text" else p for p in made["content"]["parts"]]
    assert len(left(attempt, message(*parts))) == len(accepted) - 1
