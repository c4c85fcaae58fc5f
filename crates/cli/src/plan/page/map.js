// The memory map of a plan, over `numbers.map`.
const { map } = numbers;

// Arrays as they come, with names.
const routines = map.routines.map(({ name, steps, buffers }) => ({
  name,
  steps: steps.map(([op, layer, line, microseconds, flags]) => ({
    op: map.texts[op], layer, line: map.texts[line], seconds: microseconds / 1e6, backward: flags & 1, again: flags & 2,
  })),
  buffers: buffers.map(([offset, size, first, last, kind, type, flags]) => ({
    offset, size, first, last, kind, type: map.texts[type], over: flags & 1, under: flags & 2,
  })),
}));
const states = map.persistent.map(([name, kind, offset, size, type]) => ({ name, kind, offset, size, type: map.texts[type] }));

// What a step reads for the last time and what it writes over that share the step: the one has its first half, the
// other its second, so that neither hides the other.
const from = (buffer) => buffer.first + (buffer.over ? 0.5 : 0);
const to = (buffer) => buffer.last + (buffer.under ? 0.5 : 1);

function aliveBytes(routine) {
  const change = new Float64Array(2 * routine.steps.length + 2);
  for (const buffer of routine.buffers) {
    if (buffer.offset < map.start) continue;
    change[2 * from(buffer)] += buffer.size;
    change[2 * to(buffer)] -= buffer.size;
  }
  let now = 0;
  return change.map((step) => (now += step));
}

// Neighbouring layers differ in hue and in lightness, and far ones in hue.
const layerCount = 1 + routines.reduce((most, { steps }) => steps.reduce((most, { layer }) => Math.max(most, layer), most), -1);
function layerColour(layer) {
  if (layer < 0) return colour('scratch');
  return `hsl(${(210 + 300 * layer / Math.max(layerCount, 1)) % 360} 48% ${layer % 2 ? 48 : 38}%)`;
}
const colourOf = (buffer) => buffer.kind === 'scratch' || element('colours').value === 'kind'
  ? colour(buffer.kind) : layerColour(view.routine.steps[buffer.first].layer);

// The view: which routine, and which part of it, from 0 to 1.
const view = { routine: routines[map.largest], low: 0, high: 1, places: [], alive: [] };

// By step: where it begins, from 0 to 1.
function placeSteps() {
  const byTime = element('scale').value === 'time';
  let end = 0;
  const ends = [0];
  for (const step of view.routine.steps) ends.push((end += byTime ? Math.max(step.seconds, 1e-9) : 1));
  view.places = ends.map((place) => place / Math.max(end, 1e-9));
  view.alive = aliveBytes(view.routine);
}
function placeOf(step) {
  const whole = Math.min(Math.floor(step), view.places.length - 1);
  const next = view.places[Math.min(whole + 1, view.places.length - 1)];
  return view.places[whole] + (step - whole) * (next - view.places[whole]);
}
function stepAt(place) {
  let low = 0, high = view.places.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (view.places[middle] <= place) low = middle; else high = middle;
  }
  const width = view.places[high] - view.places[low];
  return low + (width > 0 ? Math.min(0.999, (place - view.places[low]) / width) : 0);
}

function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = Number(canvas.dataset.height || (canvas.dataset.height = canvas.height));
  canvas.style.height = height + 'px';
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, height);
  pen.font = '11px system-ui, sans-serif';
  return { pen, width, height };
}
const across = (step, width) => (placeOf(step) - view.low) / (view.high - view.low) * width;

function drawMap(marked) {
  const { pen, width, height } = prepared(element('map'));
  const colours = new Map();
  const scale = height / Math.max(map.span, 1);
  const rectangle = (buffer) => {
    const left = across(from(buffer), width), right = across(to(buffer), width);
    const top = height - (buffer.offset - map.start + buffer.size) * scale;
    return [left, top, Math.max(right - left, 0.7), Math.max(buffer.size * scale, 0.7)];
  };
  const paper = colour('paper');
  for (const buffer of view.routine.buffers) {
    if (buffer.offset < map.start) continue;
    const [left, top, wide, high] = rectangle(buffer);
    if (left > width || left + wide < 0) continue;
    const again = view.routine.steps[buffer.first].again;
    const key = `${buffer.kind} ${view.routine.steps[buffer.first].layer}`;
    if (!colours.has(key)) colours.set(key, colourOf(buffer));
    pen.fillStyle = colours.get(key);
    pen.globalAlpha = again ? 0.6 : 0.92;
    pen.fillRect(left, top, wide, high);
    pen.globalAlpha = 1;
    if (wide > 2.5 && high > 2.5) {
      pen.strokeStyle = paper;
      pen.lineWidth = 0.6;
      pen.strokeRect(left, top, wide, high);
    }
    if (high > 11) label(pen, bufferLabel(buffer), Math.max(left, 0), Math.min(left + wide, width), top + high / 2);
  }
  if (marked) {
    pen.strokeStyle = colour('ink');
    pen.lineWidth = 2;
    pen.strokeRect(...rectangle(marked));
  }
  pen.fillStyle = colour('ink');
  pen.fillText(bytes(map.span), 4, 12);
  pen.fillText('0', 4, height - 4);
}

// Words in the middle of a stretch, if they fit.
function label(pen, words, left, right, middle) {
  if (pen.measureText(words).width + 6 > right - left) return;
  pen.fillStyle = '#fff';
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(words, (left + right) / 2, middle);
  pen.textAlign = 'start';
  pen.textBaseline = 'alphabetic';
}
function bufferLabel(buffer) {
  const { op, layer } = view.routine.steps[buffer.first];
  return layer < 0 ? op : `${op} ${layer}`;
}

// Which layer is at work, over time: steps that follow each other in one layer are one stretch.
function drawLayers() {
  const { pen, width, height } = prepared(element('layers'));
  const { steps } = view.routine;
  for (let first = 0, next; first < steps.length; first = next) {
    const { layer } = steps[first];
    for (next = first; next < steps.length && steps[next].layer === layer;) next++;
    const left = across(first, width), right = across(next, width);
    if (right < 0 || left > width) continue;
    pen.fillStyle = layerColour(layer);
    pen.fillRect(left, 1, Math.max(right - left - 0.5, 0.5), height - 2);
    const words = layer < 0 ? 'no layer' : right - left > 60 ? `layer ${layer}` : `${layer}`;
    label(pen, words, Math.max(left, 0), Math.min(right, width), height / 2 + 0.5);
  }
}

// By routine: what the process held beyond what it held before the first step, as measured, and what its steps and those before
// it touch of the arena, as planned.
const measured = new Map();
{
  const page = 4096, touched = new Uint8Array(Math.ceil(map.span / page) + 1);
  let planned = 0;
  for (const [name, resident] of map.resident) {
    const routine = routines.find((routine) => routine.name === name);
    const first = map.resident[0][1][0];
    const begins = routine.steps.map(() => []);
    for (const buffer of routine.buffers) if (buffer.offset >= map.start) begins[buffer.first].push(buffer);
    const lines = begins.map((buffers) => {
      for (const { offset, size } of buffers) {
        const from = Math.floor((offset - map.start) / page), to = Math.ceil((offset - map.start + size) / page);
        for (let index = from; index < to; index++) if (!touched[index]) { touched[index] = 1; planned += page; }
      }
      return planned;
    });
    measured.set(name, { planned: lines, resident: resident.map((bytes) => Math.max(bytes - first + (measured.size ? 0 : lines[0]), 0)) });
  }
}

function drawAlive() {
  const { pen, width, height } = prepared(element('alive'));
  const lines = measured.get(view.routine.name);
  const alive = view.alive.reduce((a, b) => Math.max(a, b), 1);
  const most = lines ? Math.max(alive, ...lines.planned, ...lines.resident) : alive;
  const up = (number) => height - 1 - number / most * (height - 18);
  pen.beginPath();
  pen.moveTo(across(0, width), height);
  for (let half = 0; half < 2 * view.routine.steps.length; half++) {
    pen.lineTo(across(half / 2, width), up(view.alive[half]));
    pen.lineTo(across((half + 1) / 2, width), up(view.alive[half]));
  }
  pen.strokeStyle = colour('ink');
  pen.stroke();
  pen.fillStyle = colour('faint');
  let left = 4;
  const legend = (words) => {
    const wide = pen.measureText(words).width;
    if (left + wide < width) pen.fillText(words, left, 12);
    left += wide + 16;
  };
  legend('bytes alive, at most ' + bytes(alive));
  if (!lines) return;
  for (const [name, numbers, dash] of [['touched as planned', lines.planned, [4, 3]], ['resident as measured', lines.resident, []]]) {
    pen.beginPath();
    numbers.forEach((number, step) => {
      pen.lineTo(across(step, width), up(number));
      pen.lineTo(across(step + 1, width), up(number));
    });
    pen.strokeStyle = pen.fillStyle = colour(dash.length ? 'data' : 'gradients');
    pen.setLineDash(dash);
    pen.stroke();
    pen.setLineDash([]);
    legend(`${name}, at most ${bytes(Math.max(...numbers))}`);
  }
}

const statesInOrder = [...states].sort((a, b) => map.kinds.indexOf(a.kind) - map.kinds.indexOf(b.kind) || a.offset - b.offset);
const stateBytes = statesInOrder.reduce((sum, state) => sum + state.size, 0) || 1;
function drawStates() {
  const { pen, width } = prepared(element('states'));
  let done = 0;
  const labels = new Map();
  for (const state of statesInOrder) {
    const left = done / stateBytes * width, wide = state.size / stateBytes * width;
    pen.fillStyle = colour(state.kind);
    pen.fillRect(left, 0, Math.max(wide, 0.3), 30);
    if (wide > 3) {
      pen.fillStyle = colour('paper');
      pen.fillRect(left, 0, 0.6, 30);
    }
    const label = labels.get(state.kind) ?? { left, size: 0 };
    labels.set(state.kind, { left: label.left, size: label.size + state.size });
    done += state.size;
  }
  pen.fillStyle = colour('faint');
  for (const [kind, { left, size }] of labels) {
    const fits = (words) => pen.measureText(words).width < size / stateBytes * width;
    const words = [`${kind} ${bytes(size)}`, kind].find(fits);
    if (words) pen.fillText(words, left + 2, 43);
  }
}

function stepText(index) {
  const step = view.routine.steps[index];
  const layer = step.layer < 0 ? '' : `, layer ${step.layer}`;
  return `step ${index}: ${step.op}${layer}${step.backward ? ', gradient' : ''}${step.again ? ', computed again' : ''}`
    + ` (${time(step.seconds)})\nasked for at ${step.line}`;
}
function bufferText(buffer) {
  const writer = view.routine.steps[buffer.first];
  const name = buffer.kind === 'scratch' ? 'scratch' : buffer.type;
  const last = view.routine.steps[buffer.last];
  return `${buffer.kind}: ${name}, ${bytes(buffer.size)} at ${buffer.offset.toLocaleString()}\n`
    + `written by ${stepText(buffer.first)}\n`
    + `needed for ${buffer.last - buffer.first + 1} steps, until step ${buffer.last} (${last.op})`
    + (buffer.over ? '\nwritten over an operand' : '') + (writer.again ? '\nmade a second time, rather than kept' : '');
}
function stateText(state) {
  const written = view.routine.buffers.find((buffer) => buffer.offset === state.offset);
  return `${state.kind}: ${state.name}\n${state.type}, ${bytes(state.size)} at ${state.offset.toLocaleString()}`
    + (written ? `\nwritten by ${stepText(written.first)}` : '');
}

const hover = element('hover');
function tell(event, text) {
  hover.hidden = !text;
  if (!text) return;
  hover.textContent = text;
  // Where it stood must not narrow it now.
  hover.style.left = '0';
  hover.style.left = Math.min(event.clientX + 14, window.innerWidth - hover.offsetWidth - 8) + 'px';
  hover.style.top = Math.min(event.clientY + 14, window.innerHeight - hover.offsetHeight - 8) + 'px';
}
function bufferAt(x, y, width, height) {
  const step = stepAt(view.low + x / width * (view.high - view.low));
  const address = map.start + (1 - y / height) * map.span;
  const here = view.routine.buffers.filter((buffer) => buffer.offset >= map.start && from(buffer) <= step
    && step < to(buffer) && buffer.offset <= address && address < buffer.offset + buffer.size);
  return here[here.length - 1];
}

let dragged = null, marked;
const canvas = element('map');
canvas.addEventListener('mousemove', (event) => {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (dragged !== null) {
    const span = view.high - view.low;
    view.low = Math.min(Math.max(view.low - (event.offsetX - dragged) / width * span, 0), 1 - span);
    view.high = view.low + span;
    dragged = event.offsetX;
    drawTimes();
    return;
  }
  const found = bufferAt(event.offsetX, event.offsetY, width, height);
  if (found !== marked) drawMap((marked = found));
  const step = Math.floor(stepAt(view.low + event.offsetX / width * (view.high - view.low)));
  tell(event, found ? bufferText(found) : 'nothing here at ' + stepText(step));
});
canvas.addEventListener('mousedown', (event) => { dragged = event.offsetX; tell(event, ''); });
window.addEventListener('mouseup', () => { dragged = null; });
canvas.addEventListener('mouseleave', (event) => { tell(event, ''); drawMap((marked = undefined)); });
canvas.addEventListener('wheel', (event) => {
  event.preventDefault();
  const at = view.low + event.offsetX / canvas.clientWidth * (view.high - view.low);
  const span = Math.min(1, Math.max(1e-4, (view.high - view.low) * Math.exp(event.deltaY / 400)));
  view.low = Math.min(Math.max(at - event.offsetX / canvas.clientWidth * span, 0), 1 - span);
  view.high = view.low + span;
  drawTimes();
}, { passive: false });
canvas.addEventListener('dblclick', () => { view.low = 0; view.high = 1; drawTimes(); });
element('states').addEventListener('mousemove', (event) => {
  let rest = event.offsetX / element('states').clientWidth * stateBytes;
  tell(event, stateText(statesInOrder.find((state) => (rest -= state.size) < 0) ?? statesInOrder[0]));
});
element('states').addEventListener('mouseleave', (event) => tell(event, ''));

element('routine').innerHTML = routines.map((routine, index) =>
  `<option value="${index}"${index === map.largest ? ' selected' : ''}>${routine.name} (${routine.steps.length} steps)</option>`).join('');
function drawTimes() {
  drawAlive();
  drawLayers();
  drawMap();
}
function drawWholeMap() {
  drawTimes();
  drawStates();
}
element('routine').addEventListener('change', (event) => {
  Object.assign(view, { routine: routines[event.target.value], low: 0, high: 1 });
  placeSteps();
  drawWholeMap();
});
element('scale').addEventListener('change', () => { placeSteps(); drawTimes(); });
element('colours').addEventListener('change', drawWholeMap);
placeSteps();
whenShownOtherwise(drawWholeMap);
