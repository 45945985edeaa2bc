// Values under the pointer. The page is whole without it.
for (const chart of document.querySelectorAll("svg.curves")) {
  const curves = [...chart.querySelectorAll("path.curve")].map((path) => ({
    name: path.dataset.name,
    points: path.dataset.points.split(";").map((point) => {
      const [step, value, x, y] = point.split(",");
      return { step, value, x: Number(x), y: Number(y) };
    }),
    dot: addShape(chart, "circle", { r: 3.5, class: path.getAttribute("class") + " dot" }),
  }));
  const rule = addShape(chart, "path", { class: "rule" });
  const readout = chart.parentElement.querySelector(".readout");

  function show(event) {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const nearest = curves.map(({ name, points, dot }) => {
      const point = points.reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a));
      dot.setAttribute("cx", point.x);
      dot.setAttribute("cy", point.y);
      return { name, ...point };
    });
    rule.setAttribute("d", `M${nearest[0].x} 10V224`);
    const values = nearest.map(({ name, value }) => `${name} ${value}`).join(", ");
    readout.textContent = `step ${nearest[0].step}: ${values}`;
    chart.classList.add("active");
  }

  function hide() {
    readout.textContent = "";
    chart.classList.remove("active");
  }

  chart.addEventListener("pointermove", show);
  chart.addEventListener("pointerdown", show);
  chart.addEventListener("pointerleave", hide);
}

function addShape(chart, name, attributes) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
  return chart.appendChild(shape);
}
