// Charts as SVG: lines over an axis that all of them share, with a cursor that is moved by pointer or keys.

import { written } from './data.js';
import { count, duration, plain } from './format.js';

export const AXES = {
  step: { name: 'step', format: count },
  tokens: { name: 'tokens', format: count },
  seconds: { name: 'time', format: duration },
};
const EDGE = { left: 58, right: 14, top: 10, bottom: 24 };
// Runs with the same color differ in their strokes.
const COLORS = 6;
const STROKES = ['', '7 3', '2 3', '9 3 2 3', '1 2', '12 4'];

export function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
export function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// What marks a run wherever it is: a stroke of its color.
export const colorOf = (run) => `color-${run.index % COLORS}`;
const strokeOf = (run) => STROKES[Math.floor(run.index / COLORS) % STROKES.length];
export function swatch(run) {
  const line = drawn('line', { x1: 1, x2: 17, y1: 5, y2: 5, class: 'smooth', 'stroke-dasharray': strokeOf(run) });
  return drawn('svg', { class: `swatch ${colorOf(run)}`, width: 18, height: 10, 'aria-hidden': 'true' }, line);
}

// Round numbers between two, about as many as asked for.
function ticks(low, high, wanted, isTime) {
  const rough = (high - low) / wanted;
  const round = [1, 2, 5, 10].map((by) => by * 10 ** Math.floor(Math.log10(rough)));
  const ofTime = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  const step = (isTime && rough > 1 && ofTime.find((size) => size >= rough)) || round.find((size) => size >= rough);
  if (!(step > 0) || !Number.isFinite(step)) return [low];
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, index) => (first + index) * step);
}
function logTicks(low, high) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) powers.push(power);
  const by = high / low > 1e3 ? [1] : high / low > 30 ? [1, 3] : [1, 2, 3, 5, 7];
  const all = powers.flatMap((power) => by.map((by) => Number((by * 10 ** power).toPrecision(12))));
  const within = all.filter((number) => number >= low * 0.999 && number <= high * 1.001);
  return within.length > 2 ? within : ticks(low, high, 4);
}

// The points of a figure: across, up, and the point itself.
function figuresOf(run, key, axis) {
  const figures = [];
  for (const point of run.points) {
    const x = point[axis], y = point[key];
    if (Number.isFinite(x) && Number.isFinite(y)) figures.push({ x, y, point });
  }
  return figures;
}

// Each figure as the mean of those on both sides, which count less the farther they are across.
function smoothed(figures, width) {
  const sums = figures.map(({ y }) => [-y, -1]);
  for (const order of [figures.keys(), [...figures.keys()].reverse()]) {
    let sum = 0, weight = 0, before = null;
    for (const index of order) {
      const { x, y } = figures[index];
      const kept = before === null ? 0 : Math.exp(-Math.abs(x - before) / width);
      [sum, weight, before] = [sum * kept + y, weight * kept + 1, x];
      sums[index][0] += sum;
      sums[index][1] += weight;
    }
  }
  return figures.map(({ x }, index) => ({ x, y: sums[index][0] / sums[index][1] }));
}

// A path with no more than four points in a column of pixels: the first, the lowest, the highest and the last.
function path(figures, across, up) {
  const parts = [];
  let column = null, held = [];
  const put = () => {
    if (held.length === 0) return;
    const ys = held.map(([, y]) => y);
    const at = new Set([0, ys.indexOf(Math.min(...ys)), ys.indexOf(Math.max(...ys)), held.length - 1]);
    for (const index of [...at].sort((a, b) => a - b)) parts.push(held[index].map((number) => number.toFixed(1)).join(' '));
  };
  for (const { x, y } of figures) {
    const [left, top] = [across(x), up(y)];
    if (!Number.isFinite(top)) continue;
    if (Math.floor(left) !== column) { put(); column = Math.floor(left); held = []; }
    held.push([left, top]);
  }
  put();
  return parts.length ? 'M' + parts.join('L') : '';
}

// The last figure at or before a place, or the first.
export function at(figures, x) {
  let low = 0, high = figures.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (figures[middle].x <= x) low = middle; else high = middle - 1;
  }
  return figures[low];
}

// What a chart looks like in a file of its own: as it is here and now.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const style = ['fill', 'stroke', 'stroke-width', 'stroke-opacity', 'fill-opacity', 'font-size', 'font-family', 'text-anchor'];
  const originals = [...svg.querySelectorAll('*')];
  for (const [index, element] of [...copy.querySelectorAll('*')].entries()) {
    const computed = getComputedStyle(originals[index]);
    for (const name of style) element.setAttribute(name, computed.getPropertyValue(name));
    element.removeAttribute('class');
  }
  copy.querySelectorAll('[data-cursor]').forEach((element) => element.remove());
  for (const name of [...copy.attributes].map(({ name }) => name)) {
    if (!['width', 'height', 'viewBox'].includes(name)) copy.removeAttribute(name);
  }
  const paper = getComputedStyle(document.documentElement).getPropertyValue('--paper').trim();
  copy.prepend(drawn('rect', { width: '100%', height: '100%', fill: paper }));
  return new XMLSerializer().serializeToString(copy);
}
function save(text, name, type) {
  const link = node('a', { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
export function button(text, label, act) {
  const made = node('button', { type: 'button', 'aria-label': label, title: label }, text);
  made.addEventListener('click', act);
  return made;
}

// A chart's frame: its title, what is under the cursor, its buttons and its drawing.
export class Frame {
  constructor(view, { id, title, height, isWide }) {
    Object.assign(this, { view, id, title, height, left: EDGE.left, top: EDGE.top });
    this.svg = drawn('svg', { tabindex: 0, role: 'slider', 'aria-orientation': 'horizontal', height });
    this.buttons = node('div', { class: 'buttons' },
      button('SVG', `Save ${title} as SVG`, () => save(standalone(this.svg), `${id}.svg`, 'image/svg+xml')),
      button('CSV', `Save the figures of ${title} as CSV`, () => save(this.table(), `${id}.csv`, 'text/csv')));
    this.readout = node('output', { class: 'readout', for: id });
    const caption = node('figcaption', {}, node('h2', {}, title), this.buttons);
    this.figure = node('figure', { class: isWide ? 'wide' : '', id }, caption, this.readout, this.svg);
    this.svg.addEventListener('pointermove', (event) => view.point(this.under(event.offsetX), this, event.offsetY));
    this.svg.addEventListener('pointerleave', () => view.point(null));
    this.svg.addEventListener('keydown', (event) => this.key(event));
  }

  get right() { return this.width - EDGE.right; }
  get bottom() { return this.height - EDGE.bottom; }

  // Where a number is, across.
  across(x) {
    const [low, high] = this.view.range;
    return this.left + (x - low) / (high - low || 1) * (this.right - this.left);
  }
  under(left) {
    const [low, high] = this.view.range;
    return low + Math.min(1, Math.max(0, (left - this.left) / (this.right - this.left))) * (high - low);
  }

  key(event) {
    const far = { ArrowLeft: -1, ArrowRight: 1, PageUp: 20, PageDown: -20, Home: -Infinity, End: Infinity }[event.key];
    if (far !== undefined) this.view.move(far * (event.shiftKey ? 10 : 1));
    else if (event.key === 'Escape') this.view.point(null);
    else if (!this.keyUpDown?.(event.key)) return;
    event.preventDefault();
  }

  clear() {
    this.width = Math.max(200, this.svg.clientWidth);
    this.svg.replaceChildren();
    this.svg.setAttribute('viewBox', `0 0 ${this.width} ${this.height}`);
  }

  drawAxis() {
    const { range: [low, high], axis } = this.view;
    const { format, name } = AXES[axis];
    for (const x of ticks(low, high, Math.min(10, (this.right - this.left) / 60), axis === 'seconds')) {
      const left = this.across(x);
      this.svg.append(drawn('text', { x: left, y: this.bottom + 16, class: 'tick middle' }, format(x)));
    }
    this.svg.append(drawn('text', { x: this.left - 8, y: this.bottom + 16, class: 'tick end' }, name));
  }

  // The cursor and what it says, without drawing all else again.
  drawCursor() {
    this.svg.querySelectorAll('[data-cursor]').forEach((element) => element.remove());
    const { cursor, range: [low, high], axis } = this.view;
    const x = cursor ?? high;
    if (cursor !== null) {
      const left = this.across(cursor);
      this.svg.append(drawn('line', { x1: left, x2: left, y1: this.top, y2: this.bottom, class: 'cursor', 'data-cursor': '' }));
    }
    const rows = this.rowsAt(x);
    this.readout.replaceChildren(...rows.map(({ run, texts }) => node('span', { class: 'row' },
      ...(run ? [swatch(run)] : []), ...texts.map(([name, value]) => node('span', {}, name + ' ', node('b', {}, value))))));
    this.svg.setAttribute('aria-label', `${this.title} by ${AXES[axis].name}`);
    this.svg.setAttribute('aria-valuemin', low);
    this.svg.setAttribute('aria-valuemax', high);
    this.svg.setAttribute('aria-valuenow', x);
    const told = rows.map(({ run, texts }) => [run?.name, ...texts.flat()].filter(Boolean).join(' '));
    this.svg.setAttribute('aria-valuetext', told.join('; ') || 'no figures');
  }
}

// Lines over the axis.
export class LineChart extends Frame {
  constructor(view, about) {
    super(view, about);
    Object.assign(this, { series: about.series, format: about.format ?? plain, limit: about.limit, fromZero: about.fromZero, isRare: about.isRare });
    this.isLog = false;
    if (about.mayBeLog) {
      const log = button('log', `Logarithmic scale of ${about.title}`, () => {
        this.isLog = !this.isLog;
        log.setAttribute('aria-pressed', this.isLog);
        this.draw();
      });
      log.setAttribute('aria-pressed', false);
      this.buttons.prepend(log);
    }
  }

  // The numbers from bottom to top.
  domain(lines) {
    let low = Infinity, high = -Infinity;
    for (const { figures } of lines) {
      for (const { y } of figures) {
        if (this.isLog && y <= 0) continue;
        low = Math.min(low, y);
        high = Math.max(high, y);
      }
    }
    for (const run of this.view.runs) {
      const limit = this.limit?.(run);
      if (limit) high = Math.max(high, limit);
    }
    if (low > high) return this.isLog ? [0.1, 1] : [0, 1];
    if (this.isLog) return low === high ? [low / 2, high * 2] : [low / 1.03, high * 1.03];
    if (this.fromZero) return [0, high * 1.06 || 1];
    const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
    return [Math.min(low, Math.max(low - room, low >= 0 ? 0 : -Infinity)), high + room];
  }

  draw() {
    this.clear();
    const { runs, axis, smoothing, range } = this.view;
    this.lines = runs.flatMap((run) => this.series.map((series) =>
      ({ run, series, figures: figuresOf(run, series.key, axis) }))).filter(({ figures }) => figures.length);
    const [low, high] = this.domain(this.lines);
    const scale = this.isLog ? Math.log : (number) => number;
    const up = (y) => this.bottom - (scale(y) - scale(low)) / (scale(high) - scale(low)) * (this.bottom - this.top);
    this.up = (y) => (this.isLog && y <= 0 ? NaN : up(y));
    for (const y of this.isLog ? logTicks(low, high) : ticks(low, high, this.height / 45)) {
      if (y < low || y > high) continue;
      this.svg.append(drawn('line', { x1: this.left, x2: this.right, y1: up(y), y2: up(y), class: 'grid' }),
        drawn('text', { x: this.left - 8, y: up(y) + 4, class: 'tick end' }, this.format(y)));
    }
    this.drawAxis();
    for (const run of runs) this.drawLimit(run);
    const width = smoothing ** 2 * (range[1] - range[0]) / 12;
    for (const line of this.lines) this.drawLine(line, width);
    if (this.lines.length === 0) {
      const middle = { x: (this.left + this.right) / 2, y: this.height / 2, class: 'tick middle' };
      this.svg.append(drawn('text', middle, 'no figures yet'));
    }
    this.drawCursor();
  }

  drawLimit(run) {
    const limit = this.limit?.(run);
    if (!limit) return;
    const y = this.up(limit);
    this.svg.append(drawn('line', { x1: this.left, x2: this.right, y1: y, y2: y, class: `limit ${colorOf(run)}` }),
      drawn('text', { x: this.right, y: y - 5, class: 'tick end' }, 'budget ' + this.format(limit)));
  }

  drawLine({ run, series, figures }, width) {
    const across = (x) => this.across(x);
    const put = (figures, kind, dashes) => this.svg.append(drawn('path',
      { d: path(figures, across, this.up), class: `${kind} ${colorOf(run)}`, 'stroke-dasharray': dashes }));
    const isSmooth = series.isSmooth && width > 0;
    if (isSmooth) put(figures, 'raw', '');
    const typical = figures.filter(({ point }) => !point.isExtreme);
    put(isSmooth ? smoothed(typical, width) : figures, series.isMarked || series.isThin ? 'thin' : 'smooth',
      series.isMarked ? '4 3' : strokeOf(run));
    if (!series.isMarked && figures.length > 1) return;
    for (const { x, y } of figures) {
      if (Number.isFinite(this.up(y))) this.svg.append(drawn('circle', { cx: across(x), cy: this.up(y), r: 3, class: `mark ${colorOf(run)}` }));
    }
  }

  drawCursor() {
    super.drawCursor();
    if (this.view.cursor === null) return;
    for (const { run, figures } of this.lines) {
      const { x, y } = at(figures, this.view.cursor);
      if (!Number.isFinite(this.up(y))) continue;
      this.svg.append(drawn('circle', { cx: this.across(x), cy: this.up(y), r: 4, class: `dot ${colorOf(run)}`, 'data-cursor': '' }));
    }
  }

  // By run: the figures at a place, as they are written in the file.
  rowsAt(x) {
    return this.view.runs.map((run) => {
      const found = this.lines.filter((line) => line.run === run).map(({ series, figures }) => ({ series, ...at(figures, x) }));
      if (found.length === 0) return null;
      const step = found[0].point.step;
      const texts = found.flatMap(({ series, point }) => {
        const figure = [series.name, written(point.line, series.key)];
        return point.step === step ? [figure] : [figure, ['at step', String(point.step)]];
      });
      return { run, texts: [['step', String(step)], ...texts] };
    }).filter(Boolean);
  }

  // Every line that has one of the figures, as it is written.
  table() {
    const keys = ['step', 'tokens', ...this.series.map(({ key }) => key)];
    const rows = this.view.runs.flatMap((run) => run.points
      .filter((point) => this.series.some(({ key }) => key in point))
      .map((point) => [quoted(run.name), point.seconds.toFixed(3), ...keys.map((key) => written(point.line, key) ?? '')]));
    return [['run', 'seconds', ...keys], ...rows].map((row) => row.join(',')).join('\n') + '\n';
  }
}
export const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
