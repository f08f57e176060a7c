// The right side: board, siblings of the group, and the command that replays the episode.

import { useRef, useState } from "preact/hooks";

import type { Block, Run } from "./data";
import { OutcomeMark } from "./Rows";
import { Stage } from "./Stage";
import { counted, number, visible } from "./text";

interface Props {
  run: Run;
  row: number;
  block: Block;
  step: number;
  onStep: (step: number) => void;
  onRow: (row: number) => void;
}

export function actionsOf(run: Run, row: number, block: Block): string[] {
  return block.turns(run.rows.row[row]).flatMap((turn) => [...turn.actions].map((action) => visible(run.actionName(row, action))));
}

export function Side({ run, row, block, step, onStep, onRow }: Props) {
  const siblings = run.siblings(row);
  return (
    <>
      <Stage run={run} row={row} block={block} step={step} onStep={onStep} />
      <section>
        <h3>{run.entry.replay ? "Replay" : "Level"}</h3>
        {run.entry.replay && <Command text={run.replayCommand(row)} />}
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
            <button key={sibling} type="button" class="sibling" aria-pressed={sibling === row} onClick={() => onRow(sibling)}>
              <span class="entry-top">
                <OutcomeMark outcome={run.outcome(sibling)} />
                <span class="number">{number(run.rows.return[sibling])}</span>
              </span>
              <span class="actions">{run.evaluated ? run.part(sibling) : actionsOf(run, sibling, block).join(" → ") || "no action"}</span>
            </button>
          ))}
        </div>
      </section>
    </>
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
