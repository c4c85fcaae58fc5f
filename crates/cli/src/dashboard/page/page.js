// The page: asks for what is new about every second, and shows it.

import { LineChart, colorOf, node, swatch } from './charts.js';
import { Runs, written } from './data.js';
import { bytes, count, duration } from './format.js';
import { HeatMap } from './heat.js';

const PAUSE = 1000;
// The browser may share its cores with the run, so it rests this many times as long as it took to show what was new.
const REST = 50;
const element = (id) => document.getElementById(id);
const runs = new Runs();

// What all charts share: the runs that are shown, the axis and the cursor on it.
const view = {
  axis: 'step',
  smoothing: 0.3,
  cursor: null,
  charts: [],
  get runs() { return runs.shown; },
  get range() {
    let [low, high] = [Infinity, -Infinity];
    for (const { points } of this.runs) {
      if (points.length === 0) continue;
      low = Math.min(low, points[0][this.axis]);
      high = Math.max(high, points.at(-1)[this.axis]);
    }
    return low < high ? [low, high] : [Math.min(low, 0) || 0, Number.isFinite(high) && high > 0 ? high : 1];
  },
  point(x, chart, top) {
    this.cursor = x;
    chart?.pointAt?.(top);
    this.charts.forEach((chart) => chart.drawCursor());
  },
  // By so many lines of the run that has the most.
  move(by) {
    const most = this.runs.reduce((most, run) => (run.points.length > most.length ? run.points : most), []);
    if (most.length === 0) return;
    const places = most.map((point) => point[this.axis]);
    const now = this.cursor === null ? places.length - 1 : places.findLastIndex((x) => x <= this.cursor);
    const next = this.cursor === null && by === -1 ? now : now + by;
    this.point(places[Math.min(places.length - 1, Math.max(0, next))]);
  },
};

const charts = [
  { id: 'loss', title: 'Loss', height: 330, isWide: true, mayBeLog: true, series: [
    { key: 'loss', name: 'loss', isSmooth: true }, { key: 'validation_loss', name: 'validation', isMarked: true }] },
  { id: 'learning-rate', title: 'Learning rate', series: [{ key: 'learning_rate', name: 'rate' }], mayBeLog: true },
  { id: 'gradient-norm', title: 'Gradient norm', mayBeLog: true, series: [{ key: 'gradient_norm', name: 'norm', isSmooth: true }] },
  { id: 'sharpness', title: 'Sharpness of the loss', isRare: true, mayBeLog: true,
    series: [{ key: 'sharpness', name: 'largest eigenvalue', isMarked: true }] },
  { id: 'speed', title: 'Tokens per second', fromZero: true, format: count,
    series: [{ key: 'tokens_per_second', name: 'tokens/s', isSmooth: true }] },
  { id: 'memory', title: 'Memory', fromZero: true, format: bytes, limit: (run) => run.budget, series: [
    { key: 'memory_bytes', name: 'now' }, { key: 'peak_memory_bytes', name: 'peak', isThin: true }] },
];
const lineCharts = charts.map((about) => new LineChart(view, { height: 190, ...about }));
const heatMap = new HeatMap(view);
element('charts').append(...lineCharts.map(({ figure }) => figure));
element('gradients').append(heatMap.figure);
view.charts = lineCharts;

// What few runs measure has no chart before one does.
const hasFigures = ({ series }) => view.runs.some((run) => run.points.some((point) => series.some(({ key }) => key in point)));

function drawCharts() {
  element('gradients').hidden = !heatMap.run;
  lineCharts.filter(({ isRare }) => isRare).forEach((chart) => { chart.figure.hidden = !hasFigures(chart); });
  const shown = lineCharts.filter(({ figure }) => !figure.hidden);
  view.charts = heatMap.run ? [...shown, heatMap] : shown;
  view.charts.forEach((chart) => chart.draw());
}

// The verdict of the last line, in words.
const healthOf = (last) => last?.verdict?.replaceAll('-', ' ') ?? '';

// The cells of a run in the table, each with what a hover tells.
function cells(run) {
  const { last } = run;
  const validated = run.points.findLast((point) => 'validation_loss' in point);
  const speed = run.recent('tokens_per_second');
  const state = run.state === 'silent' ? `silent for ${duration(run.age)}` : run.state;
  const step = last ? [last.step.toLocaleString('en'), run.steps ? ' / ' + run.steps.toLocaleString('en') : ''].join('') : '';
  const memory = last ? bytes(last.peak_memory_bytes) + (run.budget ? ' / ' + bytes(run.budget) : '') : '';
  return [
    ['state', state, run.folder],
    ['step', step, ''],
    ['loss', last ? written(last.line, 'loss') : '', 'of the last step'],
    ['validation', validated ? written(validated.line, 'validation_loss') : '', validated ? `at step ${validated.step}` : ''],
    ['health', healthOf(last), 'by the gradients and the losses so far'],
    ['tokens/s', speed === null ? '' : Math.round(speed).toLocaleString('en'), 'mean of the last 20 lines'],
    ['memory', memory, 'peak'],
    ['time left', run.secondsLeft === null ? '' : duration(run.secondsLeft), 'by the pace of the last 20 lines'],
  ];
}

// A run's row is made once, so that what has the focus keeps it.
const rows = new Map();
function rowOf(run) {
  if (rows.has(run)) return rows.get(run);
  const toggle = node('input', { type: 'checkbox', checked: '', 'aria-label': `Show ${run.name}` });
  toggle.addEventListener('change', () => {
    run.shown = toggle.checked;
    show();
  });
  const progress = node('progress', { max: 1, value: 0, 'aria-label': `Progress of ${run.name}` });
  const name = node('th', { scope: 'row' }, node('label', { class: colorOf(run) }, toggle, swatch(run), run.name));
  const row = node('tr', {}, name, ...cells(run).map(([label]) => node('td', { 'data-label': label })));
  rows.set(run, { row, progress });
  element('runs').tBodies[0].append(row);
  return rows.get(run);
}

function showRuns() {
  for (const run of runs.all) {
    const { row, progress } = rowOf(run);
    row.classList.toggle('off', !run.shown);
    for (const [index, [label, text, hint]] of cells(run).entries()) {
      const cell = row.cells[index + 1];
      if (cell.firstChild?.data !== text) cell.replaceChildren(text);
      cell.title = hint;
      if (label === 'state') cell.className = 'state ' + run.state.split(' ')[0];
      if (label === 'health') cell.className = text === 'healthy' || !text ? '' : 'unwell';
      if (label === 'step' && run.steps && run.last) cell.append(progress);
    }
    progress.value = run.steps && run.last ? run.last.step / run.steps : 0;
  }
  const thinned = runs.shown.filter((run) => run.isThinned)
    .map((run) => `${run.name}: ${run.points.length.toLocaleString('en')} of ${run.lines.toLocaleString('en')} lines are shown `
      + '(lowest, highest and last loss of each stretch).');
  const problems = runs.all.filter((run) => run.problem && run.state !== 'preparing').map((run) => `${run.name}: ${run.problem}.`);
  element('notes').replaceChildren([...problems, ...thinned].join(' '));
}

function showAlerts() {
  const alerts = runs.shown.flatMap((run) => run.points.filter((point) => point.alerts?.length)
    .flatMap((point) => point.alerts.map((text) => ({ run, step: point.step, text }))));
  const latest = alerts.slice(-30).reverse();
  element('alerts').hidden = latest.length === 0;
  element('alerts').querySelector('ol').replaceChildren(...latest.map(({ run, step, text }) =>
    node('li', { class: colorOf(run) }, swatch(run), node('span', { class: 'faint' }, `${run.name}, step ${step.toLocaleString('en')}`), ' ' + text)));
}

let samplesShown = '';
function showSamples() {
  const samples = runs.shown.flatMap((run) => run.samples.map((sample) => ({ run, ...sample })))
    .sort((a, b) => b.step - a.step || a.run.index - b.run.index).slice(0, 40);
  const now = samples.map(({ run, step }) => `${run.index}:${step}`).join();
  if (now === samplesShown) return;
  samplesShown = now;
  const section = element('samples');
  section.querySelector('p').hidden = samples.length > 0;
  section.querySelector('div').replaceChildren(...samples.map(({ run, step, text, cut }) => node('article', { class: colorOf(run) },
    node('h3', {}, swatch(run), `${run.name}, step ${step.toLocaleString('en')}`), node('p', {}, text + (cut ? ' …' : '')))));
}

let configShown = '';
function showConfig() {
  const shown = runs.shown.filter((run) => run.config.size);
  const keys = [...new Set(shown.flatMap((run) => [...run.config.keys()]))];
  const differs = (key) => new Set(shown.map((run) => run.config.get(key))).size > 1;
  const choice = element('only-different');
  choice.hidden = shown.length < 2;
  const onlyDifferent = shown.length > 1 && choice.querySelector('input').checked;
  const told = keys.filter((key) => !onlyDifferent || differs(key));
  const now = JSON.stringify([onlyDifferent, shown.map((run) => [run.index, ...told.map((key) => run.config.get(key))])]);
  if (now === configShown) return;
  configShown = now;
  const head = node('tr', {}, node('td'), ...shown.map((run) => node('th', { scope: 'col', class: colorOf(run) }, swatch(run), run.name)));
  const body = told.map((key) => node('tr', { class: shown.length > 1 && differs(key) ? 'differs' : '' },
    node('th', { scope: 'row' }, key), ...shown.map((run) => node('td', {}, run.config.get(key) ?? '–'))));
  if (onlyDifferent && told.length === 0) body.push(node('tr', {}, node('td', { colspan: shown.length + 1 }, 'Nothing differs.')));
  element('config').querySelector('table').replaceChildren(node('thead', {}, head), node('tbody', {}, ...body));
}

function show() {
  showRuns();
  showAlerts();
  showSamples();
  showConfig();
  drawCharts();
}

function tell(text, isLost) {
  const connection = element('connection');
  if (connection.textContent !== text) connection.textContent = text;
  connection.classList.toggle('lost', isLost);
}

// When what was changed is drawn; a page that nobody sees is not.
const drawn = () => new Promise((done) => {
  if (document.hidden) return done(performance.now());
  requestAnimationFrame(() => setTimeout(() => done(performance.now())));
});

// Told once when the server is gone: its process has ended, or the way to it.
let lostAt = null;
async function watch() {
  let taken = 0;
  try {
    const isNew = await runs.update();
    const began = performance.now();
    if (isNew || lostAt !== null || rows.size === 0) show(); else showRuns();
    taken = await drawn() - began;
    lostAt = null;
    const running = runs.all.filter((run) => run.state === 'running').length;
    tell(running ? (runs.all.length > 1 ? `${running} of ${runs.all.length} running` : 'live') : '', false);
    const [run] = runs.all;
    document.title = runs.all.length === 1 ? `${run.name} ${run.last ? `${run.last.step}: ${run.last.loss}` : ''}` : `${runs.all.length} runs`;
  } catch {
    lostAt ??= new Date().toLocaleTimeString();
    tell(`No answer since ${lostAt}: the run has ended, or the server was stopped. This is the last that was read.`, true);
  }
  setTimeout(watch, Math.min(Math.max(PAUSE, REST * taken), 10 * PAUSE));
}

element('axis').addEventListener('change', (event) => {
  view.axis = event.target.value;
  view.cursor = null;
  drawCharts();
});
element('smoothing').addEventListener('input', (event) => {
  view.smoothing = Number(event.target.value);
  event.target.setAttribute('aria-valuetext', `${Math.round(100 * view.smoothing)} %`);
  drawCharts();
});
element('only-different').addEventListener('change', showConfig);
new ResizeObserver(drawCharts).observe(element('charts'));
watch();
