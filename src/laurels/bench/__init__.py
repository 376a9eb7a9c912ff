"""`laurels bench`: Laurels beside other servers and beside the least code that does a part of the same.

- suites.py: what is measured; sides.py: who is measured.
- load.py: the clients; stores.py: private PostgreSQL and Redis servers; peers.py: other servers.
- bare.py, stacks.py: baselines that are HTTP servers; inside.py: baselines without HTTP.
- report.py: the results as text, JSON and Markdown with plots.
"""
