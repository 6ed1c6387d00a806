// Rule by attack, and what each rule costs the server.
/** More attacks than these need the page's whole width. */
const MANY = 6;
const evaluated = () => data.attacks.filter((attack) => data.cells.some((cell) => cell.attack === attack));

function gridSection() {
  const here = section("grid", "Rules × attacks", "Test accuracy in percent; with several seeds their mean and standard deviation. "
    + "“-” stands for runs that did not converge.");
  let metric = "last";
  const grids = [];
  const buttons = [["last", "at the end"], ["best", "best round"]].map(([key, text]) => make("button", {
    type: "button", text, "aria-pressed": String(key === metric), on: { click: (event) => {
      metric = key;
      buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
      grids.forEach((one) => one.redraw());
    } } }));
  here.append(make("div", { class: "tools" }, make("span", { class: "what", text: "Accuracy" }),
    make("span", { class: "switch", role: "group", "aria-label": "Which accuracy" }, buttons)));
  const pair = make("div", { class: evaluated().length > MANY ? "stack" : "pair" });
  here.append(pair);
  const top = Math.max(0.01, ...data.cells.flatMap((cell) => [cell.last[0] ?? 0, cell.best[0] ?? 0]));
  for (const other of data.others) for (const sketch of data.sketches) {
    const own = data.cells.filter((cell) => cell.other === other && cell.sketch === sketch);
    if (!own.length) continue;
    const name = [sketch && `${sketch} ${sketch.startsWith("exact") ? "weights" : "sketch"}`, other].filter(Boolean).join(" · ");
    grids.push(chart(pair, name, "", () => heatTable(own, metric, top, name)));
  }
}

function heatTable(cells, metric, top, name) {
  const attacks = evaluated(), many = attacks.length > MANY;
  const rules = data.rules.filter((rule) => cells.some((cell) => cell.rule === rule));
  const head = make("tr", {}, make("td", { class: "corner none", style: { background: "none", height: "auto" } }),
    attacks.map((attack) => {
      const full = attack === "none" ? "no attack" : attack;
      return make("th", { scope: "col", title: many ? full : null }, make("span", { text: many ? shortened(full, 24) : full }));
    }));
  const rows = rules.map((rule) => make("tr", {}, make("th", { scope: "row", text: many ? shortened(rule, 40) : rule, title: many ? rule : null }), attacks.map((attack) => {
    const cell = cells.find((one) => one.rule === rule && one.attack === attack);
    return cell ? heatCell(cell, metric, top) : make("td", { class: "none" });
  })));
  const label = `Accuracy by rule and attack, ${name}`;
  const table = make("table", { class: many ? "heat many" : "heat", "aria-label": label }, make("thead", {}, head), make("tbody", {}, rows));
  return many ? make("div", { class: "sideways", tabindex: "0", role: "region", "aria-label": label }, table) : table;
}

function heatCell(cell, metric, top) {
  const [value, spread] = cell[metric];
  const about = [[`${cell.rule} under ${cell.attack === "none" ? "no attack" : cell.attack}`], ["", "at the end", percent(cell.last[0])],
    ["", "best round", percent(cell.best[0])], ["", "runs", String(cell.n)]];
  if (cell.converged < cell.n) about.push(["", "did not converge", String(cell.n - cell.converged)]);
  if (cell.unfinished) about.push(["", "unfinished", String(cell.unfinished)]);
  const on = { pointermove: (event) => tip(event, about), pointerleave: untip };
  if (value === null) {
    return make("td", { class: "gone", text: cell.converged ? "…" : "-", on,
      "aria-label": cell.converged ? "not evaluated yet" : "did not converge" });
  }
  // Steeper than linear: most cells of interest lie close to the top.
  const back = ramp((value / top) ** 1.4);
  const notes = [spread !== null ? `± ${(100 * spread).toFixed(1)}` : "",
    cell.converged < cell.n ? `${cell.converged} of ${cell.n}` : "", cell.unfinished ? "unfinished" : ""].filter(Boolean);
  return make("td", { style: { background: rgb(back), color: inkOn(back) }, on }, (100 * value).toFixed(1),
    notes.map((text) => make("small", { text })));
}

function timesSection() {
  const timed = data.times.some((time) => time.reads !== null);
  const here = section("server", "Server time", "Median of a round, without the clients’ training. "
    + (timed ? "One read is the time to read all updates once, on the same machine in the same run." : "No read of the updates was timed, so there are seconds only."));
  const parts = data.times.some((time) => time.parts.filter((part) => part).length > 1);
  const stack = make("div", { class: "stack" });
  here.append(stack);
  for (const other of new Set(data.times.map((time) => time.other))) {
    const own = data.times.filter((time) => time.other === other), name = (text) => [text, other].filter(Boolean).join(" · ");
    const pair = make("div", { class: timed ? "pair" : "stack" });
    stack.append(pair);
    if (timed) chart(pair, name("In reads of all updates"), "The whole of the server’s work.", (width) =>
      bars(width, own, (time) => [time.reads], (time) => reads(time.reads), "reads"));
    chart(pair, name("In seconds"), parts ? "Strong to pale: to sketch, to weigh, to combine." : "", (width) =>
      bars(width, own, (time) => time.parts, (time) => seconds(time.seconds), "seconds"));
  }
}

function bars(width, times, parts, shown, unit) {
  const rows = data.rules.flatMap((rule) => times.filter((time) => time.rule === rule)
    .sort((a, b) => data.sketches.indexOf(a.sketch) - data.sketches.indexOf(b.sketch)));
  const total = (time) => parts(time).reduce((a, b) => a + (b ?? 0), 0);
  const most = Math.max(...rows.map(total)) || 1;
  const sketched = data.sketches.length > 1 ? Math.min(width * 0.2, 18 + widest(rows.map((time) => time.sketch), 11)) : 0;
  const names = Math.min(width * 0.28, 8 + widest(rows.map((time) => time.rule)));
  const left = names + sketched;
  const height = 20, gap = 14;
  let at = 4;
  const svg = canvas(width, 10, `Server time in ${unit}`);
  rows.forEach((time, i) => {
    const first = !i || rows[i - 1].rule !== time.rule;
    if (first && i) at += gap;
    if (first) svg.append(words(names - 6, at + 14, fitted(time.rule, names - 6), { class: "strong", "text-anchor": "end" }));
    if (sketched) svg.append(words(left - 8, at + 14, fitted(time.sketch, sketched - 12, 11), { class: "small", "text-anchor": "end" }));
    let from = left;
    parts(time).forEach((part, n) => {
      const wide = ((part ?? 0) / most) * (width - left - 66);
      if (wide > 0) svg.append(shape("rect", { x: from, y: at, width: Math.max(wide, 0.5), height: height - 2,
        style: { fill: colour(time.rule), opacity: [0.95, 0.6, 0.32][n] } }));
      from += wide;
    });
    svg.append(words(from + 6, at + 14, total(time) ? shown(time) : "not timed", { class: "strong" }));
    at += height;
  });
  svg.append(line(left, 0, left, at + 2, "axis"));
  svg.setAttribute("height", at + 6);
  svg.setAttribute("viewBox", `0 0 ${width} ${at + 6}`);
  return svg;
}
