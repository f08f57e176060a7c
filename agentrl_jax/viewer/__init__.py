"""Shows what an agent did: one HTML file with the recorded rollouts of a run, of two runs, or of another program's log.

`export.write_page` writes it, `live.PageServer` serves it while a run goes on, `scenes` computes the boards of recorded
episodes, `imported` reads other programs' logs, and `log_data` prepares them for the page. The page's sources are in
`web/`; what they build is `page.html`.
"""
