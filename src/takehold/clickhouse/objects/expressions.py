"""Expressions: what an operator between two columns, or an aggregate of one, is in SQL."""

from __future__ import annotations

import re
from typing import Final

from takehold import UsageError

__all__ = ["AGGREGATES", "aggregate", "binary", "unary"]

UNSIGNED: Final = re.compile(r"(Nullable\()?UInt\d+\)?")
WHOLE: Final = re.compile(r"(Nullable\()?U?Int\d+\)?")
COMPARISONS: Final = {"==": "equals", "!=": "notEquals", "<": "less", "<=": "lessOrEquals", ">": "greater",
                      ">=": "greaterOrEquals"}  # fmt: skip
LOGIC: Final = {"&": "and", "|": "or"}
ARITHMETIC: Final = {"+": "plus", "-": "minus", "*": "multiply", "/": "divide", "**": "pow"}
AGGREGATES: Final = {"sum": "sum", "mean": "avg", "min": "min", "max": "max", "count": "count", "std": "stddevPop"}


def binary(operator: str, left: tuple[str, str], right: tuple[str, str]) -> str:
    """`left operator right`, each with its type. Whole numbers divide and take remainders as in Python."""
    (a, a_type), (b, b_type) = left, right
    if operator in COMPARISONS:
        return f"toBool({COMPARISONS[operator]}({a}, {b}))"
    if operator in LOGIC:
        _check_bool(operator, a_type, b_type)
        return f"toBool({LOGIC[operator]}({a}, {b}))"
    if operator == "+" and _is(a_type, "String") and _is(b_type, "String"):
        return f"concat({a}, {b})"
    unsigned = bool(UNSIGNED.fullmatch(a_type) and UNSIGNED.fullmatch(b_type))
    if operator == "%":
        if unsigned:
            return f"modulo({a}, {b})"
        # ClickHouse gives the remainder the sign of the dividend.
        rest = f"modulo({a}, {b})"
        return f"({rest} + if({rest} != 0 AND ({rest} < 0) != ({b} < 0), {b}, 0))"
    if operator == "//":
        if not (WHOLE.fullmatch(a_type) and WHOLE.fullmatch(b_type)):
            return f"floor(divide({a}, {b}))"
        if unsigned:
            return f"intDiv({a}, {b})"
        # ClickHouse rounds towards zero.
        return f"(intDiv({a}, {b}) - if(modulo({a}, {b}) != 0 AND ({a} < 0) != ({b} < 0), 1, 0))"
    return f"{ARITHMETIC[operator]}({a}, {b})"


def unary(operator: str, operand: tuple[str, str]) -> str:
    """`-x` or `~x`."""
    column, kind = operand
    if operator == "-":
        return f"negate({column})"
    _check_bool(operator, kind)
    return f"toBool(not({column}))"


def aggregate(name: str, column: str) -> str:
    """One value of all."""
    return f"{AGGREGATES[name]}({column})"


def _is(kind: str, plain: str) -> bool:
    return kind in {plain, f"Nullable({plain})"}


def _check_bool(operator: str, *kinds: str) -> None:
    for kind in kinds:
        if not _is(kind, "Bool"):
            raise UsageError(f"{operator} is for objects of Bool, not of {kind}; comparisons give those")
