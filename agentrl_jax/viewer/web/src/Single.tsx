// One run: trend and episodes on the left, the conversation in the middle, the board on the right.

import { useEffect, useState } from "preact/hooks";

import { readAddress, writeAddress } from "./address";
import { Conversation } from "./Conversation";
import type { Quantity, Run } from "./data";
import { useAddress, useBlock, useEpisodes } from "./hooks";
import { NoEpisode, OutcomeMark, Rows } from "./Rows";
import { Side } from "./Side";
import { placeOf, START, stepBefore, turnOf } from "./Stage";
import { capital, counted, number, visible } from "./text";
import { Trend } from "./Trend";

interface Props {
  run: Run;
  /** Number of the run in the page. */
  index: number;
  quantity: Quantity;
  theme: string;
  pane: string;
}

/** The row that the address names, -1 if it names none. */
function addressed(run: Run): number {
  const address = readAddress();
  const [iteration, within] = [Number(address.get("i")), Number(address.get("r"))];
  return run.rows.row.findIndex((known, row) => known === within && run.rows.iteration[row] === iteration);
}

function startRow(run: Run): number {
  const newest = run.entry.iterations.at(-1)!.iteration;
  const row = addressed(run);
  return row >= 0 ? row : Math.max(0, run.rows.iteration.indexOf(newest));
}

export function Single({ run, index, quantity, theme, pane }: Props) {
  const [{ turn, step }, setPlace] = useState(START);
  const episodes = useEpisodes(run, () => startRow(run), {
    onSelect: () => setPlace(START),
    onTurn: (by) => block && setPlace(placeOf(block, within, turn + by)),
  });
  const { filters, setFilters, row, select } = episodes;
  useAddress(() => addressed(run) >= 0 && select(addressed(run)));
  const block = useBlock(run, row);
  const within = run.rows.row[row];
  useEffect(() => writeAddress({ run: index || "", i: run.rows.iteration[row], r: within, c: quantity }), [index, row, quantity]);
  const showTurn = (to: number) => block && setPlace({ turn: to, step: stepBefore(block, within, to) });
  const title = `${capital(run.part(row))}, row ${within}`;
  return (
    <main class="panes" data-pane={pane}>
      <aside class="left" aria-label="Trend and episodes">
        <Trend run={run} theme={theme} iteration={filters.iteration} onIteration={(iteration) => setFilters({ ...filters, iteration })} />
        <Notes run={run} />
        <Alarms run={run} onAlarm={(alarm) => setFilters({ ...filters, alarm })} />
        <Rows run={run} episodes={episodes} />
      </aside>
      {episodes.none ? (
        <NoEpisode />
      ) : (
        <>
          <article class="middle" aria-label="Conversation">
            <header class="episode">
              <h2>{title}</h2>
              <OutcomeMark outcome={run.outcome(row)} />
              <span>
                return <b>{number(run.rows.return[row])}</b>
              </span>
              <span>{counted(run.rows.turns[row], "turn")}</span>
              {!run.entry.policy && <span>{counted(run.rows.tokens[row], "sampled token")}</span>}
              {block && !run.evaluated && !block.trained(within) && <span class="muted">not trained on</span>}
              <span class="muted">{run.task(row)}</span>
            </header>
            {block ? (
              <Conversation
                key={row}
                run={run}
                row={row}
                block={block}
                quantity={quantity}
                turn={turn}
                onTurn={showTurn}
                label={`Conversation of ${title}`}
              />
            ) : (
              <p class="muted pad">Decoding.</p>
            )}
          </article>
          <aside class="right" aria-label="Board and group">
            {block && <Side run={run} row={row} block={block} step={step} onStep={(to) => setPlace({ turn: turnOf(block, within, to), step: to })} onRow={select} />}
          </aside>
        </>
      )}
    </main>
  );
}

/** What of the run could not be read. */
export function Notes({ run }: { run: Run }) {
  return (
    <>
      {run.entry.notes.map((note) => (
        <p key={note} class="flaw pad">
          {visible(note)}
        </p>
      ))}
    </>
  );
}

function Alarms({ run, onAlarm }: { run: Run; onAlarm: (name: string) => void }) {
  return (
    <>
      {run.entry.alarms.map((alarm) => (
        <button key={alarm.name} type="button" class={`alarm ${alarm.collapse ? "collapse" : ""}`} onClick={() => onAlarm(alarm.name)}>
          <b>{alarm.collapse ? "Collapse alarm" : "Warning"}</b>, {counted(alarm.iterations.length, "iteration")} from {alarm.iterations[0]} on: {alarm.about}
        </button>
      ))}
    </>
  );
}
