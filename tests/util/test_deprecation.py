"""Deprecated names warn where they are used, go on working, and are gone when their time is over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bartizan as bz
from bartizan._util.deprecation import deprecated, warn_deprecated

SOURCE = Path(__file__).parents[2] / "src"
SINCE = re.compile(r"deprecated\([^)]*?\"(\d+\.\d+\.\d+)\"")


@deprecated("0.2.0", "`total`")
def sum_up(values, *, start=0):
    """Return the sum."""
    return sum(values, start)


def total(values, start=0, begin=None):
    if begin is not None:
        warn_deprecated("the argument 'begin'", "0.2.0", "'start'")
    return sum(values, start if begin is None else begin)


def test_a_deprecated_function_works_and_warns_at_the_line_of_its_caller():
    message = r"sum_up\(\) is deprecated since bartizan 0.2.0 and will be removed two minor releases later: use `total`"
    with pytest.warns(FutureWarning, match=message) as warned:
        assert sum_up([1, 2], start=3) == 6
    assert warned[0].filename == __file__
    assert sum_up.__doc__ == "Return the sum."


def test_a_renamed_argument_works_and_warns_at_the_line_of_its_caller():
    with pytest.warns(FutureWarning, match="argument 'begin' is deprecated since bartizan 0.2.0") as warned:
        assert total([1, 2], begin=3) == 6
    assert warned[0].filename == __file__
    assert total([1, 2], start=3) == 6  # no warning, which would be an error


def minor(version):
    return [*map(int, version.split("."))][:2]


def test_nothing_stays_deprecated_for_longer_than_two_minor_releases():
    now = minor(bz.__version__)
    files = [path for path in SOURCE.rglob("*.py") if path.stem != "deprecation"]
    marks = [mark for path in files for mark in SINCE.findall(path.read_text())]
    late = [since for since in marks if now[0] > minor(since)[0] or now[1] >= minor(since)[1] + 2]
    assert not late
