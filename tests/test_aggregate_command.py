"""`bartizan aggregate`: what it writes, prints and returns to a script."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bartizan as bz
from bartizan import cli
from bartizan.aggregate_command import _StageLines
from bartizan.aggregate_places import Pattern, client_names
from bartizan.registry import default_rule
from bartizan.updates import stores

M = 9
RULE = ["--rule", "nnm >> geometric-median", "--byzantine", "2", "--seed", "7"]


@pytest.fixture
def clients(tmp_path) -> list[Path]:
    """Nine clients of which one sent NaN and one an outlier."""
    paths = [tmp_path / f"client-{m}.npy" for m in range(M)]
    for m, path in enumerate(paths):
        update = np.random.default_rng(m).normal(1, 1, 5000).astype(np.float32)
        update[7] = np.nan if m == 3 else 0
        np.save(path, 40 * update if m == 4 else update)
    return paths


def run(*arguments: object) -> int:
    return cli.main(["aggregate", *map(str, arguments)])


def test_it_writes_what_one_call_gives(clients, tmp_path, capsys):
    out, report = tmp_path / "next.npy", tmp_path / "reports" / "round.json"
    expected = bz.aggregate(clients, bz.NNM(2) >> bz.GeometricMedian(), sketch="auto", seed=7)
    assert run(tmp_path / "client-*.npy", *RULE, "--out", out, "--report", report, "--memory", "64 MiB") == 0
    assert np.load(out).tolist() == expected.update.tolist()
    told = json.loads(report.read_text())
    assert told["status"] == "ok"
    assert told["clients"] == [f"client-{m}" for m in range(M)]
    assert told["weights"] == expected.weights.tolist()
    assert told["scores"][3] is None
    assert "holds NaN" in told["quarantined"]["client-3"]
    assert told["seed"] == "7"
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["client", "weight", "distance"]
    assert shown[-2].startswith("quarantined: client-3: ")
    assert shown[-1].startswith(f"{out}: 8 of 9 clients took part")
    weights = {line.split()[0]: float(line.split()[1]) for line in shown[1:-2]}
    assert weights["client-4"] == 0
    assert sum(weights.values()) == pytest.approx(1, abs=1e-3)


def test_without_a_rule_the_default_one_runs_and_is_named(clients, tmp_path, capsys):
    out, report = tmp_path / "next.npy", tmp_path / "round.json"
    assert run(*clients, "--byzantine", 3, "--seed", 7, "--out", out, "--report", report) == 0
    expected = bz.aggregate(clients, n_byzantine=3, seed=7)
    assert np.load(out).tolist() == expected.update.tolist()
    assert json.loads(report.read_text())["rule"] == repr(expected.rule) == repr(default_rule(3))
    assert f"8 of 9 clients took part, {expected.rule!r}, " in capsys.readouterr().out


def test_too_few_clients_are_exit_status_3_and_no_result(clients, tmp_path, capsys):
    out, report = tmp_path / "next.npy", tmp_path / "round.json"
    out.write_bytes(b"the last one")
    for path in (*clients[:3], clients[5]):
        path.write_bytes(b"broken")
    assert run(*clients, *RULE, "--out", out, "--report", report) == 3
    assert out.read_bytes() == b"the last one"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*(p.name for p in clients), "next.npy", "round.json"]
    )
    told = json.loads(report.read_text())
    assert told["status"] == "refused"
    assert list(told["quarantined"]) == ["client-0", "client-1", "client-2", "client-3", "client-5"]
    assert "5 of 9 clients are out" in told["problem"]
    assert "5 of 9 clients are out" in capsys.readouterr().err
    assert run(tmp_path / "nothing-*.npy", *RULE, "--out", out) == 3
    assert run(*clients[3:], *RULE, "--out", out, "--strict") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--byzantine F for the default rule, or --rule NAME"),
        (["--byzantine", "-1"], "a whole number from 0 up"),
        (["--rule", "krum"], "--byzantine F"),
        (["--rule", "mean", "--byzantine", "2"], "has no setting 'n_byzantine'"),
        (["--rule", "krumm", "--byzantine", "2"], "Did you mean 'krum'?"),
        ([*RULE, "--sketch", "rotatde"], "Did you mean 'rotated'?"),
        ([*RULE, "--sketch", "exact", "--k", "64"], "no setting 'k'"),
        ([*RULE, "--memory", "much"], "memory must be a number of bytes"),
        ([*RULE, "--reference", "nowhere.npy"], "nowhere.npy"),
        ([*RULE, "--out", "next.bin"], "--out must end in"),
        (["--rule", "fltrust"], "trusted"),
    ],
)
def test_a_wrong_argument_is_exit_status_2_and_one_line(options, message, clients, tmp_path, capsys):
    assert run(*clients, "--out", tmp_path / "next.npy", *options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "next.npy").exists()


def test_sizes_reference_and_trusted_are_given_by_files(clients, tmp_path):
    sizes = {f"client-{m}": 1 + m for m in range(M)}
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    reference = tmp_path / "last.npy"
    np.save(reference, np.full(5000, 0.5, np.float32))
    options = ["--sizes", tmp_path / "sizes.json", "--reference", reference, "--trusted", reference]
    assert run(*clients, "--rule", "mean", *options, "--out", tmp_path / "next.npy") == 0
    expected = bz.aggregate(clients, bz.Mean(), sizes=list(sizes.values()), reference=np.load(reference))
    np.testing.assert_array_equal(np.load(tmp_path / "next.npy"), expected.update)


def test_addresses_are_read_and_written(clients):
    fs = fsspec.filesystem("memory")
    try:
        for path in clients:
            fs.pipe_file(f"/round/{path.stem}/update.npy", path.read_bytes())
        found = Pattern.of("memory://round/*/update.npy", 60).places
        assert list(map(str, found)) == [f"memory:///round/{path.stem}/update.npy" for path in clients]
        places = ["--out", "memory://next/next.npy", "--report", "memory://next/report.json"]
        assert run("memory://round/*/update.npy", *RULE, *places) == 0
        expected = bz.aggregate(clients, bz.NNM(2) >> bz.GeometricMedian(), sketch="auto", seed=7)
        assert np.asarray(bz.files.open_update("memory://next/next.npy")).tolist() == expected.update.tolist()
        assert json.loads(fs.cat_file("/next/report.json"))["clients"][0] == "client-0"
        assert fs.find("/next") == ["/next/next.npy", "/next/report.json"]
    finally:
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]


def named(*arguments: str) -> list[str]:
    return list(client_names([Pattern.of(argument, 60) for argument in arguments]).values())


def test_clients_are_named_by_what_differs():
    assert named("s3://r/a/", "s3://r/b/") == ["a", "b"]
    assert named("x/a/1/m.safetensors", "x/b/2/m.safetensors") == ["a/1", "b/2"]
    assert named("x/a.npy", "x/a.safetensors") == ["a.npy", "a.safetensors"]
    assert named("https://h/a.npy?sig=1", "https://h/b.npy?sig=2") == ["a", "b"]
    assert named("https://h/a.npy?sig=1", "b.npy") == ["https://h/a.npy", "b.npy"]
    assert named("https://h/get?client=1", "https://h/get?client=2") == ["1: https://h/get", "2: https://h/get"]


HOSTILE = [
    os.fsdecode(b"bank\xff"),
    *("a\rb", "a\nb", "\x1b[31mred", "\u202eknab", "100%s%n", "c3.npy?", "c3.npy", "x::memory:", "file:", " c3", "c3 "),
    *("c3: holds NaN", "c3   0.5000", "*", "c[3]", "-rf", "\\x20c3", "\u2028", "l" * 240),
]
HONEST = [f"c{m}" for m in range(2, 9)]


def command(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`bartizan aggregate` in a process of its own."""
    words = [sys.executable, "-m", "bartizan", "aggregate", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, env=os.environ | environment, capture_output=True, timeout=300)


def write_clients(folder: Path, names: list[str], inner: str = "") -> dict[str, float]:
    """One client per name, with an update of one number; names that this file system can't hold are left out."""
    values = {}
    for number, name in enumerate(names):
        path = folder / (f"{name}/{inner}" if inner else f"{name}.npy")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.full(3, float(number)))
        except OSError:
            continue
        values[name] = float(number)
    return values


@pytest.mark.parametrize("inner", ["", "update.npy"])
def test_a_file_name_is_data(inner, tmp_path):
    values = write_clients(tmp_path, [*HONEST, *HOSTILE], inner)
    done = command("*/update.npy" if inner else "*.npy", "--rule", "mean", "--sketch", "exact", "--out", "../next.npy",
                   "--report", "../report.json", cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (0, "")
    report = json.loads((tmp_path.parent / "report.json").read_bytes())
    assert report["quarantined"] == {}
    assert len(set(report["clients"])) == len(values)
    assert set(HONEST) < set(report["clients"])
    assert all(name.isprintable() and name.isascii() for name in report["clients"])
    assert np.load(tmp_path.parent / "next.npy")[0] == pytest.approx(np.mean(list(values.values())))
    shown = done.stdout.decode("ascii").split("\n")
    assert len(shown) == len(values) + 3  # the heading, the last line, and what follows its end
    assert {line.rstrip().rpartition("  ")[0].rpartition("  ")[0].rstrip() for line in shown[1:-2]} == {
        *report["clients"]
    }


def test_a_local_name_is_never_an_address(tmp_path):
    """Folders of these names make paths that look like addresses and chains of addresses."""
    for name in ("s3:", "http:", "memory::x", "simplecache::file:", "file:::"):
        (tmp_path / "clients" / name).mkdir(parents=True)
        np.save(tmp_path / "clients" / name / "update.npy", np.ones(3))
    for options in (["*/update.npy"], [f"{name}/update.npy" for name in os.listdir(tmp_path / "clients")]):
        done = command(*options, "--rule", "mean", "--out", "../next.npy", "--report", "../report.json",
                       cwd=tmp_path / "clients")  # fmt: skip
        assert (done.returncode, done.stderr.decode()) == (0, "")
        report = json.loads((tmp_path / "report.json").read_bytes())
        assert sorted(report["clients"]) == ["file:::", "http:", "memory::x", "s3:", "simplecache::file:"]
        assert report["quarantined"] == {}


NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=12)


@given(honest=st.sets(NAMES, min_size=1, max_size=4), hostile=st.sets(NAMES, max_size=4), suffix=st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_found_name_changes_that_of_another(honest, hostile, suffix):
    """Of 300 cases of up to 8 names; characters that are not printable or no UTF-8 are drawn, too."""

    def names(found: set[str]) -> dict[str, str]:
        end = ".npy" if suffix else ""
        paths = {Path(f"r/{name}{end}"): name for name in sorted(found) if name not in (".", "..")}
        pattern = Pattern(f"r/*{end}", ("r", f"*{end}"), tuple(paths))
        return {paths[place]: name for place, name in client_names([pattern]).items()}

    alone, together = names(honest), names(honest | hostile)
    assert {name: together[name] for name in alone} == alone
    assert len(set(together.values())) == len(together)
    assert all(name.isprintable() and name.encode() for name in together.values())


def test_a_file_that_is_called_like_the_glob_is_one_of_those_it_names(tmp_path):
    write_clients(tmp_path, ["*", "a", "b", "c[1]", "c1"])
    assert sorted(named(f"{tmp_path}/*.npy")) == ["*", "a", "b", "c1", "c[1]"]
    assert named(*(f"{tmp_path}/{name}.npy" for name in ("a", "b", "c[1]"))) == ["a", "b", "c1", "c[1]"]


def test_with_sizes_a_stranger_is_quarantined(clients, tmp_path):
    folder = tmp_path / "clients"
    write_clients(folder, [*"abcdef", "stranger"])
    (tmp_path / "sizes.json").write_text(json.dumps({name: 1 + i for i, name in enumerate("abcdef")}))
    options = ["--rule", "mean", "--sizes", tmp_path / "sizes.json", "--out", tmp_path / "next.npy"]
    options += ["--report", tmp_path / "report.json"]
    done = command(folder / "*.npy", *options)
    assert done.returncode == 0
    told = json.loads((tmp_path / "report.json").read_text())
    assert list(told["quarantined"]) == ["stranger"]
    assert "gives no size for it" in told["quarantined"]["stranger"]
    assert np.load(tmp_path / "next.npy")[0] == pytest.approx(sum(i * (1 + i) for i in range(6)) / 21)


NO_OBJECT = "sizes.json must be a JSON object from clients' names to sizes: "
NO_SIZE = "the size of 'client-4' must be a positive number, got "
SIZES = dict.fromkeys(['{"client-0": 1, "client-0": 2}', "[" * 10**5, "{" + '"a":{' * 10**5, "\xff", "7"], NO_OBJECT)
SIZES |= {
    f'{{"client-0": 3, "client-4": {size}}}': NO_SIZE for size in ("0", "NaN", "true", "null", '"3"', "1e999", "[1]")
}


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: sizes[:30])
def test_a_file_of_sizes_that_is_wrong_is_the_operators_error(sizes, clients, tmp_path, capsys):
    (tmp_path / "sizes.json").write_bytes(sizes.encode("latin-1"))
    assert run(*clients, *RULE, "--out", tmp_path / "next.npy", "--sizes", tmp_path / "sizes.json") == 2
    said = capsys.readouterr().err
    assert SIZES[sizes] in said
    assert said.count("\n") == 1


def test_an_output_in_the_place_of_something_else_is_refused(clients, tmp_path, capsys):
    out, last, sizes = tmp_path / "next.npy", tmp_path / "last.npy", tmp_path / "sizes.json"
    np.save(last, np.zeros(5000, np.float32))
    sizes.write_text("{}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.npy").symlink_to(clients[0])
    (tmp_path / "there").symlink_to(tmp_path)
    kept = clients[0].read_bytes()
    for options, what in [
        (["--out", out, "--report", out], "--report .*next.npy' is, or lies in, --out"),
        (["--out", out, "--report", tmp_path / "folder/../next.npy"], "is, or lies in, --out"),
        (["--out", out, "--report", tmp_path / "there/next.npy"], "is, or lies in, --out"),
        (["--out", "memory://a/x.npy", "--report", "memory:///a/x.npy"], "is, or lies in, --out"),
        (["--out", out, "--report", f"file://{out}"], "is, or lies in, --out"),
        (["--out", clients[0]], "--out .* is, or lies in, one of the clients"),
        (["--out", tmp_path / "link.npy"], "is, or lies in, one of the clients"),
        (["--out", out, "--report", tmp_path / "there/client-8.npy"], "is, or lies in, one of the clients"),
        (["--out", out, "--reference", last, "--report", last], "is, or lies in, --reference"),
        (["--out", last, "--trusted", last], "is, or lies in, --trusted"),
        (["--out", out, "--sizes", sizes, "--report", sizes], "is, or lies in, --sizes"),
        (["--out", tmp_path / "folder/next.npy"], "is, or lies in, one of the clients"),
    ]:
        assert run(*clients, tmp_path / "folder", *RULE, *options) == 2
        said = capsys.readouterr().err
        assert re.search(what, said), said
        assert said.count("\n") == 1
    assert clients[0].read_bytes() == kept
    assert not out.exists()
    for pattern in (f"{tmp_path}/client-*.npy", f"file://{tmp_path}/client-*.npy"):
        assert run(pattern, *RULE, "--out", clients[5]) == 2
        assert "is, or lies in, one of the clients" in capsys.readouterr().err


def test_a_link_that_a_glob_finds_does_not_stop_the_round(clients, tmp_path):
    """A client that can make links points one at the last result, or at the folder of all."""
    np.save(tmp_path / "next.npy", np.ones(5000, np.float32))
    (tmp_path / "client-last.npy").symlink_to(tmp_path / "next.npy")
    (tmp_path / "client-all.npy").symlink_to(tmp_path)
    options = ["--out", tmp_path / "next.npy", "--report", tmp_path / "report.json"]
    assert run(f"{tmp_path}/client-*.npy", *RULE, *options) == 0
    told = json.loads((tmp_path / "report.json").read_text())
    assert list(told["quarantined"]) == ["client-3", "client-all"]
    expected = bz.aggregate(
        [*clients, np.ones(5000, np.float32)], bz.NNM(2) >> bz.GeometricMedian(), sketch="auto", seed=7
    )
    np.testing.assert_allclose(np.load(tmp_path / "next.npy"), expected.update, rtol=1e-5, atol=1e-6)


def test_a_lowered_number_of_byzantine_clients_is_told(clients, tmp_path, capsys):
    paths = [*clients[:4], *clients[5:]]  # seven, and one that sent NaN: Krum with f = 2 needs seven
    assert run(*paths[:-1], "--rule", "krum", "--byzantine", 2, "--out", tmp_path / "next.npy") == 0
    assert "The rule ran with n_byzantine=1 instead of 2: 1 out (1 quarantined, 0 failed)." in capsys.readouterr().out
    assert run(*clients, "--rule", "krum", "--byzantine", 2, "--out", tmp_path / "next.npy") == 0
    assert "The rule ran with" not in capsys.readouterr().out


@pytest.mark.parametrize("inner", ["", "update.npy"])
def test_a_folder_of_clients_hints_at_a_glob(inner, tmp_path, capsys):
    write_clients(tmp_path / "clients", HONEST, inner)
    for folder in (tmp_path / "clients", f"{tmp_path}/clients/"):
        assert run(folder, *RULE, "--out", tmp_path / "next.npy") == 3
        assert f"Did you mean '{tmp_path}/clients/*'?" in capsys.readouterr().err
    assert run(tmp_path / "nothing", *RULE, "--out", tmp_path / "next.npy") == 3
    assert "Did you mean" not in capsys.readouterr().err


@pytest.fixture(scope="module")
def closed() -> str:
    """An address on this machine where nobody listens: the port stays bound, and so free of others."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_what_a_store_can_not_list_is_exit_status_2_and_a_sentence(closed, tmp_path):
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_DEFAULT_REGION": "us-east-1"}
    alone = {**dict.fromkeys(keys, ""), "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    alone["AWS_DEFAULT_REGION"] = keys["AWS_DEFAULT_REGION"]
    cases = [("nosuch://bucket/*.npy", {}, "Protocol not known: nosuch")]
    if find_spec("s3fs"):
        down = {**keys, "AWS_ENDPOINT_URL": f"http://{closed}"}
        cases += [
            ("s3://bucket/*.npy", down, "(no answer in 3 s|[Cc]onnect)"),
            ("s3://bucket/*.npy", alone, "[Cc]redentials"),
        ]
    for pattern, environment, reason in cases:
        for options in ([pattern], ["x.npy", "--reference", pattern.replace("*", "a")]):
            done = command(*options, *RULE, "--out", tmp_path / "next.npy", "--timeout", 3, **environment)
            said = done.stderr.decode()
            assert done.returncode == 2, said
            assert re.search(f"^bartizan aggregate: {pattern.split('://')[0]}://bucket/.* can't be .*{reason}", said)
            assert said.count("\n") == 1
            assert "hidden" not in said


def write_to(place: str, update: np.ndarray) -> None:
    with bz.files.create_update(place, update) as out:
        out[:] = update


PLACES = ["client", "glob", "--out", "--reference", "--trusted", "--report"]
SCHEMES = ["http", "https", "ftp", "nosuch", "memory", "s3"]
MARKS = st.lists(st.sampled_from("/@?#:%&= !~"), max_size=3)


@given(scheme=st.sampled_from(SCHEMES), marks=MARKS, where=st.sampled_from(PLACES), signed=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_secret_of_an_address_is_shown(scheme, marks, where, signed, closed, tmp_path, monkeypatch, capsys):
    """Of 40 addresses, most of them wrong; the password or the signature holds the marks that end it by the rules."""
    monkeypatch.setattr(stores, "ATTEMPTS", 1)
    for name, value in {"AWS_ENDPOINT_URL": f"http://{closed}", "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    secret = "qjvault" + "".join(f"{mark}zxkeep" for mark in marks)
    end = "*.npy" if where == "glob" else "next.npy"
    address = f"{scheme}://{closed}/{end}?sig={secret}" if signed else f"{scheme}://me:{secret}@{closed}/{end}"
    address += ".npy" if signed and where == "--out" else ""
    write_clients(tmp_path, HONEST)
    given = {"--out": tmp_path / "next.npy", "--report": tmp_path / "report.json"}
    given |= {where: address} if where.startswith("--") else {}
    options = [word for option in given.items() for word in option]
    client = [] if where.startswith("--") else [address]
    others = [] if where == "glob" else [tmp_path / f"{name}.npy" for name in HONEST]
    run(*others, *client, "--rule", "mean", *options, "--timeout", 0.5)
    told = [*capsys.readouterr()]
    told += [(tmp_path / "report.json").read_text()] if (tmp_path / "report.json").exists() else []
    place = address if address.endswith(".npy") else f"{address}.npy"
    for call in (lambda: bz.files.open_update(address, timeout=0.5), lambda: write_to(place, np.zeros(3))):
        try:
            call()
        except (ValueError, OSError, ImportError) as wrong:
            told += traceback.format_exception(wrong)
    fsspec.filesystem("memory").store.clear()
    for text in told:
        assert "qjvault" not in text
        assert "zxkeep" not in text


@pytest.mark.parametrize("where", ["client", "--out", "--reference"])
def test_a_package_that_a_protocol_needs_is_named(where, tmp_path):
    without = "import sys; sys.modules['s3fs'] = None; from bartizan import cli; sys.exit(cli.main(sys.argv[1:]))"
    given = {"client": "x.npy", "--out": str(tmp_path / "next.npy"), "--reference": None} | {where: "s3://b/next.npy"}
    options = [given["client"], *RULE, "--out", given["--out"]]
    options += ["--reference", given["--reference"]] if given["--reference"] else []
    words = [sys.executable, "-c", without, "aggregate", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert re.search("^bartizan aggregate: s3://b/next.npy can't be .*s3fs", done.stderr)
    assert done.stderr.count("\n") == 1


def test_a_client_that_rewrites_its_file_meanwhile_is_quarantined(clients, tmp_path, monkeypatch):
    """Its numbers are overwritten when all were measured, which the lines of progress tell."""
    show = _StageLines.__call__

    def rewriting(lines, stage, done, total):
        show(lines, stage, done, total)
        if stage == "sketch" and done == total:
            with open(clients[1], "r+b") as file:
                file.seek(-800, 2)
                file.write(bytes(range(100)) * 8)

    monkeypatch.setattr(_StageLines, "__call__", rewriting)
    report = tmp_path / "round.json"
    assert run(*clients, *RULE, "--out", tmp_path / "next.npy", "--report", report) == 0
    reason = json.loads(report.read_text())["quarantined"]["client-1"]
    assert reason == "its file changed between measuring and summing"
