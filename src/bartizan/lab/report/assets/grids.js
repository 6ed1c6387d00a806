// Accuracy by rule and attack, and the server's time by rule.
const evaluated = () => data.attacks.filter((attack) => data.cells.some((cell) => cell.attack === attack));

function gridMeans() {
  const found = new Set(data.cells.map((cell) => cell.metric));
  return [found.has("accuracy") && "Test accuracy in percent", found.has("perplexity") && "Test perplexity, of which less is better"].filter(Boolean).join("; ");
}

function gridSection() {
  const here = section("grid", "Rules × attacks", `${gridMeans()}; ${data.cells.some((cell) => cell.n > 1)
    ? "with several seeds, mean and standard deviation" : "one seed, so no spread is known"}. Hatched: runs that did not converge; `
    + "“to attackers” for more than half of the weight; “backdoor” for its success at the end, of which less is better.");
  let metric = "last";
  const grids = [];
  const buttons = [["last", "at the end"], ["best", "best round"]].map(([key, text]) => html("button", {
    type: "button", text, "aria-pressed": String(key === metric), on: { click: (event) => {
      metric = key;
      buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
      grids.forEach((one) => one.redraw());
    } } }));
  here.append(html("div", { class: "tools" }, html("span", { class: "what", text: data.cells.every((cell) => cell.metric === "perplexity") ? "Perplexity" : "Accuracy" }),
    html("span", { class: "switch", role: "group", "aria-label": "Which round" }, buttons)));
  const pair = html("div", { class: evaluated().length > 6 ? "stack" : "pair" });
  here.append(pair);
  const ends = (name) => data.cells.filter((cell) => cell.metric === name).flatMap((cell) => [cell.last[0], cell.best[0]]).filter((value) => value !== null);
  const top = { accuracy: Math.max(0.01, ...ends("accuracy")), perplexity: Math.min(...ends("perplexity")) };
  for (const other of data.others) for (const sketch of data.sketches) {
    const own = data.cells.filter((cell) => cell.other === other && cell.sketch === sketch);
    if (!own.length) continue;
    const name = joined(sketch && `${sketch} ${sketch.startsWith("exact") ? "weights" : "sketch"}`, other);
    grids.push(chart(pair, name, "", (width) => heatTable(width, own, metric, top, name)));
  }
}

function heatTable(width, cells, metric, top, name) {
  // Narrow columns have vertical headings, and the table can be scrolled sideways.
  const attacks = evaluated(), narrow = attacks.length > 6 || width / attacks.length < 100;
  const rules = data.rules.filter((rule) => cells.some((cell) => cell.rule === rule));
  const heads = [
    html("tr", {}, html("td", { class: "corner" }), html("th", { class: "title", colspan: attacks.length, scope: "colgroup", text: "attack" })),
    html("tr", {}, html("th", { class: "title corner", text: "rule" }), attacks.map((attack) =>
      html("th", { scope: "col" }, html("span", { text: shortened(attackName(attack), 60) }))))];
  const rows = rules.map((rule) => html("tr", {}, html("th", { scope: "row", text: shortened(rule, 120) }), attacks.map((attack) => {
    const cell = cells.find((one) => one.rule === rule && one.attack === attack);
    return cell ? heatCell(cell, metric, top) : html("td", { class: "none" });
  })));
  const label = `${cells[0].metric === "perplexity" ? "Perplexity" : "Accuracy"} by rule and attack, ${name}`;
  const table = html("table", { class: narrow ? "heat narrow" : "heat", "aria-label": label }, html("thead", {}, heads), html("tbody", {}, rows));
  return narrow ? html("div", { class: "sideways", tabindex: "0", role: "region", "aria-label": label }, table) : table;
}

function heatCell(cell, metric, top) {
  const [value, deviation] = cell[metric], shown = shownAs[cell.metric], text = cell.metric === "perplexity";
  const about = [[`${cell.rule} under ${attackName(cell.attack)}`], ["", "at the end", shown(cell.last[0])],
    ["", "best round", shown(cell.best[0])], ["", "runs", String(cell.n)]];
  if (cell.backdoor[0] !== null) about.push(["", "backdoor success", percent(cell.backdoor[0])]);
  if (cell.on_attackers !== null && cell.attack !== "none") about.push(["", "weight to attackers", percent(cell.on_attackers)]);
  if (cell.n_converged < cell.n) about.push(["", "did not converge", String(cell.n - cell.n_converged)]);
  if (cell.n_unfinished) about.push(["", "unfinished", String(cell.n_unfinished)]);
  if (value === null) {
    return html("td", { class: "gone", text: cell.n_converged ? "…" : metric === "last" && cell.ended !== null ? shown(cell.ended).replace("%", "") : "-", on: tooltip(about),
      "aria-label": cell.n_converged ? "not evaluated yet" : "did not converge" });
  }
  // Steeper than linear, since most cells of interest are close to the top.
  const back = ramp((text ? top.perplexity / value : value / top.accuracy) ** 1.4);
  const notes = [deviation !== null && `± ${text ? deviation.toFixed(2) : (100 * deviation).toFixed(1)}`,
    cell.n_converged < cell.n && `${cell.n_converged} of ${cell.n}`, cell.n_unfinished && "unfinished",
    cell.attack !== "none" && cell.on_attackers > 0.5 && `${Math.round(100 * cell.on_attackers)}% to attackers`,
    cell.backdoor[0] !== null && `backdoor ${(100 * cell.backdoor[0]).toFixed(1)}%`].filter(Boolean);
  return html("td", { style: { background: rgb(back), color: inkOn(back) }, on: tooltip(about) }, text ? shown(value) : (100 * value).toFixed(1),
    notes.map((text) => html("small", { text })));
}

const PARTS = [["sketch", 0.95], ["weigh", 0.6], ["combine", 0.32]];

function timesSection() {
  const timed = data.times.some((time) => time.reads !== null);
  const here = section("server", "Server time", "Median over the rounds, without the clients’ training; whiskers from the 10th to the 90th percentile of the rounds. "
    + (timed ? "One read is the time to read all updates once, on the same machine in the same run." : "No read of the updates was timed, so there are seconds only."));
  const stack = html("div", { class: "stack" });
  here.append(stack);
  for (const other of new Set(data.times.map((time) => time.other))) {
    const own = data.times.filter((time) => time.other === other);
    const pair = html("div", { class: timed ? "pair" : "stack" });
    stack.append(pair);
    if (timed) chart(pair, joined("In reads of all updates", other), "", (width) =>
      bars(width, own, (time) => [time.reads], (time) => time.reads_range, (time) => reads(time.reads), "server time of a round, reads of all updates"));
    chart(pair, joined("In seconds", other), "", (width) => [
      bars(width, own, (time) => time.parts, (time) => time.seconds_range, (time) => seconds(time.seconds), "server time of a round, seconds"),
      html("div", { class: "key" }, PARTS.map(([name, opacity]) => html("span", {}, html("i", { style: { background: "var(--soft)", opacity } }), name)))]);
  }
}

function bars(width, times, parts, range, label, title) {
  const rules = data.rules.filter((rule) => times.some((time) => time.rule === rule));
  const total = (time) => parts(time).reduce((a, b) => a + (b ?? 0), 0);
  // A whisker that is far longer than every bar is cut, or no bar could be seen.
  const longest = Math.max(...times.map(total)) || 1, most = Math.min(2 * longest, Math.max(longest, ...times.map((time) => range(time)[1] ?? 0)));
  const left = data.sketches.length > 1 ? Math.min(width * 0.35, 10 + maxTextWidth(times.map((time) => time.sketch), 11)) : 1;
  const height = rules.length * 28 + times.length * 20 + 28;
  const root = svgRoot(width, height, title);
  let at = 0;
  for (const rule of rules) {
    root.append(svgText(left, at + 16, fitted(rule, width - left), { class: "strong" }));
    at += 22;
    const own = times.filter((time) => time.rule === rule);
    own.sort((a, b) => data.sketches.indexOf(a.sketch) - data.sketches.indexOf(b.sketch));
    for (const time of own) {
      if (left > 1) root.append(svgText(left - 8, at + 13, fitted(time.sketch, left - 8, 11), { ...END, class: "small" }));
      let from = left;
      parts(time).forEach((part, n) => {
        const wide = ((part ?? 0) / most) * (width - left - 66);
        if (wide > 0) root.append(svg("rect", { x: from, y: at, width: Math.max(wide, 0.5), height: 18, style: { fill: colour(time.rule), opacity: PARTS[n][1] } }));
        from += wide;
      });
      const [low, high] = range(time).map((value) => left + (Math.min(value ?? 0, most) / most) * (width - left - 66));
      if (total(time) && high > low) {
        root.append(svg("path", { class: "whisker", d: `M${low} ${at + 5}V${at + 13}M${low} ${at + 9}H${high}`
          + (range(time)[1] > most ? "" : `M${high} ${at + 5}V${at + 13}`) }));
        from = Math.max(from, high);
      }
      root.append(svgText(from + 6, at + 13, total(time) ? label(time) : "not timed", { class: "strong" }));
      at += 20;
    }
    at += 6;
  }
  root.append(svgLine(left, 0, left, at, "axis"), svgText(left, at + 18, title, { class: "title" }));
  return root;
}
