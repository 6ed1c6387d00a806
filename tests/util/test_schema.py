"""Values that are read from files are checked against declared types, and the field that is wrong is named."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from bartizan._util import schema
from bartizan._util.schema import Between


class Inner(TypedDict):
    share: float


class Line(TypedDict):
    kind: Literal["a", "b"]
    count: Annotated[int, Between(1, 9)]
    numbers: NotRequired[list[float | None] | None]
    names: NotRequired[list[str | int]]
    inner: NotRequired[Inner | None]
    reasons: NotRequired[dict[str, str]]
    seconds: NotRequired[Annotated[float, Between(0.0, 1e300)]]


SOUND = {"kind": "a", "count": 9}


def test_a_sound_object_is_accepted():
    for more in ({}, {"numbers": None}, {"numbers": [1, 2.5, None]}, {"names": ["a", 1]}, {"reasons": {}}):
        schema.check(Line, SOUND | more)
    schema.check(Line, SOUND | {"unknown": 1, "inner": {"share": 1, "other": {"deep": [{}]}}})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "c"}, "kind must be 'a' or 'b', got 'c'"),
        ({"count": 0}, "count must be a whole number from 1 to 9, got 0"),
        ({"count": 10**400}, "count must be a whole number, got 1000"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"numbers": "12"}, "numbers must be a list, got '12'"),
        ({"numbers": [1, "2"]}, r"numbers\[1\] must be a number, got '2'"),
        ({"numbers": [math.nan]}, r"numbers\[0\] must be a number, got nan"),
        ({"names": [None]}, r"names\[0\] must be a text or a whole number, got None"),
        ({"inner": {}}, "inner.share is missing"),
        ({"inner": []}, r"inner must be an object, got \[\]"),
        ({"seconds": -1}, "seconds must be a number from 0.0 to 1e\\+300, got -1"),
    ],
    ids=repr,
)
def test_a_wrong_field_is_named(wrong, message):
    with pytest.raises(TypeError, match=message):
        schema.check(Line, SOUND | wrong)


def test_a_message_is_short_whatever_the_field_holds():
    for wrong in ({"kind": "y" * 10**6}, {"reasons": {"k" * 10**6: 1}}, {"numbers": ["\x1b" * 10**6]}):
        with pytest.raises(TypeError) as error:
            schema.check(Line, SOUND | wrong)
        assert len(str(error.value)) < 300
        assert "\x1b" not in str(error.value)


@dataclass(frozen=True)
class Row:
    name: str
    pairs: tuple[tuple[int, float], ...] = ()
    other: float | None = field(default=None, metadata={schema.KEY: "old"})
    any: dict[str, Any] = field(default_factory=dict)


def test_a_dataclass_comes_back_from_its_row():
    row = Row("a", ((1, 0.5),), 2.0, {"b": [1]})
    assert schema.parse(Row, schema.as_row(row)) == row
    assert schema.parse(Row, {"name": "a", "pairs": [[1, 0.5]], "old": 2.0, "any": {"b": [1]}}) == row
    assert schema.parse(Row, {"name": "a"}) == Row("a")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "name is missing"),
        ({"name": "a", "other": 1}, "other is no field of it"),
        ({"name": "a", "pairs": [[1]]}, "pairs must be a list"),
        ({"name": "a", 1: 1}, "1 is no field of it"),
    ],
    ids=repr,
)
def test_a_row_of_another_form_is_refused(row, message):
    with pytest.raises(TypeError, match=message):
        schema.parse(Row, row)
