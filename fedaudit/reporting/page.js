"use strict";
(() => {
  const all = (css, from = document) => [...from.querySelectorAll(css)];

  // sorting: a button in every heading; numbers by value, empty cells last
  const key = (row, i) => {
    const text = row.cells[i].dataset.sort ?? row.cells[i].textContent.trim();
    const value = text === "" ? NaN : Number(text.replace(/,/g, ""));
    return { text, value };
  };
  const sort = (table, i, up) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, ...key(row, i) }));
    const numeric = rows.every((r) => r.text === "" || !Number.isNaN(r.value));
    rows.sort((a, b) => {
      if ((a.text === "") !== (b.text === "")) return a.text === "" ? 1 : -1;
      const by = numeric ? a.value - b.value : a.text.localeCompare(b.text, "en", { numeric: true });
      return up ? by || 0 : -by || 0;
    });
    body.append(...rows.map((r) => r.row));
    [...table.tHead.rows[0].cells].forEach((th, j) =>
      j === i ? th.setAttribute("aria-sort", up ? "ascending" : "descending")
        : th.removeAttribute("aria-sort"));
  };
  for (const table of all("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((th, i) => {
      if (!th.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...th.childNodes);
      th.append(button);
      button.addEventListener("click", () =>
        sort(table, i, th.getAttribute("aria-sort") !== "ascending"));
    });
  }

  // the same client lights up everywhere: while pointed at, or until its name is pressed again
  let kept = null;
  const light = (who) => {
    for (const e of all("[data-client]")) e.classList.toggle("lit", e.dataset.client === who);
    for (const b of all("button.name")) b.setAttribute("aria-pressed", String(b.dataset.who === kept));
  };
  for (const row of all("tr[data-client]")) {
    const cell = row.cells[0], button = document.createElement("button");
    button.type = "button";
    button.className = "name";
    button.dataset.who = row.dataset.client;
    button.setAttribute("aria-pressed", "false");
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      kept = kept === row.dataset.client ? null : row.dataset.client;
      light(kept);
    });
  }
  for (const e of all("[data-client]")) {
    e.addEventListener("pointerenter", () => light(e.dataset.client));
    e.addEventListener("pointerleave", () => light(kept));
  }

  // values of a figure: under the pointer, or with the arrow keys
  const marks = (svg) => {
    const out = [];
    for (const e of all("[data-v]", svg)) {
      if (e.tagName === "circle") {
        out.push({ x: +e.getAttribute("cx"), y: +e.getAttribute("cy"), say: e.dataset.v,
          who: e.parentNode.dataset.client });
        continue;
      }
      const at = e.tagName === "path"
        ? [...e.getAttribute("d").matchAll(/M([\d.]+) ([\d.]+)/g)].map((m) => [+m[1], +m[2]])
        : e.getAttribute("points").split(" ").map((p) => p.split(",").map(Number));
      const values = e.dataset.v.split(";");
      at.forEach(([x, y], i) => {
        if (values[i] === undefined || values[i] === "") return;
        const [vx, vy] = values[i].split(",");
        const what = e.dataset.name || svg.dataset.y || "value";
        out.push({ x, y, say: `${svg.dataset.x} ${vx}: ${what} ${vy}` });
      });
    }
    return out;
  };
  for (const svg of all("svg.plot")) {
    const points = marks(svg);
    if (!points.length) continue;
    const told = document.createElement("output");
    svg.after(told);
    svg.setAttribute("tabindex", "0");
    const ring = document.createElementNS(svg.namespaceURI, "circle");
    ring.setAttribute("class", "cursor");
    ring.setAttribute("r", "6");
    let now = -1;
    const show = (i) => {
      now = i;
      const p = points[i];
      ring.setAttribute("cx", p.x);
      ring.setAttribute("cy", p.y);
      svg.append(ring);
      told.textContent = p.say;
      if (p.who) light(p.who);
    };
    const hide = () => { ring.remove(); told.textContent = ""; now = -1; light(kept); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
      const x = (event.clientX - box.left) * view.width / box.width;
      const y = (event.clientY - box.top) * view.height / box.height;
      let best = -1, near = 900;
      points.forEach((p, i) => {
        const d = (p.x - x) ** 2 + (p.y - y) ** 2;
        if (d < near) { near = d; best = i; }
      });
      if (best >= 0) show(best); else hide();
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show(now < 0 ? (step > 0 ? 0 : points.length - 1) : (now + step + points.length) % points.length);
    });
  }

  // a link opens what it leads to
  const reveal = () => {
    const to = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let e = to; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    if (to) to.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  // paper shows what matters: all but the numbers behind a card
  addEventListener("beforeprint", () => {
    for (const d of all("details:not([open]):not(.deep)")) {
      if (d.closest(".deep")) continue;
      d.open = true;
      d.dataset.shut = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const d of all("details[data-shut]")) { d.open = false; delete d.dataset.shut; }
  });
})();
