"""What SciWorld's server tells, recorded; and how AgentGym numbers its items."""

BORDERS = {
    (0, 29): "boil",
    (30, 59): "melt",
    (60, 89): "freeze",
    (90, 119): "change-the-state-of-matter-of",
    (120, 659): "use-thermometer",
    (660, 1095): "measure-melting-point-known-substance",
    (1096, 1395): "measure-melting-point-unknown-substance",
    (1396, 1415): "power-component",
    (1416, 1435): "power-component-renewable-vs-nonrenewable-energy",
    (1436, 2335): "test-conductivity",
    (2336, 2935): "test-conductivity-of-unknown-substances",
    (2936, 3235): "find-living-thing",
    (3236, 3535): "find-non-living-thing",
    (3536, 3835): "find-plant",
    (3836, 4135): "find-animal",
    (4136, 4167): "chemistry-mix",
    (4168, 4203): "chemistry-mix-paint-secondary-color",
    (4204, 4239): "chemistry-mix-paint-tertiary-color",
    (4240, 4364): "lifespan-longest-lived",
    (4365, 4489): "lifespan-shortest-lived",
    (4490, 4614): "lifespan-longest-lived-then-shortest-lived",
    (4615, 4628): "identify-life-stages-1",
    (4629, 4638): "identify-life-stages-2",
}
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
