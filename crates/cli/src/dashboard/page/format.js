// Numbers as people read them on axes and in tables. What is read off a chart is the text of the file instead.

export function count(number) {
  const units = ['', 'k', 'M', 'G', 'T'];
  let unit = 0;
  while (Math.abs(number) >= 999.5 && unit < units.length - 1) { number /= 1000; unit++; }
  return String(Number(number.toPrecision(3))) + units[unit];
}

// A number of any size with few signs.
export function plain(number) {
  if (number === 0) return '0';
  const size = Math.abs(number);
  if (size >= 1e4) return count(number);
  return size < 1e-2 ? number.toExponential(2).replace(/\.?0+e/, 'e') : String(Number(number.toPrecision(4)));
}

export function bytes(number) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) { number /= 1000; unit++; }
  return `${Number(number.toPrecision(3))} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(1e3 * seconds)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 60) return `${minutes}m${String(Math.floor(seconds % 60)).padStart(2, '0')}s`;
  if (hours < 48) return `${hours}h${String(minutes % 60).padStart(2, '0')}m`;
  return `${days}d${String(hours % 24).padStart(2, '0')}h`;
}
