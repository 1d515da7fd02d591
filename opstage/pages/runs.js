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
