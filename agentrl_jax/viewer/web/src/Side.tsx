// The right side: board, siblings of the group, and the command that replays the episode.

import { useMemo, useRef, useState } from "preact/hooks";

import { Board } from "./Board";
import type { Block, Run } from "./data";
import { useBlock } from "./hooks";
import { OutcomeMark } from "./Rows";
import { RunStage } from "./Stage";
import { counted, number, visible } from "./text";

interface Props {
  run: Run;
  row: number;
  block: Block;
  step: number;
  onStep: (step: number) => void;
  onRow: (row: number) => void;
}

/** Boards of a group that are drawn; larger groups are listed without them. */
const MOST_BOARDS = 32;

/** Characters of a reply in the list of the group. */
const MOST_REPLY = 60;

/** What was done in an episode: the names of its actions, or the beginnings of its replies to a service. */
function actsOf(run: Run, row: number, block: Block): string[] {
  const turns = block.turns(run.rows.row[row]);
  if (!run.freeText(row)) return turns.flatMap((turn) => [...turn.actions].map((action) => visible(run.actionName(row, action))));
  const replies = turns.map((turn) => block.reply(turn, run.pieces));
  return replies.map((reply) => visible(reply.slice(0, MOST_REPLY)) + (reply.length > MOST_REPLY ? "…" : ""));
}

export function Side({ run, row, block, step, onStep, onRow }: Props) {
  const siblings = run.siblings(row);
  return (
    <>
      <RunStage run={run} row={row} block={block} step={step} onStep={onStep} />
      <section>
        <h3>{run.entry.replay ? "Replay" : "Level"}</h3>
        {run.entry.replay && <Command text={run.replayCommand(row)} />}
        {run.replayNote(row) && <p class="replay-note">{run.replayNote(row)}</p>}
        {run.level(row) && (
          <p class="muted">
            {run.entry.replay && "Level "}
            <code>{run.level(row)}</code>
          </p>
        )}
      </section>
      <section>
        <h3>
          Group {run.rows.group[row]} <span class="count">{counted(siblings.length, "episode")} of one level</span>
        </h3>
        <div class="siblings" role="group" aria-label="Episodes of the group">
          {siblings.map((sibling) => (
            <Sibling key={sibling} run={run} row={sibling} step={step} chosen={sibling === row} drawn={siblings.length <= MOST_BOARDS} onRow={onRow} />
          ))}
        </div>
      </section>
    </>
  );
}

interface SiblingProps {
  run: Run;
  row: number;
  step: number;
  chosen: boolean;
  drawn: boolean;
  onRow: (row: number) => void;
}

/** An episode of the group, with its board after as many steps as the large one shows, or at its end if it has fewer. */
function Sibling({ run, row, step, chosen, drawn, onRow }: SiblingProps) {
  const block = useBlock(run, row);
  const within = run.rows.row[row];
  const scenes = useMemo(() => (drawn && block ? block.scenes.of(within) : []), [block, within, drawn]);
  const last = scenes.length - 1;
  const at = Math.min(step, last);
  const board = useMemo(
    // The large board says what is where; what has only a text is not repeated for every episode.
    () => scenes[at]?.width > 0 && <Board scene={{ ...scenes[at], text: "" }} block={block!} sprites={run.entry.sprites} title={`Step ${at} of ${last}`} />,
    [scenes, at],
  );
  return (
    <button type="button" class="sibling" aria-pressed={chosen} onClick={() => onRow(row)}>
      <span class="entry-top">
        <OutcomeMark outcome={run.outcome(row)} />
        <span class="number">{number(run.rows.return[row])}</span>
      </span>
      {board && (
        <>
          <span class="small-board" aria-hidden="true">
            {board}
          </span>
          <span class="muted">
            step {at} of {last}
          </span>
        </>
      )}
      <span class="actions">{run.evaluated ? run.part(row) : block && (actsOf(run, row, block).join(" → ") || "no action")}</span>
    </button>
  );
}

function Command({ text }: { text: string }) {
  const code = useRef<HTMLElement>(null);
  const [copied, setCopied] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without permission the text is selected instead, for the keys of the system.
      getSelection()?.selectAllChildren(code.current!);
      setCopied(document.execCommand("copy") ? text : "");
      return;
    }
    setCopied(text);
  };
  return (
    <div class="command">
      <code ref={code}>{text}</code>
      <button type="button" onClick={copy}>
        {copied === text ? "Copied" : "Copy"}
      </button>
    </div>
  );
}
