// What an episode looks like, with the slider over its steps; without scenes, the observation of each turn.

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import { Board } from "./Board";
import type { Block, Run } from "./data";
import type { Drawn, Scene, Sprite } from "./scenes";
import { plain, visible } from "./text";

/** Characters of an action in a title. */
const MOST_ACTION = 200;

/** The chosen turn and step. A turn begins with the step that the last one ended with, so that the step alone does not say the turn. */
export interface Place {
  turn: number;
  step: number;
}

export const START: Place = { turn: 0, step: 0 };

/** The steps of an episode: its scenes, or, where it has none, its turns and its end. */
export function stepsOf(block: Drawn, within: number): { scenes: Scene[]; count: number } {
  const scenes = block.scenes.of(within);
  return { scenes, count: scenes.length || Math.max(1, block.turnCount(within)) };
}

/** The step that shows what the model read before a turn. */
export function stepBefore(block: Drawn, within: number, turn: number): number {
  const { scenes, count } = stepsOf(block, within);
  if (!scenes.length) return Math.min(turn, count - 1);
  let step = 0;
  scenes.forEach((scene, i) => {
    if (i > 0 && scene.turn < turn) step = i;
  });
  return step;
}

/** The turn that a step belongs to. */
export function turnOf(block: Drawn, within: number, step: number): number {
  const { scenes } = stepsOf(block, within);
  return scenes.length ? scenes[step].turn : step;
}

/** The place of a turn; beyond the last one lies the end of the episode. */
export function placeOf(block: Drawn, within: number, turn: number): Place {
  const last = block.turnCount(within) - 1;
  if (turn > last) return { turn: Math.max(0, last), step: stepsOf(block, within).count - 1 };
  const shown = Math.max(0, turn);
  return { turn: shown, step: stepBefore(block, within, shown) };
}

interface Props {
  block: Drawn;
  /** Position of the episode in the block. */
  within: number;
  sprites: Record<string, Sprite>;
  step: number;
  onStep: (step: number) => void;
  /** What stands in place of a scene before the response of a turn. */
  without: (turn: number) => ComponentChildren;
}

export function Stage({ block, within, sprites, step, onStep, without }: Props) {
  const { scenes, count } = useMemo(() => stepsOf(block, within), [block, within]);
  const at = Math.min(step, count - 1);
  const scene = scenes[at];
  const turn = scene ? scene.turn : at;
  const action = scene?.action ? visible(scene.action.slice(0, MOST_ACTION)) : "";
  const title = scene ? (scene.action === null ? "Start" : `Turn ${turn + 1}, after ${action || "a step"}`) : `Turn ${turn + 1}, before the response`;
  return (
    <div class="stage">
      <h3>
        {title}
        <span class="count">
          {scene ? "step" : "turn"} {at + (scene ? 0 : 1)} of {scene ? count - 1 : count}
        </span>
      </h3>
      {scene ? <Board scene={scene} block={block} sprites={sprites} title={title} /> : without(turn)}
      <Slider at={at} count={count} what={scene ? "Step" : "Turn"} title={title} onMove={onStep} />
    </div>
  );
}

/** The stage of an episode of a run; without scenes, what was read before each response. */
export function RunStage({ run, row, block, step, onStep }: { run: Run; row: number; block: Block; step: number; onStep: (step: number) => void }) {
  const within = run.rows.row[row];
  return (
    <Stage block={block} within={within} sprites={run.entry.sprites} step={step} onStep={onStep} without={(turn) => <Read run={run} block={block} within={within} turn={turn} />} />
  );
}

function Read({ run, block, within, turn }: { run: Run; block: Block; within: number; turn: number }) {
  const read = useMemo(() => {
    const found = block.turns(within)[turn];
    return found ? plain(found.observation, run.pieces) : "";
  }, [block, within, turn]);
  return (
    <>
      <p class="muted">{block.scenes.drawn ? "No board: the states of this episode are not known." : "No boards here; this is the text that was read."}</p>
      <pre class="scene-text">{visible(read.slice(0, 20000))}</pre>
    </>
  );
}

/** Moves over the steps, or turns, of an episode. */
export function Slider({ at, count, what, title, onMove }: { at: number; count: number; what: string; title: string; onMove: (at: number) => void }) {
  return (
    <div class="slider">
      <button type="button" aria-label="Previous step" disabled={at <= 0} onClick={() => onMove(at - 1)}>
        ◀
      </button>
      <input
        type="range"
        min={0}
        max={count - 1}
        value={at}
        aria-label={`${what} of the episode`}
        aria-valuetext={title}
        onInput={(e) => onMove(Number(e.currentTarget.value))}
      />
      <button type="button" aria-label="Next step" disabled={at >= count - 1} onClick={() => onMove(at + 1)}>
        ▶
      </button>
    </div>
  );
}
