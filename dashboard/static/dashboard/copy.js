// Buttons that copy what stands in another element: <button data-copy="ID" data-copied="Copied" hidden>Copy</button>
const buttons = document.querySelectorAll("[data-copy]");
for (const button of buttons) button.hidden = false;

document.addEventListener("click", async event => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch { // no secure origin, or not allowed: the reader copies the selection
    getSelection().selectAllChildren(source);
    return;
  }
  const words = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = words; }, 2000);
});
