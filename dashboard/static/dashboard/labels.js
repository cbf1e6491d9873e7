// What scroll areas are called by screen readers, in the reader's language: the words stand in this script's address,
// since Unfold writes the tag. It runs before SimpleBar looks at the page.
const words = decodeURIComponent(new URL(document.currentScript.src).search.slice(1));

/** A table that is wider than its place is scrolled by keyboard, too: where nothing in it can be reached, it can itself. */
const fitted = new ResizeObserver(entries => {
  for (const { target } of entries) {
    const isStop = target.scrollWidth > target.clientWidth && !target.querySelector("a, button, input, summary");
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", words]]) {
      if (isStop) target.setAttribute(name, value);
      else target.removeAttribute(name);
    }
  }
});

document.addEventListener("DOMContentLoaded", () => {
  for (const area of document.querySelectorAll("[data-simplebar]")) area.dataset.simplebarAriaLabel = words;
  for (const area of document.querySelectorAll(".reach-scroll:not([tabindex])")) fitted.observe(area);
});
