"""The assets of a graph's page: its style sheet, and the script that folds, searches and filters."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --muted: #5d6976; --forward: #5b8db8; --backward: #c0705f;
  --update: #5a9c66; --io: #9aa4ae; --hit: #ffe08a88; --page: #fff; --text: #16191d; }
@media (prefers-color-scheme: dark) { :root { --page: #16191d; --text: #e8eaed; --muted: #98a3b0; --hit: #8a701f88; } }
* { box-sizing: border-box; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1em 1.5em 4em; max-width: 1500px;
  background: var(--page); color: var(--text); overflow-wrap: anywhere; }
h1 { font-size: 1.5em; margin: 0 0 .2em; } header p { margin: .2em 0; }
table { border-collapse: collapse; margin: .6em 0 1em; } th, td { padding: .15em 1em .15em 0; text-align: left; }
td { font-variant-numeric: tabular-nums; } #totals { overflow-wrap: normal; }
thead th { color: var(--muted); font-weight: 400; }
i { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .45em;
  background: var(--part); }
.forward { --part: var(--forward); } .backward { --part: var(--backward); } .update { --part: var(--update); }
.io { --part: var(--io); } .muted { color: var(--muted); font-weight: 400; }
.wide { overflow-x: auto; padding: .5em 0; } .wide svg { display: block; max-width: 100%; height: auto; margin: auto; }
nav { position: sticky; top: 0; z-index: 2; display: flex; flex-wrap: wrap; gap: .4em 1em; align-items: center;
  padding: .6em 0; background: var(--page); border-bottom: 1px solid var(--line); }
nav label { user-select: none; cursor: pointer; } nav input[type=search] { flex: 1 1 14em; max-width: 28em;
  padding: .3em .6em; font: inherit; } nav button { font: inherit; padding: .25em .7em; }
#found { color: var(--muted); }
details > summary { cursor: pointer; padding: .25em .4em; border-radius: 4px; }
details > summary:hover { background: #8882; }
.part { border-left: 4px solid var(--part); margin: .8em 0; padding-left: .3em; }
.part > summary { font-size: 1.1em; } .group, .fold { margin-left: 1.1em; border-left: 1px solid var(--line); }
.times { border: 1px solid var(--line); border-radius: 1em; padding: 0 .5em; font-size: .85em; }
.n { display: grid; gap: 0 .8em; margin-left: 1.1em; padding: .12em .4em; align-items: baseline; scroll-margin: 5em;
  grid-template-columns: 4.5em minmax(9em, 1.6fr) minmax(8em, 1.6fr) minmax(8em, 1fr) 4.5em 8em 7em 9em;
  border-left: 1px solid var(--line); }
.n:hover { background: #8882; } .n > span { overflow-wrap: anywhere; min-width: 0; } .n a[id] { position: absolute; }
.n.head { color: var(--muted); font-size: .85em; border: 0; margin-top: .6em; }
.n.head:hover { background: none; }
.id, .shape, .from, .flops, .line { font: 12px/1.5 ui-monospace, monospace; } .id { color: var(--muted); }
.dtype, .bytes, .flops, .line { color: var(--muted); font-size: 12px; } .op { font-weight: 600; }
.op small { display: block; font: 11px/1.4 ui-monospace, monospace; color: var(--muted); white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; } .from a { color: inherit; text-decoration-color: var(--line); }
.n.flash { background: var(--hit); } .n:target { background: var(--hit); }
.hide-forward .part.forward, .hide-backward .part.backward, .hide-update .part.update, .away { display: none; }
#remarks pre { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid var(--io); padding: .2em .8em;
  font: 12px/1.5 ui-monospace, monospace; margin: .4em 0; }
#remarks .warning, .remark.warning { border-color: #c9a227; }
#remarks .error, .remark.error { border-color: var(--backward); } #remarks a { color: inherit; }
.n > .remark { grid-column: 1 / -1; border-left: 3px solid var(--io); padding: 0 .6em; font-size: 12px; }
svg g.odd > .box, svg g.odd a .box { stroke: #c9a227; stroke-width: 3; }
.tools { display: flex; flex-wrap: wrap; gap: .4em; align-items: center; padding: .2em .4em; }
.tools[hidden] { display: none; } #trail { flex: 1; overflow-wrap: anywhere; } .tools button { font: inherit;
  min-width: 2.2em; } #trail button { border: 0; background: none; padding: 0; color: inherit;
  text-decoration: underline; cursor: pointer; }
.view { overflow: hidden; border: 1px solid var(--line); border-radius: 6px; cursor: grab; touch-action: pan-y; }
.view.near { touch-action: none; } .view.moving { cursor: grabbing; user-select: none; }
.view svg { display: block; width: 100%; height: 100%; max-width: none; }
.more { cursor: pointer; display: none; } .view .more { display: inline; }
.more circle { fill: var(--page); stroke: var(--muted); } .more path { stroke: var(--text); fill: none;
  stroke-width: 1.5; } .more:hover circle, .more:focus circle { stroke-width: 2.5; }
svg g.dim, svg.searched .edge, svg.searched .label { opacity: .25; } svg g.hit .box { stroke-width: 3.5; }
.hide-forward svg .forward, .hide-backward svg .backward, .hide-update svg .update { opacity: .12; }
@media (max-width: 800px) { .n { grid-template-columns: 3.5em 1fr 1fr; } .n.head { display: none; } }
@media (max-width: 560px) { body { padding: .6em .6em 3em; } .group, .fold { margin-left: .4em; }
  .n { margin-left: .3em; grid-template-columns: 3em 1fr 1fr; } th, td { padding-right: .6em; font-size: 13px; }
  .wide, #totals { overflow-x: auto; } nav input[type=search] { flex-basis: 100%; } }
"""

SCRIPT = """
{
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const body = document.body, found = document.getElementById("found");
for (const box of all("input[data-part]"))
  box.addEventListener("change", () => {
    body.classList.toggle("hide-" + box.dataset.part, !box.checked);
    search(field.value);
  });
const folds = all(".part, .group, .fold");
const openAll = open => { for (const fold of folds) fold.open = open || fold.matches(".part:not(.io)"); };
document.getElementById("open").addEventListener("click", () => openAll(true));
document.getElementById("close").addEventListener("click", () => openAll(false));
const show = target => {
  if (!target) return;
  for (let e = target.parentElement; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  const row = target.closest(".n") || target;
  all(".flash").forEach(e => e.classList.remove("flash"));
  row.classList.add("flash");
  row.scrollIntoView({block: "center"});
};
const follow = () => show(document.getElementById(decodeURIComponent(location.hash.slice(1))));
addEventListener("hashchange", follow);
document.addEventListener("click", event => {
  const link = event.target.closest("a[href^='#']");
  if (link && link.getAttribute("href") === location.hash) follow();
});
const rows = all(".n:not(.head)").map(e => {
  const paths = [];
  for (let d = e.parentElement.closest("details"); d; d = d.parentElement.closest("details"))
    paths.push(d.dataset.path || d.id || "");
  const titles = all("[title]", e).map(t => t.title);
  return [e, [e.textContent, ...paths, ...titles].join(" ").toLowerCase()];
});
const view = document.querySelector("#drawing .wide"), trail = document.getElementById("trail");
const drawings = {"": view.firstElementChild};
for (const other of all("#drawing template")) drawings[other.dataset.block] = other.content.firstElementChild;
let path = [], seen = [0, 0, 1, 1], full = 1, hits = null;
const svg = () => view.firstElementChild;
const size = e => [+e.getAttribute("width"), +e.getAttribute("height")];
const look = () => {
  svg().setAttribute("viewBox", seen.join(" "));
  view.classList.toggle("near", seen[2] < full * .99);
};
const fit = () => {
  const [width, height] = size(svg()), across = view.clientWidth || 800;
  const scale = Math.min(1, Math.max(across / width, .6));
  const down = Math.min(Math.max(height * scale, 120), Math.max(320, innerHeight * .8));
  view.style.height = down + "px";
  full = across / scale;
  seen = [Math.min(0, (width - full) / 2), 0, full, down / scale];
  look();
};
const zoom = (by, x, y) => {
  const [left, top, width, height] = seen, most = Math.max(...size(svg())) * 4;
  const wide = Math.min(most, Math.max(120, width / by)), k = wide / width;
  seen = [x - (x - left) * k, y - (y - top) * k, wide, height * k];
  look();
};
const spot = (x, y) => {
  const box = svg().getBoundingClientRect();
  return [seen[0] + (x - box.left) / box.width * seen[2], seen[1] + (y - box.top) / box.height * seen[3]];
};
const slotsOf = row => all("a[id]", row).map(a => /^n(\\d+)/.exec(a.id)).filter(m => m).map(m => +m[1]);
const odd = all(".remark").flatMap(e => slotsOf(e.closest(".n")));
const within = (box, slots) => box.dataset.ops.split(",").some(range => {
  const [first, last] = range.split("-").map(Number);
  return slots.some(slot => slot >= first && slot <= (last || first));
});
const mark = () => {
  svg().classList.toggle("searched", !!hits);
  for (const box of all("g[data-ops]", svg())) {
    const hit = !!hits && within(box, hits);
    box.classList.toggle("odd", within(box, odd));
    box.classList.toggle("hit", hit);
    box.classList.toggle("dim", !!hits && !hit);
  }
};
const open = blocks => {
  path = blocks;
  view.replaceChildren(drawings[path.at(-1) || ""]);
  trail.replaceChildren(...["", ...path].flatMap((block, depth) => {
    const step = document.createElement(depth < path.length ? "button" : "b");
    step.textContent = block || "whole graph";
    if (depth < path.length) step.addEventListener("click", () => open(path.slice(0, depth)));
    return depth ? [" › ", step] : [step];
  }));
  mark();
  fit();
};
const enter = event => {
  const more = event.target.closest(".more");
  if (!more) return false;
  event.preventDefault();
  open([...path, more.dataset.block]);
  return true;
};
view.addEventListener("click", event => {
  if (moved) { event.preventDefault(); event.stopPropagation(); } else enter(event);
}, true);
view.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") enter(event); });
view.addEventListener("dblclick", event => {
  const more = event.target.closest("g") && event.target.closest("g").querySelector(".more");
  if (more) open([...path, more.dataset.block]);
});
view.addEventListener("wheel", event => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 300), ...spot(event.clientX, event.clientY));
}, {passive: false});
const fingers = new Map();
let moved = false;
view.addEventListener("dragstart", event => event.preventDefault());
view.addEventListener("pointerdown", event => {
  if (event.button) return;
  if (!fingers.size) moved = false;
  fingers.set(event.pointerId, [event.clientX, event.clientY]);
});
const middle = () => {
  const points = [...fingers.values()], [a, b] = [points[0], points.at(-1)];
  return [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2, Math.hypot(a[0] - b[0], a[1] - b[1])];
};
addEventListener("pointermove", event => {
  const last = fingers.get(event.pointerId);
  if (!last) return;
  if (!moved && Math.hypot(event.clientX - last[0], event.clientY - last[1]) < 4) return;
  moved = true;
  view.classList.add("moving");
  const before = middle();
  fingers.set(event.pointerId, [event.clientX, event.clientY]);
  const after = middle(), box = svg().getBoundingClientRect();
  seen[0] -= (after[0] - before[0]) / box.width * seen[2];
  seen[1] -= (after[1] - before[1]) / box.height * seen[3];
  if (fingers.size > 1 && before[2] > 10) zoom(after[2] / before[2], ...spot(after[0], after[1]));
  look();
});
const lift = event => { fingers.delete(event.pointerId); if (!fingers.size) view.classList.remove("moving"); };
addEventListener("pointerup", lift);
addEventListener("pointercancel", lift);
for (const button of all("[data-zoom]"))
  button.addEventListener("click", () => {
    const by = {in: 1.4, out: 1 / 1.4}[button.dataset.zoom];
    if (by) zoom(by, seen[0] + seen[2] / 2, seen[1] + seen[3] / 2); else fit();
  });
view.className = "view";
document.querySelector(".tools").hidden = false;
open([]);
document.getElementById("drawing").addEventListener("toggle", fit);
addEventListener("resize", fit);
let before = null;
const search = text => {
  const words = text.toLowerCase().split(" ").filter(word => word);
  if (!words.length) {
    all(".away").forEach(e => e.classList.remove("away"));
    if (before) before.forEach(([fold, open]) => { fold.open = open; });
    before = null;
    found.textContent = "";
    hits = null;
    mark();
    return;
  }
  before = before || folds.map(fold => [fold, fold.open]);
  let count = 0, off = 0;
  hits = [];
  const kept = new Set();
  for (const [e, content] of rows) {
    const hit = words.every(word => content.includes(word));
    e.classList.toggle("away", !hit);
    if (!hit) continue;
    hits.push(...slotsOf(e));
    if (body.classList.contains("hide-" + e.closest(".part").id)) off += 1; else count += 1;
    for (let d = e.closest("details"); d; d = d.parentElement.closest("details")) kept.add(d);
  }
  for (const fold of folds) {
    fold.classList.toggle("away", !kept.has(fold));
    fold.open = kept.has(fold);
  }
  if (!hits.length) hits = null;
  mark();
  found.textContent = count + " found" + (off ? ", " + off + " more in parts switched off" : "");
};
const field = document.getElementById("search");
field.addEventListener("input", () => search(field.value));
if (location.hash) follow();
}
"""
