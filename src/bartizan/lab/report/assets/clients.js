// One run's clients: who got which weight, who is suspect, who holds which data, what the sketch changed.
const LEVELS = 250, QUARANTINED = 254, ABSENT = 255, LOWEST = 20;
const UNWEIGHED = "took no part, or round refused";
const picked = { run: null, charts: [] };

function clientsSection() {
  const here = section("clients", data.known ? "Clients" : "Suspects",
    data.known ? "What the rule made of each client in one run. The rule does not know who attacks; this page does."
      : "Nobody knows who attacks here. These are the clients that the rule trusted least.");
  const facts = make("p", { class: "facts" });
  const body = make("div", { class: "stack" });
  const select = make("select", { id: "run", "aria-label": "Run whose clients are shown" });
  const groups = new Map();
  data.runs.forEach((run, i) => {
    const name = data.attacks.length > 1 ? run.attack : "";
    if (!groups.has(name)) groups.set(name, name ? make("optgroup", { label: name === "none" ? "no attack" : name }) : select);
    groups.get(name).append(make("option", { value: i, text: shortened(run.label, 90) + (run.last === null ? "" : ` (${percent(run.last)})`) }));
  });
  for (const group of groups.values()) if (group !== select) select.append(group);
  const order = [...select.options].map((option) => Number(option.value));
  const step = (by) => show(order[(order.indexOf(picked.run) + by + order.length) % order.length]);
  const show = (i) => {
    picked.run = i;
    select.value = String(i);
    for (const one of picked.charts) { charts.splice(charts.indexOf(one), 1); resized.unobserve(one.body); }
    const run = data.runs[i];
    facts.replaceChildren(...factsOf(run));
    body.replaceChildren();
    const before = charts.length;
    drawClients(body, run);
    picked.charts = charts.slice(before);
  };
  select.addEventListener("change", () => show(Number(select.value)));
  if (data.runs.length > 1) here.append(make("div", { class: "picker" }, select,
    make("button", { class: "quiet", type: "button", text: "‹", "aria-label": "Previous run", on: { click: () => step(-1) } }),
    make("button", { class: "quiet", type: "button", text: "›", "aria-label": "Next run", on: { click: () => step(1) } })));
  here.append(facts, body);
  show(data.featured);
  return show;
}

function factsOf(run) {
  const known = data.cohorts[run.cohort].attackers;
  const parts = [run.place, `${several(run.rounds, "round")}, ${run.status}`, run.converged ? "" : "did not converge",
    run.last === null ? "" : `accuracy ${percent(run.last)}`,
    run.attackers === null || !known.length ? "" : `attackers got ${percent(run.attackers)} of the weight`,
    run.server === null ? "" : `server ${seconds(run.server)} a round`];
  const notes = run.notes.map(([round, text]) => make("span", {}, make("br"), `round ${round}: ${text}`));
  return [parts.filter(Boolean).join(" · "), ...notes];
}

function drawClients(body, run) {
  const cohort = data.cohorts[run.cohort];
  const attackers = new Set(cohort.attackers ?? []);
  const all = cohort.ids.map((_, i) => i);
  const share = run.share ?? all.map(() => null);
  // Attackers together and in front where they are known; then whom the rule trusts least.
  const order = [...all].sort((a, b) => attackers.has(b) - attackers.has(a) || (share[a] ?? 9) - (share[b] ?? 9) || a - b);
  const view = { run, ids: cohort.ids, attackers, known: cohort.attackers !== null, order, share };
  const suspects = (parent) => run.share && chart(parent, "Least trusted clients",
    `Mean weight over the rounds they took part in; 1 is an equal share.${cohort.ids.length > LOWEST ? ` The ${LOWEST} lowest of ${cohort.ids.length.toLocaleString("en")}.` : ""}`,
    (width) => suspectBars(Math.min(width, 860), view));
  if (!view.known) suspects(body);
  if (run.weights) {
    chart(body, "Weights, client by round", view.known && attackers.size
      ? "Attackers above, honest clients below, each from least to most trusted. The strip on top is the attackers’ part of all weight; dashed, what they would get by their number."
      : "From least to most trusted.", (width) => weightMap(width, view));
  } else {
    body.append(make("p", { class: "empty", text: run.weighs
      ? "The weights of this run are left out to keep the page small; report on its folder alone to see them."
      : !run.rounds ? "No round is done yet."
        : run.coordinatewise ? "This rule works coordinate by coordinate and gives no weights." : "No round gave weights." }));
  }
  const pair = make("div", { class: "pair" });
  body.append(pair);
  if (view.known) suspects(pair);
  if (run.compared) {
    chart(pair, "Sketched against exact weights", "A dot a client and round; on the line both are the same.", (width) => agreement(width, view));
    chart(pair, "How far they are apart", `Total variation distance by round; ${plain(run.compared.mean)} on average. 0 is the same weights, 1 is other clients altogether.`, (width) => distances(width, run.compared));
  }
  if (run.split !== null) {
    const split = data.splits[run.split];
    chart(body, "Who holds which data", "Examples by client and class, in the order of the weights above.", (width) => dataSplit(width, view, split));
  }
}

const isAttacker = (view, i) => view.attackers.has(i);
const who = (view, i) => [`client ${shortened(view.ids[i], 60)}${isAttacker(view, i) ? " (attacker)" : ""}`];

/** A picture of bytes, one a cell, enlarged to fit. */
function mosaic(columns, rows, paint, place) {
  const ratio = window.devicePixelRatio || 1;
  const small = new OffscreenCanvas(columns, rows), pixels = new ImageData(columns, rows);
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    pixels.data.set([...paint(r, c), 255], 4 * (r * columns + c));
  }
  small.getContext("2d").putImageData(pixels, 0, 0);
  const sheet = make("canvas", { width: Math.round(place.width * ratio), height: Math.round(place.height * ratio),
    "aria-hidden": "true", style: { left: `${place.left}px`, top: `${place.top}px`, width: `${place.width}px`, height: `${place.height}px` } });
  const pen = sheet.getContext("2d");
  pen.imageSmoothingEnabled = rows > sheet.height || columns > sheet.width;
  pen.drawImage(small, 0, 0, sheet.width, sheet.height);
  const [w, h] = [place.width / columns, place.height / rows];
  pen.fillStyle = token("--paper");
  if (w >= 5) for (let c = 1; c < columns; c++) pen.fillRect(Math.round(c * w * ratio), 0, ratio, sheet.height);
  if (h >= 5) for (let r = 1; r < rows; r++) pen.fillRect(0, Math.round(r * h * ratio), sheet.width, ratio);
  return sheet;
}

function rampKey(low, high, extra) {
  const bar = make("canvas", { width: 120, height: 10, "aria-hidden": "true" });
  const pen = bar.getContext("2d");
  for (let i = 0; i < 120; i++) { pen.fillStyle = rgb(ramp(i / 119)); pen.fillRect(i, 0, 1, 10); }
  return make("div", { class: "key" }, make("span", {}, low, bar, high),
    extra.map(([fill, text]) => make("span", {}, make("i", { style: { background: fill } }), text)));
}

function weightMap(width, view) {
  const { edges, cells, top, attackers } = view.run.weights;
  const levels = bytes(cells), columns = edges.length - 1, M = view.ids.length, f = view.attackers.size;
  const strip = f && attackers.some((part) => part !== null) ? 44 : 0;
  const tall = Math.max(2 * Math.min(M, 8), Math.min(640, Math.max(M * 9, Math.min(M * 14, 180))));
  const box = { left: 62, top: strip ? strip + 14 : 4, width: Math.min(width - 66, columns * 110), height: tall };
  const height = box.top + box.height + 26;
  const marks = { [QUARANTINED]: channels(token("--hold")), [ABSENT]: channels(token("--absent")) };
  const table = Array.from({ length: LEVELS + 1 }, (_, level) => ramp(level / LEVELS));
  const level = (r, c) => levels[view.order[r] * columns + c];
  const sheet = mosaic(columns, M, (r, c) => marks[level(r, c)] ?? table[level(r, c)], box);
  const svg = canvas(width, height, `Weights of ${several(M, "client")} over ${several(edges.at(-1), "round")}`
    + (f ? `; ${several(f, "attacker")} in the first rows` : ""));
  const tallRow = box.height / M;
  const bracket = (from, to, text, fill) => {
    const [a, b] = [box.top + from * tallRow, box.top + to * tallRow];
    svg.append(shape("rect", { x: box.left - 7, y: a + 0.5, width: 4, height: Math.max(1, b - a - 1), rx: 1, style: { fill } }));
    const middle = (a + b) / 2;
    if (b - a > 70) svg.append(words(box.left - 16, middle, text, { "text-anchor": "middle", class: "strong",
      transform: `rotate(-90 ${box.left - 16} ${middle})`, style: { fill, fontWeight: 600 } }));
    else if (b - a > 10) svg.append(words(box.left - 12, middle + 4, String(to - from), { "text-anchor": "end", style: { fill } }));
  };
  if (f) bracket(0, f, several(f, "attacker"), "var(--alarm)");
  if (view.known) bracket(f, M, `${M - f} honest`, "var(--soft)");
  else svg.append(words(box.left - 8, box.top + 10, "least", { "text-anchor": "end" }), words(box.left - 8, box.top + 24, "trusted", { "text-anchor": "end" }));
  if (f && f < M) svg.append(line(box.left, box.top + f * tallRow, box.left + box.width, box.top + f * tallRow, "axis"));
  const x = (column) => box.left + (column / columns) * box.width;
  const last = edges.at(-1);
  for (const t of roundTicks(1, last, box.width)) {
    const column = edges.findIndex((edge) => edge >= t) - 0.5;
    svg.append(words(x(column), box.top + box.height + 17, t.toLocaleString("en"), { "text-anchor": "middle" }));
  }
  if (strip) svg.append(...attackerStrip(attackers, f / M, x, strip, box));
  svg.style.position = "relative";
  const at = (event) => {
    const frame = svg.getBoundingClientRect(), scale = width / frame.width;
    const c = Math.floor((((event.clientX - frame.left) * scale - box.left) / box.width) * columns);
    const r = Math.floor((((event.clientY - frame.top) * scale - box.top) / box.height) * M);
    return c >= 0 && c < columns && r >= 0 && r < M ? [r, c] : null;
  };
  svg.addEventListener("pointermove", (event) => {
    const cell = at(event);
    if (!cell) return untip();
    const [r, c] = cell, found = level(r, c);
    const value = found === ABSENT ? UNWEIGHED : found === QUARANTINED ? "quarantined" : found === LEVELS ? `${plain(top)} or more` : plain((found / LEVELS) * top);
    const rounds = edges[c + 1] - edges[c] > 1 ? `rounds ${edges[c] + 1} to ${edges[c + 1]}` : `round ${edges[c] + 1}`;
    tip(event, [who(view, view.order[r]), ["", rounds, ""], ["", "weight", value]]);
  });
  svg.addEventListener("pointerleave", untip);
  const extra = [];
  if (f) extra.push(["var(--alarm)", "attackers"]);
  if (levels.includes(QUARANTINED)) extra.push(["var(--hold)", "quarantined"]);
  if (levels.includes(ABSENT)) extra.push(["var(--absent)", UNWEIGHED]);
  return [rampKey("0", `${plain(top)} weight`, extra), make("div", { class: "plot" }, sheet, svg)];
}

/** The attackers' part of all weight, beside their part of the clients. */
function attackerStrip(attackers, number, x, height, box) {
  const most = Math.max(1.1 * number, ...attackers.map((part) => part ?? 0));
  const y = (part) => height - (part / most) * (height - 10);
  const steps = attackers.map((part, c) => `${c ? "L" : "M"}${x(c).toFixed(1)} ${y(part ?? 0).toFixed(1)}L${x(c + 1).toFixed(1)} ${y(part ?? 0).toFixed(1)}`).join("");
  return [shape("path", { d: `${steps}L${x(attackers.length)} ${height}L${x(0)} ${height}Z`, style: { fill: "var(--alarm)", opacity: 0.75 } }),
    line(box.left, height, box.left + box.width, height, "axis"),
    shape("line", { x1: box.left, x2: box.left + box.width, y1: y(number), y2: y(number), style: { stroke: "var(--alarm)", strokeWidth: 1, strokeDasharray: "3 4" } }),
    words(box.left - 8, y(number) + 4, percentTick(number), { "text-anchor": "end" }),
    words(box.left - 8, height + 1, "0", { "text-anchor": "end" })];
}

function suspectBars(width, view) {
  const order = view.ids.map((_, i) => i).filter((i) => view.share[i] !== null).sort((a, b) => view.share[a] - view.share[b] || a - b).slice(0, LOWEST);
  if (!order.length) return make("p", { class: "empty", text: "Nobody took part yet." });
  const left = Math.min(width * 0.4, 28 + widest(order.map((i) => view.ids[i]))), row = 18, height = order.length * row + 26;
  const most = Math.max(1.1, ...order.map((i) => view.share[i]));
  const x = (value) => left + (Math.max(0, value) / most) * (width - left - 56);
  const svg = canvas(width, height, `Clients with the least weight: ${order.slice(0, 5).map((i) => view.ids[i]).join(", ")}`);
  svg.append(line(x(1), 0, x(1), height - 24, "axis"), words(x(1), height - 8, "equal share", { "text-anchor": "middle" }), line(left, 0, left, height - 24, "axis"));
  order.forEach((i, n) => {
    const y = n * row, fill = isAttacker(view, i) ? "var(--alarm)" : "var(--c0)";
    const held = view.run.quarantined?.[i] ? `, quarantined ${several(view.run.quarantined[i], "time")}` : "";
    svg.append(words(left - 8, y + 13, `${isAttacker(view, i) ? "▲ " : ""}${fitted(view.ids[i], left - 26)}`,
      { "text-anchor": "end", style: { fill: isAttacker(view, i) ? "var(--alarm)" : "var(--ink)" } }),
      shape("rect", { x: left, y: y + 3, width: Math.max(2, x(view.share[i]) - left), height: 12, rx: 1, style: { fill } }),
      words(Math.max(left + 2, x(view.share[i])) + 6, y + 13, view.share[i] ? view.share[i].toFixed(2) : "0"));
    const hit = shape("rect", { x: 0, y, width, height: row, fill: "transparent", on: {
      pointermove: (event) => tip(event, [who(view, i), ["", `of an equal share${held}`, plain(view.share[i])]]), pointerleave: untip } });
    svg.append(hit);
  });
  return svg;
}

function agreement(width, view) {
  const { top, dots } = view.run.compared;
  const triples = bytes(dots), size = Math.min(width - 76, 340);
  const box = { left: 64, top: 8, size };
  const x = (value) => box.left + value * size, y = (value) => box.top + (1 - value) * size;
  const svg = canvas(width, size + 54, "Sketched against exact weights of all clients");
  for (const t of ticks(0, top, 4)) svg.append(line(x(0), y(t / top), x(1), y(t / top), "rule"), line(x(t / top), y(0), x(t / top), y(1), "rule"),
    words(x(0) - 8, y(t / top) + 4, plain(t), { "text-anchor": "end" }), words(x(t / top), y(0) + 18, plain(t), { "text-anchor": "middle" }));
  svg.append(line(x(0), y(0), x(1), y(1), "axis"), line(x(0), y(0), x(1), y(0), "axis"), line(x(0), y(0), x(0), y(1), "axis"),
    words(x(0.5), size + 44, "exact weight", { "text-anchor": "middle" }),
    words(14, y(0.5), "sketched weight", { "text-anchor": "middle", transform: `rotate(-90 14 ${y(0.5)})` }));
  for (let i = 0; i < triples.length; i += 3) {
    const [a, b] = [x(triples[i] / LEVELS), y(triples[i + 1] / LEVELS)];
    svg.append(triples[i + 2]
      ? shape("path", { d: `M${a} ${b - 4.5}L${a + 4} ${b + 3}L${a - 4} ${b + 3}Z`, style: { fill: "var(--alarm)", opacity: 0.65 } })
      : shape("circle", { cx: a, cy: b, r: 3, style: { fill: "var(--c0)", opacity: 0.45 } }));
  }
  if (!view.attackers.size) return svg;
  return [make("div", { class: "key" }, make("span", { style: { color: "var(--c0)" } }, "● honest"), make("span", { style: { color: "var(--alarm)" } }, "▲ attacker")), svg];
}

function distances(width, { rounds, distance }) {
  const height = 260, box = { left: 44, right: width - 12, top: 10, bottom: height - 26 };
  const most = Math.max(...distance), top = ceiling(most, 4);
  const span = [rounds[0], rounds.at(-1)];
  const x = (round) => box.left + (span[1] > span[0] ? (round - span[0]) / (span[1] - span[0]) : 0.5) * (box.right - box.left);
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  const svg = canvas(width, height, `Total variation distance between sketched and exact weights, at most ${plain(most)}`);
  for (const t of ticks(0, top, 4)) svg.append(line(box.left, y(t), box.right, y(t), t ? "rule" : "axis"), words(box.left - 8, y(t) + 4, plain(t), { "text-anchor": "end" }));
  for (const t of roundTicks(...span, box.right - box.left)) svg.append(words(x(t), box.bottom + 18, t.toLocaleString("en"), { "text-anchor": "middle" }));
  svg.append(shape("path", { class: "curve", style: { stroke: "var(--c0)" }, d: `M${rounds.map((round, i) => `${x(round)} ${y(distance[i])}`).join("L")}` }));
  if (rounds.length <= 60) rounds.forEach((round, i) => svg.append(shape("circle", { cx: x(round), cy: y(distance[i]), r: 3, style: { fill: "var(--c0)" }, on: {
    pointermove: (event) => tip(event, [[`round ${round}`], ["", "distance", plain(distance[i])]]), pointerleave: untip } })));
  return svg;
}

function dataSplit(width, view, { classes, counts }) {
  const C = classes.length, M = view.ids.length, most = Math.max(1, ...counts);
  const count = (i, c) => counts[i * C + c];
  const left = Math.min(width * 0.25, 14 + widest(classes));
  const cell = Math.min(26, (width - left - 8) / M), row = Math.max(C > 40 ? 4 : 15, Math.min(26, cell));
  const wide = cell * M, top = 16, height = top + row * C + 26;
  const svg = canvas(width, height, `Examples of each class (${C}) held by ${several(M, "client")}`);
  if (row >= 11) classes.forEach((name, c) => svg.append(words(left - 8, top + (c + 0.5) * row + 4, fitted(name, left - 10), { "text-anchor": "end" })));
  svg.style.position = "relative";
  const f = view.attackers.size;
  if (f) svg.append(shape("rect", { x: left + 0.5, y: 4, width: Math.max(1, f * cell - 1), height: 4, rx: 1, style: { fill: "var(--alarm)" } }),
    words(left, height - 8, several(f, "attacker"), { style: { fill: "var(--alarm)", fontWeight: 600 } }));
  if (view.known && f < M) svg.append(shape("rect", { x: left + f * cell + 0.5, y: 4, width: Math.max(1, (M - f) * cell - 1), height: 4, rx: 1, style: { fill: "var(--soft)" } }),
    words(left + wide, height - 8, `${M - f} honest`, { "text-anchor": "end" }));
  const bubbles = cell >= 7 && M * C <= 4000;
  if (bubbles) {
    for (let c = 0; c < C; c++) svg.append(line(left, top + (c + 0.5) * row, left + wide, top + (c + 0.5) * row, "rule"));
    view.order.forEach((i, n) => { for (let c = 0; c < C; c++) if (count(i, c)) svg.append(shape("circle", { cx: left + (n + 0.5) * cell, cy: top + (c + 0.5) * row,
      r: Math.max(0.7, Math.sqrt(count(i, c) / most) * Math.min(cell, row) * 0.56).toFixed(2), style: { fill: isAttacker(view, i) ? "var(--alarm)" : "var(--c0)", opacity: 0.8 } })); });
  }
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect(), scale = width / frame.width;
    const n = Math.floor(((event.clientX - frame.left) * scale - left) / cell), c = Math.floor(((event.clientY - frame.top) * scale - top) / row);
    if (n < 0 || n >= M || c < 0 || c >= C) return untip();
    tip(event, [who(view, view.order[n]), ["", shortened(classes[c], 40), `${several(count(view.order[n], c), "example")}`]]);
  });
  svg.addEventListener("pointerleave", untip);
  if (bubbles) return svg;
  const sheet = mosaic(M, C, (c, n) => ramp(Math.sqrt(count(view.order[n], c) / most)), { left, top, width: wide, height: row * C });
  return [rampKey("0", `${most} examples`, []), make("div", { class: "plot" }, sheet, svg)];
}
