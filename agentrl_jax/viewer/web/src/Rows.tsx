// The left side: filters and the list of episodes.

import { type Episodes, OUTCOMES, type Outcome } from "./data";
import { type Filters, NO_FILTERS } from "./filters";
import type { useEpisodes } from "./hooks";
import { List } from "./List";
import { capital, counted, number } from "./text";

const MARKS: Record<Outcome, string> = { solved: "✓", unsolved: "✗", truncated: "…", failed: "!", unknown: "?", cut: "…", refused: "!", unfinished: "…" };

export function OutcomeMark({ outcome }: { outcome: Outcome }) {
  return (
    <span class={`outcome ${outcome}`}>
      <span aria-hidden="true">{MARKS[outcome]}</span> {outcome}
    </span>
  );
}

/** Escape leaves a field; browsers would also empty it. */
function leave(event: KeyboardEvent & { currentTarget: HTMLElement }) {
  if (event.key !== "Escape") return;
  event.preventDefault();
  event.currentTarget.blur();
}

interface Props {
  run: Episodes;
  episodes: ReturnType<typeof useEpisodes>;
}

export function Rows({ run, episodes }: Props) {
  const { filters, setFilters, row, select, rows, searched, searchBox } = episodes;
  const set = (changed: Partial<Filters>) => setFilters({ ...filters, ...changed });
  const changed = JSON.stringify({ ...filters, order: "" }) !== JSON.stringify({ ...NO_FILTERS, order: "" });
  const range = (label: string, low: "minReturn" | "minTurns", high: "maxReturn" | "maxTurns") => (
    <div class="range" role="group" aria-label={label}>
      <span>{label}</span>
      <input inputMode="decimal" aria-label={`Lowest ${label.toLowerCase()}`} placeholder="any" value={filters[low]} onInput={(e) => set({ [low]: e.currentTarget.value })} />
      <span aria-hidden="true">–</span>
      <input inputMode="decimal" aria-label={`Highest ${label.toLowerCase()}`} placeholder="any" value={filters[high]} onInput={(e) => set({ [high]: e.currentTarget.value })} />
    </div>
  );
  return (
    <>
      <div class="searchbar">
        <input ref={searchBox} type="search" aria-label="Search the text of all episodes" aria-keyshortcuts="/" placeholder="Search all text ( / )" value={filters.text} onInput={(e) => set({ text: e.currentTarget.value })} onKeyDown={leave} />
      </div>
      <div class="filters">
        {run.entry.iterations.length > 0 && (
          <select aria-label="Iteration" value={filters.iteration} onChange={(e) => set({ iteration: Number(e.currentTarget.value) })}>
            <option value={0}>{run.entry.recorded}: all</option>
            {run.entry.iterations.map((info) => (
              <option key={info.iteration} value={info.iteration}>
                {capital(info.label)} · {info.recorded} of {info.episodes} episodes
              </option>
            ))}
          </select>
        )}
        <details>
          <summary>Filters</summary>
          <fieldset class="outcomes">
            <legend class="unseen">Outcome</legend>
            {run.outcomes.map((outcome) => (
              <label key={outcome}>
                <input
                  type="checkbox"
                  checked={filters.outcomes.includes(outcome)}
                  onChange={(e) => set({ outcomes: OUTCOMES.filter((o) => (o === outcome ? e.currentTarget.checked : filters.outcomes.includes(o))) })}
                />
                <OutcomeMark outcome={outcome} />
              </label>
            ))}
          </fieldset>
          {range("Return", "minReturn", "maxReturn")}
          {range("Turns", "minTurns", "maxTurns")}
          {run.rows.format_errors && (
            <label class="line">
              <span>Format</span>
              <select value={filters.format} onChange={(e) => set({ format: e.currentTarget.value as Filters["format"] })}>
                <option value="any">any</option>
                <option value="broken">broken in some turn</option>
                <option value="kept">kept in all turns</option>
              </select>
            </label>
          )}
          {run.entry.alarms.length > 0 && (
            <label class="line">
              <span>Alarm</span>
              <select value={filters.alarm} onChange={(e) => set({ alarm: e.currentTarget.value })}>
                <option value="">any iteration</option>
                {run.entry.alarms.map((alarm) => (
                  <option key={alarm.name} value={alarm.name}>
                    {alarm.name}, from {alarm.iterations[0]} on
                  </option>
                ))}
              </select>
            </label>
          )}
        </details>
      </div>
      <div class="listhead">
        <span role="status">
          {rows.length.toLocaleString("en")} of {run.count.toLocaleString("en")} episodes
          {filters.text && searched < 1 && ` · searching, ${Math.round(100 * searched)} %`}
        </span>
        {changed && (
          <button type="button" class="link" onClick={() => setFilters({ ...NO_FILTERS, order: filters.order })}>
            Clear filters
          </button>
        )}
        <select aria-label="Order" value={filters.order} onChange={(e) => set({ order: e.currentTarget.value as Filters["order"] })}>
          <option value="recorded">as recorded</option>
          <option value="best">best first</option>
          <option value="worst">worst first</option>
          <option value="longest">{run.rows.tokens ? "most tokens first" : "most text first"}</option>
        </select>
      </div>
      <List label="Episodes" count={rows.length} selected={rows.indexOf(row)} onSelect={(position) => select(rows[position])}>
        {(position) => <Entry run={run} row={rows[position]} />}
      </List>
      {rows.length === 0 && <p class="muted pad">No episode passes the filters.</p>}
    </>
  );
}

function Entry({ run, row }: { run: Episodes; row: number }) {
  const errors = run.rows.format_errors?.[row] ?? 0;
  return (
    <>
      <span class="entry-top">
        <OutcomeMark outcome={run.outcome(row)} />
        <span class="number">{number(run.rows.return[row])}</span>
      </span>
      <span class="entry-bottom">
        <span>{run.label(row)}</span>
        <span>
          {counted(run.rows.turns[row], "turn")}
          {errors > 0 && <span class="broken"> · {errors} broken</span>}
        </span>
      </span>
    </>
  );
}
