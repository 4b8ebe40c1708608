"use strict";
// A button beside every block of code: it copies the text of the block.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return; // pages that are not from a server of https
  document.querySelectorAll("div.highlight").forEach((block) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("pre").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  });
});
