"""A demonstration tool: arithmetic on a parsed expression; nothing is ever evaluated as code."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import Field

from procession.tools import tool

_BITS: Final = 1000
_EXACT: Final = 2**53
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_LANGUAGE: Final = "Numbers, + - * / // % **, and parentheses, such as (2 + 3) * 4"
_TOO_LARGE: Final = "the result is too large"


@tool
def calculator(
    expression: Annotated[str, Field(min_length=1, max_length=500, description=_LANGUAGE)],
) -> int | float:
    """Calculates an arithmetic expression."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"not an arithmetic expression: {expression!r}") from error
    result: int | float = _value(tree.body)
    return float(result) if abs(result) > _EXACT else result


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _bounded(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _combine(_BINARY[type(op)], _value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
    raise ValueError(f"only numbers and + - * / // % ** are known, not `{ast.unparse(node)}`")


def _combine(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Applies an operator to bounded numbers; powers are judged before they are made."""
    whole = isinstance(left, int) and isinstance(right, int)
    if function is operator.pow and whole and (left.bit_length() - 1) * right > _BITS:
        raise ValueError(_TOO_LARGE)
    try:
        return _bounded(function(left, right))
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error
    except OverflowError as error:
        raise ValueError(_TOO_LARGE) from error


def _bounded(value: Any) -> Any:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")  # noqa: TRY004 - a matter of values
    if value.bit_length() > _BITS if isinstance(value, int) else not math.isfinite(value):
        raise ValueError(_TOO_LARGE)
    return value
