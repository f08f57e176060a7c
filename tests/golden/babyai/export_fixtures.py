"""Records levels, play and statistics of the original BabyAI software as fixtures for our tests.

Not a test and not imported by one: it runs once, in an environment of its own, with minigrid 2.3.1 and the environment
file of AgentGym's BabyAI server. Neither is a dependency of this repository and no code of theirs is kept in it. To
recreate everything (Python 3.11; `gym`, `matplotlib` and `PIL` are replaced by empty stand-ins where missing):

    python3.11 -m venv minigrid_venv
    minigrid_venv/bin/pip install minigrid==2.3.1 gymnasium==0.29.1 "numpy<2"
    git clone https://github.com/WooooDyy/AgentGym
    WRAPPER=AgentGym/agentenv-babyai/agentenv_babyai/environment.py
    minigrid_venv/bin/python tests/golden/babyai/export_fixtures.py levels --wrapper $WRAPPER
    minigrid_venv/bin/python tests/golden/babyai/export_fixtures.py traces --wrapper $WRAPPER
    minigrid_venv/bin/python tests/golden/babyai/export_fixtures.py distributions --wrapper $WRAPPER
    minigrid_venv/bin/python tests/golden/babyai/export_fixtures.py layouts --wrapper $WRAPPER

Items: data indices 0 to 2003 of the eighteen levels that AgentGym uses, and seeds 0 to 22 of the other levels, in
increasing order of the index (level = index mod 40 + 1, seed = index div 40). The server creates an environment per
item and resets it twice with the same seed; so does everything here.

`levels.npz` (row n is item n; a string array is fixed-width unicode):
    index i32[N], level i8[N], seed i16[N], mission U[N], goal U[N] (the server's wording of the mission);
    width, height, room_size, num_rows, num_cols i8[N], max_steps i32[N];
    grid i8[N, 22, 22, 3]: type, color and state of the whole level at [y, x] in MiniGrid's codes, 0 outside of it;
    contains i8[N, 22, 22, 2]: type and color of what a box holds, 0 without;
    agent i8[N, 3]: x, y, heading; carrying i8[N, 2]: type and color, 0 without;
    image u8[N, 7, 7, 3]: the first view, at [column, row] as MiniGrid has it;
    instruction u8[B]: UTF-8 bytes of a JSON list with one object per item. Kinds goto, open, pickup: `desc`, `strict`.
        putnext: `desc_move`, `desc_fixed`, `strict`. before, after, and: `a`, `b`, `strict`. A description: `type`,
        `color`, `loc` (each a word or null), `obj_poss` (the positions the verifier holds) and `tracked` (where the
        tracked objects are, null for one in the agent's hands);
    rejected i16[N]: layouts discarded in the first reset; once bool[N]: the second reset gave the level of the first.

`traces.npz`:
    index i32[N]; first_text, first_image u8[N, 8]: digests of what the server's reset returned;
    sequence_item i32[S] (row of `index`), sequence_kind i8[S] (0 uniform, 1 busy hands, 2 greedy, 3 blocked doors, only
        where seeds 0 to 4 have doors, 4 plans of `expert_plans.json`, which `find_expert_plans.py` searched in this
        repository), sequence_start i32[S + 1]: sequence s has the steps from sequence_start[s] up to
        sequence_start[s + 1]. A sequence ends after twenty steps, with `done` or with its plan;
    actions u8[B]: JSON list of action texts; action u16[T]: the text sent, as position in that list; awkward bool[T]:
        it was drawn to provoke a refusal (often in a fifth of the sequences of kinds 0 and 1, now and then in those of
        kind 2) or was not listed;
    reward, score f64[T], done bool[T] as the server returned them; step_count i32[T] of MiniGrid; primitives u8[T]:
        MiniGrid steps of this action; terminated bool[T]: the last of them terminated (false without any);
    agent i8[T, 3] and carrying i8[T, 2] after the step, coded as in the levels;
    text, image u8[T, 8]: digests of the server's observation and of the view the wrapper holds after the step;
    texts u8[B]: zlib-compressed JSON list of full texts: the first observations of the rows in text_item i32[K1], then
        the observations of the steps in text_step i32[K2];
    primitive_item i32[P], primitive_kind i8[P] (0 uniform over the seven actions, 1 drawn to what lies ahead),
        primitive_action u8[P, 60], primitive_image u8[P, 60, 8], primitive_reward f64[P, 60], primitive_terminated
        bool[P, 60], primitive_agent i8[P, 60, 3], primitive_carrying i8[P, 60, 2]: MiniGrid played directly, on after
        a termination.
A digest is blake2b with 8 bytes, of the UTF-8 text or of the view's 147 bytes in C order.

`distributions.json`: see `count_levels`.

`layouts.npz`: seeds 200,000 to 200,249 of the numbers in `record_layouts.NUMBERS`, reset once, with some of the columns
of `levels.npz`. `instruction` is compressed by zlib, and has positions only where the agent carries something.
"""

import argparse
from pathlib import Path

from original import load_wrapper
from record_distributions import export_distributions
from record_layouts import export_layouts
from record_levels import export_levels
from record_traces import export_traces


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("levels", "traces", "distributions", "layouts"))
    parser.add_argument("--wrapper", type=Path, required=True, help="environment.py of AgentGym's BabyAI server")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "fixtures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    module = load_wrapper(options.wrapper)
    exports = {
        "levels": export_levels,
        "traces": export_traces,
        "distributions": export_distributions,
        "layouts": export_layouts,
    }
    exports[options.what](module, options.out)


if __name__ == "__main__":
    main()
