"""Shows what an agent did: one HTML file with the recorded rollouts of a run, or of two runs.

`export.write_page` writes it, `live.PageServer` serves it while a run goes on, `scenes` computes the boards of recorded
episodes, and `imported` reads other programs' logs. The page's sources are in `web/`; what they build is `page.html`.
"""
