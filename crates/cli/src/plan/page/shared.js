'use strict';
const numbers = JSON.parse(document.getElementById('numbers').textContent);
const element = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

function bytes(number) {
  let unit = 0;
  while (number >= 999.5 && unit < 5) { number /= 1000; unit++; }
  const digits = unit === 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  return number.toFixed(digits) + ' ' + ['B', 'KB', 'MB', 'GB', 'TB', 'PB'][unit];
}
function time(seconds) {
  if (seconds < 1e-3) return (1e6 * seconds).toFixed(1) + ' µs';
  if (seconds < 0.1) return (1e3 * seconds).toFixed(1) + ' ms';
  if (seconds < 100) return seconds.toFixed(seconds < 10 ? 3 : 1) + ' s';
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)}m${String(whole % 60).padStart(2, '0')}s`;
}

// Draws now, and again when the window or its colours change.
function whenShownOtherwise(draw) {
  window.addEventListener('resize', draw);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  draw();
}
// Bytes by kind, as a stripe and in words.
function writeKinds(bytesByKind) {
  const kinds = Object.entries(bytesByKind);
  const stripe = kinds.map(([kind, size]) => `<span style="flex:${size} 0 0;background:var(--${kind})"></span>`).join('');
  const legend = kinds.map(([kind, size]) => `<span><i style="background:var(--${kind})"></i>${kind} ${bytes(size)}</span>`);
  element('kinds').innerHTML = `<div class="bar">${stripe}</div>${legend.join('')}`;
}
