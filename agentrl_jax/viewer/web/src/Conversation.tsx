// The middle: what the model read and wrote, token by token.

import { Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { COLORINGS } from "./colors";
import type { Block, Numbers, Quantity, Run, Turn } from "./data";
import { useScrollToTurn } from "./hooks";
import { More, Passage } from "./Passage";
import { counted, number, parts, precise, tokenText, visible } from "./text";
import { Inspector, MOST_TOKENS, percent, useTokens } from "./Tokens";

interface Props {
  run: Run;
  row: number;
  block: Block;
  quantity: Quantity;
  turn: number;
  onTurn: (turn: number) => void;
  label: string;
}

export function Conversation({ run, row, block, quantity, turn, onTurn, label }: Props) {
  const within = run.rows.row[row];
  const turns = useMemo(() => block.turns(within), [block, within]);
  const box = useRef<HTMLDivElement>(null);
  const [token, handlers] = useTokens(box);
  useScrollToTurn(box, turn, row);
  const cause = run.rows.truncation[row];
  const drawn = useMemo(
    () => (
      <>
        <Said role="prompt" title="Prompt" tokens={block.prompt(within)} run={run} />
        {turns.map((each, i) => (
          <Fragment key={each.number}>
            {i > 0 && each.attempt !== turns[i - 1].attempt && <h3 class="attempt">Attempt {each.attempt + 1}: the level begins again</h3>}
            <TurnView run={run} row={row} block={block} quantity={quantity} turn={each} onTurn={onTurn} />
          </Fragment>
        ))}
        {block.final(within).length > 0 && <Said role="final" title="Next observation, which was not answered" tokens={block.final(within)} run={run} />}
        <p class="end">
          {run.rows.failed[row]
            ? "The environment failed here; the episode was not trained on."
            : run.rows.success[row]
              ? "The task was solved."
              : cause
                ? `The episode was cut off: ${TRUNCATED[run.entry.truncations[cause - 1]] ?? "a limit was reached"}.`
                : "The episode ended without success."}
          {run.rows.overflow[row] > 0 && " An observation was longer than its limit and was cut."}
        </p>
      </>
    ),
    [run, row, block, within, quantity, turns],
  );
  return (
    <>
      <div ref={box} class={`conversation turn-${turn}`} role="region" aria-label={label} tabIndex={0} {...handlers}>
        {drawn}
        <Marker box={box} turn={turn} drawn={drawn} />
      </div>
      {run.entry.policy ? <div class="inspector muted">{run.entry.about}</div> : <Inspector token={token < 0 ? null : numbersOf(run, block, token)} />}
    </>
  );
}

const TRUNCATED: Record<string, string> = {
  turns: "all turns were played",
  actions: "the limit of actions was reached",
  context: "the context was full",
};

/** Marks the current turn without drawing the tokens again. */
export function Marker({ box, turn, drawn }: { box: { current: HTMLElement | null }; turn: number; drawn: unknown }) {
  useEffect(() => {
    for (const element of box.current!.querySelectorAll("[data-turn]")) {
      if (Number((element as HTMLElement).dataset.turn) === turn) element.setAttribute("aria-current", "step");
      else element.removeAttribute("aria-current");
    }
  }, [turn, drawn]);
  return null;
}

/** A text that was not sampled. */
function Said({ role, title, tokens, run }: { role: string; title: string; tokens: Numbers; run: Run }) {
  const found = useMemo(() => parts(tokens, run.pieces), [tokens, run]);
  return (
    <section class={`said ${role}`}>
      <h3>
        {title} <span class="count">{counted(tokens.length, "token")}</span>
      </h3>
      <Passage parts={found} className="inserted" />
    </section>
  );
}

function TurnView({ run, row, block, quantity, turn, onTurn }: { run: Run; row: number; block: Block; quantity: Quantity; turn: Turn; onTurn: (turn: number) => void }) {
  const [most, setMost] = useState(MOST_TOKENS);
  const count = turn.to - turn.from;
  const tokens = [];
  const { className } = COLORINGS[quantity];
  for (let i = turn.from; i < Math.min(turn.to, turn.from + most); i++) {
    const piece = run.pieces[block.columns.tokens[i]];
    const classes = ["token", className(block.value(quantity, i), block)];
    if (block.columns.trained[i]) classes.push("trained");
    if (piece.kind !== "text") classes.push(piece.kind === "special" ? "special" : "bytes");
    tokens.push(
      <span key={i} class={classes.join(" ")} data-token={i} tabIndex={i === turn.from ? 0 : -1}>
        {tokenText(piece)}
      </span>,
    );
  }
  // A reply to a service is a single action without a name.
  const names = run.freeText(row) ? ["show this turn"] : [...turn.actions].map((action) => run.actionName(row, action));
  return (
    <section class="turn" data-turn={turn.number}>
      <Said role="observation" title={`Turn ${turn.number + 1}`} tokens={turn.observation} run={run} />
      <div class="response">
        <h3>
          Response {!run.entry.policy && <span class="count">{counted(count, "token")}</span>}
        </h3>
        <div class="text" dir="auto">
          {tokens}
        </div>
        <More left={count - most} what="tokens" onMore={() => setMost(most + MOST_TOKENS)} />
        <p class="result">
          <button type="button" class="link" onClick={() => onTurn(turn.number)} aria-label={`Show turn ${turn.number + 1} on the board`}>
            {turn.actions.length ? names.map((name) => visible(name)).join(" → ") : "no action"}
          </button>
          <span>
            reward <b>{number(turn.reward)}</b>
          </span>
          {turn.formatError > 0 && <span class="broken">format broken</span>}
          {!turn.valid && <span class="broken">no valid action</span>}
        </p>
      </div>
    </section>
  );
}

/** What is known of one token. */
function numbersOf(run: Run, block: Block, token: number): { text: string; numbers: [string, string][] } {
  const piece = run.pieces[block.columns.tokens[token]];
  const logprob = block.value("logprob", token);
  return {
    text: tokenText(piece),
    numbers: [
      ["log-prob", precise(logprob)],
      ["probability", percent(logprob)],
      ["entropy", precise(block.value("entropy", token))],
      ["advantage", precise(block.value("advantage", token))],
      ["log-prob gap", precise(block.value("gap", token))],
      ["trained", block.columns.trained[token] ? "yes" : "no"],
      ["id", String(piece.id)],
    ],
  };
}
