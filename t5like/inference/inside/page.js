"use strict";
// Weights are bytes, 255 * sqrt(weight): [layers, heads, queries, keys] in base64, decoded when they are first shown.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const ROW = 1.5 * parseFloat(getComputedStyle(document.documentElement).fontSize); // a token's height in the style sheet
const shown = { text: 0, kind: 0, layer: 0, head: 0, query: -1, kept: -1 }; // query -1: all of them

const view = () => data.texts[shown.text].kinds[shown.kind];

function bytes(kind) {
  if (!kind.bytes) kind.bytes = Uint8Array.from(atob(kind.data), (letter) => letter.charCodeAt(0));
  return kind.bytes;
}

function byteAt(kind, layer, head, query, key) {
  const [rows, columns] = [kind.queries.length, kind.keys.length];
  return bytes(kind)[((layer * kind.heads.length + head) * rows + query) * columns + key];
}

const weight = (layer, head, query, key) => (byteAt(view(), layer, head, query, key) / 255) ** 2;
const percent = (value) => `${Math.round(100 * value)}%`;

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function ink() {
  const color = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
}

function paint(canvas, kind, layer, head) {
  const [rows, columns] = [kind.queries.length, kind.keys.length];
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), color = ink();
  for (let at = 0; at < rows * columns; at++) {
    const value = bytes(kind)[(layer * kind.heads.length + head) * rows * columns + at];
    image.data.set([...color, value], 4 * at);
  }
  context.putImageData(image, 0, 0);
}

function headName(kind, layer, head) {
  return `layer ${kind.layers[layer]}, head ${kind.heads[head]}`;
}

function showAll() {
  const kind = view(), table = find("heads");
  shown.layer = Math.min(shown.layer, kind.layers.length - 1);
  shown.head = Math.min(shown.head, kind.heads.length - 1);
  find("cut").textContent = kind.note;
  const top = kind.heads.map((head) => element("th", { scope: "col", textContent: `head ${head}` }));
  const rows = kind.layers.map((number, layer) => {
    const cells = kind.heads.map((_, head) => {
      const canvas = element("canvas");
      paint(canvas, kind, layer, head);
      const button = element("button", { type: "button", tabIndex: -1 }, [canvas]);
      button.setAttribute("aria-label", headName(kind, layer, head));
      button.dataset.at = `${layer},${head}`;
      button.addEventListener("click", () => choose(layer, head));
      return element("td", {}, [button]);
    });
    return element("tr", {}, [element("th", { scope: "row", textContent: `layer ${number}` }), ...cells]);
  });
  table.replaceChildren(element("thead", {}, [element("tr", {}, [element("td"), ...top])]), element("tbody", {}, rows));
  choose(shown.layer, shown.head);
}

function choose(layer, head, focus = false) {
  Object.assign(shown, { layer, head });
  for (const button of find("heads").querySelectorAll("button")) {
    const chosen = button.dataset.at === `${layer},${head}`;
    button.setAttribute("aria-pressed", chosen);
    button.tabIndex = chosen ? 0 : -1; // one stop of the Tab key; arrows move within the table
    if (chosen && focus) button.focus();
  }
  showHead();
}

function showHead() {
  const kind = view(), name = headName(kind, shown.layer, shown.head);
  find("head-heading").textContent = `${kind.label}, ${name}`;
  shown.query = shown.kept = -1;
  find("queries").replaceChildren(...kind.queries.map((token, query) => {
    const button = element("button", { type: "button", textContent: token });
    const look = () => showQuery(query), leave = () => showQuery(shown.kept);
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, look);
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, leave);
    button.addEventListener("click", () => {
      shown.kept = shown.kept === query ? -1 : query;
      showQuery(shown.kept);
    });
    return element("li", {}, [button]);
  }));
  find("keys").replaceChildren(...kind.keys.map((token) =>
    element("li", {}, [element("span", { textContent: token }), element("small")])));
  const map = find("map"), cell = Math.max(4, Math.min(18, Math.floor(640 / kind.keys.length)));
  paint(map, kind, shown.layer, shown.head);
  Object.assign(map.style, { width: `${cell * kind.keys.length}px`, height: `${cell * kind.queries.length}px` });
  map.setAttribute("aria-label", `Heat map of ${name}: ${kind.queries.length} queries, ${kind.keys.length} keys`);
  showQuery(-1);
}

function showQuery(query) {
  const kind = view(), lines = [], [rows, columns] = [kind.queries.length, kind.keys.length];
  shown.query = query;
  for (let from = 0; from < rows; from++) {
    if (query >= 0 && from !== query) continue;
    for (let to = 0; to < columns; to++) {
      const value = weight(shown.layer, shown.head, from, to);
      if (value < 0.02) continue;
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const ends = { x1: 0, y1: (from + 0.5) * ROW, x2: 6 * ROW, y2: (to + 0.5) * ROW };
      for (const [name, number] of Object.entries(ends)) line.setAttribute(name, number);
      line.setAttribute("stroke-opacity", Math.sqrt(value).toFixed(2));
      lines.push(line);
    }
  }
  find("edges").style.height = `${ROW * Math.max(rows, columns)}px`;
  find("edges").replaceChildren(...lines);
  const buttons = find("queries").querySelectorAll("button");
  buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === shown.kept));
  find("keys").querySelectorAll("li").forEach((item, to) => {
    const value = query < 0 ? 0 : weight(shown.layer, shown.head, query, to);
    item.style.borderLeftColor = `rgb(${ink().join(" ")} / ${Math.sqrt(value).toFixed(2)})`;
    item.querySelector("small").textContent = value >= 0.005 ? percent(value) : "";
  });
  find("readout").textContent = query < 0 ? "" : summary(kind, query);
}

function summary(kind, query) {
  const values = kind.keys.map((token, key) => [weight(shown.layer, shown.head, query, key), token]);
  const most = values.sort((a, b) => b[0] - a[0]).slice(0, 3).map(([value, token]) => `${token} ${percent(value)}`);
  return `${kind.queries[query]} attends to ${most.join(", ")}`;
}

function pointAtMap(event) {
  const kind = view(), box = find("map").getBoundingClientRect();
  const query = Math.floor(((event.clientY - box.top) / box.height) * kind.queries.length);
  const key = Math.floor(((event.clientX - box.left) / box.width) * kind.keys.length);
  if (query < 0 || key < 0 || query >= kind.queries.length || key >= kind.keys.length) return;
  const value = percent(weight(shown.layer, shown.head, query, key));
  find("map").title = `${kind.queries[query]} attends to ${kind.keys[key]}: ${value}`;
}

function moveInTable(event) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (!(event.key in moves)) return;
  const [down, right] = moves[event.key];
  event.preventDefault();
  const kind = view(), inside = (value, count) => Math.max(0, Math.min(count - 1, value));
  choose(inside(shown.layer + down, kind.layers.length), inside(shown.head + right, kind.heads.length), true);
}

function fillKinds() {
  const kinds = data.texts[shown.text].kinds;
  shown.kind = Math.min(shown.kind, kinds.length - 1);
  find("kind").replaceChildren(...kinds.map((kind, at) => element("option", { value: at, textContent: kind.label })));
  find("kind").value = shown.kind;
  showAll();
}

find("text").replaceChildren(...data.texts.map((text, at) => element("option", { value: at, textContent: text.title })));
find("text").addEventListener("change", (event) => { shown.text = Number(event.target.value); fillKinds(); });
find("kind").addEventListener("change", (event) => { shown.kind = Number(event.target.value); showAll(); });
find("choices").addEventListener("submit", (event) => event.preventDefault());
find("heads").addEventListener("keydown", moveInTable);
find("map").addEventListener("pointermove", pointAtMap);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showAll);
fillKinds();
