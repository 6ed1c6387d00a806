// The order of the sections depends on what the runs have.

function theme() {
  const button = byId("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const apply = (name) => {
    document.documentElement.dataset.theme = name;
    rampStops = null;
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", name === "dark" ? "Light theme" : "Dark theme");
    charts.forEach((one) => one.width && one.redraw());
  };
  let chosen = null;
  try { chosen = localStorage.getItem("bartizan-theme"); } catch { /* a page opened from a file may have no storage */ }
  apply(chosen ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => { if (!chosen) apply(system.matches ? "dark" : "light"); });
  // Print in the light theme.
  let before = null;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; apply("light"); });
  addEventListener("afterprint", () => apply(before));
  button.addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    apply(chosen);
    try { localStorage.setItem("bartizan-theme", chosen); } catch { /* as above */ }
  });
}

theme();
cards();
problems();
if (data.runs.length) {
  let show;
  const { accuracy, perplexity, backdoor } = data.curves;
  const about = (curves) => (curves.some((curve) => curve.n > 1)
    ? "On the test set. A line is the mean over seeds, its band reaches from the lowest to the highest." : "On the test set, one seed.");
  const lines = () => {
    if (accuracy.length) linesSection("accuracy", "Accuracy by round", about(accuracy), "test accuracy", accuracy);
    if (perplexity.length) linesSection("perplexity", "Perplexity by round", `${about(perplexity)} Lower is better.`, "test perplexity", perplexity, true);
  };
  const grid = () => data.cells.length > 1 && gridSection();
  if (!data.known) show = clientsSection();
  if (data.runs.length > 12) { grid(); lines(); } else { lines(); grid(); }
  if (backdoor.length) linesSection("backdoor", "Backdoor", "The part of the test images with the trigger that is classified as the attackers want. Lower is better.", "backdoor success", backdoor);
  if (data.times.length) timesSection();
  show ??= clientsSection();
  runsSection(show);
  configSection();
}
byId("footer").append(html("p", { text: data.versions.join(" · ") }));
document.documentElement.dataset.drawn = "yes";
