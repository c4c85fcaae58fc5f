// The runs as the server tells of them: lines of metrics.jsonl, held as they are written.

// Lines and characters of a run that are held before the server is asked to thin them again.
const LINES_MAX = 8000;
const CHARACTERS_MAX = 12e6;
// Bytes behind which it is quicker to ask for the history.
const BEHIND_MAX = 2e6;

// What follows a key of the object that a text begins with; undefined where that has none.
export function after(text, key) {
  const wanted = JSON.stringify(key) + ':';
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (sign === '{' || sign === '[') depth++;
    else if (sign === '}' || sign === ']') {
      if (--depth === 0) return undefined;
    } else if (sign === '"') {
      if (depth === 1 && text.startsWith(wanted, at)) return text.slice(at + wanted.length);
      for (at++; at < text.length && text[at] !== '"'; at++) if (text[at] === '\\') at++;
    }
  }
  return undefined;
}

// The text of a figure in a line, exactly as it is written; undefined where the line has none.
export function written(line, key) {
  const value = after(line, key);
  return value && /^\s*([^,}\s]+)/.exec(value)[1];
}

// A flat table of TOML: each key with its value as it is written.
export function settings(text) {
  const pairs = text.split('\n').map((line) => /^([\w-]+) = (.*)$/.exec(line)).filter(Boolean);
  return new Map(pairs.map(([, key, value]) => [key, value.replace(/^"(.*)"$/, '$1')]));
}

class Run {
  constructor(index) {
    Object.assign(this, { index, name: '', folder: '', shown: true, problem: null, age: null, live: false });
    Object.assign(this, { config: new Map(), samples: [], asked: 0 });
    this.forget(undefined);
  }

  forget(generation) {
    Object.assign(this, { generation, points: [], bytes: 0, seconds: 0, lines: 0, isThinned: false, characters: 0 });
  }

  get last() { return this.points.at(-1); }
  get steps() { return Number(this.config.get('steps')) || null; }
  get secondsInAll() { return Number(this.config.get('time')) || null; }
  get budget() { return Number(this.config.get('memory')) || null; }

  // A mean over the last lines, so that one slow step is not taken for all.
  recent(key) {
    const numbers = this.points.slice(-20).map((point) => point[key]).filter(Number.isFinite);
    return numbers.length ? numbers.reduce((sum, number) => sum + number, 0) / numbers.length : null;
  }

  get secondsLeft() {
    if (this.state !== 'running' || !this.last) return null;
    const bySteps = this.steps && (this.steps - this.last.step) * this.recent('step_ms') / 1e3;
    return bySteps ?? (this.secondsInAll && Math.max(0, this.secondsInAll - this.last.seconds));
  }

  // The last line of a session has an account of its memory.
  get state() {
    if (!this.last) return this.live ? 'preparing' : 'no figures';
    if (this.steps && this.last.step >= this.steps) return 'finished';
    if (this.last.account) return this.steps ? 'stopped' : 'ended';
    const patience = Math.max(60, 10 * (this.recent('step_ms') ?? 0) / 1e3);
    return this.live || this.age < patience ? 'running' : 'silent';
  }

  // A line becomes a point: its figures, its text, the seconds of all steps up to it, and whether it is one of a thinned
  // history that is there for its loss alone.
  add(line, seconds, isExtreme = false) {
    const figures = JSON.parse(line);
    this.seconds = seconds ?? this.seconds + (figures.step_ms ?? 0) / 1e3;
    this.points.push({ ...figures, line, seconds: this.seconds, isExtreme });
    this.characters += line.length;
  }

  // Takes whatever is new; gives whether anything is.
  async update(state, isLive) {
    const { name, folder, problem, age, generation, bytes, lines } = state;
    Object.assign(this, { name, folder, problem, age, lines, live: isLive });
    let isNew = false;
    if (generation !== this.generation) this.forget(generation);
    if (this.bytes < bytes) {
      const isHistory = this.bytes === 0 || bytes - this.bytes > BEHIND_MAX;
      isNew = await (isHistory ? this.readHistory() : this.readLines());
      if (this.points.length > LINES_MAX || this.characters > CHARACTERS_MAX) await this.readHistory();
    }
    return await this.readRest() || isNew;
  }

  async readHistory() {
    const text = await ask(`runs/${this.index}/history`);
    if (text === null) return false;
    const [about, ...kept] = text.trimEnd().split('\n');
    const { generation, bytes, lines, seconds } = JSON.parse(about);
    this.forget(generation);
    for (const line of kept) {
      const [, passed, isExtreme, text] = /^\[([^,]*),([01]),(.*)\]$/.exec(line);
      this.add(text, Number(passed), isExtreme === '1');
    }
    Object.assign(this, { bytes, lines, seconds, isThinned: lines > kept.length });
    return true;
  }

  async readLines() {
    const answer = await fetch(`runs/${this.index}/metrics?from=${this.bytes}`);
    const text = answer.ok ? await answer.text() : '';
    if (!text) return false;
    for (const line of text.trimEnd().split('\n')) this.add(line);
    this.bytes += Number(answer.headers.get('Content-Length'));
    return true;
  }

  // The configuration until it is there, and samples every few times.
  async readRest() {
    if (this.config.size === 0 || (this.state === 'preparing' && this.asked % 5 === 0)) {
      this.config = settings(await ask(`runs/${this.index}/config`) ?? '');
    }
    if (this.asked++ % 3) return false;
    const after = this.samples.length ? `?after=${this.samples.at(-1).step}` : '';
    const samples = JSON.parse(await ask(`runs/${this.index}/samples${after}`) ?? '[]');
    // Those of later steps are left from before the run went on from an earlier one.
    const isReached = ({ step }) => this.last && step <= this.last.step;
    this.samples = [...this.samples, ...samples].filter(isReached).slice(-50);
    return samples.length > 0;
  }
}

// The text of an answer; null where the server has none to give now.
async function ask(target) {
  const answer = await fetch(target);
  return answer.ok ? answer.text() : null;
}

export class Runs {
  constructor() { this.all = []; }

  get shown() { return this.all.filter((run) => run.shown); }

  // Asks for all that is new; gives whether anything is.
  async update() {
    const text = await ask('runs');
    if (text === null) throw new Error('busy');
    const { live, runs } = JSON.parse(text);
    let isNew = false;
    for (const [index, state] of runs.entries()) {
      this.all[index] ??= new Run(index);
      isNew = await this.all[index].update(state, live) || isNew;
    }
    return isNew;
  }
}
