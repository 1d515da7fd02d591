"""The assets of pages of runs: their style, and the script of their curves."""

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #16191d; --line: #8886; --share-of: 1; --c0: #1f77b4;
  --c1: #d1495b; --c2: #2a9d5c; --c3: #8e5bd0; --c4: #c27a00; --c5: #0f8f9c; --c6: #b5478f; --c7: #6b6b6b; }
@media (prefers-color-scheme: dark) { :root { --page: #16191d; --text: #e8eaed; --share-of: .7; --c0: #5aa9e6;
  --c1: #ff7b89; --c2: #56c98a; --c3: #b79cf0; --c4: #e9a93b; --c5: #4cc3cf; --c6: #e07fc0; --c7: #a8a8a8; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em;
  background: var(--page); color: var(--text); overflow-wrap: anywhere; }
h1 { margin-bottom: 0; line-height: 1.2; } h2 { margin-top: 2em; } a { color: var(--c0); }
.panels { display: flex; flex-wrap: wrap; gap: 1em 2em; }
.panels > * { flex: 1 1 min(420px, 100%); max-width: 620px; min-width: 0; }
.panel { position: relative; } .plot { touch-action: pan-y; }
svg { display: block; width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
svg text.axis { font-weight: 600; font-size: 12px; }
.grid { stroke: var(--line); stroke-width: .5; } .curve { fill: none; stroke: var(--c); stroke-width: 2; }
.curve.faint { stroke-width: 1; opacity: .45; } circle.curve { fill: var(--c); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1.5em; padding: 0 0 0 11.4%; margin: 0; }
.legend i, .swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em;
  background: var(--c); }
.axes { position: absolute; right: 2%; top: 0; display: flex; gap: .3em; }
.axes button { font: 11px/1.4 system-ui, sans-serif; padding: 0 .5em; border: 1px solid var(--line); border-radius: 3px;
  background: var(--page); color: var(--text); cursor: pointer; }
.axes button[aria-pressed=true] { background: var(--text); color: var(--page); } .axes button:disabled { opacity: .4; }
.cursor { stroke: currentColor; stroke-width: 1; opacity: .5; } .dot { fill: var(--c); stroke: var(--page); }
.readout { position: absolute; z-index: 1; pointer-events: none; background: var(--page); border: 1px solid var(--line);
  border-radius: 4px; padding: .2em .6em; font-size: 12px; box-shadow: 0 1px 4px #0004; max-width: 70%; }
.readout b { font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; } th, td { padding: .15em .6em; text-align: left; vertical-align: top; }
thead th { border-bottom: 1px solid var(--line); } tbody tr + tr { border-top: 1px solid var(--line); }
.number, .confusion td, .scores td { text-align: right; font-variant-numeric: tabular-nums; }
.confusion, .scores { overflow-wrap: normal; } .scores td { white-space: nowrap; }
.scores thead th { text-align: right; }
.scores thead th:first-child { text-align: left; }
.tables { display: flex; flex-wrap: wrap; gap: 1em 3em; align-items: start; } .tables > * { min-width: 0; }
.wide { overflow-x: auto; max-width: 100%; } .wide th, .wide td { overflow-wrap: normal; }
.wide td.code { overflow-wrap: anywhere; min-width: 7em; }
code, .code { font: 13px/1.5 ui-monospace, monospace; } .muted { opacity: .75; }
img { image-rendering: pixelated; min-width: 56px; min-height: 56px; margin: 2px; vertical-align: middle; }
pre.sample { white-space: pre-wrap; border: 1px solid var(--line); padding: .5em; }
.right { background: rgb(42 157 92 / calc(var(--share) * var(--share-of))); }
.wrong { background: rgb(209 73 91 / calc((.12 + .88 * var(--share)) * var(--share-of))); }
.mistakes { display: flex; flex-wrap: wrap; gap: 1em; }
.mistakes figure { margin: 0; max-width: min(16em, calc(50% - .5em)); }
.mistakes img { width: min(112px, 100%); margin: 0; } figcaption { font-size: 13px; } .late { color: var(--c1); }
@media (max-width: 560px) { svg text { font-size: 17px; } svg text.axis { font-size: 17px; } body { margin-top: 1em; }
  .axes { position: static; justify-content: end; } .axes button { padding: .2em .8em; }
  .confusion th, .confusion td, .scores th, .scores td { padding: .15em .35em; font-size: 13px; } }
"""

SCRIPT = """
{
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const key = name => "opstage " + location.pathname + " " + name;
const recall = name => { try { return sessionStorage.getItem(key(name)) || ""; } catch { return ""; } };
const keep = (name, value) => { try { sessionStorage.setItem(key(name), value); } catch { } };
const element = (name, set = {}) => Object.assign(document.createElement(name), set);
const drawn = (name, set) => {
  const e = document.createElementNS(document.querySelector(".plot svg").namespaceURI, name);
  for (const [k, v] of Object.entries(set)) e.setAttribute(k, v);
  return e;
};
const places = e => e.points ? [...e.points].map(p => [p.x, p.y]) : [[+e.getAttribute("cx"), +e.getAttribute("cy")]];
let reading = false;
for (const panel of all(".panel")) {
  const plot = panel.querySelector(".plot"), curves = JSON.parse(panel.querySelector("script").textContent);
  const drawings = {"": plot.firstElementChild};
  for (const other of all("template", panel)) drawings[other.dataset.log] = other.content.firstElementChild;
  let axes = recall(panel.dataset.name), points = [];
  const readout = element("div", {className: "readout", hidden: true});
  const buttons = ["y", "x"].map(axis => element("button", {type: "button", textContent: "log " + axis}));
  const after = axis => ["y", "x"].filter(a => axes.includes(a) !== (a === axis)).join("");
  const draw = () => {
    if (!drawings[axes]) axes = "";
    plot.replaceChildren(drawings[axes]);
    points = all(".curve", plot).map((e, i) => [e, places(e), curves[i][1].filter(
      p => (!axes.includes("x") || p[0] > 0) && (!axes.includes("y") || p[1] > 0))]);
    buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", axes.includes("yx"[i]));
      button.disabled = !drawings[after("yx"[i])];
    });
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => {
    axes = after("yx"[i]);
    keep(panel.dataset.name, axes);
    leave();
    draw();
  }));
  const leave = () => { reading = false; readout.hidden = true; all(".hover", plot).forEach(e => e.remove()); };
  const move = event => {
    leave();
    const svg = plot.firstElementChild, box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
    const at = (event.clientX - box.left) * unit, group = drawn("g", {class: "hover"});
    const lines = [];
    let nearest = null;
    points.forEach(([e, spots, values], i) => {
      let best = -1;
      spots.forEach((p, j) => { if (best < 0 || Math.abs(p[0] - at) < Math.abs(spots[best][0] - at)) best = j; });
      if (best < 0) return;
      const [x, y] = spots[best];
      if (nearest === null || Math.abs(x - at) < Math.abs(nearest - at)) nearest = x;
      const dot = drawn("circle", {class: "dot", cx: x, cy: y, r: 3.5});
      dot.style.setProperty("--c", getComputedStyle(e).getPropertyValue("--c"));
      group.append(dot);
      const line = element("div"), swatch = element("span", {className: "swatch"});
      swatch.style.setProperty("--c", getComputedStyle(e).getPropertyValue("--c"));
      line.append(swatch, element("b", {textContent: +values[best][1].toPrecision(6)}),
        " at step " + values[best][0] + (points.length > 1 ? ", " + curves[i][0] : ""));
      lines.push(line);
    });
    if (nearest === null) return;
    reading = true;
    const height = svg.viewBox.baseVal.height;
    group.prepend(drawn("line", {class: "cursor", x1: nearest, x2: nearest, y1: 28, y2: height - 40}));
    svg.append(group);
    readout.replaceChildren(...lines);
    readout.hidden = false;
    const left = nearest / unit + 12, room = panel.clientWidth - readout.offsetWidth;
    readout.style.left = (left <= room ? left : Math.max(0, nearest / unit - 12 - readout.offsetWidth)) + "px";
    readout.style.top = "36px";
  };
  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerdown", move);
  plot.addEventListener("pointerleave", leave);
  const bar = element("div", {className: "axes"});
  bar.append(...buttons);
  panel.append(bar, readout);
  draw();
}
const written = +document.body.dataset.written;
if (written) {
  const age = document.getElementById("age");
  const tell = () => {
    const seconds = Math.max(0, Math.round((Date.now() - written) / 1000)), late = seconds > 120;
    age.textContent = "Written " + (seconds < 120 ? seconds + " s" : Math.round(seconds / 60) + " min") + " ago"
      + (late ? ": the run may have been ended, or be at a long step." : ".");
    age.classList.toggle("late", late);
  };
  tell();
  setInterval(tell, 1000);
  const again = () => { if (reading || document.hidden) setTimeout(again, 1000); else location.reload(); };
  setTimeout(again, +document.body.dataset.refresh);
}
}
"""
