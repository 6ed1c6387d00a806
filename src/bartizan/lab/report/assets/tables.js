// Cards, what went wrong, all runs, the configuration.

function cards() {
  byId("cards").append(...data.cards.map((card) => make("dl", { class: "card", style: { margin: "0" } },
    make("dt", { text: card.label }), make("dd", { text: card.value }), make("p", { text: card.note }))));
}

function problems() {
  if (!data.problems.length) return;
  byId("problems").append(make("div", { class: "problems", role: "note" },
    make("b", { text: "Not every run is finished and whole" }),
    make("ul", {}, data.problems.map((one) => make("li", {}, make("b", { text: one.place }), ` ${one.state}: ${one.why}`)))));
}

function runsSection(show) {
  const here = section("runs", "All runs", "A click on a heading sorts; a click on a run shows its clients.");
  const some = (key) => data.runs.some((run) => run[key] !== null && run[key] !== "");
  const columns = [["run", (run) => run.place], ["rule", (run) => run.rule], ["sketch", (run) => run.sketch], ["attack", (run) => run.attack],
    ["other", (run) => run.other], ["seed", (run) => run.seed], ["rounds", (run) => run.rounds, plain], ["last", (run) => run.last, percent], ["best", (run) => run.best, percent],
    ["attackers", (run) => run.attackers, percent], ["server", (run) => run.server, seconds], ["reads", (run) => run.reads, reads], ["status", (run) => (run.converged ? run.status : `${run.status}, not converged`)]]
    .filter(([key]) => key === "run" || key === "status" || some(key));
  const names = { last: "accuracy", attackers: "weight on attackers", server: "server, a round", status: "state" };
  const rows = data.runs.map((run, i) => ({ run, node: make("tr", {}, columns.map(([key, value, shown]) => {
    if (key === "run") return make("td", {}, make("a", { href: `#run-${i}`, text: shortened(run.place, 60), title: run.place }));
    const found = value(run), lost = (key === "last" || key === "best") && !run.converged;
    const bad = (key === "status" && (!run.converged || run.status !== "finished")) || lost;
    return make("td", { class: `${shown ? "n" : ""}${bad ? " bad" : ""}`.trim() || null, text: found === null ? "" : shown ? shown(found) : found });
  })) }));
  const body = make("tbody", {}, rows.map((row) => row.node));
  const heads = columns.map(([key, value, shown]) => make("th", { scope: "col", class: shown ? "n" : null }, make("button", { type: "button", text: names[key] ?? key, on: { click: (event) => {
    const head = event.currentTarget.parentNode;
    const down = head.getAttribute("aria-sort") === (shown ? "descending" : "ascending") ? !shown : Boolean(shown);
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sorted = [...rows].sort((a, b) => compared(value(a.run), value(b.run), down ? -1 : 1));
    body.replaceChildren(...sorted.map((row) => row.node));
  } } })));
  here.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All runs" },
    make("table", { class: "runs" }, make("thead", {}, make("tr", {}, heads)), body)));
  const follow = () => {
    const found = /^#run-(\d+)$/.exec(location.hash);
    if (!found || !data.runs[Number(found[1])]) return;
    show(Number(found[1]));
    byId("clients").scrollIntoView();
  };
  addEventListener("hashchange", follow);
  here.addEventListener("click", (event) => { if (event.target.getAttribute?.("href") === location.hash) follow(); });
  follow();
}

/** What is not known comes last, whichever way the rest goes. */
function compared(a, b, way) {
  if (a === null || b === null) return (a === null) - (b === null);
  return way * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

function configSection() {
  const here = section("config", "Configuration", data.differs.length ? "What differs between the runs first, then what they share." : "");
  const listed = (pairs, kind) => make("dl", { class: `settings ${kind}` }, pairs.map(([key, value]) =>
    make("div", {}, make("dt", { text: key }), make("dd", { text: value === "" ? "(empty)" : value }))));
  if (data.differs.length) here.append(listed(data.differs.map(({ key, values }) =>
    [key, values.length > 12 ? `${values.slice(0, 12).join(", ")} … (${values.length})` : values.join(", ")]), "wide"));
  if (data.shared.length) here.append(make("details", { open: data.runs.length === 1 ? "" : null },
    make("summary", { text: data.runs.length > 1 ? `The same in all runs (${data.shared.length})` : "All settings" }), listed(data.shared, "")));
  if (!data.differs.length && !data.shared.length) here.append(make("p", { class: "empty", text: "The runs recorded no configuration." }));
  if (data.differs.length) here.append(make("details", {}, make("summary", { text: "Run by run" }), data.runs.map((run) => make("details", {},
    make("summary", { text: shortened(run.place, 100), style: { fontWeight: "400" } }), listed(Object.entries(run.config), "")))));
}
