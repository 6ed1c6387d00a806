"""Messages stay short and printable, whatever clients, files and people put into them."""

from __future__ import annotations

import numpy as np
import pytest

import bartizan as bz
from bartizan import cli, records
from bartizan._util.text import quoted, short, text
from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.judge.reputation import Reputation
from report_runs import write_run

ESCAPE = "\x1b[2J\x1b[31m"
IDS = {
    "a million letters": "y" * 10**6,
    "escape codes": f"{ESCAPE}bank\n\rb",
    "reversed writing": "\u202eknab",
    "a number of 6,000 digits": 10**6000,
    "a tuple of all": ("y" * 10**6, ESCAPE),
}


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def clean(message: str, most: int = 1500) -> bool:
    return len(message) < most and message.isprintable()


@pytest.mark.parametrize("value", [*IDS.values(), Silent(), None, "\ud800"], ids=[*IDS, "silent", "none", "half"])
def test_any_value_becomes_a_short_printable_line(value):
    for shown in (quoted(value), short(value)):
        assert clean(shown, 600)
    assert text(value).isprintable()


@pytest.mark.parametrize("name", IDS)
def test_errors_about_a_client_are_short_and_clean_whatever_its_id(name):
    client, bad = IDS[name], np.array([np.nan, 1.0])
    said = [str(BadClientError(client, f"it sent {ESCAPE}" + "y" * 10**6))]
    said.append(str(TooFewClientsError("Too few.", {client: ESCAPE}, {client: "y" * 10**6})))
    with bz.Aggregator(bz.Mean()).round() as r:
        r.add(np.ones(2), client)
        for again in (lambda: r.add(np.ones(2), client), lambda: r.fail(client, "late")):
            with pytest.raises(ValueError, match="already") as error:
                again()
            said.append(str(error.value))
        with pytest.raises(ValueError, match="size must be") as error:
            r.add(np.ones(2), 7, size=-1.0)
        said.append(str(error.value))
    with bz.Aggregator(bz.Krum(1)).round() as r:
        r.add(bad, client)
        r.fail("other", f"{ESCAPE}" + "y" * 10**6)
        with pytest.raises(TooFewClientsError) as error:
            r.close()
        said.append(str(error.value))
    with bz.Aggregator(bz.Mean()).round(strict=True) as r, pytest.raises(BadClientError) as strict:
        r.add(bad, client)
    said.append(str(strict.value))
    reputation = Reputation()
    for _ in range(9):
        reputation.add({0: 0.5, 1: 0.5}, {client: f"{ESCAPE}" + "y" * 10**6})
    said += [str(suspect) for suspect in reputation.suspects()]
    assert [message for message in said if not clean(message)] == []


def test_a_refused_round_of_many_clients_with_long_reasons_has_a_message_of_less_than_4000_letters():
    reasons = {f"{client}{'z' * 99}": f"{client} {'y' * 10**4}" for client in range(40)}
    error = TooFewClientsError("Too few.", reasons, reasons)
    assert clean(str(error), 4000)
    assert str(error).count("more reasons") == 2
    assert error.quarantined == error.failed == reasons


def test_a_key_of_a_client_is_shown_sanitised():
    honest = [{"w": np.ones(3)} for _ in range(4)]
    for key in IDS.values():
        out = bz.aggregate([*honest, {key: np.ones(3)}], bz.Mean())
        assert clean(out.quarantined[4])


def test_the_command_line_prints_one_clean_line_about_names_with_escape_codes(tmp_path, capsys):
    folder = tmp_path / f"{ESCAPE}folder"
    folder.mkdir()
    assert cli.main(["report", str(folder)]) == 2
    assert cli.main(["run", str(folder / "none.toml")]) == 2
    (folder / "a.toml").write_text(f'"{ESCAPE.encode("unicode_escape").decode()}" = 1'.replace("\\x1b", "\\u001b"))
    assert cli.main(["run", str(folder / "a.toml")]) == 2
    (write_run(folder / "run", rounds=1, clients=4) / records.NAME).write_bytes(b"{\n")
    assert cli.main(["report", str(folder)]) == 0
    told = capsys.readouterr().err
    assert all(clean(line) for line in told.splitlines())
    assert len(told.splitlines()) == 4


@pytest.mark.parametrize(
    "content",
    [
        f"rounds = {'9' * 6000}",
        f"rounds = 0x{'f' * 6000}",
        f"seed = 0x{'f' * 6000}",
        f"[rule]\nn_byzantine = 0x{'f' * 6000}",
        f"[grid]\nseed = [0x{'f' * 6000}]",
        f"[a{'y' * 10**6}]\nb = 1\n[a{'y' * 10**6}]\nb = 2",
        f'[rule]\nname = "{"y" * 10**6}"',
        f"{'y' * 10**6} = 1",
        f"[grid]\n{'y' * 10**6} = 1",
        '[rule]\n"\\u001b[31m" = 1',
    ],
    ids=lambda content: content[:24].replace("\n", " "),
)
def test_a_setting_of_thousands_of_letters_or_digits_names_the_file_in_a_short_message(content, tmp_path, capsys):
    pytest.importorskip("torch")
    path = tmp_path / "long.toml"
    path.write_text(content)
    assert cli.main(["run", str(path)]) == 2
    told = capsys.readouterr().err
    assert "long.toml" in told
    assert clean(told.strip(), 4000)
    key, _, value = content.partition(" = ")
    if "[" not in content:
        assert cli.main(["run", "--set", f"{key}={value}"]) == 2
        assert clean(capsys.readouterr().err.strip(), 4000)
