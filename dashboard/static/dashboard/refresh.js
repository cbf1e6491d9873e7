// Keeps a page and its charts fresh, unless who reads pauses that; a page that nobody looks at asks nothing.
//   <button data-refresh="15" data-pause="Pause" data-resume="Go on" data-away="…" hidden></button>
import { drawn } from "./charts.js";
import { refresh } from "./regions.js";

const button = document.querySelector("[data-refresh]");
let paused = false;

async function again() {
  const fresh = await refresh(button.dataset.away);
  if (!fresh) return;
  for (const [id, chart] of drawn) {
    const options = fresh.getElementById(id);
    if (options) chart.replace(JSON.parse(options.textContent));
  }
}

button.hidden = false;
button.textContent = button.dataset.pause;
button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? button.dataset.resume : button.dataset.pause;
  if (!paused) again();
});
setInterval(() => { if (!paused && !document.hidden) again(); }, button.dataset.refresh * 1000);
