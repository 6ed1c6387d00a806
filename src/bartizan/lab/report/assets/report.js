// The order of the page: what matters most first, and that depends on what there is.

function theme() {
  const button = byId("theme"), asked = matchMedia("(prefers-color-scheme: dark)");
  const apply = (name) => {
    document.documentElement.dataset.theme = name;
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", name === "dark" ? "Light theme" : "Dark theme");
    charts.forEach((one) => one.width && one.redraw());
  };
  let chosen = null;
  try { chosen = localStorage.getItem("bartizan-theme"); } catch { /* a page from a file may not keep anything */ }
  apply(chosen ?? (asked.matches ? "dark" : "light"));
  asked.addEventListener("change", () => { if (!chosen) apply(asked.matches ? "dark" : "light"); });
  // Paper is light.
  let before = null;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; apply("light"); });
  addEventListener("afterprint", () => apply(before));
  button.addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    apply(chosen);
    try { localStorage.setItem("bartizan-theme", chosen); } catch { /* likewise */ }
  });
}

theme();
cards();
problems();
if (data.runs.length) {
  let show;
  const lines = () => data.curves.accuracy.length && linesSection("accuracy", "Accuracy by round", data.curves.accuracy.some((curve) => curve.n > 1)
    ? "On the test set. A line is the mean over seeds, its band the least and the most." : "On the test set.", data.curves.accuracy);
  const grid = () => data.cells.length > 1 && gridSection();
  if (!data.known) show = clientsSection();
  if (data.runs.length > 12) { grid(); lines(); } else { lines(); grid(); }
  if (data.curves.backdoor.length) linesSection("backdoor", "Backdoor", "Part of the test images with the trigger that are taken for the attackers’ class: lower is better.", data.curves.backdoor);
  if (data.times.length) timesSection();
  show ??= clientsSection();
  runsSection(show);
  configSection();
}
byId("footer").append(make("p", { text: data.versions.join(" · ") }));
document.documentElement.dataset.drawn = "yes";
