// Which color a token gets.

import type { Block, Quantity } from "./data";

export const LEVELS = 8;

export interface Coloring {
  name: string;
  about: string;
  /** What the weakest and the strongest color mean. */
  ends: [string, string];
  /** A CSS class; empty for no color. */
  className: (value: number, block: Block) => string;
}

function sequential(share: number): string {
  const level = Math.round(LEVELS * Math.min(1, Math.max(0, share)));
  return level ? `s${level}` : "";
}

/** The CSS class of a log-probability, in nats. */
export function logprobClass(value: number): string {
  return sequential(Math.sqrt(-value / 6));
}

export const COLORINGS: Record<Quantity, Coloring> = {
  logprob: {
    name: "Log-prob",
    about: "log-probability in the rollout; the stronger the color, the less probable the token was",
    ends: ["probability 1", "below 0.25 %"],
    className: logprobClass,
  },
  entropy: {
    name: "Entropy",
    about: "entropy of the distribution that the token was sampled from; the stronger, the less certain the policy was",
    ends: ["0 nats", "4 nats or more"],
    className: (value) => sequential(Math.sqrt(value / 4)),
  },
  advantage: {
    name: "Advantage",
    about: "advantage that the token was trained with; blue makes it more probable, orange less",
    ends: ["negative", "positive"],
    className: (value, block) => {
      const level = Math.round((LEVELS * Math.abs(value)) / (block.maxAdvantage || 1));
      return level ? `${value > 0 ? "p" : "n"}${level}` : "";
    },
  },
  gap: {
    name: "Log-prob gap",
    about: "difference between the learner's log-probability and that of the rollout, on a logarithmic scale",
    ends: ["10⁻⁶ nats", "1 nat or more"],
    className: (value) => (value ? sequential((Math.log10(Math.abs(value)) + 6) / 6) : ""),
  },
};

export const QUANTITIES = Object.keys(COLORINGS) as Quantity[];
