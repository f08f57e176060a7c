"""The page that shows what an agent did: one HTML file with the recorded rollouts of a run, or of two runs.

`export.write_page` writes it, `live.PageServer` serves it while a run goes on, and `scenes` computes the boards of
recorded episodes. The page's sources are in `web/`; what they build is `page.html`.
"""
