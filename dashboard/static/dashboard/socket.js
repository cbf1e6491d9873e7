// A socket of a live page that comes back by itself, and knows for how long nothing was heard.
//   connect("/ws/calls", { hear, state, beat }): `hear` is given each message; `state` is told "live", "lost", "refused"
//   or "full", and with "live" the moments (ms) between which nothing was heard, where there was such a gap.
const NOT_ALLOWED = 4403, TOO_MANY = 4429;
const FIRST_REST_MS = 500, LONGEST_REST_MS = 15000;

/** `beat` (s): the console says something so often; who hears nothing three times over calls anew. */
export function connect(path, { hear, state, beat }) {
  const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
  let socket, heardAt = 0, tries = 0;

  function open() {
    socket = new WebSocket(address);
    const mine = socket;
    mine.onopen = () => {
      const gap = heardAt ? [heardAt, Date.now()] : null;
      heardAt = Date.now();
      tries = 0;
      state("live", gap);
    };
    mine.onmessage = event => {
      heardAt = Date.now();
      const told = JSON.parse(event.data);
      if (told.calls.length || told.left_out) hear(told);
    };
    mine.onclose = event => {
      if (mine !== socket) return;
      if (event.code === NOT_ALLOWED) return state("refused");
      state(event.code === TOO_MANY ? "full" : "lost");
      const rest = Math.min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** tries++);
      setTimeout(open, rest * (0.5 + Math.random() / 2));
    };
  }

  function renew() {
    const old = socket;
    socket = null;
    old.onclose = null;
    old.close();
    state("lost");
    open();
  }

  setInterval(() => {
    if (socket?.readyState === WebSocket.OPEN && Date.now() - heardAt > beat * 3000) renew();
  }, 1000);
  addEventListener("online", () => { if (socket?.readyState !== WebSocket.OPEN) renew(); });
  open();
}
