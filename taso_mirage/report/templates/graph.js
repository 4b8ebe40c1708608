// Graphs: one zoom for both sides of a change or section, moves by dragging, and the details of a term.
const panel = document.getElementById("node");
const LEAST = 0.2, MOST = 3;
let selected = -1;

const zoomOf = (sides) => Number(sides.style.getPropertyValue("--zoom")) || 0.75;

// The point (x, y) of the window stays where it is in its graph.
const zoomTo = (sides, zoom, view, x, y) => {
  const old = zoomOf(sides);
  const next = Math.min(MOST, Math.max(LEAST, zoom));
  const frame = view?.getBoundingClientRect();
  sides.style.setProperty("--zoom", next.toFixed(3));
  if (!view) return;
  const keep = (scroll, at) => (scroll + at) * (next / old) - at;
  view.scrollLeft = keep(view.scrollLeft, x - frame.left);
  view.scrollTop = keep(view.scrollTop, y - frame.top);
};

// The largest zoom, at most 1, at which both sides are as wide as their frames.
const fit = (sides) => {
  const zooms = Array.from(sides.querySelectorAll("svg.drawing"), (svg) => {
    const natural = Number(svg.getAttribute("width"));
    return svg.parentElement.clientWidth > 0 ? svg.parentElement.clientWidth / natural : 1;
  });
  zoomTo(sides, Math.max(0.4, Math.min(1, ...zooms)));
};

const button = (text, title, act) => {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.title = title;
  made.setAttribute("aria-label", title);
  made.addEventListener("click", act);
  return made;
};

const fill = (sides) => {
  document.body.classList.toggle("filled", sides.classList.toggle("full"));
  fit(sides);
};

const prepare = (sides) => {
  if (sides.dataset.ready || !sides.querySelector("svg.drawing")) return;
  sides.dataset.ready = "yes";
  const tools = document.createElement("div");
  tools.className = "tools";
  tools.append(
    button("\u2212", "smaller", () => zoomTo(sides, zoomOf(sides) / 1.25)),
    button("+", "larger", () => zoomTo(sides, zoomOf(sides) * 1.25)),
    button("fit", "as wide as the page", () => fit(sides)),
    button("fill", "fill the window, or stop", () => fill(sides)),
    button("SVG", "save both graphs as SVG", () => saveGraph(sides, "svg")),
    button("PNG", "save both graphs as PNG", () => saveGraph(sides, "png")),
  );
  sides.prepend(tools);
  sides.querySelectorAll(".view").forEach((view) => makeMovable(sides, view));
  fit(sides);
};

const makeMovable = (sides, view) => {
  let from = null;
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomTo(sides, zoomOf(sides) * Math.exp(-event.deltaY / 300), view, event.clientX, event.clientY);
  }, { passive: false });
  view.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType === "mouse") from = [event.clientX, event.clientY];
  });
  view.addEventListener("pointermove", (event) => {
    if (!from || !(event.buttons & 1)) return;
    view.scrollLeft -= event.clientX - from[0];
    view.scrollTop -= event.clientY - from[1];
    from = [event.clientX, event.clientY];
  });
  addEventListener("pointerup", () => { from = null; });
};

// ---------------------------------------------------------------- details of a term

const line = (name, values) => {
  if (values.length === 0) return [];
  const term = document.createElement("dt");
  const text = document.createElement("dd");
  term.textContent = name;
  text.append(...values);
  return [term, text];
};

const link = (i) => button(`${nodes[i].op} ${nodes[i].names?.[0] ?? ""}`.trim(), "show this term", () => selectNode(i, true));

const readers = (i) => {
  const found = [];
  for (let j = i + 1; j < nodes.length && nodes[j].at === nodes[i].at; j += 1) {
    if (nodes[j].args?.includes(i)) found.push(j);
  }
  return found;
};

const selectNode = (i, move) => {
  const node = nodes[i];
  document.querySelectorAll(".selected").forEach((each) => each.classList.remove("selected"));
  selected = i;
  const head = document.createElement("strong");
  head.textContent = node.op;
  const facts = document.createElement("dl");
  facts.className = "card";
  facts.append(
    ...line("Type", node.type ? [node.type] : []),
    ...line("Attributes", node.attrs ? [node.attrs.join(", ")] : []),
    ...line("Operands", (node.args ?? []).map(link)),
    ...line("Read by", readers(i).map(link)),
    ...line("Names", node.names ? [node.names.filter(Boolean).join(", ")] : []),
    ...(node.weights ?? []).flatMap(([name, ...facts]) => line("Weight", [`${name}: ${facts.join(", ")}`])),
  );
  panel.replaceChildren(button("\u00d7", "close", closePanel), head, facts);
  panel.hidden = false;
  const part = document.getElementById(node.at);
  const drawn = document.querySelectorAll(`[data-node="${i}"]`);
  if (move && part) {
    for (let each = part; each; each = each.parentElement) if (each.matches("details")) each.open = true;
    part.hidden = false;
    (drawn[0] ?? part).scrollIntoView({ block: "center", inline: "center" });
  }
  drawn.forEach((each) => each.classList.add("selected"));
};

const closePanel = () => {
  panel.hidden = true;
  selected = -1;
  document.querySelectorAll(".selected").forEach((each) => each.classList.remove("selected"));
};

document.addEventListener("click", (event) => {
  const drawn = event.target.closest("[data-node]");
  if (drawn) selectNode(Number(drawn.dataset.node), false);
});

const neighbour = (key) => {
  if (key === "ArrowUp") return nodes[selected].args?.[0];
  if (key === "ArrowDown") return readers(selected)[0];
  const next = selected + (key === "ArrowRight" ? 1 : -1);
  return nodes[next]?.at === nodes[selected].at ? next : undefined;
};

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
  const full = document.querySelector(".sides.full");
  const near = full ?? (selected < 0 ? null : document.querySelector(`[data-node="${selected}"]`)?.closest(".sides"));
  if (event.key === "Escape" && !panel.hidden) closePanel();
  else if (event.key === "Escape" && full) fill(full);
  else if (near && (event.key === "+" || event.key === "-")) zoomTo(near, zoomOf(near) * (event.key === "+" ? 1.25 : 0.8));
  else if (near && event.key === "0") fit(near);
  else if (selected >= 0 && event.key.startsWith("Arrow")) {
    const next = neighbour(event.key);
    if (next !== undefined) selectNode(next, true);
    event.preventDefault();
  }
});

document.querySelectorAll("details.fold").forEach((part) => {
  const ready = () => part.open && part.querySelectorAll(":scope > .sides").forEach(prepare);
  part.addEventListener("toggle", ready);
  ready();
});
