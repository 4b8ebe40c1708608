"use strict";
// Search: what does not have the words is hidden, what has them is opened. "/" goes to the box.
// Below the box are the first terms that have the words in their operators, names or attributes.
const nodes = JSON.parse(document.getElementById("nodes").textContent);
const LISTED = 12;
{
  const box = document.getElementById("search");
  const found = document.getElementById("found");
  const list = document.getElementById("terms");
  const parts = Array.from(document.querySelectorAll(".fold, .law, .terms li"));
  const texts = parts.map((part) => part.textContent.toLowerCase());
  const opened = parts.map((part) => part.open);
  const described = (node) =>
    [node.op, node.type, ...(node.names ?? []), ...(node.attrs ?? [])].join(" ").toLowerCase();
  const named = nodes.map(described);
  const search = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => words.every((word) => text.includes(word));
    let count = 0;
    parts.forEach((part, i) => {
      const hit = has(texts[i]);
      if (part.matches("li")) {
        part.classList.toggle("hit", hit && words.length > 0);
        return;
      }
      part.hidden = !hit;
      count += hit;
      if (part.matches("details")) part.open = words.length > 0 ? hit : opened[i];
    });
    found.textContent = words.length > 0 ? `${count} found` : "";
    list.replaceChildren(...(words.length > 0 ? matching(has) : []));
  };
  const matching = (has) => {
    const items = [];
    for (let i = 0; i < nodes.length && items.length < LISTED; i += 1) {
      if (!has(named[i]) || !nodes[i].at.startsWith("section")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `${nodes[i].op} ${nodes[i].names?.[0] ?? ""}`.trim();
      button.addEventListener("click", () => selectNode(i, true));
      items.push(button);
    }
    return items;
  };
  box.form.hidden = false;
  box.form.addEventListener("submit", (event) => event.preventDefault());
  box.addEventListener("input", search);
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      box.focus();
    } else if (event.key === "Escape" && typing) {
      box.value = "";
      search();
    }
  });
}
// A link to a folded part of the page opens it.
const openTarget = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let part = target; part; part = part.parentElement) if (part.matches("details")) part.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", openTarget);
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.getAttribute("href") === location.hash) openTarget();
});
openTarget();
