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
const slotsOf = row => all("a[id]", row).map(a => /^n(\d+)/.exec(a.id)).filter(m => m).map(m => +m[1]);
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
