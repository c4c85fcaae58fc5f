// The norms of gradients by weight or layer, as colors over the axis that all charts share.

import { Frame, at, drawn, quoted } from './charts.js';
import { after, written } from './data.js';
import { plain } from './format.js';

// Rows of a heat map: every weight, or the layers where there are too many of those.
const ROWS_MAX = 48;
const layerOf = (name) => /^(.*?\b\d+)\b/.exec(name)?.[1] ?? name;
const ROW_HEIGHT = 12;
const UNDER = 24;
const LEVELS = 10;
// What else is told of a weight: the keys of its figures, and their names.
const FIGURES = [['mean_abs', 'mean'], ['zeros', 'zeros'], ['non_finite', 'not finite'], ['update_ratio', 'update/weight']];

// The norms of gradients, weight by weight or layer by layer.
export class HeatMap extends Frame {
  constructor(view) {
    super(view, { id: 'gradient-map', title: 'Gradient norms', height: 100, isWide: true });
    Object.assign(this, { row: 0, top: 22 });
  }

  get run() { return this.view.runs.find((run) => run.points.some((point) => point.gradients)); }

  // A row's norm in a point, and what is told of it.
  normOf(row, { gradients, line }) {
    const norms = row.names.map((name) => gradients[name]).filter(Number.isFinite);
    if (norms.length === 0) return null;
    const norm = Math.hypot(...norms);
    return { norm, text: row.names.length === 1 ? writtenIn(line, 'gradients', row.names[0]) : plain(norm) };
  }

  draw() {
    const { run } = this;
    if (!run) return;
    this.points = run.points.filter((point) => point.gradients);
    const names = [...new Set(this.points.flatMap(({ gradients }) => Object.keys(gradients)))];
    const groups = Map.groupBy(names, names.length > ROWS_MAX ? layerOf : (name) => name);
    this.rows = [...groups].map(([name, names]) => ({ name, names }));
    this.row = Math.min(this.row, this.rows.length - 1);
    this.height = this.top + ROW_HEIGHT * this.rows.length + UNDER;
    this.svg.setAttribute('height', this.height);
    this.left = this.svg.clientWidth > 700 ? 170 : 70;
    this.clear();
    this.drawCells();
    this.drawAxis();
    this.drawCursor();
  }

  // One path for each level of color.
  drawCells() {
    const columns = Math.min(160, Math.floor((this.right - this.left) / 4));
    const wide = (this.right - this.left) / columns;
    const place = (point) => Math.min(columns - 1, Math.floor((this.across(point[this.view.axis]) - this.left) / wide));
    const cells = Array.from({ length: columns }, () => null);
    for (const point of this.points) cells[place(point)] = point;
    // A column without a point of its own shows the one before it.
    const last = place(this.points.at(-1));
    for (let column = 1; column < last; column++) cells[column] ??= cells[column - 1];
    const norms = this.rows.map((row) => cells.map((point) => point && this.normOf(row, point)?.norm));
    const logs = norms.flat().filter((norm) => norm > 0).map(Math.log10);
    const [low, high] = [Math.min(...logs), Math.max(...logs)];
    const levels = Array.from({ length: LEVELS }, () => '');
    for (const [row, values] of norms.entries()) {
      for (const [column, norm] of values.entries()) {
        if (!Number.isFinite(norm)) continue;
        const share = norm > 0 ? (Math.log10(norm) - low) / (high - low || 1) : 0;
        const [left, top] = [this.left + column * wide, this.top + row * ROW_HEIGHT];
        const cell = `M${left.toFixed(1)} ${top}h${(wide + 0.3).toFixed(1)}v${ROW_HEIGHT - 1}h${(-wide - 0.3).toFixed(1)}z`;
        levels[Math.min(LEVELS - 1, Math.floor(share * LEVELS))] += cell;
      }
    }
    levels.forEach((d, level) => d && this.svg.append(drawn('path', { d, class: `heat-${level}` })));
    this.drawScale(10 ** low, 10 ** high);
    for (const [row, { name }] of this.rows.entries()) {
      if (row % 2 && this.rows.length > 24) continue;
      const label = drawn('text', { x: this.left - 6, y: this.top + row * ROW_HEIGHT + 9, class: 'tick end' }, shortened(name, this.left / 6.5));
      label.append(drawn('title', {}, name));
      this.svg.append(label);
    }
  }

  // What the colors stand for: the lowest norm to the highest, by their logarithms.
  drawScale(low, high) {
    const [wide, left] = [9, this.right - 9 * LEVELS - 62];
    for (let level = 0; level < LEVELS; level++) {
      this.svg.append(drawn('rect', { x: left + level * wide, y: 5, width: wide, height: 9, class: `heat-${level}` }));
    }
    this.svg.append(drawn('text', { x: left - 6, y: 13, class: 'tick end' }, plain(low)),
      drawn('text', { x: left + LEVELS * wide + 6, y: 13, class: 'tick' }, plain(high)));
  }

  keyUpDown(key) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!by) return false;
    this.row = Math.min(this.rows.length - 1, Math.max(0, this.row + by));
    this.drawCursor();
    return true;
  }

  pointAt(top) {
    this.row = Math.min(this.rows.length - 1, Math.max(0, Math.floor((top - this.top) / ROW_HEIGHT)));
  }

  drawCursor() {
    if (!this.rows) return;
    super.drawCursor();
    const y = this.top + this.row * ROW_HEIGHT;
    this.svg.append(drawn('rect', { x: this.left, y: y - 0.5, width: this.right - this.left, height: ROW_HEIGHT, class: 'row-cursor', 'data-cursor': '' }));
  }

  rowsAt(x) {
    if (!this.run || !this.points?.length) return [];
    const { point } = at(this.points.map((point) => ({ x: point[this.view.axis], point })), x);
    const row = this.rows[this.row];
    const found = this.normOf(row, point);
    const texts = [['step', String(point.step)], [row.name, found ? found.text : 'none']];
    if (row.names.length === 1) {
      for (const [key, name] of FIGURES) {
        const text = figureOf(point, row.names[0], key);
        if (text !== undefined) texts.push([name, text]);
      }
    }
    return [{ run: this.run, texts }];
  }

  table() {
    const figures = (point, name) => FIGURES.map(([key]) => figureOf(point, name, key) ?? '');
    const rows = this.points.flatMap((point) => Object.keys(point.gradients).map((name) =>
      [point.step, quoted(name), writtenIn(point.line, 'gradients', name), ...figures(point, name)].join(',')));
    return [['step,weight,norm', ...FIGURES.map(([key]) => key)].join(','), ...rows].join('\n') + '\n';
  }
}
const shortened = (name, signs) => (name.length > signs ? '…' + name.slice(1 - signs) : name);

// A figure of an object within a line.
function writtenIn(line, object, key) {
  return written(after(line, object) ?? '', key);
}

// A figure of a weight besides its norm, exactly as it is written.
function figureOf({ line }, name, key) {
  return writtenIn(after(line, 'health') ?? '', name, key);
}
