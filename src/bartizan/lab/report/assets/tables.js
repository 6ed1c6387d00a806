// Key figures, unreadable and unfinished runs, the table of all runs, and the configuration.

function cards() {
  byId("cards").append(...data.cards.map((card) => html("dl", { class: "card", style: { margin: "0" } },
    html("dt", { text: card.label }), html("dd", { text: card.value }), html("p", { text: card.note }))));
}

function problems() {
  if (!data.problems.length) return;
  byId("problems").append(html("div", { class: "problems", role: "note" },
    html("b", { text: "Some runs are unfinished or can’t be read" }),
    html("ul", {}, data.problems.map((one) => html("li", {}, html("b", { text: one.folder }), ` ${one.state}: ${one.why}`)))));
}

/** Columns of the table of runs: field, heading, and for numbers their format. */
const COLUMNS = [["run", "run"], ["rule", "rule"], ["sketch", "sketch"], ["attack", "attack"], ["other", "other"], ["seed", "seed"],
  ["rounds", "rounds", number], ["last_accuracy", "accuracy", percent], ["best_accuracy", "best", percent], ["last_perplexity", "perplexity", shownAs.perplexity], ["best_perplexity", "lowest", shownAs.perplexity], ["last_backdoor", "backdoor", percent],
  ["weight_on_attackers", "weight on attackers", percent], ["server_seconds", "server, a round", seconds], ["server_reads", "reads", reads], ["status", "state"]];

function runsSection(show) {
  const here = section("runs", "All runs", "Click a heading to sort, click a run to see its clients.");
  const columns = COLUMNS.filter(([key]) => data.runs.some((run) => run[key] !== null && run[key] !== ""));
  const rows = data.runs.map((run, i) => ({ run, node: html("tr", {}, columns.map(([key, , format]) => {
    if (key === "run") return html("td", {}, html("a", { href: `#run-${i}`, text: shortened(run.run, 120), title: run.run }));
    const text = run[key] === null ? "" : format ? format(run[key]) : run[key];
    const bad = key === "status" ? !run.converged || run.status !== "finished" : /_(accuracy|perplexity)$/.test(key) && !run.converged;
    return html("td", { class: [format && "n", bad && "bad"].filter(Boolean).join(" ") || null,
      text: key === "status" && !run.converged ? `${text}, not converged` : text });
  })) }));
  const body = html("tbody", {}, rows.map((row) => row.node));
  const heads = columns.map(([key, name, format]) => html("th", { scope: "col", class: format ? "n" : null }, html("button", { type: "button", text: name, on: { click: (event) => {
    const head = event.currentTarget.parentNode;
    const down = head.getAttribute("aria-sort") === (format ? "descending" : "ascending") ? !format : Boolean(format);
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sorted = [...rows].sort((a, b) => compared(a.run[key], b.run[key], down ? -1 : 1));
    body.replaceChildren(...sorted.map((row) => row.node));
  } } })));
  here.append(html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All runs" },
    html("table", { class: "runs" }, html("thead", {}, html("tr", {}, heads)), body)));
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

/** Compare two values; unknown ones come last in both directions. */
function compared(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null);
  return direction * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

function configSection() {
  const here = section("config", "Configuration", data.differs.length ? "First the settings that differ between the runs, then those they share." : "");
  const list = (pairs, kind) => html("dl", { class: `settings ${kind}` }, pairs.map(([key, value]) =>
    html("div", {}, html("dt", { text: key }), html("dd", { text: value === "" ? "(empty)" : value }))));
  if (data.differs.length) here.append(list(data.differs.map(({ key, values }) =>
    [key, values.length > 12 ? `${values.slice(0, 12).join(", ")} … (${values.length})` : values.join(", ")]), "wide"));
  if (data.shared.length) here.append(html("details", { open: data.runs.length === 1 ? "" : null },
    html("summary", { text: data.runs.length > 1 ? `The same in all runs (${data.shared.length})` : "All settings" }), list(data.shared, "")));
  if (!data.differs.length && !data.shared.length) here.append(html("p", { class: "empty", text: "The runs recorded no configuration." }));
  if (data.differs.length) here.append(html("details", {}, html("summary", { text: "Run by run" }), data.runs.map((run) => html("details", {},
    html("summary", { text: shortened(run.run, 120), style: { fontWeight: "400" } }), list(Object.entries(run.config), "")))));
}
