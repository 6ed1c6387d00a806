"""Reports of made-up runs, opened in a real browser."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bartizan import cli
from bartizan import records as results
from bartizan import registry as names
from bartizan.attacks import ATTACKS
from bartizan.lab.report import figures, pack, tables, write
from bartizan.lab.report.content import content, data, embedded, page
from bartizan.lab.report.factors import rule_styles
from bartizan.lab.report.figures import pictures
from bartizan.lab.report.load import load
from report_runs import CLASSES, HARM, LEVEL, write_brief, write_run, write_sweep

EVIL = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u2028$\\frac{{data}}"


@contextmanager
def opened(browser, path, width=1300, scheme="light", fragment=""):
    """A page, which must neither log an error nor request any other file."""
    errors, requested = [], []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(path.as_uri() + fragment)
    page.wait_for_selector("html[data-drawn=yes]")
    yield page
    assert errors == []
    assert [url.partition("#")[0] for url in requested] == [path.as_uri()]
    page.close()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write(write_sweep(tmp_path_factory.mktemp("sweep"), rounds=10))


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    return page_of(write_run(tmp_path_factory.mktemp("single") / "one", rounds=12, backdoor=True))


def page_of(folder):
    """The page alone, without pictures and tables."""
    path = folder / "page.html"
    path.write_text(page(content(load(folder))), encoding="utf-8")
    return path


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_that_names_a_removed_value_stays_readable(tmp_path):
    write_run(tmp_path / "old", server={"optimiser": "d-adaptation"}, clients=8, rounds=2)
    found = load(tmp_path)
    assert not found.broken
    assert found.runs[0].config["server.optimiser"] == "d-adaptation"
    assert "d-adaptation" in page(content(found))


DRAWN = """() => [...document.querySelectorAll('figure')].map((figure) => {
  const colours = [...figure.querySelectorAll('canvas')].map((sheet) => {
    const bytes = new Uint32Array(sheet.getContext('2d').getImageData(0, 0, sheet.width, sheet.height).data.buffer);
    return new Set(bytes).size;
  });
  const marks = figure.querySelectorAll('svg path, svg circle, svg rect, td').length;
  const numbers = [...figure.querySelectorAll('svg *')].flatMap((node) => [...node.attributes].map((a) => a.value));
  const wrong = numbers.filter((value) => /NaN|undefined|Infinity/.test(value));
  return {title: figure.innerText.slice(0, 40), marks, colours, wrong};
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("report", ["sweep", "single"])
def test_every_chart_is_drawn_without_an_error_or_a_request(report, scheme, browser, request):
    found = request.getfixturevalue(report)
    with opened(browser, getattr(found, "page", found), scheme=scheme) as seen:
        assert seen.evaluate("document.documentElement.dataset.theme") == scheme
        figures = seen.evaluate(DRAWN)
        titles = " ".join(figure["title"] for figure in figures)
        wanted = "In reads", "In seconds", "Weights, client", "Least trusted", "Sketched against", "Data of each"
        assert all(title in titles for title in wanted)
        for figure in figures:
            assert figure["marks"] > 0, figure
            assert all(colours > 5 for colours in figure["colours"]), figure
            assert figure["wrong"] == [], figure
        assert len(seen.query_selector_all("#accuracy .curve")) == (40 if report == "sweep" else 1)
        assert (seen.query_selector("#backdoor .curve") is not None) == (report == "single")


TEXTS_APART = """() => [...document.querySelectorAll('figure svg')].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll('text')].map((node) => [node.textContent, node.getBoundingClientRect()]);
  const found = boxes.filter(([, b]) => b.left < 0 || b.right > innerWidth).map(([text]) => 'outside: ' + text);
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && tall > 4) found.push(one + ' on ' + other);
  }));
  return found;
})"""


@pytest.mark.parametrize("width", [390, 1100, 1400, 2560])
def test_no_text_lies_on_another_or_outside(width, browser, sweep):
    with opened(browser, sweep.page, width) as seen:
        assert seen.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.evaluate(TEXTS_APART) == []


def test_every_axis_has_a_title(browser, sweep):
    titles = """() => [...document.querySelectorAll('figure')].map((figure) =>
      [figure.querySelector('h3').innerText, [...figure.querySelectorAll('.title')].map((node) => node.textContent)])"""
    wanted = {
        "exact weights": ["attack", "rule"],
        "no attack": ["round", "test accuracy"],
        "In reads of all updates": ["server time of a round, reads of all updates"],
        "In seconds": ["server time of a round, seconds"],
        "Weights, client by round": ["round", "weight on attackers"],
        "Least trusted clients": ["mean weight, 1 = equal share", "client"],
        "Sketched against exact weights": ["exact weight", "sketched weight"],
        "Distance to exact weights": ["round", "total variation distance"],
        "Data of each client": ["class"],
    }
    with opened(browser, sweep.page) as seen:
        found = dict(seen.evaluate(titles))
        assert {name: found[name] for name in wanted} == wanted


def test_nothing_is_truncated_at_the_width_of_a_laptop(browser, tmp_path):
    for rule in ("mean", "nnm >> geometric-median", "bucketing >> coordinate-wise-trimmed-mean"):
        for sketch in ("exact", "rotated"):
            for attack in ("none", "sign-flip", "inner-product-manipulation"):
                folder = tmp_path / f"{attack}-{rule.replace(' >> ', '-')}-{sketch}-seed0-0123abcd"
                write_run(folder, rule, attack, sketch, rounds=6, clients=20)
    clipped = """() => [...document.querySelectorAll('body *')].filter((node) => {
      const style = getComputedStyle(node);
      return style.display !== 'inline' && style.overflowX !== 'visible' && node.scrollWidth > node.clientWidth + 1;
    }).map((node) => node.className)"""
    with opened(browser, page_of(tmp_path), 1400) as seen:
        assert "…" not in seen.locator("body").inner_text()
        assert "…" not in " ".join(seen.locator("svg text").all_text_contents())
        assert seen.evaluate(clipped) == []


def test_differences_by_rounding_are_drawn_flat_at_zero(browser, tmp_path):
    folder = write_run(tmp_path / "a", rounds=8, every=1)
    lines = results.read(folder).lines()
    for line in lines[1:-1]:
        line["exact_weights"] = [weight + 1e-11 * (line["round"] % 2) for weight in line["weights"]]
    (folder / results.NAME).write_bytes(b"".join(map(results.encode, lines)))
    with opened(browser, page_of(folder)) as seen:
        figure = seen.locator("figure").filter(has_text="Distance to exact weights")
        assert "0 up to rounding" in figure.inner_text()
        ticks = [float(text) for text in figure.locator("svg text:not(.title)").all_text_contents()]
        assert 0.01 in ticks
        heights = figure.locator("circle").evaluate_all("all => all.map((one) => Number(one.getAttribute('cy')))")
        assert max(heights) - min(heights) < 0.1


def test_the_legend_hides_on_a_click_and_fades_the_others_on_hover(browser, sweep):
    with opened(browser, sweep.page) as seen:
        chip = seen.get_by_role("button", name="krum", exact=True)
        chip.hover()
        assert seen.locator("#accuracy .curve").count() == 40
        assert seen.locator("#accuracy .series.dim .curve").count() == 30
        chip.click()
        assert chip.get_attribute("aria-pressed") == "false"
        assert seen.locator("#accuracy .curve").count() == 30
        chip.focus()
        seen.keyboard.press("Enter")
        assert seen.locator("#accuracy .curve").count() == 40


def test_the_theme_repaints_canvases(browser, sweep):
    pixel = "() => document.querySelector('#clients .plot canvas:not(.key canvas)').toDataURL()"
    with opened(browser, sweep.page) as seen:
        light = seen.evaluate(pixel)
        seen.click("#theme")
        assert seen.evaluate("document.documentElement.dataset.theme") == "dark"
        assert seen.evaluate(pixel) != light


def test_the_grid_shows_each_cell_and_a_dash_for_the_best_round_where_nothing_converged(browser, sweep):
    runs = {run.folder: run for run in sweep.content.loaded.runs}
    with opened(browser, sweep.page) as seen:
        for word, which in (("at the end", "last"), ("best round", "best")):
            seen.get_by_role("button", name=word).click()
            for table, sketch in zip(seen.query_selector_all(".heat"), ("exact", "rotated"), strict=True):
                heads = [head.inner_text() for head in table.query_selector_all("thead th:not(.title)")]
                for row in table.query_selector_all("tbody tr"):
                    rule = row.query_selector("th").inner_text()
                    for attack, cell in zip(heads, row.query_selector_all("td"), strict=True):
                        run = runs[f"{rule}-{attack.replace('no attack', 'none')}-{sketch}-0"]
                        if run.converged or (which == "last" and run.status == "finished"):
                            assert float(cell.inner_text()) == pytest.approx(100 * getattr(run, which), abs=0.051)
                        else:
                            assert cell.inner_text() == "-"


def test_the_clients_of_another_run_come_by_the_box_the_arrows_and_a_link(browser, sweep):
    places = [run.folder for run in sweep.content.loaded.runs]
    with opened(browser, sweep.page, fragment="#run-3") as seen:
        facts = seen.locator("#clients .facts")
        assert facts.inner_text().startswith(places[3])
        seen.select_option("#run", "7")
        assert facts.inner_text().startswith(places[7])
        seen.get_by_role("button", name="Next run").click()
        assert not facts.inner_text().startswith(places[7])
        seen.click(f"text={places[5]} >> nth=0")
        # Browsers fire `hashchange` after the click is over.
        shown = "place => document.querySelector('#clients .facts').innerText.startsWith(place)"
        seen.wait_for_function(shown, arg=places[5])


def sorted_by_accuracy(seen):
    """Click the heading, and return the column of accuracies."""
    column = [head.inner_text().split()[0] for head in seen.query_selector_all(".runs th")].index("accuracy") + 1
    seen.click(f".runs th:nth-child({column}) button")
    return [cell.inner_text() for cell in seen.query_selector_all(f".runs td:nth-child({column})")]


def test_a_heading_sorts_the_runs(browser, sweep):
    with opened(browser, sweep.page) as seen:
        values = [float(text.rstrip("%")) for text in sorted_by_accuracy(seen)]
        assert len(values) == 40
        assert values == sorted(values, reverse=True)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """More rules than colours and more attacks than half a page holds, near guessing; krum was never evaluated."""
    folder = tmp_path_factory.mktemp("crowd")
    rules, attacks = [rule for rule in names.RULES if rule not in ("mean", "krum")][:10], list(ATTACKS)
    for n, rule in enumerate(rules):
        write_brief(folder / rule, rule, accuracy=0.01 * (n % 9) + 0.005)
    for attack in set(attacks) - {"lie"}:
        write_brief(folder / f"under-{attack}", rules[0], attack, accuracy=0.09)
    write_brief(folder / "krum", "krum", accuracy=None, server=None, weighs=False)
    return page_of(folder)


@pytest.fixture(scope="module")
def crowded(browser, crowd):
    with opened(browser, crowd) as seen:
        yield seen


def test_ticks_of_an_axis_have_as_many_digits_as_they_need(crowded):
    texts = crowded.locator("#accuracy figure svg").first.locator("text").all_text_contents()
    assert [text for text in texts if re.fullmatch(r"[\d.]+%", text)] == ["0%", "2.5%", "5%", "7.5%", "10%"]


@pytest.mark.parametrize("width", [400, 1280])
def test_many_attacks_leave_each_cell_and_head_on_one_line(width, browser, crowd):
    with opened(browser, crowd, width) as seen:
        assert seen.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.evaluate("document.querySelector('.sideways').scrollWidth") >= 52 * len(ATTACKS)
        # Lines of text are the rectangles of a range over it.
        broken = """() => [...document.querySelectorAll('.heat th, .heat td')].filter((cell) => {
          const range = document.createRange();
          range.selectNodeContents(cell.querySelector('span') ?? cell);
          return cell.innerText && new Set([...range.getClientRects()].map((box) => `${box.left} ${box.top}`)).size > 1;
        }).map((cell) => cell.innerText)"""
        assert seen.evaluate(broken) == []


def test_no_two_rules_share_colour_and_mark(crowded):
    chips = crowded.locator("#accuracy .chip svg").evaluate_all("all => all.map((one) => one.innerHTML)")
    assert len(chips) == 10
    assert len(set(chips)) == 10
    assert crowded.locator("#accuracy .curve").count() < crowded.locator("#accuracy circle, #accuracy .mark").count()
    assert len(set(rule_styles(names.RULES).values())) == len(names.RULES)


def test_unknown_values_are_sorted_last_in_both_directions(crowded):
    for _ in range(2):
        shown = sorted_by_accuracy(crowded)
        assert [text for text in shown if not text] == shown[-1:]


def test_a_rule_whose_rounds_were_refused_is_not_called_coordinatewise(crowded):
    crowded.click(".runs a[title=krum]")
    crowded.wait_for_function("() => document.querySelector('#clients .facts').innerText.startsWith('krum')")
    assert crowded.locator("#clients .empty").first.inner_text() == "No round gave weights."
    assert "server" not in crowded.locator("#clients .facts").inner_text()


def test_hostile_names_are_text(browser, tmp_path):
    ids = [f"{EVIL} {i}" for i in range(6)]
    evil = {"ids": ids, "clients": 6, "name": EVIL, "classes": [f"{EVIL}{c}" for c in range(3)], "rounds": 3}
    write_run(tmp_path / "a", rule=EVIL, attack=EVIL, sketch=EVIL, **evil)
    write_run(tmp_path / "b", rule="=cmd()", attack="none", sketch="exact", **evil, **{EVIL: EVIL})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / results.NAME).write_bytes(f"{EVIL}\n".encode())
    done = write(tmp_path, title=EVIL)
    with opened(browser, done.page) as seen:
        assert seen.evaluate("window.hacked") is None
        assert seen.query_selector("img") is None
        assert seen.locator("script").count() == 2
        assert "</script>" in seen.locator("h1").inner_text()
        assert "</script>" in seen.locator("#problems").inner_text()
        assert seen.evaluate(DRAWN)
    assert table(tmp_path / "runs.csv")[1]["rule"] == "'=cmd()"


@pytest.mark.parametrize("name", ["</script>", "\u2028\u2029", "<!--", "\ud800", "&amp;"])
def test_embedded_text_is_ascii_and_comes_back(name):
    text = embedded({"name": name})
    assert json.loads(text) == {"name": name}
    assert not re.search(r"[<>&\u0080-\uffff]", text)


def test_incomplete_runs_are_named_and_the_others_shown(browser, tmp_path, capsys):
    write_run(tmp_path / "whole", rounds=3)
    write_run(tmp_path / "going-on", rounds=3, ends=False)
    torn = write_run(tmp_path / "torn", rounds=3, ends=False) / results.NAME
    torn.write_bytes(torn.read_bytes()[:-20])
    corrupt = write_run(tmp_path / "corrupt", rounds=3) / results.NAME
    corrupt.write_bytes(corrupt.read_bytes().replace(b'"round":2', b'"round":7'))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / results.NAME).touch()
    with results.Writer(tmp_path / "foreign") as out:
        out.write("run", version=1, clients=["a", "b"])
        out.write("round", round=1, clients=["a", "z"], weights=[1, 0])
    assert cli.main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().err
    for name, why in (("corrupt", "line 3"), ("empty", "no complete line"), ("foreign", "names 'z'")):
        assert re.search(f"not shown: {name}: .*{why}", printed)
    with opened(browser, tmp_path / "report.html") as seen:
        shown = seen.locator("#problems").inner_text()
        for name in ("corrupt unreadable", "empty unreadable", "foreign unreadable", "going-on unfinished"):
            assert name in shown
        assert re.search("torn unfinished: after 2 rounds.*incomplete", shown)
        assert seen.locator(".runs tbody tr").count() == 3


def test_a_report_of_a_corrupt_run_alone_is_written(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / results.NAME).write_bytes(results.encode({"kind": "run", "version": 1, "clients": []}))
    found = load(tmp_path)
    assert [place for place, _ in found.broken] == ["run"]
    assert content(found).findings == ["No run could be read."]
    assert page(content(found))


def test_a_folder_without_runs_is_one_line_and_status_2(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "gone")]) == 2
    assert cli.main(["report", str(write_run(tmp_path / "a", rounds=1)), "--out", str(tmp_path / "a.txt")]) == 2
    assert "ends in .html" in capsys.readouterr().err


def test_a_deployment_shows_its_suspects_first(browser, tmp_path):
    ids = [f"site-{i}" for i in range(12)]
    path = page_of(write_run(tmp_path / "a", clients=12, ids=ids, known=False, ends=False, participation=0.7))
    with opened(browser, path) as seen:
        assert seen.locator("section").first.get_attribute("id") == "clients"
        assert seen.locator("figure h3").first.inner_text() == "Least trusted clients"
        assert re.search(r"4 suspects among 12 clients: site-\d+ \(left out of", seen.locator(".lead").inner_text())


def test_no_attackers_and_unknown_attackers_are_told_apart(tmp_path):
    write_run(tmp_path / "none", clients=4, rounds=2, attackers=0)
    write_run(tmp_path / "unknown", clients=4, rounds=2, attackers=0, known=False)
    found = data(content(load(tmp_path)))
    assert [found["cohorts"][run["cohort"]]["attackers"] for run in found["runs"]] == [[], None]


def test_printing_is_light_and_leaves_the_theme_of_the_screen(browser, sweep):
    theme = "document.documentElement.dataset.theme"
    with opened(browser, sweep.page, scheme="dark") as seen:
        seen.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {theme}; }})")
        assert len(seen.pdf(format="A4")) > 50_000
        assert (seen.evaluate("window.printed"), seen.evaluate(theme)) == ("light", "dark")


@pytest.mark.parametrize(
    "shape",
    [
        {"clients": 1, "rounds": 1, "attackers": 0},
        {"clients": 1000, "rounds": 4, "every": 1, "classes": [f"class {c}" for c in range(100)]},
        {"clients": 1, "attackers": 0, "rounds": 10_000, "every": 4},
        {"clients": 8, "rounds": 3, "weighs": False},
        {"clients": 8, "rounds": 3, "attackers": 1.0},
        {"clients": 8, "rounds": 3, "every": 9, "ends": True},
    ],
    ids=lambda shape: " ".join(f"{key}={value}" for key, value in shape.items() if key != "classes"),
)
def test_any_number_of_clients_and_rounds_can_be_drawn(shape, browser, tmp_path):
    folder = write_run(tmp_path / "a", **shape)
    path = page_of(folder)
    assert pictures(content(load(folder)))
    assert path.stat().st_size < 1_500_000
    with opened(browser, path) as seen:
        assert all(not figure["wrong"] and figure["marks"] for figure in seen.evaluate(DRAWN))


def test_two_hundred_runs_fit_into_a_page(tmp_path):
    first = write_run(tmp_path / "run-0", rounds=100)
    for n in range(1, 200):
        shutil.copytree(first, tmp_path / f"run-{n}")
    assert page_of(tmp_path).stat().st_size < 10_000_000


def test_weights_that_do_not_fit_are_left_out_but_not_those_of_the_run_shown_first(monkeypatch, tmp_path):
    monkeypatch.setattr(pack, "MAX_WEIGHT_BYTES", 1500)
    for n in range(6):
        write_run(tmp_path / str(n), rounds=30, seed=n)
    made = content(load(tmp_path))
    runs = data(made)["runs"]
    assert runs[made.featured]["weights"] is not None
    assert any(run["weights"] is None for run in runs)
    assert sum(len(run["weights"]["cells"]) for run in runs if run["weights"]) <= 2 * 1500


def test_packed_weights_are_the_weights_to_a_level(tmp_path):
    run = load(write_run(tmp_path / "a", rounds=20, participation=0.5)).runs[0]
    packed = pack.weights(run, 20)
    levels = np.frombuffer(base64.b64decode(packed["cells"]), dtype=np.uint8).reshape(50, 20).T
    plain = levels <= pack.LEVELS
    np.testing.assert_array_equal(levels == pack.QUARANTINED, run.quarantined)
    np.testing.assert_array_equal(levels == pack.ABSENT, ~run.present & ~run.quarantined)
    want = np.minimum(run.weights[plain], packed["top"])
    np.testing.assert_allclose(levels[plain] / pack.LEVELS * packed["top"], want, atol=packed["top"] / 400)


def test_the_tables_hold_what_was_written(sweep):
    folder = sweep.page.parent
    runs, rounds = table(folder / "runs.csv"), table(folder / "rounds.csv")
    assert len(runs) == len(LEVEL) * len(HARM) * 2
    assert len(rounds) == 10 * len(runs)
    recorded = results.read(folder / "krum-lie-exact-0")
    own = [row for row in rounds if row["run"] == "krum-lie-exact-0"]
    assert [row["accuracy"] for row in own] == [str(line.get("accuracy", "")) for line in recorded.rounds]
    assert float(own[0]["sketch_seconds"]) == recorded.rounds[0]["seconds"]["sketch"]


def test_the_pictures_are_png_and_not_blank(sweep):
    from PIL import Image

    pictured = {path.name for path in sweep.beside if path.suffix == ".png"}
    assert pictured == set(figures.PICTURES) - {"perplexity.png"}
    for name in pictured:
        with Image.open(sweep.page.parent / name) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 50


def test_pictures_of_an_earlier_report_go_and_those_of_others_stay(tmp_path):
    folder = tmp_path / "runs"
    write_run(folder / "a", "krum", rounds=2)
    assert (folder / "weights.png") in write(folder).beside
    (folder / "split.png").write_bytes(b"somebody's own")
    shutil.rmtree(folder / "a")
    write_brief(folder / "a", "median", weighs=False)
    write(folder)
    assert not (folder / "weights.png").exists()
    assert (folder / "accuracy.png").exists()
    assert (folder / "split.png").read_bytes() == b"somebody's own"


def test_rounds_on_an_axis_are_whole(tmp_path):
    made = content(load(write_run(tmp_path / "a", rounds=3, every=1, clients=6)))
    for name in ("accuracy.png", "weights.png"):
        ticks = figures.PICTURES[name](made).axes[0].get_xticks()
        assert list(ticks) == [round(tick) for tick in ticks]


def test_all_assets_of_the_page_are_package_data():
    root = Path(__file__).parents[2]
    package = root / "src" / "bartizan"
    sent = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = sent["tool"]["setuptools"]["package-data"]["bartizan"]
    files = {path for pattern in patterns for path in package.glob(pattern)}
    assets = set((package / "lab" / "report" / "assets").iterdir())
    assert assets
    assert assets <= files


def test_without_matplotlib_the_page_is_written_and_the_extra_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["report", str(write_run(tmp_path / "a", rounds=2))]) == 0
    assert "'.[plot]'" in capsys.readouterr().err
    assert (tmp_path / "a" / "report.html").exists()
    assert not list(tmp_path.rglob("*.png"))


def test_tensorboard_reads_back_what_was_written_once(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    folder = write_run(tmp_path / "a", rounds=6)
    for _ in range(2):
        tables.write_events(load(folder).runs, tmp_path / "events")
    (path,) = (tmp_path / "events").rglob("events.out.tfevents.*")
    found = {}
    for event in loader.LegacyEventFileLoader(str(path)).Load():
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    for line in results.read(folder).rounds:
        assert found["loss", line["round"]] == pytest.approx(line["loss"], rel=1e-6)
        assert ("accuracy", line["round"]) in found or "accuracy" not in line


def test_without_tensorboard_nothing_is_written_and_the_extra_named(monkeypatch, tmp_path, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    folder = write_run(tmp_path / "a", rounds=2)
    assert cli.main(["report", str(folder), "--tensorboard", str(tmp_path / "events")]) == 2
    assert "'.[tensorboard]'" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_reporting_imports_no_torch(tmp_path):
    folder = write_run(tmp_path / "a", rounds=2)
    code = (
        f"import sys; from bartizan.lab.report import write; write({str(folder)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_runs_give_the_same_page(tmp_path):
    folder = write_run(tmp_path / "a", rounds=3, classes=CLASSES[:4])
    assert page_of(folder).read_bytes() == page_of(folder).read_bytes()
