const { report } = numbers;
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const milliseconds = (ms) => time(ms / 1e3);
const escaped = (words) => words.replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
const row = (cells, tag = 'td') => `<tr>${cells.map((cell) => `<${tag}>${cell}</${tag}>`).join('')}</tr>`;
const table = (head, rows) => `<table>${row(head, 'th')}${rows.join('')}</table>`;
const bar = (share, most) => `<span class="measure" style="width:${(7 * share / Math.max(most, 1e-9)).toFixed(2)}rem"></span>`;

function writeSummary() {
  element('summary').textContent = `${report.run}. ${milliseconds(report.step_ms)} a step, `
    + `${Math.round(report.tokens_per_second).toLocaleString()} tokens/s: the median of ${report.steps} steps; `
    + `timing them adds ${percent(report.profiled_step_ms / report.step_ms - 1)}.`;
  const found = report.findings.map(({ text }) => `<li>${escaped(text)}</li>`);
  element('findings').innerHTML = found.join('') || '<li class="fine">Nothing is wrong: no step waits, allocates or grows.</li>';
}
function writeParts() {
  const stripe = report.parts.map(({ name, ms }) => `<span title="${name} ${milliseconds(ms)}" style="flex:${Math.max(ms, 0)} 0 0;background:var(--${name})"></span>`);
  const legend = report.parts.map(({ name, ms, share }) => `<span><i style="background:var(--${name})"></i>${name} ${milliseconds(ms)} (${percent(share)})</span>`);
  element('parts').innerHTML = `<div class="bar">${stripe.join('')}</div>${legend.join('')}`;
  const gains = [...report.operations, ...report.parts.filter(({ name }) => name === 'data')]
    .sort((a, b) => b.ms - a.ms).slice(0, 4).filter((part) => part.gain_if_twice_as_fast >= 0.01);
  element('what-if').textContent = gains.map((part) => `${part.name} twice as fast: step ${percent(part.gain_if_twice_as_fast, 0)} faster`).join(' · ');
}
function writeOperations() {
  const optional = (share) => share === null ? '' : percent(share, 0);
  const most = Math.max(...report.operations.map(({ share }) => share));
  const rows = report.operations.map((of) => row([of.name, of.count, milliseconds(of.ms), percent(of.share), bar(of.share, most), of.bound ?? '',
    optional(of.share_of_limit), of.gflop_per_second.toFixed(1), of.gb_per_second.toFixed(1), milliseconds(of.predicted_ms),
    optional(of.busy_share), percent(of.gain_if_twice_as_fast)]));
  element('operations').innerHTML = table(['operation', 'count', 'time', 'of step', '', 'bound by', 'of limit', 'GFLOP/s', 'GB/s', 'predicted', 'busy', 'twice as fast'], rows);
  const layers = report.layers.map((of) => row([of.name, milliseconds(of.ms), percent(of.share), milliseconds(of.forward_ms), milliseconds(of.backward_ms), milliseconds(of.update_ms)]));
  element('by-layer').innerHTML = table(['layer', 'time', 'of step', 'forward', 'backward', 'update'], layers);
}
function writeWorkers() {
  const rows = report.workers.map((of, index) => row([index, milliseconds(of.busy_ms), milliseconds(of.idle_ms), percent(of.idle_share)]));
  element('workers').innerHTML = rows.length ? table(['worker', 'busy', 'idle', 'of step'], rows) : '<p>The device does not tell its workers apart.</p>';
  const { fill_ms: fill, tokens_per_second: rate, stages } = report.data;
  const loading = fill === null ? [] : [`A batch is filled in ${milliseconds(fill)}: ${Math.round(rate).toLocaleString()} tokens/s, on a thread of its own.`];
  const before = stages.map((of) => `Before the first step, ${of.what}: ${bytes(of.bytes)} in ${time(of.seconds)}, ${bytes(of.bytes_per_second)}/s`
    + (of.tokens_per_second === null ? '.' : `, ${Math.round(of.tokens_per_second).toLocaleString()} tokens/s.`));
  element('data').textContent = [...loading, ...before].join(' ');
}
function writeAllocations() {
  const found = report.allocations;
  element('allocations').textContent = found === null ? 'Not counted.'
    : `${found.calls} in ${2 * report.steps} steps (expected: ${found.expected}).`;
  const offenders = (found?.offenders ?? []).map((of) => `<p>${of.phase}: ${of.seen.calls} of those looked at, ${bytes(of.seen.bytes)}</p><pre>${escaped(of.stack.join('\n'))}</pre>`);
  element('offenders').innerHTML = offenders.join('');
}
function writeMemory() {
  writeKinds(Object.fromEntries([...map.kinds, 'unexplained'].map((kind) => [kind, report.memory_bytes[kind]])));
  element('growth').textContent = `${bytes(report.peak_memory_bytes)} at most, ${bytes(report.predicted_memory_bytes)} predicted; ${report.growth}.`;
  // Points of a name that follow each other are one row, with the last of them.
  const stretches = [];
  for (const point of report.points) {
    const last = stretches[stretches.length - 1];
    if (last && last.point.name === point.name) Object.assign(last, { point, count: last.count + 1 }); else stretches.push({ point, count: 1 });
  }
  let before = null;
  const rows = stretches.map(({ point, count }) => {
    const change = before === null ? '' : (point.resident < before ? '−' : '+') + bytes(Math.abs(point.resident - before));
    before = point.resident;
    return row([escaped(point.name) + (count > 1 ? ` × ${count}` : ''), time(point.at), bytes(point.resident), change, point.heap === null ? '' : point.heap.toLocaleString()]);
  });
  element('points').innerHTML = table(['at', 'after', 'resident', 'change', 'bytes on the heap'], rows);
}
// What is held after each step, beyond what was held after the first: a line that rises is a leak.
function drawSteps() {
  const frame = element('steps'), wide = Math.max(frame.clientWidth, 240);
  frame.setAttribute('viewBox', `0 0 ${wide} 130`);
  const lines = [['the process', report.process_growth, 'weights'], ['the heap', report.heap_growth ?? [], 'gradients']].filter(([, line]) => line.length > 1);
  const all = lines.flatMap(([, line]) => line);
  const low = Math.min(0, ...all), high = Math.max(4096, ...all);
  const y = (number) => 100 - (number - low) / (high - low) * 75;
  const signed = (number) => (number < 0 ? '−' : '+') + bytes(Math.abs(number));
  frame.innerHTML = `<path d="M10 ${y(0)}H${wide - 10}" stroke="${colour('line')}"/>` + lines.map(([name, line, tone], index) => {
    const points = line.map((number, step) => `${10 + step / (line.length - 1) * (wide - 20)},${y(number)}`).join(' ');
    return `<polyline points="${points}" fill="none" stroke="${colour(tone)}" stroke-width="2"/>`
      + `<text x="10" y="${12 + 14 * index}" style="fill:${colour(tone)}">${name} after each step: ${signed(line[line.length - 1])} at the end</text>`;
  }).join('') + `<text x="${wide - 10}" y="122" text-anchor="end">steps</text>`;
}

writeSummary();
writeParts();
writeOperations();
writeWorkers();
writeAllocations();
writeMemory();
whenShownOtherwise(drawSteps);
