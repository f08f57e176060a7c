// The scenes of the episodes of a block: boards, lists and texts (see envs_jax/scenes.py).

import { type Columns, type Numbers, type Packed, starts } from "./data";

export interface Sprite {
  shape: string;
  color: string;
  label: string;
  turn?: number;
}

/** A title, and entries of a name and a note. */
export interface SceneList {
  title: string;
  entries: [string, string][];
}

export interface Scene {
  turn: number;
  action: string | null;
  /** 0 without a board. */
  width: number;
  height: number;
  cells: Numbers;
  text: string;
  lists: SceneList[];
  /** A data URL; empty without an image. */
  image: string;
}

/** A block whose episodes may have scenes. */
export interface Drawn {
  readonly scenes: Scenes;
  turnCount(within: number): number;
}

export class Scenes {
  /** The names of the sprites of a cell, by the number in `Scene.cells`. */
  readonly stacks: string[][];
  /** Whether the block holds scenes; an episode of it may still have none. */
  readonly drawn: boolean;
  private readonly columns: Columns;
  private readonly header: { texts: string[]; actions: (string | null)[]; images: string[]; lists: SceneList[]; list_sets: number[][] };
  private readonly first: Int32Array;
  private readonly firstCell: Int32Array;

  constructor({ header, columns }: Packed) {
    this.drawn = header.scenes !== undefined;
    this.stacks = header.scenes?.stacks ?? [];
    this.header = header.scenes;
    this.columns = columns;
    const sizes = this.drawn ? Int32Array.from(columns.scene_width, (width, i) => width * columns.scene_height[i]) : new Int32Array();
    this.firstCell = starts(sizes);
    this.first = starts(this.drawn ? columns.scene_count : new Int32Array());
  }

  of(within: number): Scene[] {
    if (!this.drawn) return [];
    const { columns: c, header } = this;
    const scenes = [];
    for (let i = this.first[within]; i < this.first[within + 1]; i++) {
      scenes.push({
        turn: c.scene_turn[i],
        action: header.actions[c.scene_action[i]],
        width: c.scene_width[i],
        height: c.scene_height[i],
        cells: c.scene_cells.subarray(this.firstCell[i], this.firstCell[i + 1]),
        text: header.texts[c.scene_text[i]],
        lists: header.list_sets[c.scene_lists[i]].map((list) => header.lists[list]),
        image: header.images[c.scene_image[i]],
      });
    }
    return scenes;
  }
}
