// Parts of a page that change by themselves while somebody looks at it.
//   <section id="impact" data-live="1000" data-state="pending">…</section>
// For as long as a part says so, the page is fetched anew every so many milliseconds and the part is exchanged. When its
// state changes, so are the parts that depend on it. What somebody has typed stays, and so does the focus.
import { drawAll } from "./charts.js";

const FOLLOWING = ["decide", "history"];

const fields = part => [...part.querySelectorAll("textarea[id], input[id], input[type=checkbox]")];

/** Put `next` in the place of `part`, with what has been typed into it. */
function exchange(part, next) {
  const focused = document.activeElement;
  for (const field of fields(part)) {
    const twin = fields(next).find(other => other.id === field.id && other.name === field.name);
    if (!twin) continue;
    if (field.type === "checkbox") twin.checked = field.checked;
    else if (field.value !== field.defaultValue) twin.value = field.value;
  }
  part.replaceWith(next);
  if (focused.id && part.contains(focused)) {
    const twin = document.getElementById(focused.id);
    twin?.focus({ preventScroll: true });
    if (twin?.setSelectionRange) twin.setSelectionRange(focused.selectionStart, focused.selectionEnd);
  }
  drawAll(next);
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const parts = [...document.querySelectorAll("[data-live]")].map(part => [part, fresh.getElementById(part.id)]);
  const turned = parts.some(([part, next]) => next && next.dataset.state !== part.dataset.state);
  if (turned) parts.push(...FOLLOWING.map(id => [document.getElementById(id), fresh.getElementById(id)]));
  for (const [part, next] of parts) if (part && next && part.outerHTML !== next.outerHTML) exchange(part, next);
}

async function follow() {
  for (;;) {
    const waits = [...document.querySelectorAll("[data-live]")].map(part => Number(part.dataset.live));
    if (!waits.length) return;
    await new Promise(resolve => setTimeout(resolve, Math.min(...waits)));
    if (!document.hidden) await refresh().catch(() => {}); // the reach is away: it may come back
  }
}

follow();
