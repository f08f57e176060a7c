// The board of an episode with the slider over its steps; without scenes, the observation of each turn.

import { useMemo } from "preact/hooks";

import { Board } from "./Board";
import type { Block, Run, Scene } from "./data";
import { parts, visible } from "./text";

interface Props {
  run: Run;
  row: number;
  block: Block;
  step: number;
  onStep: (step: number) => void;
}

/** The steps of an episode: its scenes, or, where it has none, its turns and its end. */
export function stepsOf(block: Block, within: number): { scenes: Scene[]; count: number } {
  const scenes = block.scenes(within);
  return { scenes, count: scenes.length || Math.max(1, block.columns.turns[within]) };
}

/** The step that shows what the model read before a turn. */
export function stepBefore(block: Block, within: number, turn: number): number {
  const { scenes, count } = stepsOf(block, within);
  if (!scenes.length) return Math.min(turn, count - 1);
  let step = 0;
  scenes.forEach((scene, i) => {
    if (i > 0 && scene.turn < turn) step = i;
  });
  return step;
}

/** The turn that a step belongs to. */
export function turnOf(block: Block, within: number, step: number): number {
  const { scenes } = stepsOf(block, within);
  return scenes.length ? scenes[step].turn : step;
}

export function Stage({ run, row, block, step, onStep }: Props) {
  const within = run.rows.row[row];
  const { scenes, count } = useMemo(() => stepsOf(block, within), [block, within]);
  const at = Math.min(step, count - 1);
  const scene = scenes[at];
  const turn = scene ? scene.turn : at;
  const action = scene?.action == null ? "" : visible(scene.action);
  const title = scene ? (at === 0 ? "Start" : `Turn ${turn + 1}, after ${action || "a step"}`) : `Turn ${turn + 1}, before the response`;
  const read = useMemo(() => {
    const found = block.turns(within)[turn];
    return scene || !found ? "" : parts(found.observation, run.pieces).filter((part) => !part.special).map((part) => part.text).join("");
  }, [block, within, turn, scene]);
  return (
    <div class="stage">
      <h3>
        {title}
        <span class="count">
          {scene ? "step" : "turn"} {at + (scene ? 0 : 1)} of {scene ? count - 1 : count}
        </span>
      </h3>
      {scene ? (
        <Board scene={scene} block={block} sprites={run.entry.sprites} title={title} />
      ) : (
        <>
          <p class="muted">{block.drawn ? "No board: the states of this episode could not be computed again." : "No boards here; this is the text that was read."}</p>
          <pre class="scene-text">{visible(read.slice(0, 20000))}</pre>
        </>
      )}
      <Slider at={at} count={count} what={scene ? "Step" : "Turn"} title={title} onMove={onStep} />
    </div>
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
