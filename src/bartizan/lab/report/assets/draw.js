// Helpers that all charts share. Text from the data is untrusted: it is set by textContent and setAttribute only.
const data = JSON.parse(document.getElementById("data").textContent);
const charts = [];
const byId = (id) => document.getElementById(id);

function assemble(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const html = (tag, attributes = {}, ...children) => assemble(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  assemble(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const svgRoot = (width, height, label) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
const svgText = (x, y, text, more = {}) => svg("text", { x, y, text, ...more });
const svgLine = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
const MIDDLE = { "text-anchor": "middle" }, END = { "text-anchor": "end" };
const axisTitle = (x, y, text) => svgText(x, y, text, { ...MIDDLE, class: "title" });
const verticalTitle = (x, y, text) => svgText(x, y, text, { ...MIDDLE, class: "title", transform: `rotate(-90 ${x} ${y})` });

/** A figure that is drawn again whenever its width or the theme changes; `draw` gets the width. */
function chart(parent, title, note, draw) {
  const body = html("div", { class: "plot" });
  const head = [title && html("h3", { text: title }), note && html("p", { text: note })];
  parent.append(html("figure", {}, title || note ? html("figcaption", {}, head) : null, body));
  const one = { body, width: 0, redraw: () => body.replaceChildren(...[draw(one.width)].flat()) };
  one.fit = () => {
    const width = Math.floor(body.getBoundingClientRect().width);
    if (width > 0 && width !== one.width) { one.width = width; one.redraw(); }
  };
  charts.push(one);
  one.fit();
  resized.observe(body);
  return one;
}
const resized = new ResizeObserver(() => requestAnimationFrame(() => charts.forEach((one) => one.fit())));

/** Draw two axes with ticks and titles. Each is { low, high, ticks, title, format }; returns scales and the inner box. */
function axes(root, width, height, right, xAxis, yAxis) {
  const left = 30 + maxTextWidth(yAxis.ticks.map(yAxis.format));
  const box = { left, top: 10, right: width - right, bottom: height - 42 };
  const part = (axis, value) => (axis.high > axis.low ? (value - axis.low) / (axis.high - axis.low) : 0.5);
  const x = (value) => box.left + part(xAxis, value) * (box.right - box.left);
  const y = (value) => box.bottom - part(yAxis, value) * (box.bottom - box.top);
  for (const t of yAxis.ticks) root.append(svgLine(box.left, y(t), box.right, y(t), t === yAxis.low ? "axis" : "grid"),
    svgText(box.left - 8, y(t) + 4, yAxis.format(t), END));
  for (const t of xAxis.ticks) root.append(svgLine(x(t), box.bottom, x(t), box.bottom + 4, "axis"),
    svgText(x(t), box.bottom + 18, xAxis.format(t), MIDDLE));
  root.append(axisTitle((box.left + box.right) / 2, height - 6, xAxis.title), verticalTitle(11, (box.top + box.bottom) / 2, yAxis.title));
  return { x, y, box };
}
const roundsAxis = ([low, high], width) => ({ low, high, ticks: roundTicks(low, high, width), title: "round", format: (t) => t.toLocaleString("en") });
const fromZero = (top, title, format) => ({ low: 0, high: top, ticks: ticks(0, top, 4), title, format });

const dark = () => document.documentElement.dataset.theme === "dark";
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
let rampStops = null;
/** The colour of an amount from 0 to 1 as [red, green, blue]; 0 is nearly the colour of the page. */
function ramp(amount) {
  rampStops ??= [0, 1, 2, 3, 4, 5].map((i) => channels(token(`--r${i}`)));
  const at = Math.min(1, Math.max(0, amount)) * (rampStops.length - 1);
  const i = Math.min(rampStops.length - 2, Math.floor(at));
  return rampStops[i].map((value, c) => Math.round(value + (rampStops[i + 1][c] - value) * (at - i)));
}
const rgb = (parts) => `rgb(${parts.join(" ")})`;
/** Black or white, whichever can be read on a colour. */
function inkOn(parts) {
  const [r, g, b] = parts.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#10141a" : "#ffffff";
}

const [ruleStyles, sketchDashes] = data.styles;
const colour = (rule) => `var(--${ruleStyles[rule][0]})`;
const MARKS = [null, "M-3 0A3 3 0 1 1 3 0A3 3 0 1 1 -3 0Z", "M-3 -3H3V3H-3Z", "M0 -4L4 3H-4Z"];
/** Rules beyond the number of colours have a mark on their lines; null for the others. */
const markOf = (rule) => MARKS[ruleStyles[rule][1]];
const marked = (d, x, y, stroke) => svg("path", { class: "mark", d, transform: `translate(${x} ${y})`, style: { stroke } });
const dash = (sketch) => ["", "6 4", "2 4", "9 3 2 3"][sketchDashes[sketch]];
const attackName = (attack) => (attack === "none" ? "no attack" : attack);
const joined = (...parts) => parts.filter(Boolean).join(" · ");

const percent = (value) => (value === null ? "-" : `${(100 * value).toFixed(1)}%`);
/** A test result: accuracy in percent, perplexity as it is. */
const shownAs = { accuracy: percent, perplexity: (value) => (value === null ? "-" : value.toFixed(2)) };
/** Where a run ended; empty if that is not known. */
const lastOf = (run) => (run.last_accuracy !== null ? percent(run.last_accuracy) : run.last_perplexity !== null ? shownAs.perplexity(run.last_perplexity) : "");
/** A percentage on an axis, with as many digits as it needs. */
const percentTick = (value) => `${number(100 * value)}%`;
function number(value) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}
function seconds(value) {
  if (value === null) return "";
  if (value >= 1) return `${number(value)} s`;
  return value >= 1e-3 ? `${number(value * 1e3)} ms` : `${number(value * 1e6)} µs`;
}
const reads = (value) => (value === null ? "" : value < 10 ? value.toFixed(2) : value < 1000 ? value.toFixed(1) : number(value));
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

const measuring = document.createElement("canvas").getContext("2d");
function textWidth(text, size = 12, weight = 400) {
  measuring.font = `${weight} ${size}px ${token("--sans")}`;
  return measuring.measureText(text).width;
}
const maxTextWidth = (texts, size, weight) => Math.max(0, ...texts.map((text) => textWidth(text, size, weight)));
/** The text, cut until it is at most so many pixels wide. */
function fitted(text, room, size = 12, weight = 400) {
  if (textWidth(text, size, weight) <= room) return text;
  let most = Math.min(text.length, 80);
  while (most > 1 && textWidth(shortened(text, most), size, weight) > room) most--;
  return shortened(text, most);
}
const shortened = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-9); n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}
/** The end of an axis from 0: a tick at or above the largest value, and not below `least`, so that rounding errors stay flat. */
function ceiling(largest, least) {
  const top = Math.max(largest, least), found = ticks(0, top, 4), step = found[1] - found[0] || top;
  return found.at(-1) >= top ? found.at(-1) : found.at(-1) + step;
}
/** Whole rounds, the first and the last among them. */
function roundTicks(low, high, width) {
  const room = (high - low) / Math.max(1, Math.floor(width / 70));
  const inner = ticks(low, high, width / 80).filter((t) => Number.isInteger(t) && t - low > room * 0.6 && high - t > room * 0.6);
  return [...new Set([low, ...inner, high])];
}

function bytes(base64) {
  const text = atob(base64);
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

/** Rows are [text], or [colour or "", text, value]. */
function showTooltip(event, rows) {
  const box = byId("tooltip");
  box.replaceChildren(...rows.map((row) => row.length === 1
    ? html("b", { text: row[0] })
    : html("div", {}, row[0] ? html("i", { style: { background: row[0] } }) : null,
      html("span", { text: row[1] }), html("span", { text: row[2] }))));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
}
const hideTooltip = () => { byId("tooltip").hidden = true; };
/** Listeners that show these rows while the pointer is on an element. */
const tooltip = (rows) => ({ pointermove: (event) => showTooltip(event, rows), pointerleave: hideTooltip });
/** The pointer's position in the units of an SVG image. */
function pointerIn(root, width, event) {
  const frame = root.getBoundingClientRect(), scale = width / frame.width;
  return [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
}

function section(id, title, about) {
  const one = html("section", { id, "aria-labelledby": `${id}-title` }, html("h2", { id: `${id}-title`, text: title }),
    about ? html("p", { class: "about", text: about }) : null);
  byId("main").append(one);
  byId("links").append(html("a", { href: `#${id}`, text: title }));
  return one;
}
