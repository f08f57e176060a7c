"""Players of the original, each drawn to other situations."""

import re

import numpy as np
from minigrid.envs.babyai.core import verifier
from original import LISTING, NAME


def leaf(instr):
    """The clause to work on next."""
    while isinstance(instr, verifier.SeqInstr):
        first, second = ("b", "a") if isinstance(instr, verifier.AfterInstr) else ("a", "b")
        pending = getattr(instr, f"{first}_done") != "success"
        instr = getattr(instr, f"instr_{first if pending else second}")
    return instr


def fits(desc, name):
    words = name.split()
    return desc.type in (None, words[-1]) and desc.color in (None, words[0])


def named(listed, verb, keep):
    """Listed actions `verb <name> <number>` whose name passes."""
    return [a for a in listed if a.startswith(verb + " ") and keep(a[len(verb) + 1 :].rsplit(" ", 1)[0])]


def pick(rng, options, weights=None):
    weights = np.ones(len(options)) if weights is None else np.array(weights, float)
    return options[int(rng.choice(len(options), p=weights / weights.sum()))]


def uniform(rng, game, plan):
    return pick(rng, listed_actions(game))


def listed_actions(game):
    return [a for a in game._get_action_space() if a != LISTING]


def busy_hands(rng, game, plan):
    listed = listed_actions(game)
    hands = ("pickup", "drop", "toggle", "go through")
    return pick(rng, listed, [5 if a.startswith(hands) else 1 for a in listed])


def greedy(rng, game, plan):
    """Goes for the next clause where the menu offers it, otherwise through doors; one action in ten is random."""
    listed = [a for a in listed_actions(game) if game.action_space[a]]
    while plan:
        action = plan.pop(0)
        if action in listed:
            return action
        plan.clear()
    if rng.random() >= 0.1:
        wanted = towards(rng, game, listed, leaf(game.env.unwrapped.instrs), plan)
        if wanted:
            return pick(rng, wanted)
        return explore(rng, game, listed)
    return pick(rng, listed)


def towards(rng, game, listed, clause, plan):
    env = game.env.unwrapped
    ahead = env.grid.get(*env.front_pos)
    hands = env.carrying

    def take(desc):
        if hands is None:
            return named(listed, "pickup", lambda name: fits(desc, name))
        return ["drop"] if "drop" in listed else ["turn left", "turn right"]

    if isinstance(clause, verifier.GoToInstr):
        return named(listed, "go to", lambda name: fits(clause.desc, name))
    if isinstance(clause, verifier.PickupInstr):
        return take(clause.desc)
    if isinstance(clause, verifier.OpenInstr):
        if "toggle" in listed and fits(clause.desc, f"{ahead.color} door"):
            return ["toggle"]
        locked = named(listed, "go to", lambda name: fits(clause.desc, name) and "locked" in name)
        colors = {action.split()[2] for action in locked}
        if hands is not None and hands.type == "key" and hands.color in colors:
            return [action for action in locked if action.split()[2] == hands.color]
        closed = named(listed, "go to", lambda name: fits(clause.desc, name) and "closed" in name)
        keys = [] if hands else named(listed, "pickup", lambda name: name.split()[0] in colors and "key" in name)
        return closed + keys
    if hands is None or not any(hands is thing for thing in clause.desc_move.obj_set):
        return take(clause.desc_move)
    x, y = env.front_pos
    if "drop" in listed and any(abs(x - i) + abs(y - j) == 1 for i, j in clause.desc_fixed.obj_poss):
        return ["drop"]
    if ahead is not None and any(ahead is thing for thing in clause.desc_fixed.obj_set):
        turns = pick(rng, [("turn left", "turn right"), ("turn right", "turn left")])
        plan.extend(["move forward", turns[1]])
        return [turns[0]]
    return named(listed, "go to", lambda name: fits(clause.desc_fixed, name))


def blocker(rng, game, plan):
    """Opens a door and puts something in front of it, so that the way through an open door is barred."""
    listed = [a for a in listed_actions(game) if game.action_space[a]]
    if plan:
        return plan.pop(0)
    env = game.env.unwrapped
    if env.carrying is None:
        things = named(listed, "pickup", lambda name: True)
        return pick(rng, things) if things else explore(rng, game, listed)
    if "toggle" in listed:
        door = f"{env.grid.get(*env.front_pos).color} open door 1"
        around = ["turn left", "turn left"]
        plan.extend([*around, "move forward", *around, "drop", f"go through {door}", f"go to {door}"])
        return "toggle"
    doors = named(listed, "go to", lambda name: "closed" in name)
    return pick(rng, doors) if doors else explore(rng, game, listed)


def expert(rng, game, plan):
    """Follows a plan that was searched with the whole level known."""
    return plan.pop(0)


def explore(rng, game, listed):
    keyless = game.env.unwrapped.carrying is None
    locks = any(
        thing is not None and thing.type == "door" and thing.is_locked for thing in game.env.unwrapped.grid.grid
    )
    weights = []
    for action in listed:
        if action.startswith("toggle and"):
            weights.append(6)
        elif action.startswith(("go through", "move")):
            weights.append(2)
        elif action.startswith("pickup"):
            weights.append(4 if keyless and locks and " key " in action else 0.1)
        elif action == "drop":
            weights.append(0.1)
        elif action.startswith("go to"):
            weights.append(0.3)
        else:
            weights.append(1)
    return pick(rng, listed, weights)


def awkward(rng, game, seen, pattern):
    """An action outside the list, or a listed one in unusual spelling."""
    listed = game._get_action_space()
    way = 15 if scarce(game, pattern) and rng.random() < 0.75 else int(rng.integers(16))
    if way == 0:
        return pick(rng, [LISTING, "check", " CHECK available actions", "let me check"])
    if way == 1:
        return pick(rng, ["", "   "])
    if way == 2:
        return pick(rng, ["nonsense", "go to", "pickup", "go to the moon 1", "toggle and go through", "turn", "done"])
    if way in (3, 4, 5):
        return ("move forward", "drop", "toggle")[way - 3]
    if way == 6:
        verbs = ("pickup", "go to", "go through", "toggle and go through")
        names = re.findall(r"There is a ([a-z ]+) (\d+) ", seen)
        options = [f"{verb} {name} {int(k) + more}" for verb in verbs for name, k in names for more in (0, 1)]
        options = [option for option in options if option not in listed]
        if options:
            return pick(rng, options)
    if way == 7:
        action = pick(rng, listed)
        return pick(rng, [action.upper(), f" {action} ", action.title(), action + "."])
    reasons = {}
    for refused, message in game.error_message.items():
        if pattern.search(message) or not scarce(game, pattern):
            reasons.setdefault(reason(message), []).append(refused)
    return pick(rng, reasons[pick(rng, sorted(reasons))]) if reasons else "drop"


def scarce(game, pattern):
    """Whether a refusal is to be had that seldom is."""
    return any(pattern.search(message) for message in game.error_message.values())


def reason(message):
    """A refusal without its names, numbers and dictionaries."""
    return NAME.sub(
        lambda name: "{" + f"{name[3] or ''} {name[4]}".strip() + "}" if name[4] == "door" else "{object}",
        re.sub(r"\{.*\}", "{dictionary}", message),
    )
