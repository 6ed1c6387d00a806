// Curves by round: a panel for each attack, a colour for each rule, a dash pattern for each sketch.

function linesSection(id, title, about, yTitle, curves, lowerIsBetter = false) {
  const here = section(id, title, about);
  const state = { hidden: new Set(), panels: [] };
  const rules = data.rules.filter((rule) => curves.some((curve) => curve.rule === rule));
  const sketches = data.sketches.filter((sketch) => curves.some((curve) => curve.sketch === sketch));
  if (rules.length * sketches.length > 1) here.append(legend(state, rules, sketches));
  const panels = data.others.flatMap((other) => data.attacks.map((attack) => ({ name: joined(attackName(attack), other),
    curves: curves.filter((curve) => curve.other === other && curve.attack === attack) }))).filter((one) => one.curves.length);
  const many = panels.length > 1;
  const grid = html("div", { class: many ? "multiples" : "multiples one" });
  here.append(grid);
  // A perplexity may be any number: lines far above the lowest end are drawn at the top.
  const most = Math.max(...curves.flatMap((curve) => curve.high)), least = Math.min(...curves.map((curve) => curve.mean.at(-1)));
  const top = lowerIsBetter ? ceiling(Math.min(most, 4 * least), 1) : Math.min(1, ceiling(most, 0.05));
  const span = [Math.min(...curves.map((curve) => curve.rounds[0])), Math.max(...curves.map((curve) => curve.rounds.at(-1)))];
  // All panels leave the same room for labels, so that equal rounds stand below each other.
  const room = () => Math.max(...panels.map((one) => maxTextWidth(endLabels(visible(one.curves, state)).map((label) => label.text), 12, 600)));
  for (const one of panels) state.panels.push(chart(grid, many ? one.name : "", "", (width) =>
    linesPanel(width, many ? 270 : 400, one.curves, state, { top, span, room: room(), yTitle, lowerIsBetter, name: `${title}, ${one.name}` })));
}

function legend(state, rules, sketches) {
  const tools = html("div", { class: "tools", role: "group", "aria-label": "Lines shown" });
  const add = (key, text, stroke, pattern, sign = null) => {
    const chip = html("button", { class: "chip", type: "button", "aria-pressed": "true" },
      svg("svg", { width: 24, height: 8, "aria-hidden": "true" }, svg("path", {
        d: "M1 4H23", fill: "none", stroke, "stroke-width": 2.5, "stroke-dasharray": pattern || null }),
      sign && marked(sign, 12, 4, stroke)),
      html("span", { text: shortened(text, 120) }));
    chip.addEventListener("click", () => {
      if (!state.hidden.delete(key)) state.hidden.add(key);
      chip.setAttribute("aria-pressed", String(!state.hidden.has(key)));
      state.panels.forEach((one) => one.redraw());
    });
    for (const event of ["mouseenter", "focus"]) chip.addEventListener(event, () => highlight(state, key));
    for (const event of ["mouseleave", "blur"]) chip.addEventListener(event, () => highlight(state, null));
    tools.append(chip);
  };
  for (const rule of rules) add(`rule:${rule}`, rule, colour(rule), "", markOf(rule));
  if (sketches.length > 1) {
    tools.append(html("span", { class: "gap" }));
    for (const sketch of sketches) add(`sketch:${sketch}`, sketch, "var(--soft)", dash(sketch));
  }
  return tools;
}

/** Fade all lines but those of one rule or sketch; null shows all again. */
function highlight(state, key) {
  for (const one of state.panels) for (const node of one.body.querySelectorAll(".series")) {
    const keys = JSON.parse(node.dataset.keys);
    node.classList.toggle("dim", key !== null && !state.hidden.has(key) && !keys.includes(key));
  }
}
const keysOf = (curve) => [`rule:${curve.rule}`, `sketch:${curve.sketch}`];
const visible = (curves, state) => curves.filter((curve) => !keysOf(curve).some((key) => state.hidden.has(key)));

function linesPanel(width, height, curves, state, { top, span, room, yTitle, lowerIsBetter, name }) {
  const shown = lowerIsBetter ? shownAs.perplexity : percent;
  const lines = visible(curves, state);
  // Labels that do not fit beside the lines are left to the legend.
  const labels = lines.length <= 16 && 20 + room <= width * 0.42 && width >= 400 ? endLabels(lines) : [];
  const root = svgRoot(width, height, `${name}: ${lines.map((c) => `${c.rule} ${c.sketch} ends at ${shown(c.mean.at(-1))}`).join("; ")}`);
  const right = labels.length ? 20 + room : 14;
  const { x, y: place, box } = axes(root, width, height, right, roundsAxis(span, width - right - 60),
    fromZero(top, yTitle, lowerIsBetter ? number : percentTick));
  const y = (value) => place(Math.min(value, top));
  for (const curve of lines) root.append(series(curve, x, y));
  spreadLabels(labels, y, box).forEach((one) => root.append(svg("g", { class: "series", "data-keys": JSON.stringify(one.keys) },
    svg("path", { d: `M${box.right + 4} ${y(one.value)}L${box.right + 11} ${one.at}`, stroke: one.colour, fill: "none", opacity: 0.6 }),
    svgText(box.right + 14, one.at + 4, one.text, { style: { fill: one.colour, fontWeight: 600 } }))));
  const cursor = svgLine(0, box.top, 0, box.bottom, "axis");
  cursor.style.display = "none";
  root.append(cursor);
  const leave = () => { hideTooltip(); cursor.style.display = "none"; };
  root.addEventListener("pointermove", (event) => {
    const [at] = pointerIn(root, width, event), rounds = lines.flatMap((curve) => curve.rounds);
    if (!rounds.length || at < box.left - 10 || at > box.right + 10) return leave();
    const round = rounds.reduce((a, b) => (Math.abs(x(b) - at) < Math.abs(x(a) - at) ? b : a));
    cursor.setAttribute("x1", x(round)); cursor.setAttribute("x2", x(round)); cursor.style.display = "";
    const rows = lines.flatMap((curve) => { const i = curve.rounds.indexOf(round); return i < 0 ? [] : [[curve, curve.mean[i]]]; });
    rows.sort(([, a], [, b]) => (lowerIsBetter ? a - b : b - a));
    showTooltip(event, [[`round ${round.toLocaleString("en")}`], ...rows.slice(0, 14).map(([curve, value]) =>
      [colour(curve.rule), joined(curve.rule, data.sketches.length > 1 && curve.sketch), shown(value)])]);
  });
  root.addEventListener("pointerleave", leave);
  return root;
}

function series(curve, x, y) {
  const group = svg("g", { class: "series", "data-keys": JSON.stringify(keysOf(curve)) });
  const stroke = colour(curve.rule);
  const points = (values) => values.map((value, i) => `${x(curve.rounds[i]).toFixed(1)} ${y(value).toFixed(1)}`);
  if (curve.low.some((low, i) => curve.high[i] - low > 1e-6)) {
    group.append(svg("path", { class: "band", style: { fill: stroke }, d: `M${points(curve.high).join("L")}L${points(curve.low).reverse().join("L")}Z` }));
  }
  group.append(svg("path", { class: "curve", style: { stroke }, d: `M${points(curve.mean).join("L")}`, "stroke-dasharray": dash(curve.sketch) || null }),
    svg("circle", { cx: x(curve.rounds.at(-1)), cy: y(curve.mean.at(-1)), r: 3, style: { fill: stroke } }));
  const sign = markOf(curve.rule), every = Math.ceil(curve.rounds.length / 8);
  if (sign) curve.rounds.forEach((round, i) => i % every === 0 && group.append(marked(sign, x(round), y(curve.mean[i]), stroke)));
  return group;
}

/** One label for each rule if its sketches end together, otherwise one for each line. */
function endLabels(lines) {
  const found = [];
  for (const rule of new Set(lines.map((curve) => curve.rule))) {
    const own = lines.filter((curve) => curve.rule === rule), ends = own.map((curve) => curve.mean.at(-1));
    if (Math.max(...ends) - Math.min(...ends) < 0.04) {
      const value = ends.reduce((a, b) => a + b) / ends.length;
      found.push({ colour: colour(rule), text: rule, value, keys: own.flatMap(keysOf) });
    } else own.forEach((curve, i) => found.push({ colour: colour(rule), text: `${rule} ${curve.sketch}`, value: ends[i], keys: keysOf(curve) }));
  }
  return found;
}

/** Move labels apart that would overlap, and keep them inside the box. */
function spreadLabels(labels, y, box) {
  const sorted = labels.map((one) => ({ ...one, at: y(one.value) })).sort((a, b) => a.at - b.at);
  const room = Math.min(14, (box.bottom - box.top) / Math.max(1, sorted.length - 1));
  sorted.forEach((one, i) => { if (i) one.at = Math.max(one.at, sorted[i - 1].at + room); });
  const over = sorted.length ? sorted.at(-1).at - box.bottom : 0;
  if (over > 0) {
    sorted.at(-1).at -= over;
    for (let i = sorted.length - 2; i >= 0; i--) sorted[i].at = Math.min(sorted[i].at, sorted[i + 1].at - room);
  }
  return sorted;
}
