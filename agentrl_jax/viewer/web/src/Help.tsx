import type { RefObject } from "preact";

import type { Index, Quantity } from "./data";
import { number } from "./text";

interface Props {
  dialog: RefObject<HTMLDialogElement | null>;
  index: Index;
  log: "" | "log" | "api";
  /** Whether two runs are compared. */
  compared: boolean;
  /** Whether texts are shown token by token. */
  tokens: boolean;
}

export function Help({ dialog, index, log, compared, tokens }: Props) {
  const keys = [
    ["j, k or ↓, ↑", `next and previous ${compared ? "level" : "episode"}`],
    ["←, →", "previous and next turn"],
    ...(compared ? [] : [["/", "search the text of all episodes; Esc leaves the field"]]),
    ...(tokens ? [["Tab", "to the first sampled token of each turn; ←, →, Home and End move between tokens, Esc leaves"]] : []),
  ];
  return (
    <dialog ref={dialog} aria-labelledby="help-title">
      <h2 id="help-title">Help</h2>
      <h3>Keys</h3>
      <dl class="keys">
        {keys.map(([key, about]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{about}</dd>
          </div>
        ))}
      </dl>
      {log === "api" ? <AboutApi /> : log ? <AboutLogs /> : <AboutRuns index={index} />}
      <form method="dialog">
        <button>Close</button>
      </form>
    </dialog>
  );
}

function AboutLogs() {
  return (
    <>
      <h3>Logs of other programs</h3>
      <p>
        Grey messages were read by the model, framed ones were written by it. A turn is one response with the messages before it. The return is the
        total reward as the program logged it; – means that the log has none. An outcome is unknown where the log does not say whether the task was
        solved. Tokens, boards and a command that replays the episode are not in such logs. Characters that are invisible or change the direction of
        a text are spelled out, like ⟨U+202E⟩. The search finds metadata, too.
      </p>
    </>
  );
}

function AboutApi() {
  return (
    <>
      <h3>API models</h3>
      <p>
        Grey messages were read by the model, framed ones were written by it; what it thought before, where the server gives it apart, is reasoning. A
        turn is one reply with the messages before it. The return is the score. An episode with a reply that was cut by a limit of tokens, or withheld,
        is neither solved nor unsolved, and has no return; an unfinished one has not ended. Numbers of tokens and log-probabilities are the server&apos;s, where it gives
        them; the stronger the color of a token, the less probable it was. Tokens of a text that is not colored are not known. Boards are those of its
        actions, played again. Characters that are invisible or change the direction of a text are spelled out, like ⟨U+202E⟩.
      </p>
    </>
  );
}

function AboutRuns({ index: { precision } }: { index: Index }) {
  const off = (name: Quantity) => `${number(100 * precision[name].share)} % and ${number(precision[name].share * precision[name].scale, 7)}`;
  return (
    <>
      <h3>Tokens</h3>
      <p>
        Grey text was inserted: the prompt and the observations. Colored text was sampled. Underlined tokens were trained on. Special tokens have a
        frame. A sampled newline is ↵. Bytes that are no character alone are hexadecimal, like ⟨E2 82⟩, and characters that are invisible or change
        the direction of a text are spelled out, like ⟨U+202E⟩. The search joins the bytes of a character.
      </p>
      <h3>Numbers</h3>
      <p>
        The log-probability of the rollout is that of the distribution a token was sampled from, in nats. The log-prob gap is what the learner
        computed for the same token before its first step, minus that. Entropy is the learner's. In each iteration, the page stores at most{" "}
        {precision.logprob.levels.toLocaleString("en")} different log-probabilities and entropies, and {precision.gap.levels} different advantages and
        gaps. If an iteration has more, each is replaced by the nearest one stored, 0 by 0. It is then off by at most{" "}
        {off("logprob")} nats as a log-probability, {off("entropy")} nats as an entropy, {off("advantage")} as an advantage and {off("gap")} nats as a
        gap, if no advantage is beyond ±{precision.advantage.most} and no gap beyond ±{precision.gap.most}. Rewards and returns are exact.
      </p>
      <h3>Trend</h3>
      <p>
        The dotted and the dashed line are the success of random and of optimal play, with a band for the 95 % interval over the levels of the final
        evaluation, from the summary of a finished run. Marks at the top are iterations with an alarm or a warning, those at the bottom are recorded iterations; a click chooses the nearest.
      </p>
    </>
  );
}
