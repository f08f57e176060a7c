// The log of another program, or the evaluation of an API model: episodes on the left, messages by role in the middle, metadata on the right.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { readAddress, writeAddress } from "./address";
import { logprobClass } from "./colors";
import { Marker } from "./Conversation";
import { useAddress, useBlock, useEpisodes, useScrollToTurn } from "./hooks";
import type { Log, LogBlock, Message } from "./log";
import { More, Passage } from "./Passage";
import { NoEpisode, OutcomeMark, Rows } from "./Rows";
import { placeOf, Stage, START, turnOf } from "./Stage";
import { capital, counted, number, precise, tokenText, visible } from "./text";
import { Inspector, MOST_TOKENS, percent, useTokens } from "./Tokens";

/** Messages that are drawn at first, and further ones each time the reader asks for more. */
const MOST_MESSAGES = 400;

const TITLES: Record<string, string> = { system: "System", user: "User", tool: "Tool", reasoning: "Reasoning", refusal: "Why there is no reply" };

/** The episode that the address names, -1 if it names none. */
const addressed = (log: Log) => log.named(readAddress().get("e") ?? "");

export function LogView({ log, index, pane }: { log: Log; index: number; pane: string }) {
  const [{ turn, step }, setPlace] = useState(START);
  const episodes = useEpisodes(log, () => Math.max(0, addressed(log)), {
    onSelect: () => setPlace(START),
    onTurn: (by) => block && setPlace(placeOf(block, within, turn + by)),
  });
  const { row, select } = episodes;
  useAddress(() => addressed(log) >= 0 && select(addressed(log)));
  const block = useBlock(log, row);
  const within = row < 0 ? 0 : log.within(row);
  useEffect(() => writeAddress({ run: index || "", e: log.name(row) }), [index, row]);
  const staged = block && block.scenes.of(within).length > 0 ? block : null;
  const title = capital(log.label(row));
  return (
    <main class="panes" data-pane={pane}>
      <aside class="left" aria-label="Episodes">
        {log.entry.about && <p class="muted pad">{visible(log.entry.about)}</p>}
        <Rows run={log} episodes={episodes} />
      </aside>
      {episodes.none ? (
        <NoEpisode />
      ) : (
        <>
          <article class="middle" aria-label="Conversation">
            <header class="episode">
              <h2>{title}</h2>
              <OutcomeMark outcome={log.outcome(row)} />
              <span>
                return <b>{number(log.rows.return[row])}</b>
              </span>
              <span>{counted(log.rows.turns[row], "turn")}</span>
              <span>{counted(log.rows.characters[row], "character")}</span>
            </header>
            {block ? <Messages key={row} log={log} row={row} block={block} turn={turn} label={`Conversation of ${title}`} /> : <p class="muted pad">Decoding.</p>}
          </article>
          <aside class="right" aria-label={staged ? "State and metadata" : "Metadata"}>
            {staged && (
              <Stage
                block={staged}
                within={within}
                sprites={log.entry.sprites}
                step={step}
                onStep={(to) => setPlace({ turn: turnOf(staged, within, to), step: to })}
                without={() => null}
              />
            )}
            {block && <Metadata key={row} entries={block.metadata(within)} />}
          </aside>
        </>
      )}
    </main>
  );
}

/** Each response with the messages before it; the last group may have no response. */
function groups(messages: Message[]): Message[][] {
  const found: Message[][] = [];
  let group: Message[] = [];
  for (const message of messages) {
    group.push(message);
    if (message.role === "assistant") {
      found.push(group);
      group = [];
    }
  }
  if (group.length) found.push(group);
  return found;
}

export function Messages({ log, row, block, turn, label }: { log: Log; row: number; block: LogBlock; turn: number; label: string }) {
  const all = useMemo(() => block.messages(log.within(row)), [log, block, row]);
  const [asked, setAsked] = useState(MOST_MESSAGES);
  const responses = useMemo(() => [...all.keys()].filter((i) => all[i].role === "assistant"), [all]);
  const most = Math.max(asked, (responses[turn] ?? 0) + 1);
  const box = useRef<HTMLDivElement>(null);
  const [token, handlers] = useTokens(box);
  useScrollToTurn(box, turn, row);
  const drawn = useMemo(
    () => (
      <>
        {groups(all.slice(0, most)).map((group, i) => (
          <section key={i} class="turn" data-turn={i < responses.length ? i : undefined}>
            {group.map((message, j) => (
              <Said key={j} message={message} turn={i} />
            ))}
          </section>
        ))}
        <More left={all.length - most} what="messages" onMore={() => setAsked(most + MOST_MESSAGES)} />
        {!all.length && <p class="text inserted">This episode has no messages.</p>}
        {all.length <= most && <p class="end">{log.entry.ends[log.outcome(row)]}</p>}
      </>
    ),
    [log, row, all, responses, most],
  );
  return (
    <>
      <div ref={box} class="conversation" role="region" aria-label={label} tabIndex={0} {...handlers}>
        {drawn}
        <Marker box={box} turn={turn} drawn={drawn} />
      </div>
      {log.entry.logprobs && <Inspector token={token < 0 ? null : numbersOf(block, token)} />}
    </>
  );
}

/** What the server said of one token. */
function numbersOf(block: LogBlock, token: number): { text: string; numbers: [string, string][] } {
  const { text, logprob } = block.token(token);
  const numbers: [string, string][] = [
    ["log-prob", precise(logprob)],
    ["probability", percent(logprob)],
  ];
  return { text: tokenText({ text, kind: "text" }), numbers };
}

function Said({ message, turn }: { message: Message; turn: number }) {
  const response = message.role === "assistant";
  const parts = useMemo(() => [{ text: message.text, special: false }], [message]);
  return (
    <section class={response ? "response" : message.role === "reasoning" ? "response reasoning" : `said ${message.role}`}>
      <h3>
        {response ? `Assistant, turn ${turn + 1}` : TITLES[message.role]}{" "}
        <span class="count">
          {message.note && `${visible(message.note)} · `}
          {counted(message.text.length, "character")}
        </span>
      </h3>
      {message.tokens.length ? <Tokens message={message} /> : <Passage parts={parts} className={response ? "" : "inserted"} />}
    </section>
  );
}

/** A text whose tokens are colored by the log-probabilities that the server gave. */
function Tokens({ message: { tokens, from } }: { message: Message }) {
  const [most, setMost] = useState(MOST_TOKENS);
  return (
    <>
      <div class="text" dir="auto">
        {tokens.slice(0, most).map(({ text, logprob }, i) => (
          <span key={i} class={`token ${logprobClass(logprob)}`} data-token={from + i} tabIndex={i ? -1 : 0}>
            {visible(text)}
          </span>
        ))}
      </div>
      <More left={tokens.length - most} what="tokens" onMore={() => setMost(most + MOST_TOKENS)} />
    </>
  );
}

function Metadata({ entries }: { entries: [string, string][] }) {
  return (
    <section>
      <h3>
        Metadata <span class="count">{counted(entries.length, "entry", "entries")}</span>
      </h3>
      <table class="metadata">
        <tbody>
          {entries.map(([name, value], i) => (
            <tr key={i}>
              <th scope="row">
                <Passage parts={[{ text: name, special: false }]} className="" />
              </th>
              <td>
                <Passage parts={[{ text: value, special: false }]} className="" />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
