"""The record of a job is read back if it is one, and named if it is not."""

import pytest

pytest.importorskip("nvflare")

from bartizan.judge.reputation import Reputation
from bartizan.nvflare import load_reputation
from bartizan.nvflare.job_record import NAME, write_record
from bartizan.records import CorruptFileError
from places import KINDS, put


def test_a_reputation_comes_back(tmp_path):
    reputation = Reputation()
    for _ in range(5):
        reputation.add({"a": 0.5, "b": 0.5, "c": 0.0}, {"d": "it holds NaN"})
    write_record(tmp_path, {}, [], reputation)
    assert load_reputation(tmp_path).suspects() == reputation.suspects()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"reputation": 1}', '{"reputation": {"a": 1}}', "[" * 10**5], ids=len
)
def test_a_forged_record_is_named(text, tmp_path):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(CorruptFileError, match=r"bartizan\.json is not the record of a job"):
        load_reputation(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_not_waited_for(kind, tmp_path):
    put(kind, tmp_path / NAME)
    with pytest.raises(OSError, match=r"bartizan\.json"):
        load_reputation(tmp_path)
