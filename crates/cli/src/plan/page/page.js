const { report } = numbers;

function drawCurve() {
  const points = report.curve;
  if (points.length === 0) return;
  const frame = element('curve');
  const wide = Math.max(frame.clientWidth, 240), end = wide - 30, foot = 280;
  frame.setAttribute('viewBox', `0 0 ${wide} 320`);
  const all = [...points, { memory_bytes: report.peak_bytes, seconds_per_step: report.seconds_per_step }];
  const logs = all.map((point) => Math.log(point.memory_bytes));
  const [least, most] = [Math.min(...logs), Math.max(...logs)];
  const [fast, slow] = [Math.min(...all.map((p) => p.seconds_per_step)), Math.max(...all.map((p) => p.seconds_per_step))];
  const x = (point) => 70 + (Math.log(point.memory_bytes) - least) / Math.max(most - least, 1e-9) * (end - 80);
  const y = (point) => foot - (point.seconds_per_step - fast) / Math.max(slow - fast, 1e-12) * 250;
  const parts = [];
  const text = (at, down, words, anchor) => parts.push(`<text x="${at}" y="${down}" text-anchor="${anchor}">${words}</text>`);
  // Between two points the time is that of the smaller budget.
  const path = points.map((point, index) => index === 0 ? `M${x(point)} ${y(point)}` : `H${x(point)}V${y(point)}`).join('');
  parts.push(`<path d="M70 15V${foot}H${end}" fill="none" stroke="${colour('line')}"/>`);
  parts.push(`<path d="${path}" fill="none" stroke="${colour('weights')}" stroke-width="2"/>`);
  for (const point of points) {
    parts.push(`<circle cx="${x(point)}" cy="${y(point)}" r="4" fill="${colour('weights')}"><title>${bytes(point.memory_bytes)}: `
      + `${time(point.seconds_per_step)} a step, ${Math.round(point.tokens_per_second)} tokens/s, ${point.micro_batch} at once</title></circle>`);
  }
  const chosen = all[all.length - 1];
  parts.push(`<circle cx="${x(chosen)}" cy="${y(chosen)}" r="8" fill="none" stroke="${colour('gradients')}" stroke-width="2.5">`
    + `<title>planned: ${bytes(chosen.memory_bytes)}, ${time(chosen.seconds_per_step)} a step</title></circle>`);
  text(62, y({ seconds_per_step: slow }) + 4, time(slow), 'end');
  text(62, y({ seconds_per_step: fast }) + 4, time(fast), 'end');
  text(70, 300, bytes(points[0].memory_bytes), 'start');
  text(end, 300, bytes(Math.exp(most)), 'end');
  text((70 + end) / 2, 316, 'memory; the ring is what is planned', 'middle');
  frame.innerHTML = parts.join('');
}

function writeSummary() {
  const stated = report.budget_bytes === null ? '' : ` of ${bytes(report.budget_bytes)} stated`;
  element('summary').textContent = `${report.family}, ${report.parameters.toLocaleString()} weights, ${report.batch} sequences of `
    + `${report.sequence} tokens a step, ${report.micro_batch} at once. Predicted: ${bytes(report.peak_bytes)}${stated}, `
    + `${time(report.seconds_per_step)} a step, ${Math.round(report.tokens_per_second).toLocaleString()} tokens/s. `
    + `The smallest budget that works is ${bytes(report.smallest_budget_bytes)}.`;
}
// Rising numbers, those that follow each other joined: 0-3, 5.
function ranges(numbers) {
  const joined = [];
  for (const number of numbers) {
    const last = joined[joined.length - 1];
    if (last && last[1] + 1 === number) last[1] = number; else joined.push([number, number]);
  }
  return joined.map(([from, to]) => from === to ? from : `${from}-${to}`).join(', ');
}
function writeRecomputed() {
  const kinds = new Map();
  for (const row of report.recomputed) {
    const kind = kinds.get(row.operation) ?? { count: 0, bytes: 0, seconds: 0, layers: [] };
    for (const key of ['count', 'bytes', 'seconds']) kind[key] += row[key];
    if (row.layer !== null) kind.layers.push(row.layer);
    kinds.set(row.operation, kind);
  }
  const rows = [...kinds].sort(([a], [b]) => a < b ? -1 : 1).map(([operation, kind]) => `<tr><td>${operation}</td><td>${kind.count}</td>`
    + `<td>${bytes(kind.bytes)}</td><td>${time(kind.seconds)}</td><td>${ranges(kind.layers)}</td></tr>`);
  element('again').innerHTML = '<h2>Computed again</h2>' + (rows.length === 0 ? '<p>Nothing: everything is kept.</p>'
    : `<table><tr><th>operation</th><th>count</th><th>not kept</th><th>adds</th><th>layers</th></tr>${rows.join('')}</table>`);
}

writeSummary();
writeKinds(report.peak_by_kind);
writeRecomputed();
whenShownOtherwise(drawCurve);
