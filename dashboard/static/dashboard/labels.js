// What Unfold's scroll areas are called by screen readers, in the reader's language: the words stand in this script's
// address, since Unfold writes the tag. It runs before SimpleBar looks at the page.
const words = decodeURIComponent(new URL(document.currentScript.src).search.slice(1));
document.addEventListener("DOMContentLoaded", () => {
  for (const area of document.querySelectorAll("[data-simplebar]")) area.dataset.simplebarAriaLabel = words;
});
