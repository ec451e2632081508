"use strict";
// Text is data: it is only written with textContent.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const MASK = -1;
const PLAY_MS = 12000;

let replay = null; // {frames, given, cells, events}
let now = 0;
let timer = null;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const percent = (permille) => (permille < 10 ? (permille / 10).toFixed(1) : Math.round(permille / 10)) + "%";
// percent of the shading's colour, on a log scale: natural text has many tokens of 1 to 10 percent
const shading = (permille) => (55 * -Math.log10(Math.max(permille, 1) / 1000)) / 3;
const stepAt = (k) => replay.frames[k].step_index;
const lastStep = () => stepAt(replay.frames.length - 1);
const quoted = (text) => "\u201c" + text.replaceAll("\n", "\u21b5") + "\u201d";

/* Frames are stored as differences from the frame before; return each with all tokens and texts. */
function unpack(packed) {
  const frames = [];
  const events = [];
  const old = new Map(); // position -> the visible token replaced last
  let tokens = [], texts = [];
  packed.frames.forEach((frame, k) => {
    const before = { tokens, texts };
    tokens = tokens.slice();
    texts = texts.slice();
    for (let i = 0; i < frame.cells.length; i += 3) {
      tokens[frame.cells[i]] = frame.cells[i + 1];
      texts[frame.cells[i]] = frame.cells[i + 2];
    }
    const state = tokens.map((token, i) => {
      if (token === MASK) return "mask";
      if (packed.given[i]) return "given";
      if (k === 0 || before.tokens[i] === token) return "";
      return before.tokens[i] === MASK ? "fresh" : "changed";
    });
    let filled = 0, replaced = 0;
    state.forEach((kind, i) => {
      if (kind === "fresh") filled += 1;
      if (kind !== "changed") return;
      replaced += 1;
      old.set(i, { token: before.tokens[i], text: before.texts[i] });
      events.push({ frame: k, position: i, old: before.texts[i], new: texts[i], confidence: frame.confidence[i] });
    });
    const first = frames.length ? frames[0] : { tokens, texts };
    const marks = new Map(); // position -> the replaced text
    tokens.forEach((token, i) => {
      const from = data.kind === "correct" ? { token: first.tokens[i], text: first.texts[i] } : old.get(i);
      if (from && from.token !== MASK && token !== MASK && from.token !== token) marks.set(i, from.text);
    });
    const top = new Map();
    for (let i = 0; i < frame.top.length; i += 3) top.set(frame.top[i], [frame.top[i + 1], frame.top[i + 2]]);
    frames.push({ ...frame, tokens, texts, state, marks, top, filled, replaced });
  });
  return { given: packed.given, frames, events };
}

function open(number) {
  stop();
  replay = unpack(data.replays[number]);
  const canvas = at("canvas");
  canvas.replaceChildren();
  replay.cells = replay.frames[0].texts.map((_, i) => {
    const gone = element("del");
    const token = element("span", "token");
    token.dataset.position = i;
    gone.hidden = true;
    canvas.append(gone, token);
    return { gone, token };
  });
  at("count").textContent = replay.events.length;
  at("events").replaceChildren(...replay.events.map((event) => {
    const row = element("button");
    row.type = "button";
    row.append(element("span", "when", "step " + stepAt(event.frame)));
    const what = element("span");
    what.append(element("del", "", data.strings[event.old]), " ", element("ins", "", data.strings[event.new]),
      element("span", "when", " " + percent(event.confidence)));
    row.append(what);
    row.addEventListener("click", () => show(event.frame));
    const item = element("li");
    item.append(row);
    return item;
  }));
  at("slider").max = replay.frames.length - 1;
  drawCurve("accuracy", (frame) => frame.accuracy, 0, 1, (v) => Math.round(100 * v) + "%");
  const most = Math.max(...replay.frames.map((frame) => frame.entropy), 0.1);
  drawCurve("entropy", (frame) => frame.entropy, 0, most, (v) => v.toFixed(2));
  show(data.kind === "correct" ? replay.frames.length - 1 : 0);
}

function show(k) {
  now = Math.max(0, Math.min(k, replay.frames.length - 1));
  const frame = replay.frames[now];
  const marked = at("marks").checked;
  replay.cells.forEach(({ gone, token }, i) => {
    const text = frame.texts[i];
    const isMarked = marked && frame.marks.has(i);
    token.className = "token " + frame.state[i] + (isMarked ? " marked" : "");
    token.textContent = text === MASK ? "" : data.strings[text];
    token.style.setProperty("--shading", text === MASK || frame.state[i] === "given" ? 0 : shading(frame.confidence[i]));
    if (text === MASK) { token.setAttribute("role", "img"); token.setAttribute("aria-label", "blank"); }
    else { token.removeAttribute("role"); token.removeAttribute("aria-label"); }
    const isFirst = isMarked && !frame.marks.has(i - 1); // adjacent replaced texts are joined before the first
    gone.hidden = !isFirst;
    gone.textContent = isFirst ? replacedFrom(frame, i) : "";
  });
  at("slider").value = now;
  const where = frame.step === "end" ? "the end" : frame.step + ", t = " + frame.time.toFixed(3);
  const status = ["step " + stepAt(now) + " of " + lastStep(), where, frame.masks + " blanks"];
  if (now) status.push(frame.filled + " written", frame.replaced + " replaced");
  at("status").textContent = status.join(" \u00b7 ");
  at("slider").setAttribute("aria-valuetext", status.join(", "));
  [...at("events").children].forEach((item, i) => item.classList.toggle("later", replay.events[i].frame > now));
  for (const id of ["accuracy", "entropy"]) moveCursor(id);
  hideTip();
}

function replacedFrom(frame, first) {
  let text = "";
  for (let i = first; frame.marks.has(i); i += 1) text += data.strings[frame.marks.get(i)];
  return text;
}

/* Curves */
const BOX = { left: 34, right: 350, top: 10, bottom: 110 };
const charts = {};

function drawing(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawCurve(id, value, low, high, write) {
  const svg = at(id);
  const last = Math.max(1, replay.frames.length - 1);
  const x = (k) => BOX.left + (BOX.right - BOX.left) * k / last;
  const y = (v) => BOX.bottom - (BOX.bottom - BOX.top) * (v - low) / (high - low);
  const points = replay.frames.map((frame, k) => x(k).toFixed(1) + "," + y(value(frame)).toFixed(1));
  const cursor = drawing("line", { class: "cursor", y1: BOX.top, y2: BOX.bottom });
  const dot = drawing("circle", { r: 4 });
  const label = drawing("text", { class: "value", y: BOX.top + 2 });
  svg.replaceChildren(
    drawing("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: BOX.bottom, y2: BOX.bottom }),
    drawing("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: BOX.top, y2: BOX.top }),
    drawing("text", { x: BOX.left - 5, y: BOX.bottom + 3, "text-anchor": "end" }, write(low)),
    drawing("text", { x: BOX.left - 5, y: BOX.top + 4, "text-anchor": "end" }, write(high)),
    drawing("text", { x: BOX.left, y: BOX.bottom + 15 }, "step " + stepAt(0)),
    drawing("text", { x: BOX.right, y: BOX.bottom + 15, "text-anchor": "end" }, String(lastStep())),
    drawing("polyline", { class: "curve", points: points.join(" ") }), cursor, dot, label);
  charts[id] = { x, y, value, write, cursor, dot, label };
}

function moveCursor(id) {
  const { x, y, value, write, cursor, dot, label } = charts[id];
  const v = value(replay.frames[now]);
  cursor.setAttribute("x1", x(now));
  cursor.setAttribute("x2", x(now));
  dot.setAttribute("cx", x(now));
  dot.setAttribute("cy", y(v));
  const near = x(now) > (BOX.left + BOX.right) / 2;
  label.setAttribute("x", x(now) + (near ? -7 : 7));
  label.setAttribute("y", Math.max(BOX.top + 12, Math.min(BOX.bottom - 4, y(v) - 7)));
  label.setAttribute("text-anchor", near ? "end" : "start");
  label.textContent = write(v);
}

for (const id of ["accuracy", "entropy"]) {
  const go = (event) => {
    const box = at(id).getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width * 360;
    show(Math.round((place - BOX.left) / (BOX.right - BOX.left) * (replay.frames.length - 1)));
  };
  at(id).addEventListener("pointerdown", (event) => { stop(); at(id).setPointerCapture(event.pointerId); go(event); });
  at(id).addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
}

/* Tooltip: confidence in a token, and the most likely one */
function hideTip() { at("tip").hidden = true; }

at("canvas").addEventListener("pointerover", (event) => {
  const token = event.target.closest("#canvas .token");
  if (!token) { hideTip(); return; }
  const i = Number(token.dataset.position);
  const frame = replay.frames[now];
  const lines = [frame.texts[i] === MASK ? "blank" : quoted(data.strings[frame.texts[i]])];
  if (frame.state[i] === "given") lines[0] += " \u2014 given";
  if (frame.texts[i] !== MASK) lines.push("confidence: " + percent(frame.confidence[i]));
  const top = frame.top.get(i);
  if (top) lines.push("most likely: " + quoted(data.strings[top[0]]) + " " + percent(top[1]));
  const past = replay.events.filter((e) => e.position === i && e.frame <= now);
  for (const e of past.slice(-3)) lines.push("step " + stepAt(e.frame) + ": replaced " + quoted(data.strings[e.old]));
  const tip = at("tip");
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  const box = token.getBoundingClientRect();
  tip.style.left = Math.min(box.left, window.innerWidth - tip.offsetWidth - 8) + "px";
  const below = box.bottom + 6;
  tip.style.top = (below + tip.offsetHeight < window.innerHeight ? below : box.top - tip.offsetHeight - 6) + "px";
});
at("canvas").addEventListener("pointerleave", hideTip);

/* Controls */
function stop() {
  if (timer !== null) clearInterval(timer);
  timer = null;
  at("play").textContent = "\u25b6 Play";
  at("play").setAttribute("aria-label", "Play");
}

function play() {
  if (timer !== null) { stop(); return; }
  if (now === replay.frames.length - 1) show(0);
  at("play").textContent = "\u275a\u275a Pause";
  at("play").setAttribute("aria-label", "Pause");
  timer = setInterval(() => {
    show(now + 1);
    if (now === replay.frames.length - 1) stop();
  }, Math.max(40, Math.min(400, PLAY_MS / replay.frames.length)));
}

const step = (by) => { stop(); show(now + by); };
at("slider").addEventListener("input", () => { stop(); show(Number(at("slider").value)); });
at("back").addEventListener("click", () => step(-1));
at("forward").addEventListener("click", () => step(1));
at("play").addEventListener("click", play);
at("marks").addEventListener("change", () => show(now));
at("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.closest("input, select, button, summary")) return;
  const keys = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => step(-now), End: () => step(replay.frames.length), " ": play };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});

at("manifest").textContent = JSON.stringify(data.manifest, null, 2);
at("marks").checked = data.kind === "correct";
at("replay").replaceChildren(...data.replays.map((s, i) => {
  const option = element("option", "", s.title);
  option.value = i;
  return option;
}));
at("picker").hidden = data.replays.length < 2;
at("replay").addEventListener("change", () => open(Number(at("replay").value)));
open(0);
