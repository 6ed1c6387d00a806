// Loads the page again when the server has a newer one; the browser keeps the place on the page.
const followed = document.getElementById('data').dataset.version;
setInterval(async () => {
  if (document.hidden) return;
  try {
    const answer = await fetch('/version', { cache: 'no-store' });
    if (answer.ok && (await answer.text()) !== followed) location.reload();
  } catch {
    // The server has ended: the page stays as it is.
  }
}, 1000);
