"""What SciWorld's server tells, recorded; and how AgentGym numbers its items."""

_TABLE = """
0 boil 30 melt 60 freeze 90 change-the-state-of-matter-of 120 use-thermometer 660
measure-melting-point-known-substance 1096 measure-melting-point-unknown-substance 1396 power-component 1416
power-component-renewable-vs-nonrenewable-energy 1436 test-conductivity 2336 test-conductivity-of-unknown-substances
2936 find-living-thing 3236 find-non-living-thing 3536 find-plant 3836 find-animal 4136 chemistry-mix 4168
chemistry-mix-paint-secondary-color 4204 chemistry-mix-paint-tertiary-color 4240 lifespan-longest-lived 4365
lifespan-shortest-lived 4490 lifespan-longest-lived-then-shortest-lived 4615 identify-life-stages-1 4629
identify-life-stages-2 4639
"""
_FIRST = _TABLE.split()
BORDERS = {(int(first), int(after) - 1): task for first, task, after in zip(_FIRST[::2], _FIRST[1::2], _FIRST[2::2])}
"""First and last item of each task."""

HALLWAY = """This room is called the hallway. In it, you see:\x20
\tthe agent
\ta substance called air
\ta picture
You also see:
\tA door to the art studio (that is closed)
\tA door to the bedroom (that is closed)
\tA door to the greenhouse (that is closed)
\tA door to the kitchen (that is closed)
\tA door to the living room (that is closed)
\tA door to the workshop (that is closed)
"""
