"""The assets of a graph's page: its style, and the script that folds, searches and switches parts."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --muted: #6b7785; --forward: #5b8db8; --backward: #c0705f;
  --update: #5a9c66; --io: #9aa4ae; --hit: #ffe08a88; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --page: #16191d; --muted: #98a3b0; } }
* { box-sizing: border-box; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1em 1.5em 4em; max-width: 1500px;
  background: var(--page); }
h1 { font-size: 1.5em; margin: 0 0 .2em; } header p { margin: .2em 0; }
table { border-collapse: collapse; margin: .6em 0 1em; } th, td { padding: .15em 1em .15em 0; text-align: left; }
td { font-variant-numeric: tabular-nums; } thead th { color: var(--muted); font-weight: 400; }
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
.hide-forward svg .forward, .hide-backward svg .backward, .hide-update svg .update { opacity: .12; }
@media (max-width: 800px) { .n { grid-template-columns: 3.5em 1fr 1fr; } .n.head { display: none; } }
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
let before = null;
const search = text => {
  const words = text.toLowerCase().split(" ").filter(word => word);
  if (!words.length) {
    all(".away").forEach(e => e.classList.remove("away"));
    if (before) before.forEach(([fold, open]) => { fold.open = open; });
    before = null;
    found.textContent = "";
    return;
  }
  before = before || folds.map(fold => [fold, fold.open]);
  let count = 0, off = 0;
  const kept = new Set();
  for (const [e, content] of rows) {
    const hit = words.every(word => content.includes(word));
    e.classList.toggle("away", !hit);
    if (!hit) continue;
    if (body.classList.contains("hide-" + e.closest(".part").id)) off += 1; else count += 1;
    for (let d = e.closest("details"); d; d = d.parentElement.closest("details")) kept.add(d);
  }
  for (const fold of folds) {
    fold.classList.toggle("away", !kept.has(fold));
    fold.open = kept.has(fold);
  }
  found.textContent = count + " found" + (off ? ", " + off + " more in parts switched off" : "");
};
const field = document.getElementById("search");
field.addEventListener("input", () => search(field.value));
if (location.hash) follow();
}
"""
