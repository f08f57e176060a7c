// The board of a scene as SVG.

import type { ComponentChildren } from "preact";

import type { Drawn, Scene, SceneList, Sprite } from "./scenes";
import { visible } from "./text";

const COLOR = /^(#[0-9a-f]{3,8}|[a-z]{3,30})$/i;

function Shape({ sprite }: { sprite: Sprite }): ComponentChildren {
  const color = COLOR.test(sprite.color) ? sprite.color : "gray";
  switch (sprite.shape) {
    case "square":
      return <rect x="0" y="0" width="1" height="1" fill={color} />;
    case "wall":
      return (
        <>
          <rect x="0" y="0" width="1" height="1" fill={color} />
          <path d="M0 .5H1M.5 0V.5M.25 .5V1M.75 .5V1" stroke="#fff" stroke-opacity=".25" stroke-width=".05" />
        </>
      );
    case "circle":
      return <circle cx=".5" cy=".5" r=".4" fill={color} class="edge" />;
    case "ball":
      return (
        <>
          <circle cx=".5" cy=".5" r=".32" fill={color} class="edge" />
          <circle cx=".4" cy=".4" r=".08" fill="#fff" fill-opacity=".6" />
        </>
      );
    case "dot":
      return <circle cx=".5" cy=".5" r=".14" fill={color} class="edge" />;
    case "triangle":
      return <path d="M.15 .15L.9 .5L.15 .85Z" fill={color} class="edge" transform={`rotate(${90 * (Number(sprite.turn) || 0)} .5 .5)`} />;
    case "diamond":
      return <path d="M.5 .12L.88 .5L.5 .88L.12 .5Z" fill={color} class="edge" />;
    case "key":
      return (
        <g fill="none" stroke={color} stroke-width=".12">
          <circle cx=".5" cy=".28" r=".14" />
          <path d="M.5 .42V.86M.5 .66H.7M.5 .8H.7" />
        </g>
      );
    case "box":
      return (
        <>
          <rect x=".14" y=".14" width=".72" height=".72" rx=".06" fill={color} class="edge" />
          <path d="M.14 .5H.86M.5 .14V.86" stroke="#000" stroke-opacity=".35" stroke-width=".05" />
        </>
      );
    case "door":
      return (
        <>
          <rect x=".06" y=".06" width=".88" height=".88" fill="none" stroke={color} stroke-width=".12" />
          <circle cx=".72" cy=".52" r=".08" fill={color} />
        </>
      );
    case "cross":
      return <path d="M.22 .22L.78 .78M.78 .22L.22 .78" stroke={color} stroke-width=".14" stroke-linecap="round" />;
    default:
      return (
        <text x=".5" y=".74" text-anchor="middle" font-size=".7" font-family="system-ui, sans-serif" fill={color}>
          {[...visible(sprite.label)][0] ?? "?"}
        </text>
      );
  }
}

interface Props {
  scene: Scene;
  block: Drawn;
  sprites: Record<string, Sprite>;
  title: string;
}

export function Board({ scene, block, sprites, title }: Props) {
  const known = (name: string): Sprite => sprites[name] ?? { shape: "letter", color: "gray", label: name };
  const spoken = describe(scene, block, known);
  return (
    <>
      {scene.image && <img class="screenshot" src={scene.image} alt={`${title}: screenshot`} />}
      {scene.width > 0 && (
        <svg class="board" viewBox={`0 0 ${scene.width} ${scene.height}`} role="img" aria-label={`${title}: ${spoken}`}>
          <title>{title}</title>
          {Array.from(scene.cells, (stack, i) => (
            <g key={i} transform={`translate(${i % scene.width} ${Math.floor(i / scene.width)})`}>
              {block.scenes.stacks[stack].length > 0 && <title>{block.scenes.stacks[stack].map((name) => visible(known(name).label)).join(", ")}</title>}
              <rect x="0" y="0" width="1" height="1" class="cell" />
              {block.scenes.stacks[stack].map((name, k) => (
                <Shape key={k} sprite={known(name)} />
              ))}
            </g>
          ))}
        </svg>
      )}
      {scene.lists.map((list, i) => (
        <Listed key={i} list={list} />
      ))}
      {scene.text && <pre class="scene-text">{visible(scene.text)}</pre>}
    </>
  );
}

/** Notes that are longer stand below their name, which opens them. */
const SHORT = 60;

function Listed({ list }: { list: SceneList }) {
  return (
    <div class="listed">
      <h4>{visible(list.title)}</h4>
      <ul>
        {list.entries.map(([name, note], i) => (
          <li key={i}>
            {note.length > SHORT ? (
              <details>
                <summary dir="auto">{visible(name)}</summary>
                <p dir="auto">{visible(note)}</p>
              </details>
            ) : (
              <>
                <span dir="auto">{visible(name)}</span> {note && <span class="note-of">{visible(note)}</span>}
              </>
            )}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** What a board shows in words: where each thing is, and the number of things of which there are many. */
function describe(scene: Scene, block: Drawn, known: (name: string) => Sprite): string {
  const places = new Map<string, string[]>();
  scene.cells.forEach((stack, i) => {
    for (const name of block.scenes.stacks[stack]) {
      const label = known(name).label;
      if (!places.has(label)) places.set(label, []);
      places.get(label)!.push(`row ${Math.floor(i / scene.width) + 1} column ${(i % scene.width) + 1}`);
    }
  });
  return [...places].map(([label, at]) => (at.length > 4 ? `${at.length} times ${label}` : `${label} at ${at.join(", ")}`)).join("; ");
}
