"""The documentation names everything there is, its links and pictures are true, and its programs run."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bartizan as bz
from bartizan import cli, registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PROGRAM = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
FOLDERS = {
    "rules": registry.RULES | registry.COORDINATEWISE,
    "pre-aggregators": registry.PRE_AGGREGATORS,
    "sketches": registry.SKETCHES,
    "attacks": bz.attacks.ATTACKS | bz.attacks.POISONS,
}
NAMED = [(folder, name) for folder, table in FOLDERS.items() for name in table.built_in]


@pytest.fixture
def gallery(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("gallery")


def programs(page: Path, folder: Path) -> None:
    """Write the files that a tutorial asks for, blocks of one title below each other."""
    found: dict[str, list[str]] = {}
    for title, code in PROGRAM.findall(page.read_text(encoding="utf-8")):
        found.setdefault(title, []).append(code)
    for title, blocks in found.items():
        (folder / title).parent.mkdir(parents=True, exist_ok=True)
        (folder / title).write_text("\n\n".join(blocks), encoding="utf-8")


def ran(folder: Path, *words: str) -> str:
    path = os.pathsep.join([str(ROOT / "tests" / "support"), *sys.path])
    options = {"cwd": folder, "env": os.environ | {"PYTHONPATH": path}, "timeout": 300}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def section(folder: str, name: str) -> tuple[Path, str]:
    """Return the page of a folder with the heading `{ #name }`, and the text up to the next heading of that level."""
    heading = f"{{ #{name} }}\n"
    (page,) = [path for path in (DOCS / "reference" / folder).glob("*.md") if heading in path.read_text("utf-8")]
    return page, page.read_text("utf-8").partition(heading)[2].partition("\n## ")[0]


@pytest.mark.parametrize(("folder", "name"), NAMED)
def test_everything_in_the_registry_has_a_section_with_effect_or_use_picture_and_docstring(folder, name):
    page, text = section(folder, name)
    for head in ("Effect",) if folder == "attacks" else ("Cost", "When to use it"):
        assert f"**{head}.**" in text
    assert f'`"{name}"`' in text
    assert "\n::: bartizan." in text
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert (page.parent / picture).is_file()
    index = (page.parent / "index.md").read_text(encoding="utf-8")
    assert page.name == "index.md" or f"]({page.name}#{name})" in index


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in PAGES if page.relative_to(DOCS).as_posix() not in navigation] == []


def test_every_public_name_is_in_the_reference():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").rglob("*.md"))
    modules = {"attacks", "coordinatewise", "files", "sketch"}
    shown = set(re.findall(r"^::: bartizan\.([\w.]+)", text, re.MULTILINE))
    last = {name.rpartition(".")[2] for name in shown}
    assert set(bz.__all__) - modules - last == set()
    assert {f"sketch.{name}" for name in bz.sketch.__all__} - shown - {f"sketch.{name}" for name in bz.__all__} == set()
    for module in ("flower", "distributed", "lab", "partitioned"):
        if module != "flower" or importlib.util.find_spec("flwr"):
            public = importlib.import_module(f"bartizan.{module}").__all__
            assert {f"{module}.{name}" for name in public} <= shown


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as mkdocs makes them, and of the names that mkdocstrings shows."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = set(re.findall(r"^::: (\S+)", text, re.MULTILINE))
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        given = re.search(r"\{ #([\w-]+) \}$", heading)
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\]\(.*?\)", "", heading)).strip().lower()
        found.add(given[1] if given else re.sub(r"[-\s]+", "-", words))
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]*))?\)", text):
        if "://" not in target:
            leads_to = page.parent / target if target else page
            assert leads_to.exists(), target
            assert not anchor or anchor in anchors(leads_to), f"{target}#{anchor}"
    for target in re.findall(r'href="([^"#:]+)\.html"', text):
        assert (page.parent / f"{target}.md").is_file(), target


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    named = r"(?<![\w/.-])((?:tests|studies|fuzz|examples|src|tools|docs)/[\w./-]+\.(?:py|jsonl?|md|toml|svg|png))\b"
    for name in re.findall(named, page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def words(text: str) -> int:
    """Count the words of a page; the bars of tables and other signs are none."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_the_site_stays_short():
    by_page = {page.relative_to(DOCS).as_posix(): words(page.read_text("utf-8")) for page in PAGES}
    assert sum(by_page.values()) <= 42_000, sorted(by_page.items(), key=lambda item: -item[1])[:10]
    assert by_page["reliability.md"] <= 600


DIALECT = {  # what slips into these pages, and what to write
    r"\bodds\b": "probability",
    r"(?i)\bone (weight|number|row|seed|file|line|update|adapter|page) an? (?!time\b)\w+": "one weight per client",
    r"(?i)\b(numbers|bytes|columns|multiplications|additions|clients|images|MB|GB|[MGk]iB) an? "
    r"(?=client|number|round|row|rank|worker|coordinate|call|module|update|batch|part)": "numbers per client",
    r"(?i)\bwhat strangers\b": "untrusted text",
    r"\bhides? from (the|a) (projection|sketch)\b": "is not shown by the projection",
    r"\b(sketch|projection|sum)(es|s)? (is|are) (blind|deaf)\b": "say what it computes",
    r"\b(updates?|numbers|rows|sketches|distances|norms) (that )?(knows?|asks?|tell|speaks?|hear|betray)\b": "not data",
    r"\b(is|are|was|were) told (by|as|beside)\b": "is reported as",
    r"(?i)(?<!attacker )(?<!client )\bwho knows it\b": "an attacker who knows it",
    r"\b(\w{2,}) \1\b": "once",
    r"(?<!etc| al)(?<!\.)[a-z)]\. (an?|the|its?|this|that|by|in|on|for|to|with|and|or|if|but|as|at|so|when)\b": "By",
    r"(?i)\b(behavior|color|favor|center(?!ed)|normaliz|optimiz|initializ|summariz)\w*": "British",
    r"(?i)\b(seperat|occured|recieve|accomodat|independan|neccess|succesful|treshold|paramter|adress)\w*": "spelling",
}


def prose(page: Path) -> str:
    """Return the sentences of a page in one line per paragraph: no code, no titles in italics, nothing that is made."""
    text = re.sub(
        r"<!-- made.*?<!-- end -->|^```.*?^```$|^( {4}|\|--).*?$",
        "",
        page.read_text("utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"\]\([^)]*\)|(?<!\*)\*[^*|]+\*(?!\*)", "", text)
    return re.sub(r"(?<!\n)\n(?!\n|[-|#\d])", " ", text)


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_written_in_the_words_of_the_field(page):
    text = prose(page)
    found = [f"{hit[0]!r}: {instead}" for slip, instead in DIALECT.items() for hit in re.finditer(slip, text)]
    assert found == []


NO_VERB = re.compile(r"(What|Why|How|Where|Of|By|Whose|Which|Who|When|As|With|For|In|On|If)\b")


def docstrings(path: Path) -> list[str]:
    """Return the docstrings of a module, without their examples and in one line each."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        ast.get_docstring(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, kinds)
    ]
    return [" ".join(re.sub(r"`[^`]*`", "CODE", text.partition(">>>")[0]).split()) for text in found if text]


def test_docstrings_begin_with_a_verb_or_a_noun_and_use_the_words_of_the_field():
    slips = [slip for slip, instead in DIALECT.items() if "per client" in instead or instead == "probability"]
    for path in sorted((ROOT / "src").rglob("*.py")):
        for text in docstrings(path):
            assert not NO_VERB.match(text), f"{path}: {text[:100]}"
            assert [hit[0] for slip in slips for hit in re.finditer(slip, text)] == [], f"{path}: {text[:100]}"


@pytest.mark.parametrize(
    "slip", ["small odds", "one weight a client", "the the rule", "It is slow. by default", "our behavior"]
)
def test_a_slip_is_found(slip, tmp_path):
    (tmp_path / "page.md").write_text(f"# Page\n\nSay that\n{slip} here.\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        test_pages_are_written_in_the_words_of_the_field(tmp_path / "page.md")


def test_the_readme_is_short_and_leads_with_use():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads == [
        *("Use it", "Does it help?", "What it costs", "The paper", "What it does not stop", "Which rule?"),
        "Where to go next",
    ]
    for page in ("CITATION.cff", "docs/index.md"):
        assert "2605.28335" in (ROOT / page).read_text(encoding="utf-8")


def test_the_shell_command_of_the_readme_prints_its_table(tmp_path, capsys, monkeypatch):
    shown = re.search(r"```console\n\$ bartizan (.*)\n([^`]*)```", (ROOT / "README.md").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "updates").mkdir()
    for number in range(7):
        update = rng.normal(1, 1, size=100_000).astype("float32")
        if number == 2:
            update[:] = -50
        if number == 4:
            update[7] = np.nan
        np.save(tmp_path / "updates" / f"hospital-{number:02d}.npy", update)
    files = [f"updates/hospital-{number:02d}.npy" for number in range(7)]
    words = shown[1].split()
    assert cli.main([word for given in words for word in (files if "*" in given else [given])]) == 0

    def words_of(text):
        return sorted(re.sub(r"[\d.e+]+ *m?s?$|\d\S*", "", line).split() for line in text.splitlines())

    assert words_of(capsys.readouterr().out) == words_of(shown[2])


def test_the_pictures_are_what_the_library_draws(gallery):
    drawn = dict(gallery.pictures())
    assert set(drawn) == {path.name for path in gallery.FOLDER.glob("*.svg")}
    number = re.compile(r"-?\d+\.\d+")
    for name, draw in drawn.items():
        kept, made = (gallery.FOLDER / name).read_text(encoding="utf-8"), draw()
        assert number.sub("#", kept) == number.sub("#", made), name
        # Positions have one digit, and another CPU may round the last one otherwise.
        positions = [np.array(number.findall(text), dtype=float) for text in (kept, made)]
        np.testing.assert_allclose(*positions, atol=0.11, err_msg=name)


def test_the_tutorial_of_a_torch_loop_runs_as_it_says(tmp_path):
    pytest.importorskip("torch")
    programs(DOCS / "tutorials" / "torch-loop.md", tmp_path)
    plain, robust = ran(tmp_path, "train.py"), ran(tmp_path, "train.py", "robust")
    accuracy = [float(re.search(r"accuracy ([\d.]+)", said)[1]) for said in (plain, robust)]
    assert accuracy[0] < 0.5 < 0.85 < accuracy[1]
    assert re.search(r"weights: \[0\.0\d?, 0\.0\d?, 0\.0\d?, 0\.1", robust)


def test_the_tutorial_of_an_own_attack_runs_as_it_says(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("prodigyopt", reason="the laboratory is not installed: pip install '.[lab]'")
    programs(DOCS / "tutorials" / "own-attack.md", tmp_path)
    errors = dict(re.findall(r"^(.+?) +error ([\d.]+)", ran(tmp_path, "try_it.py"), re.MULTILINE))
    assert float(errors["mean"]) > 0.4 > 0.1 > float(errors["nnm >> geometric-median"])
    best = dict(re.findall(r"^(.+?) +best accuracy ([\d.]+)", ran(tmp_path, "lab.py"), re.MULTILINE))
    assert float(best["mean"]) < 0.3 < 0.6 < float(best["nnm >> geometric-median"])
    assert len(list((tmp_path / "runs" / "drift").glob("*/results.jsonl"))) == 3


DESK = """
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from blobs import client_app, server_app
from flower_nodes import LocalGrid

for name in ("_task_id", "_run_id", "_node_id"):
    setattr(TaskIdentity, name, 1)

config = {"rule": "multi-krum", "hostile": 3}


def replies(message):
    node = message.metadata.dst_node_id
    return client_app.app(message, Context(1, node, {"partition-id": node - 1}, RecordDict(), config))


server_app.app(LocalGrid(dict.fromkeys(range(1, 11), replies)), Context(1, 0, {}, RecordDict(), config))
"""


def test_the_tutorial_of_a_flower_app_survives_its_hostile_nodes(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")
    programs(DOCS / "tutorials" / "flower-app.md", tmp_path)
    (tmp_path / "blobs" / "__init__.py").touch()
    (tmp_path / "desk.py").write_text(DESK, encoding="utf-8")
    said = ran(tmp_path, "desk.py")
    assert float(re.search(r"round 5: accuracy ([\d.]+)", said)[1]) > 0.8
    assert re.findall(r"^node (\d+): left out of 5 of 5 rounds", said, re.MULTILINE) == ["1", "2", "3"]


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the documentation's tools are not installed: pip install '.[docs]'")
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    # Search works from a folder: the index is a script, and the worker's stand-in lies beside it.
    assert (tmp_path / "search" / "search_index.js").is_file()
    assert "assets/iframe-worker.js" in (tmp_path / "index.html").read_text("utf-8")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text("utf-8"))
        assert fetched == [], page.name
