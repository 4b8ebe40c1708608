"use strict";
// Search: what does not have the words is hidden, what has them is opened. "/" goes to the box.
{
  const box = document.getElementById("search");
  const found = document.getElementById("found");
  const parts = Array.from(document.querySelectorAll(".fold, .law, .terms li"));
  const texts = parts.map((part) => part.textContent.toLowerCase());
  const opened = parts.map((part) => part.open);
  const search = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    parts.forEach((part, i) => {
      const hit = words.every((word) => texts[i].includes(word));
      if (part.matches("li")) {
        part.classList.toggle("hit", hit && words.length > 0);
        return;
      }
      part.hidden = !hit;
      count += hit;
      if (part.matches("details")) part.open = words.length > 0 ? hit : opened[i];
    });
    found.textContent = words.length > 0 ? `${count} found` : "";
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
