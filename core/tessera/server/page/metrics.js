// Prometheus text, as GET /metrics answers it: its values, and what follows from two readings.

const PREFIX = "tessera:";
const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;

// One reading. time: seconds on the page's clock.
export class Reading {
  constructor(text, time) {
    this.time = time;
    this.series = new Map();
    for (const line of text.split("\n")) {
      const found = line.startsWith("#") ? null : LINE.exec(line);
      if (!found || !found[1].startsWith(PREFIX)) continue;
      const name = found[1].slice(PREFIX.length);
      if (!this.series.has(name)) this.series.set(name, []);
      this.series.get(name).push({ labels: labelsOf(found[2] ?? ""), value: Number(found[3]) });
    }
  }

  all(name) {
    return this.series.get(name) ?? [];
  }

  // The sum over all labels; 0 if there is no such metric.
  value(name) {
    return this.all(name).reduce((sum, one) => sum + one.value, 0);
  }

  // { bounds, counts, sum }: counts[i] is the number of values above bounds[i - 1] and at most bounds[i].
  histogram(name) {
    const buckets = this.all(`${name}_bucket`);
    const totals = buckets.map(one => one.value);
    return {
      bounds: buckets.map(one => one.labels.le === "+Inf" ? Infinity : Number(one.labels.le)),
      counts: totals.map((total, index) => total - (totals[index - 1] ?? 0)),
      sum: this.value(`${name}_sum`),
    };
  }
}

function labelsOf(text) {
  const unescaped = value => value.replace(/\\(.)/g, (_, character) => character === "n" ? "\n" : character);
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) => [name, unescaped(value)]));
}

// How fast a counter grew between two readings, per second. A counter that fell was begun again by a new server.
export function rate(name, earlier, later) {
  const seconds = later.time - earlier.time;
  return seconds > 0 ? Math.max(0, later.value(name) - earlier.value(name)) / seconds : 0;
}

// What a histogram gained since an earlier reading of it.
export function gained(later, earlier) {
  const counts = later.counts.map((count, index) => Math.max(0, count - (earlier.counts[index] ?? 0)));
  return { bounds: later.bounds, counts, sum: later.sum - earlier.sum };
}

export function total(histogram) {
  return histogram.counts.reduce((sum, count) => sum + count, 0);
}

// The value below which a share of the values lies, interpolated within its bucket; null if there are no values.
export function quantile(histogram, share) {
  const wanted = share * total(histogram);
  let below = 0;
  for (const [index, count] of histogram.counts.entries()) {
    if (count && below + count >= wanted) {
      const low = histogram.bounds[index - 1] ?? 0, high = histogram.bounds[index];
      return high === Infinity ? low : low + (high - low) * (wanted - below) / count;
    }
    below += count;
  }
  return null;
}
