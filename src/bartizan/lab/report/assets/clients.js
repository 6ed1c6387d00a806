// The clients of one run: their weights, the least trusted ones, their data, and what the sketch changed.
const LEVELS = 250, QUARANTINED = 254, ABSENT = 255, LOWEST = 20;
const UNWEIGHED = "took no part, or round refused";
/** Distances below this are rounding errors of weights in single precision. */
const ROUNDING = 1e-6;
const current = { run: null, charts: [] };

function clientsSection() {
  const here = section("clients", data.known ? "Clients" : "Suspects",
    data.known ? "How the rule treated each client in one run. The rule does not know the attackers; this page does."
      : "The attackers are not known here. These are the clients that the rule trusted least.");
  const facts = html("p", { class: "facts" });
  const body = html("div", { class: "stack" });
  const select = html("select", { id: "run", "aria-label": "Run whose clients are shown" });
  const groups = new Map();
  data.runs.forEach((run, i) => {
    const name = data.attacks.length > 1 ? run.attack : "";
    if (!groups.has(name)) groups.set(name, name ? html("optgroup", { label: attackName(name) }) : select);
    groups.get(name).append(html("option", { value: i, text: shortened(run.label, 120) + (lastOf(run) ? ` (${lastOf(run)})` : "") }));
  });
  for (const group of groups.values()) if (group !== select) select.append(group);
  const order = [...select.options].map((option) => Number(option.value));
  const step = (by) => show(order[(order.indexOf(current.run) + by + order.length) % order.length]);
  const show = (i) => {
    current.run = i;
    select.value = String(i);
    for (const one of current.charts) { charts.splice(charts.indexOf(one), 1); resized.unobserve(one.body); }
    const run = data.runs[i];
    facts.replaceChildren(...factsOf(run));
    body.replaceChildren();
    const before = charts.length;
    drawClients(body, run);
    current.charts = charts.slice(before);
  };
  select.addEventListener("change", () => show(Number(select.value)));
  if (data.runs.length > 1) here.append(html("div", { class: "picker" }, select,
    html("button", { class: "quiet", type: "button", text: "‹", "aria-label": "Previous run", on: { click: () => step(-1) } }),
    html("button", { class: "quiet", type: "button", text: "›", "aria-label": "Next run", on: { click: () => step(1) } })));
  here.append(facts, body);
  show(data.featured);
  return show;
}

function factsOf(run) {
  const facts = joined(run.run, `${counted(run.rounds, "round")}, ${run.status}`, !run.converged && "did not converge",
    lastOf(run) && `${run.last_accuracy === null ? "perplexity" : "accuracy"} ${lastOf(run)}`,
    run.weight_on_attackers !== null && `attackers got ${percent(run.weight_on_attackers)} of the weight`,
    run.server_seconds !== null && `server ${seconds(run.server_seconds)} a round`);
  return [facts, ...run.notes.map(([round, text]) => html("span", {}, html("br"), `round ${round}: ${text}`))];
}

function drawClients(body, run) {
  const { ids, attackers: known } = data.cohorts[run.cohort];
  const attackers = new Set(known ?? []);
  const share = run.share ?? ids.map(() => null);
  // Attackers first if they are known, then honest clients; each group from least to most trusted.
  const order = ids.map((_, i) => i).sort((a, b) => attackers.has(b) - attackers.has(a) || (share[a] ?? 9) - (share[b] ?? 9) || a - b);
  const view = { run, ids, attackers, known: known !== null, order, share };
  const suspects = (parent) => run.share && chart(parent, "Least trusted clients",
    `Mean weight over the rounds they took part in.${ids.length > LOWEST ? ` The ${LOWEST} lowest of ${ids.length.toLocaleString("en")}.` : ""}`,
    (width) => suspectBars(Math.min(width, 860), view));
  if (!view.known) suspects(body);
  if (run.weights) {
    chart(body, "Weights, client by round", view.known && attackers.size
      ? "Attackers above, honest clients below, each from least to most trusted. The strip on top is the attackers’ part of all weight; the dashed line is their part of the clients."
      : "From least to most trusted.", (width) => weightMap(width, view));
  } else {
    body.append(html("p", { class: "empty", text: run.weighs
      ? "The weights of this run are left out to keep the page small; make a report of its folder alone to see them."
      : !run.rounds ? "No round is done yet."
        : run.coordinatewise ? "This rule works coordinate by coordinate and gives no weights." : "No round gave weights." }));
  }
  const pair = html("div", { class: "pair" });
  body.append(pair);
  if (view.known) suspects(pair);
  if (run.compared) {
    const { mean } = run.compared;
    chart(pair, "Sketched against exact weights", "A dot for each client and round; on the diagonal both are equal.", (width) => agreement(width, view));
    chart(pair, "Distance to exact weights", `Total variation distance, ${mean < ROUNDING ? "0 up to rounding" : `${number(mean)} on average`}: 0 for equal weights, 1 for weights on other clients altogether.`,
      (width) => distances(width, run.compared));
  }
  if (run.split !== null) {
    const split = data.splits[run.split];
    chart(body, "Data of each client", `Number of examples by client and class, clients in the order of the weights above; the largest is ${Math.max(...split.counts).toLocaleString("en")}.`,
      (width) => dataSplit(width, view, split));
  }
}

const isAttacker = (view, i) => view.attackers.has(i);
const clientLabel = (view, i) => [`client ${shortened(view.ids[i], 60)}${isAttacker(view, i) ? " (attacker)" : ""}`];

/** A canvas with one coloured cell for each row and column. */
function cellCanvas(columns, rows, colourOf, place) {
  const ratio = window.devicePixelRatio || 1;
  const small = new OffscreenCanvas(columns, rows), pixels = new ImageData(columns, rows);
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    pixels.data.set([...colourOf(r, c), 255], 4 * (r * columns + c));
  }
  small.getContext("2d").putImageData(pixels, 0, 0);
  const large = html("canvas", { width: Math.round(place.width * ratio), height: Math.round(place.height * ratio),
    "aria-hidden": "true", style: { left: `${place.left}px`, top: `${place.top}px`, width: `${place.width}px`, height: `${place.height}px` } });
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = rows > large.height || columns > large.width;
  context.drawImage(small, 0, 0, large.width, large.height);
  const [w, h] = [place.width / columns, place.height / rows];
  context.fillStyle = token("--paper");
  if (w >= 5) for (let c = 1; c < columns; c++) context.fillRect(Math.round(c * w * ratio), 0, ratio, large.height);
  if (h >= 5) for (let r = 1; r < rows; r++) context.fillRect(0, Math.round(r * h * ratio), large.width, ratio);
  return large;
}

function rampKey(low, high, extra) {
  const bar = html("canvas", { width: 120, height: 10, "aria-hidden": "true" });
  const context = bar.getContext("2d");
  for (let i = 0; i < 120; i++) { context.fillStyle = rgb(ramp(i / 119)); context.fillRect(i, 0, 1, 10); }
  return html("div", { class: "key" }, html("span", {}, low, bar, high),
    extra.map(([fill, text]) => html("span", {}, html("i", { style: { background: fill } }), text)));
}

function weightMap(width, view) {
  const { edges, cells, top, attackers } = view.run.weights;
  const levels = bytes(cells), columns = edges.length - 1, M = view.ids.length, f = view.attackers.size;
  const strip = f && attackers.some((part) => part !== null) ? 60 : 0;
  const tall = Math.max(2 * Math.min(M, 8), Math.min(640, Math.max(M * 9, Math.min(M * 14, 180))));
  const box = { left: 52, top: strip ? strip + 14 : 4, width: Math.min(width - 60, columns * 110), height: tall };
  const bottom = box.top + box.height;
  const special = { [QUARANTINED]: channels(token("--quarantined")), [ABSENT]: channels(token("--absent")) };
  const shades = Array.from({ length: LEVELS + 1 }, (_, level) => ramp(level / LEVELS));
  const level = (r, c) => levels[view.order[r] * columns + c];
  const canvas = cellCanvas(columns, M, (r, c) => special[level(r, c)] ?? shades[level(r, c)], box);
  const root = svgRoot(width, bottom + 40, `Weights of ${counted(M, "client")} over ${counted(edges.at(-1), "round")}`
    + (f ? `; ${counted(f, "attacker")} in the first rows` : ""));
  const bracket = (from, to, text, fill) => {
    const [a, b] = [box.top + (from / M) * box.height, box.top + (to / M) * box.height], middle = (a + b) / 2;
    root.append(svg("rect", { x: box.left - 7, y: a + 0.5, width: 4, height: Math.max(1, b - a - 1), rx: 1, style: { fill } }));
    if (b - a > textWidth(text, 12, 600)) root.append(svgText(box.left - 16, middle, text, { ...MIDDLE,
      transform: `rotate(-90 ${box.left - 16} ${middle})`, style: { fill, fontWeight: 600 } }));
    else if (b - a > 10) root.append(svgText(box.left - 12, middle + 4, String(to - from), { ...END, style: { fill } }));
  };
  if (f) bracket(0, f, counted(f, "attacker"), "var(--attacker)");
  if (view.known) bracket(f, M, counted(M - f, "honest client"), "var(--soft)");
  else root.append(verticalTitle(box.left - 14, box.top + box.height / 2, "client"));
  if (f && f < M) root.append(svgLine(box.left, box.top + (f / M) * box.height, box.left + box.width, box.top + (f / M) * box.height, "axis"));
  const x = (column) => box.left + (column / columns) * box.width;
  for (const t of roundTicks(1, edges.at(-1), box.width)) {
    root.append(svgText(x(edges.findIndex((edge) => edge >= t) - 0.5), bottom + 17, t.toLocaleString("en"), MIDDLE));
  }
  root.append(axisTitle(box.left + box.width / 2, bottom + 36, "round"));
  if (strip) root.append(...attackerStrip(attackers, f / M, x, strip, box));
  root.style.position = "relative";
  root.addEventListener("pointermove", (event) => {
    const [px, py] = pointerIn(root, width, event);
    const c = Math.floor(((px - box.left) / box.width) * columns), r = Math.floor(((py - box.top) / box.height) * M);
    if (c < 0 || c >= columns || r < 0 || r >= M) return hideTooltip();
    const found = level(r, c);
    const value = found === ABSENT ? UNWEIGHED : found === QUARANTINED ? "quarantined" : found === LEVELS ? `${number(top)} or more` : number((found / LEVELS) * top);
    const rounds = edges[c + 1] - edges[c] > 1 ? `rounds ${edges[c] + 1} to ${edges[c + 1]}` : `round ${edges[c] + 1}`;
    showTooltip(event, [clientLabel(view, view.order[r]), ["", rounds, ""], ["", "weight", value]]);
  });
  root.addEventListener("pointerleave", hideTooltip);
  const extra = [];
  if (f) extra.push(["var(--attacker)", "attackers"]);
  if (levels.includes(QUARANTINED)) extra.push(["var(--quarantined)", "quarantined"]);
  if (levels.includes(ABSENT)) extra.push(["var(--absent)", UNWEIGHED]);
  return [rampKey("weight 0", number(top), extra), html("div", { class: "plot" }, canvas, root)];
}

/** The attackers' part of all weight by round, with a dashed line at their part of the clients. */
function attackerStrip(weights, byCount, x, bottom, box) {
  const most = Math.max(1.1 * byCount, ...weights.map((part) => part ?? 0)), right = box.left + box.width;
  const y = (part) => bottom - (part / most) * (bottom - 20);
  const steps = weights.map((part, c) => `${c ? "L" : "M"}${x(c).toFixed(1)} ${y(part ?? 0).toFixed(1)}L${x(c + 1).toFixed(1)} ${y(part ?? 0).toFixed(1)}`).join("");
  return [svg("path", { d: `${steps}L${x(weights.length)} ${bottom}L${x(0)} ${bottom}Z`, style: { fill: "var(--attacker)", opacity: 0.75 } }),
    svgLine(box.left, bottom, right, bottom, "axis"),
    svg("line", { x1: box.left, x2: right, y1: y(byCount), y2: y(byCount), style: { stroke: "var(--attacker)", strokeWidth: 1, strokeDasharray: "3 4" } }),
    svgText(box.left, 11, "weight on attackers", { class: "title" }),
    svgText(box.left - 8, y(byCount) + 4, percentTick(byCount), END),
    svgText(box.left - 8, bottom + 1, "0%", END)];
}

function suspectBars(width, view) {
  const order = view.order.filter((i) => view.share[i] !== null).sort((a, b) => view.share[a] - view.share[b] || a - b).slice(0, LOWEST);
  if (!order.length) return html("p", { class: "empty", text: "No client took part yet." });
  const label = (i) => `${isAttacker(view, i) ? "▲ " : ""}${view.ids[i]}`;
  const left = Math.min(width * 0.55, 30 + maxTextWidth(order.map(label))), row = 18, bottom = order.length * row;
  const most = Math.max(1.1, ...order.map((i) => view.share[i]));
  const x = (value) => left + (Math.max(0, value) / most) * (width - left - 44);
  const root = svgRoot(width, bottom + 40, `Clients with the least weight: ${order.slice(0, 5).map((i) => view.ids[i]).join(", ")}`);
  root.append(svgLine(x(1), 0, x(1), bottom + 4, "axis"), svgLine(left, 0, left, bottom, "axis"), svgText(x(1), bottom + 18, "1", MIDDLE),
    svgText(x(0), bottom + 18, "0", MIDDLE), axisTitle((left + width - 44) / 2, bottom + 36, "mean weight, 1 = equal share"),
    verticalTitle(11, bottom / 2, "client"));
  order.forEach((i, n) => {
    const y = n * row, fill = isAttacker(view, i) ? "var(--attacker)" : "var(--c0)";
    const gone = view.run.quarantined?.[i] ? `, quarantined ${counted(view.run.quarantined[i], "time")}` : "";
    root.append(svgText(left - 8, y + 13, fitted(label(i), left - 26), { ...END, style: { fill: isAttacker(view, i) ? "var(--attacker)" : "var(--ink)" } }),
      svg("rect", { x: left, y: y + 3, width: Math.max(2, x(view.share[i]) - left), height: 12, rx: 1, style: { fill } }),
      svgText(Math.max(left + 2, x(view.share[i])) + 6, y + 13, view.share[i] ? view.share[i].toFixed(2) : "0"),
      svg("rect", { x: 0, y, width, height: row, fill: "transparent", on: tooltip([clientLabel(view, i), ["", `of an equal share${gone}`, number(view.share[i])]]) }));
  });
  return root;
}

function agreement(width, view) {
  const { top, dots } = view.run.compared;
  const triples = bytes(dots), size = Math.min(width, 400), root = svgRoot(width, size, "Sketched against exact weights of all clients");
  const { x, y } = axes(root, size, size, 14, fromZero(top, "exact weight", number), fromZero(top, "sketched weight", number));
  root.append(svgLine(x(0), y(0), x(top), y(top), "axis"));
  for (let i = 0; i < triples.length; i += 3) {
    const [a, b] = [x((triples[i] / LEVELS) * top), y((triples[i + 1] / LEVELS) * top)];
    root.append(triples[i + 2]
      ? svg("path", { d: `M${a} ${b - 4.5}L${a + 4} ${b + 3}L${a - 4} ${b + 3}Z`, style: { fill: "var(--attacker)", opacity: 0.65 } })
      : svg("circle", { cx: a, cy: b, r: 3, style: { fill: "var(--c0)", opacity: 0.45 } }));
  }
  if (!view.attackers.size) return root;
  return [html("div", { class: "key" }, html("span", { style: { color: "var(--c0)" } }, "● honest"), html("span", { style: { color: "var(--attacker)" } }, "▲ attacker")), root];
}

function distances(width, { rounds, distance }) {
  const most = Math.max(...distance), top = ceiling(most, 0.01);
  const root = svgRoot(width, 280, `Total variation distance between sketched and exact weights, at most ${number(most)}`);
  const { x, y } = axes(root, width, 280, 14, roundsAxis([rounds[0], rounds.at(-1)], width - 70), fromZero(top, "total variation distance", number));
  root.append(svg("path", { class: "curve", style: { stroke: "var(--c0)" }, d: `M${rounds.map((round, i) => `${x(round)} ${y(distance[i])}`).join("L")}` }));
  if (rounds.length <= 60) rounds.forEach((round, i) => root.append(svg("circle", { cx: x(round), cy: y(distance[i]), r: 3, style: { fill: "var(--c0)" },
    on: tooltip([[`round ${round}`], ["", "distance", number(distance[i])]]) })));
  return root;
}

function dataSplit(width, view, { classes, counts }) {
  const C = classes.length, M = view.ids.length, f = view.attackers.size, most = Math.max(1, ...counts);
  const count = (i, c) => counts[i * C + c];
  const left = Math.min(width * 0.4, 32 + maxTextWidth(classes));
  const cell = Math.min(26, (width - left - 8) / M), row = Math.max(C > 40 ? 4 : 15, Math.min(26, cell));
  const wide = cell * M, top = 14, bottom = top + row * C;
  const root = svgRoot(width, bottom + 26, `Examples of each class (${C}) held by ${counted(M, "client")}`);
  if (row >= 11) classes.forEach((name, c) => root.append(svgText(left - 8, top + (c + 0.5) * row + 4, fitted(name, left - 28), END)));
  root.append(verticalTitle(11, (top + bottom) / 2, "class"));
  root.style.position = "relative";
  const group = (from, to, text, fill, anchor) => root.append(
    svg("rect", { x: left + from * cell + 0.5, y: 4, width: Math.max(1, (to - from) * cell - 1), height: 4, rx: 1, style: { fill } }),
    svgText(anchor === END ? left + to * cell : left + from * cell, bottom + 18, text, { ...anchor, style: { fill, fontWeight: 600 } }));
  if (f) group(0, f, counted(f, "attacker"), "var(--attacker)", {});
  if (f < M) group(f, M, counted(M - f, view.known ? "honest client" : "client"), "var(--soft)", END);
  const bubbles = cell >= 7 && M * C <= 4000;
  if (bubbles) {
    for (let c = 0; c < C; c++) root.append(svgLine(left, top + (c + 0.5) * row, left + wide, top + (c + 0.5) * row, "grid"));
    view.order.forEach((i, n) => { for (let c = 0; c < C; c++) if (count(i, c)) root.append(svg("circle", { cx: left + (n + 0.5) * cell, cy: top + (c + 0.5) * row,
      r: Math.max(0.7, Math.sqrt(count(i, c) / most) * Math.min(cell, row) * 0.56).toFixed(2), style: { fill: isAttacker(view, i) ? "var(--attacker)" : "var(--c0)", opacity: 0.8 } })); });
  }
  root.addEventListener("pointermove", (event) => {
    const [px, py] = pointerIn(root, width, event), n = Math.floor((px - left) / cell), c = Math.floor((py - top) / row);
    if (n < 0 || n >= M || c < 0 || c >= C) return hideTooltip();
    showTooltip(event, [clientLabel(view, view.order[n]), ["", shortened(classes[c], 40), counted(count(view.order[n], c), "example")]]);
  });
  root.addEventListener("pointerleave", hideTooltip);
  if (bubbles) return root;
  const canvas = cellCanvas(M, C, (c, n) => ramp(Math.sqrt(count(view.order[n], c) / most)), { left, top, width: wide, height: row * C });
  return [rampKey("0", counted(most, "example"), []), html("div", { class: "plot" }, canvas, root)];
}
