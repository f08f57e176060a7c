// The left side: filters and the list of episodes.

import { type Episodes, OUTCOMES, type Outcome } from "./data";
import { ALL, type Filters, NO_FILTERS, rangeFlaw } from "./filters";
import type { useEpisodes } from "./hooks";
import { useKept } from "./kept";
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
  const { filters, setFilters, row, select, rows, none, searched, searchBox } = episodes;
  const [open, setOpen] = useKept("filters are open", false);
  const set = (changed: Partial<Filters>) => setFilters({ ...filters, ...changed });
  const changed = JSON.stringify({ ...filters, order: "" }) !== JSON.stringify({ ...NO_FILTERS, order: "" });
  const range = (label: string, low: "minReturn" | "minTurns", high: "maxReturn" | "maxTurns") => {
    const flaw = rangeFlaw(filters[low], filters[high]);
    const field = (name: typeof low | typeof high, wrong: boolean, which: string) => (
      <input
        inputMode="decimal"
        aria-label={`${which} ${label.toLowerCase()}`}
        aria-invalid={wrong}
        aria-describedby={wrong ? `flaw-${low}` : undefined}
        placeholder="any"
        value={filters[name]}
        onInput={(e) => set({ [name]: e.currentTarget.value })}
      />
    );
    return (
      <div class="range" role="group" aria-label={label}>
        <span>{label}</span>
        {field(low, flaw.low, "Lowest")}
        <span aria-hidden="true">–</span>
        {field(high, flaw.high, "Highest")}
        <span class="flaw" id={`flaw-${low}`} role="status">
          {flaw.word && `✗ ${flaw.word}`}
        </span>
      </div>
    );
  };
  return (
    <>
      <div class="searchbar">
        <input ref={searchBox} type="search" aria-label="Search the text of all episodes" aria-keyshortcuts="/" placeholder="Search all text ( / )" value={filters.text} onInput={(e) => set({ text: e.currentTarget.value })} onKeyDown={leave} />
      </div>
      <div class="filters">
        {run.entry.iterations.length > 0 && (
          <select aria-label="Iteration" value={filters.iteration} onChange={(e) => set({ iteration: Number(e.currentTarget.value) })}>
            <option value={ALL}>{run.entry.recorded}: all</option>
            {run.entry.iterations.map((info) => (
              <option key={info.iteration} value={info.iteration}>
                {capital(info.label)} · {info.recorded} of {info.episodes} episodes
              </option>
            ))}
          </select>
        )}
        <details open={open} onToggle={(e) => setOpen(e.currentTarget.open)}>
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
      {none && <p class="muted pad">No episode passes the filters.</p>}
      <List label="Episodes" count={rows.length} selected={rows.indexOf(row)} onSelect={(position) => select(rows[position])}>
        {(position) => <Entry run={run} row={rows[position]} />}
      </List>
    </>
  );
}

/** In place of a conversation where the list is empty. */
export function NoEpisode() {
  return (
    <article class="middle" aria-label="Conversation">
      <p class="muted pad">No episode passes the filters.</p>
    </article>
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
