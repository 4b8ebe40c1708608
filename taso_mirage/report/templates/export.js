// Files: graphs as SVG and PNG with the colours that they have on the page, and the page's data as JSON.
const save = (content, name) => {
  const link = document.createElement("a");
  link.href = typeof content === "string" ? content : URL.createObjectURL(content);
  link.download = name;
  link.click();
};

const STYLES = ["fill", "stroke", "stroke-width", "font-weight"];

// The graphs of one part of the page beside each other, as the text of one SVG file.
const graphText = (sides) => {
  const drawn = Array.from(sides.querySelectorAll("svg.drawing"));
  const space = drawn[0].namespaceURI;
  const whole = document.createElementNS(space, "svg");
  let width = 0, height = 0;
  drawn.forEach((svg) => {
    const copy = svg.cloneNode(true);
    const before = svg.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((each, i) => {
      const style = getComputedStyle(before[i]);
      STYLES.forEach((name) => each.setAttribute(name, style.getPropertyValue(name)));
    });
    copy.removeAttribute("style");
    copy.setAttribute("x", width);
    width += Number(svg.getAttribute("width"));
    height = Math.max(height, Number(svg.getAttribute("height")));
    whole.append(copy);
  });
  whole.prepend(document.querySelector("svg.defs defs").cloneNode(true));
  const paper = document.createElementNS(space, "rect");
  const size = { width, height };
  Object.entries({ ...size, fill: getComputedStyle(document.body).backgroundColor })
    .forEach(([name, value]) => paper.setAttribute(name, value));
  whole.prepend(paper);
  Object.entries({ ...size, viewBox: `0 0 ${width} ${height}` }).forEach(([name, value]) => whole.setAttribute(name, value));
  return new XMLSerializer().serializeToString(whole);
};

const saveGraph = (sides, kind) => {
  const name = `${sides.closest("[id]").id}.${kind}`;
  const text = graphText(sides);
  if (kind === "svg") {
    save(new Blob([text], { type: "image/svg+xml" }), name);
    return;
  }
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, name));
  });
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
};

// Both runs as events of the Trace Event Format, which Perfetto and chrome://tracing open.
const traceEvents = () => {
  const runs = JSON.parse(document.getElementById("runs").textContent);
  return runs.flatMap((run, tid) => {
    let at = 0;
    const named = { name: "thread_name", ph: "M", pid: 1, tid, args: { name: ["original", "optimized"][tid] } };
    return [named, ...run.map(([name, where, microseconds]) => {
      const event = { name, cat: where, ph: "X", pid: 1, tid, ts: at, dur: microseconds, args: { section: where } };
      at += microseconds;
      return event;
    })];
  });
};

document.querySelectorAll("button[data-save]").forEach((each) => {
  each.hidden = false;
  each.addEventListener("click", () => {
    const trace = each.dataset.save === "trace";
    const data = trace ? { traceEvents: traceEvents() } : nodes;
    save(new Blob([JSON.stringify(data)], { type: "application/json" }), trace ? "trace.json" : "terms.json");
  });
});
