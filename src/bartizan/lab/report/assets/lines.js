// Something by rounds: a panel an attack, colours for rules, dashes for sketches.

function linesSection(id, title, about, curves) {
  const here = section(id, title, about);
  const shown = { off: new Set(), panels: [] };
  const rules = data.rules.filter((rule) => curves.some((curve) => curve.rule === rule));
  const sketches = data.sketches.filter((sketch) => curves.some((curve) => curve.sketch === sketch));
  if (rules.length * sketches.length > 1) here.append(legend(shown, rules, sketches));
  const keys = [...new Set(curves.map((curve) => JSON.stringify([curve.other, curve.attack])))];
  keys.sort((a, b) => rank(a) - rank(b));
  const grid = make("div", { class: keys.length > 1 ? "multiples" : "multiples one" });
  here.append(grid);
  const most = Math.max(...curves.flatMap((curve) => curve.high));
  const span = [Math.min(...curves.map((curve) => curve.x[0])), Math.max(...curves.map((curve) => curve.x.at(-1)))];
  const top = Math.min(1, ceiling(Math.max(0.05, most), 4));
  const groups = keys.map((key) => curves.filter((curve) => JSON.stringify([curve.other, curve.attack]) === key));
  // All panels leave the same room, so that rounds stand below each other.
  const room = () => Math.max(...groups.map((own) => widest(endLabels(visible(own, shown)).map((one) => one.text), 12, 600)));
  for (const [n, key] of keys.entries()) {
    const [other, attack] = JSON.parse(key), own = groups[n];
    const name = [attack === "none" ? "no attack" : attack, other].filter(Boolean).join(" · ");
    shown.panels.push(chart(grid, keys.length > 1 ? name : "", "", (width) =>
      panel(width, keys.length > 1 ? 250 : 380, own, shown, { top, span, room: room(), name: `${title}, ${name}` })));
  }
}
const rank = (key) => {
  const [other, attack] = JSON.parse(key);
  return data.others.indexOf(other) * 1000 + data.attacks.indexOf(attack);
};

function legend(shown, rules, sketches) {
  const tools = make("div", { class: "tools", role: "group", "aria-label": "Lines shown" });
  const add = (key, text, stroke, pattern, sign = null) => {
    const chip = make("button", { class: "chip", type: "button", "aria-pressed": "true" },
      shape("svg", { width: 24, height: 8, "aria-hidden": "true" }, shape("path", {
        d: "M1 4H23", fill: "none", stroke, "stroke-width": 2.5, "stroke-dasharray": pattern || null }),
      sign && marked(sign, 12, 4, stroke)),
      make("span", { text: shortened(text, 40) }));
    const focus = (on) => mark(shown, on ? key : null);
    chip.addEventListener("click", () => {
      if (!shown.off.delete(key)) shown.off.add(key);
      chip.setAttribute("aria-pressed", String(!shown.off.has(key)));
      shown.panels.forEach((one) => one.redraw());
    });
    for (const event of ["mouseenter", "focus"]) chip.addEventListener(event, () => focus(true));
    for (const event of ["mouseleave", "blur"]) chip.addEventListener(event, () => focus(false));
    tools.append(chip);
  };
  for (const rule of rules) add(`rule:${rule}`, rule, colour(rule), "", markOf(rule));
  if (sketches.length > 1) {
    tools.append(make("span", { class: "gap" }));
    for (const sketch of sketches) add(`sketch:${sketch}`, sketch, "var(--soft)", dash(sketch));
  }
  return tools;
}

/** Fade all but the lines of one rule or sketch; null brings them back. */
function mark(shown, key) {
  for (const one of shown.panels) for (const node of one.body.querySelectorAll(".series")) {
    const keys = JSON.parse(node.dataset.keys);
    node.classList.toggle("dim", key !== null && !shown.off.has(key) && !keys.includes(key));
  }
}
const keysOf = (curve) => [`rule:${curve.rule}`, `sketch:${curve.sketch}`];

const visible = (curves, shown) => curves.filter((curve) => !keysOf(curve).some((key) => shown.off.has(key)));

function panel(width, height, curves, shown, { top, span, room, name }) {
  const lines = visible(curves, shown);
  const labels = width >= 400 && lines.length <= 16 ? endLabels(lines) : [];
  const right = labels.length ? Math.min(width * 0.34, 20 + room) : 10;
  const box = { left: 42, top: 10, right: width - right, bottom: height - 26 };
  const x = (round) => box.left + (span[1] > span[0] ? (round - span[0]) / (span[1] - span[0]) : 0.5) * (box.right - box.left);
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  const svg = canvas(width, height, `${name}: ${lines.map((c) => `${c.rule} ${c.sketch} ends at ${percent(c.y.at(-1))}`).join("; ")}`);
  for (const t of ticks(0, top, 4)) svg.append(line(box.left, y(t), box.right, y(t), t ? "rule" : "axis"),
    words(box.left - 8, y(t) + 4, percentTick(t), { "text-anchor": "end" }));
  for (const t of roundTicks(...span, box.right - box.left)) svg.append(line(x(t), box.bottom, x(t), box.bottom + 4, "axis"),
    words(x(t), box.bottom + 18, t.toLocaleString("en"), { "text-anchor": "middle" }));
  for (const curve of lines) svg.append(series(curve, x, y));
  placed(labels, y, box).forEach((one) => svg.append(shape("g", { class: "series", "data-keys": JSON.stringify(one.keys) },
    shape("path", { d: `M${box.right + 4} ${y(one.value)}L${box.right + 11} ${one.at}`, stroke: one.colour, fill: "none", opacity: 0.6 }),
    words(box.right + 14, one.at + 4, fitted(one.text, right - 16, 12, 600), { style: { fill: one.colour, fontWeight: 600 } }))));
  const cross = line(0, box.top, 0, box.bottom, "axis");
  cross.style.display = "none";
  svg.append(cross);
  svg.addEventListener("pointermove", (event) => {
    const at = (event.clientX - svg.getBoundingClientRect().left) * (width / svg.getBoundingClientRect().width);
    const rounds = lines.flatMap((curve) => curve.x);
    if (!rounds.length || at < box.left - 10 || at > box.right + 10) { untip(); cross.style.display = "none"; return; }
    const round = rounds.reduce((a, b) => (Math.abs(x(b) - at) < Math.abs(x(a) - at) ? b : a));
    cross.setAttribute("x1", x(round)); cross.setAttribute("x2", x(round)); cross.style.display = "";
    const rows = lines.flatMap((curve) => { const i = curve.x.indexOf(round); return i < 0 ? [] : [[curve, i]]; });
    rows.sort(([a, i], [b, j]) => b.y[j] - a.y[i]);
    tip(event, [[`round ${round.toLocaleString("en")}`], ...rows.slice(0, 14).map(([curve, i]) => [colour(curve.rule),
      [curve.rule, data.sketches.length > 1 ? curve.sketch : ""].filter(Boolean).join(" · "), percent(curve.y[i])])]);
  });
  svg.addEventListener("pointerleave", () => { untip(); cross.style.display = "none"; });
  return svg;
}

function series(curve, x, y) {
  const group = shape("g", { class: "series", "data-keys": JSON.stringify(keysOf(curve)) });
  const stroke = colour(curve.rule);
  const points = (values) => values.map((value, i) => `${x(curve.x[i]).toFixed(1)} ${y(value).toFixed(1)}`);
  if (curve.low.some((low, i) => curve.high[i] - low > 1e-6)) {
    group.append(shape("path", { class: "band", style: { fill: stroke }, d: `M${points(curve.high).join("L")}L${points(curve.low).reverse().join("L")}Z` }));
  }
  group.append(shape("path", { class: "curve", style: { stroke }, d: `M${points(curve.y).join("L")}`, "stroke-dasharray": dash(curve.sketch) || null }),
    shape("circle", { cx: x(curve.x.at(-1)), cy: y(curve.y.at(-1)), r: 3, style: { fill: stroke } }));
  const sign = markOf(curve.rule), every = Math.ceil(curve.x.length / 8);
  if (sign) curve.x.forEach((round, i) => i % every === 0 && group.append(marked(sign, x(round), y(curve.y[i]), stroke)));
  return group;
}

/** One label for each rule where its sketches end together, otherwise one for each line. */
function endLabels(lines) {
  const found = [];
  for (const rule of new Set(lines.map((curve) => curve.rule))) {
    const own = lines.filter((curve) => curve.rule === rule);
    const ends = own.map((curve) => curve.y.at(-1));
    const base = { colour: colour(rule) };
    if (Math.max(...ends) - Math.min(...ends) < 0.04) {
      const value = ends.reduce((a, b) => a + b) / ends.length;
      found.push({ ...base, text: rule, value, keys: own.flatMap(keysOf) });
    } else own.forEach((curve, i) => found.push({ ...base, text: `${rule} ${curve.sketch}`, value: ends[i], keys: keysOf(curve) }));
  }
  return found;
}

/** Push labels apart that would overlap, and keep them inside. */
function placed(labels, y, box) {
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
