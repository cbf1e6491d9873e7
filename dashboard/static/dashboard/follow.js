// A part of a page that changes by itself (data-follow) is fetched again until it says that it is over (data-over).
const EVERY_MS = 1000, MOST_MS = 15000;

async function follow(id) {
  let wait = EVERY_MS;
  for (;;) {
    await new Promise(done => setTimeout(done, wait));
    const here = document.getElementById(id);
    if (here.dataset.over !== undefined) return;
    if (document.hidden) continue;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected || !answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
      if (!fresh) throw new Error("gone");
      if (fresh.innerHTML !== here.innerHTML) replace(here, fresh);
      wait = EVERY_MS;
    } catch {
      wait = Math.min(2 * wait, MOST_MS);
    }
  }
}

/** Put the new content in place, in the same element: screen readers go on listening to it. */
function replace(here, fresh) {
  const onButton = here.contains(document.activeElement) && document.activeElement.matches("button");
  if (fresh.dataset.over !== undefined) here.dataset.over = "";
  here.replaceChildren(...fresh.childNodes);
  if (onButton) here.querySelector("button")?.focus();
}

for (const part of document.querySelectorAll("[data-follow]")) follow(part.id);
