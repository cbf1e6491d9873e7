// A trace that grows while it runs: whatever the socket tells of it, the page is asked what it looks like now.
import { connect } from "./socket.js";
import { refresh } from "./regions.js";

const page = document.querySelector("[data-trace]");
const state = document.getElementById("live-state");
const REST_MS = 700, WHILE_OPEN_MS = 2000;
let asking = false, wanted = false, askedAt = 0;

async function ask() {
  if (asking) { wanted = true; return; }
  asking = true;
  do {
    wanted = false;
    await new Promise(done => setTimeout(done, Math.max(0, askedAt + REST_MS - Date.now())));
    askedAt = Date.now();
    await refresh(page.dataset.away);
  } while (wanted);
  asking = false;
}

function changed(now, gap) {
  const live = now === "live";
  state.hidden = false;
  state.textContent = live ? page.dataset.live : page.dataset.lost;
  state.className = `reach-badge reach-${live ? "good" : "bad"}`;
  if (gap) ask();
}

connect(`/ws/traces/${page.dataset.trace}`, { hear: ask, state: changed, beat: Number(page.dataset.beat) });
setInterval(() => { if (!document.hidden && document.querySelector("[data-open]")) ask(); }, WHILE_OPEN_MS);
