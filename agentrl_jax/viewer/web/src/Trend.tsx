// Metrics over iterations, with random and optimal play as lines with bands.

import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";

import type { Baseline, Metric, Run } from "./data";
import { ALL } from "./filters";
import { useKept } from "./kept";
import { counted, number } from "./text";

interface Props {
  run: Run;
  /** The selected iteration, or `ALL`. */
  iteration: number;
  onIteration: (iteration: number) => void;
  theme: string;
}

const HEIGHT = 124;
/** Dashes and gaps of the lines of random and optimal play, pixels; the legend has the same. */
const DASHES: Record<string, number[]> = { random: [1.5, 3], optimal: [6, 3] };
const SUCCESS = ["train/success", "validation/success"];

export function Trend({ run, iteration, onIteration, theme }: Props) {
  const metrics = run.entry.trend.metrics;
  const success = metrics.filter((metric) => SUCCESS.includes(metric.metric));
  const others = metrics.filter((metric) => !SUCCESS.includes(metric.metric));
  const [chosen, choose] = useKept(`metric ${run.entry.name}`, others[0]?.metric ?? "");
  const other = others.find((metric) => metric.metric === chosen);
  if (!metrics.length) return <p class="muted pad">{run.entry.about || "This run has no metrics yet."}</p>;
  const common = { run, iteration, onIteration, theme };
  return (
    <div class="trend">
      {success.length > 0 && <Chart {...common} metrics={success} share label="Success" />}
      {other && (
        <>
          <select aria-label="Metric of the second chart" value={chosen} onChange={(e) => choose(e.currentTarget.value)}>
            {others.map((metric) => (
              <option key={metric.metric} value={metric.metric}>
                {metric.name}
              </option>
            ))}
          </select>
          <Chart {...common} metrics={[other]} label={other.name} />
        </>
      )}
    </div>
  );
}

/** A share without its sign, as in the legend. */
const points = (share: number) => (100 * share).toFixed(1);

/** Both ends of a 95 % interval, such as "13.2 to 17.2"; empty if it is not known. */
const ends = ({ low, high }: Baseline) => (low === null || high === null ? "" : `${points(low)} to ${points(high)}`);

/** The iterations with alarms, and whether one of them was a collapse. */
function alarmedIterations(run: Run): Map<number, boolean> {
  const found = new Map<number, boolean>();
  for (const alarm of run.entry.alarms) for (const it of alarm.iterations) found.set(it, alarm.collapse || (found.get(it) ?? false));
  return found;
}

function Chart({ run, iteration, onIteration, theme, metrics, share, label }: Props & { metrics: Metric[]; share?: boolean; label: string }) {
  const holder = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const selected = useRef(iteration);
  const recorded = useMemo(() => run.entry.iterations.map((info) => info.iteration), [run]);
  const alarmed = useMemo(() => alarmedIterations(run), [run]);
  const choose = useRef(onIteration);
  selected.current = iteration;
  choose.current = onIteration;
  useEffect(() => {
    const element = holder.current!;
    const styles = getComputedStyle(document.documentElement);
    const color = (name: string) => styles.getPropertyValue(name).trim();
    const lines = share ? run.entry.lines : [];
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot(
      {
        width: element.clientWidth || 280,
        height: HEIGHT,
        padding: [8, 16, 0, 0], // half of the last label of the iterations
        scales: { x: { time: false }, y: share ? { range: [-0.02, 1.04] } : {} },
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        axes: [
          { ...axis, size: 22, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
          { ...axis, size: 44, values: (_, ticks) => ticks.map((tick) => (share ? `${Math.round(100 * tick)} %` : number(tick))) },
        ],
        series: [
          {},
          ...metrics.map((metric, i) => ({
            label: metric.name,
            stroke: color(i ? "--series2" : "--series1"),
            width: 2,
            spanGaps: true,
            points: { show: metric.values.filter((value) => value !== null).length < 25, size: 5 },
          })),
        ],
        hooks: {
          drawClear: [
            (u) => {
              for (const line of lines) {
                if (line.low === null || line.high === null) continue;
                const { left, width } = u.bbox;
                const [top, bottom] = [Math.min(1, line.high), line.low].map((end) => Math.round(u.valToPos(end, "y", true)));
                u.ctx.fillStyle = color("--band");
                u.ctx.fillRect(left, top, width, bottom - top);
                // The bands of large evaluations are hardly higher than the lines: edges set them off.
                u.ctx.fillStyle = color("--band-edge");
                for (const y of [top, bottom]) u.ctx.fillRect(left, y - devicePixelRatio / 2, width, devicePixelRatio);
              }
            },
          ],
          draw: [
            (u) => {
              const { ctx, bbox } = u;
              ctx.save();
              ctx.strokeStyle = color("--muted");
              ctx.lineWidth = 1.5 * devicePixelRatio;
              for (const line of lines) {
                ctx.setLineDash((DASHES[line.name] ?? []).map((length) => length * devicePixelRatio));
                const y = u.valToPos(line.mean, "y", true);
                ctx.beginPath();
                ctx.moveTo(bbox.left, y);
                ctx.lineTo(bbox.left + bbox.width, y);
                ctx.stroke();
              }
              ctx.setLineDash([]);
              for (const [it, collapse] of alarmed) {
                const [from, to] = [it - 0.5, it + 0.5].map((x) => Math.round(Math.min(bbox.left + bbox.width, Math.max(bbox.left, u.valToPos(x, "x", true)))));
                ctx.fillStyle = color(collapse ? "--bad" : "--warn");
                ctx.fillRect(from, bbox.top - 6 * devicePixelRatio, Math.max(devicePixelRatio, to - from), 4 * devicePixelRatio);
              }
              ctx.fillStyle = color("--accent");
              for (const it of recorded) {
                const x = u.valToPos(it, "x", true);
                ctx.fillRect(x - 1, bbox.top + bbox.height - 5 * devicePixelRatio, 2 * devicePixelRatio, 5 * devicePixelRatio);
              }
              if (selected.current !== ALL) {
                const x = u.valToPos(selected.current, "x", true);
                ctx.fillRect(x - 1, bbox.top, 2 * devicePixelRatio, bbox.height);
              }
              ctx.restore();
            },
          ],
        },
      },
      [run.entry.trend.iteration, ...metrics.map((metric) => metric.values)] as uPlot.AlignedData,
      element,
    );
    plot.over.addEventListener("click", () => {
      const at = plot.posToVal(plot.cursor.left ?? 0, "x");
      const nearest = recorded.reduce((best, it) => (Math.abs(it - at) < Math.abs(best - at) ? it : best), recorded[0]);
      choose.current(nearest);
    });
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    chart.current = plot;
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [run, theme, metrics.map((metric) => metric.metric).join()]);
  useEffect(() => chart.current?.redraw(false), [iteration]);
  const shown = (value: number | null | undefined) => (value == null ? "–" : share ? `${points(value)} %` : number(value));
  const newest = metrics.map((metric) => ({ name: metric.name, value: metric.values.findLast((value) => value !== null) }));
  const spoken = [
    `${label} over ${run.entry.trend.iteration.length} iterations`,
    ...newest.map((metric) => `${metric.name}, newest ${shown(metric.value)}`),
    ...(share ? run.entry.lines.map((line) => `${line.name} play ${shown(line.mean)}${ends(line) && `, 95 % interval ${ends(line)} %`}`) : []),
    ...(alarmed.size ? [`alarms in ${counted(alarmed.size, "iteration")}`] : []),
  ].join("; ");
  return (
    <figure>
      <figcaption>
        {newest.map((metric, i) => (
          <span key={metric.name} class={`series series${i + 1}`}>
            {metric.name} <b>{shown(metric.value)}</b>
          </span>
        ))}
        {share &&
          run.entry.lines.map((line) => (
            <span key={line.name} class={`series ${line.name}`}>
              {line.name} <b>{shown(line.mean)}</b> {ends(line) && <span class="muted">{ends(line)}</span>}
            </span>
          ))}
        {share && run.entry.lines.some(ends) && <span class="series band">95 % interval</span>}
        {share && [...alarmed.values()].includes(true) && <span class="series alarmed">collapse alarm</span>}
        {share && [...alarmed.values()].includes(false) && <span class="series warned">warning</span>}
      </figcaption>
      <div ref={holder} class="chart" role="img" aria-label={spoken} />
    </figure>
  );
}
